"""The task that a runner works on, as plain data; converted from the relay's response when it arrives."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from delegate.model import Checkpoint, Choice, Effect, Issue, Mode, Usage
from delegate.placement import Origin
from delegate.wire.runners import AssignmentView
from delegate.wire.shared_models import ContinuedTaskView, checkpoint_of, usage_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredQuestion:
    text: str
    options: tuple[str, ...] = ()
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecedingTask:
    """The task that the assigned one continues."""

    task_id: str
    status: str
    prompt: str
    message: str | None = None
    checkpoint: Checkpoint | None = None
    branch: str | None = None  # the branch it pushed to `repository`
    repository: str | None = None
    working_directory: str | None = None  # only if both tasks run on the same machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    attempt_id: str
    task_id: str
    fence: int
    number: int
    agent: str
    prompt: str
    timeout: timedelta
    max_output: int
    lineage: str
    model: str | None = None
    effort: str | None = None
    permission_mode: str | None = None
    working_directory: str | None = None
    budget_usd: float | None = None
    max_turns: int | None = None
    mode: Mode = Mode.IN_PLACE
    repository: str | None = None
    base: str | None = None
    title: str | None = None
    rerun: bool = False
    issue: Issue | None = None
    context: str | None = None
    submitted_by: str | None = None  # the task whose agent submitted it: its words are not the user's
    is_owners: bool = True  # whether the person who paired the runner submitted it
    choices: tuple[Choice, ...] = ()
    checkpoint: Checkpoint | None = None  # of the attempt or the task that this one continues
    continued_task: PrecedingTask | None = None
    questions: tuple[AnsweredQuestion, ...] = ()  # of the previous attempt
    effects: tuple[Effect, ...] = ()  # of all tasks in the lineage
    summaries: tuple[str, ...] = ()  # of the finished work of earlier tasks of the lineage, oldest first
    usage_before: Usage = Usage()  # of all earlier attempts of the lineage
    resume_session: str | None = None  # the agent session of the previous attempt, if any
    next_seq: int = 0
    origin: Origin = Origin.PERSON
    created_at: datetime | None = None


def assignment_of(view: AssignmentView) -> Assignment:
    given = dict(view)  # by field, without converting what is inside
    timeout = timedelta(milliseconds=given.pop("timeout_ms"))
    converted = {
        "issue": None if view.issue is None else Issue(**view.issue.model_dump()),
        "choices": tuple(Choice(**choice.model_dump()) for choice in view.choices),
        "checkpoint": None if view.checkpoint is None else checkpoint_of(view.checkpoint),
        "continued_task": None if view.continued_task is None else _preceding_task(view.continued_task),
        "questions": tuple(
            AnsweredQuestion(text=asked.text, options=tuple(asked.options), answer=asked.answer or "")
            for asked in view.questions
        ),
        "effects": tuple(Effect(**effect.model_dump()) for effect in view.effects),
        "summaries": tuple(view.summaries),
        "usage_before": usage_of(view.usage_before),
    }
    return Assignment(**{**given, **converted, "timeout": timeout})


def _preceding_task(view: ContinuedTaskView) -> PrecedingTask:
    checkpoint = None if view.checkpoint is None else checkpoint_of(view.checkpoint)
    return PrecedingTask(**{**view.model_dump(), "checkpoint": checkpoint})
