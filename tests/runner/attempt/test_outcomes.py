from __future__ import annotations

from datetime import UTC, datetime

from delegate.model import Change, Checkpoint, Outcome, Result
from delegate.runner.attempt import outcomes
from delegate.runner.secrets.redaction import Redactor
from delegate.states import AttemptState, Reason
from delegate.wire.basics import PATCH_MAX
from delegate.wire.runners import Assignment, FinishRequest

SECRET = "s3cr3t-w0"
MARK = "[redacted: TOKEN]"
ASSIGNMENT = Assignment(
    attempt_id="att-1",
    lineage="task-1",
    task_id="task-1",
    fence=1,
    number=1,
    agent="claude",
    prompt="-",
    timeout_ms=1000,
    max_output=1000,
)


def clean(outcome: Outcome) -> FinishRequest:
    end = outcomes.without_secrets(outcomes.finish(ASSIGNMENT, outcome), Redactor({"TOKEN": SECRET.encode()}).begin())
    assert isinstance(end, FinishRequest)
    return end


def test_an_end_is_told_without_secrets_to_its_last_line() -> None:
    outcome = Outcome(
        state=AttemptState.FAILED,
        reason=Reason.AGENT_ERROR,
        message=f"failed with {SECRET}",
        not_before=datetime(2026, 1, 1, tzinfo=UTC),
        result=Result(summary=f"used {SECRET}", files=1),
        change=Change(base_commit="a" * 40, commit="b" * 40, patch=f"+{SECRET}\n"),
        checkpoint=Checkpoint(output_tail=("one", SECRET), error=SECRET, dirty_files=(SECRET,)),
    )

    end = clean(outcome)

    assert SECRET not in end.model_dump_json()
    assert end.message == f"failed with {MARK}"
    assert end.checkpoint is not None
    assert end.checkpoint.output_tail == ["one", MARK]
    assert end.not_before == outcome.not_before


def test_an_end_that_outgrew_its_fields_is_cut() -> None:
    patch = f"{SECRET}\n" * (PATCH_MAX // (len(SECRET) + 1))
    change = Change(base_commit="a" * 40, commit="b" * 40, patch=patch)

    end = clean(Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message="done", change=change))

    assert end.change is not None
    assert len(end.change.patch) == len(patch)
    assert SECRET not in end.change.patch


def test_an_end_without_secrets_is_the_same_end() -> None:
    outcome = Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message="done", result=Result(summary="x"))

    assert clean(outcome) == outcomes.finish(ASSIGNMENT, outcome)


def test_names_and_words_of_any_length_are_cut_to_what_the_relay_takes() -> None:
    long = Checkpoint(error="e\0" * 10_000, dirty_files=("d/" * 2_000, "plain.py"))

    end = outcomes.finish(
        ASSIGNMENT, Outcome(state=AttemptState.FAILED, reason=Reason.SETUP_ERROR, message="m" * 20_000, checkpoint=long)
    )

    assert end.checkpoint is not None
    assert (len(end.message), len(end.checkpoint.error or "")) == (10_000, 10_000)
    assert end.checkpoint.dirty_files is not None
    assert [len(name) for name in end.checkpoint.dirty_files] == [1_000, 8]
    assert end.checkpoint.dirty_files[0].endswith("…")
