"""Bodies that both the user API and the runner protocol use, and their conversion to the model."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool, StringConstraints

from delegate.model import Change, Checkpoint, EffectKind, EffectState, Result, Source, Usage
from delegate.model import Field as PreferenceField
from delegate.wire.basics import (
    NO_NUL,
    PATCH_MAX,
    AgentText,
    BranchName,
    CommitId,
    Count,
    Line,
    Name,
    Summary,
    TaskStatus,
    Text,
    Title,
    Wire,
    without_nul,
)


class IssueView(Wire):
    key: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]{0,19}-[0-9]{1,9}$")]
    title: Title
    url: Annotated[str, StringConstraints(max_length=2000, pattern=r"""^https?://[^\s\x00-\x1f<>"]+$""")] | None = None
    review_state: Line | None = None


class UsageView(Wire):
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    cost_usd: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    turns: Count = 0


class ChoiceView(Wire):
    """The value chosen for one preference, and its source."""

    field: PreferenceField
    value: Line
    source: Source


class ResultView(Wire):
    summary: Summary = ""
    base: BranchName | None = None
    base_commit: CommitId | None = None
    branch: BranchName | None = None
    commit: CommitId | None = None
    pull_request: Line | None = None
    files: Count = 0
    additions: Count = 0
    deletions: Count = 0
    checks_passed: Count = 0
    checks_total: Count = 0
    is_kept: StrictBool = False


class ChangeView(Wire):
    """A task's diff against its base; a long `patch` is cut."""

    base_commit: CommitId
    commit: CommitId
    patch: Annotated[str, StringConstraints(max_length=PATCH_MAX), AfterValidator(without_nul), NO_NUL]
    is_cut: StrictBool = False


class CheckpointView(Wire):
    session_id: Name | None = None
    branch: BranchName | None = None
    base_commit: CommitId | None = None
    commit: CommitId | None = None
    dirty_files: Annotated[list[Line], Field(max_length=200)] | None = None  # null: not known
    output_tail: Annotated[list[Line], Field(max_length=50)] = []
    error: Text | None = None
    summary: Summary = ""
    is_work_done: StrictBool = False
    usage: UsageView = Field(default_factory=UsageView)


class QuestionView(Wire):
    """A question from an agent; `answer` is null until it is answered."""

    text: Text
    options: Annotated[list[Line], Field(max_length=20)] = []
    asked_at: datetime
    answer: AgentText | None = None


class ContinuedTaskView(Wire):
    """The task that another one continues: its prompt, how it ended, and its checkpoint."""

    task_id: str
    status: TaskStatus
    prompt: str
    message: str | None = None
    checkpoint: CheckpointView | None = None
    branch: BranchName | None = None  # the branch it pushed to `repository`
    repository: str | None = None
    working_directory: str | None = None  # only if both tasks run on the same machine


class EffectView(Wire):
    task_id: str
    kind: EffectKind
    fence: int
    state: EffectState
    target: BranchName
    expected: CommitId | None = None
    external_id: Line | None = None


def usage_of(view: UsageView) -> Usage:
    return Usage(**view.model_dump())


def result_of(view: ResultView) -> Result:
    return Result(**view.model_dump())


def change_of(view: ChangeView) -> Change:
    return Change(**view.model_dump())


def checkpoint_of(view: CheckpointView) -> Checkpoint:
    files = None if view.dirty_files is None else tuple(view.dirty_files)
    lists = {"dirty_files": files, "output_tail": tuple(view.output_tail)}
    return Checkpoint(**{**view.model_dump(), **lists, "usage": usage_of(view.usage)})
