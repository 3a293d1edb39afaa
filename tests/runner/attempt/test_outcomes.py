from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from delegate.model import Change, Checkpoint, Outcome, Result, Usage
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import outcomes
from delegate.runner.secrets.redaction import Redactor
from delegate.states import AttemptState, Reason
from delegate.wire.basics import PATCH_MAX
from delegate.wire.runners import FinishRequest, ReleaseRequest

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
    timeout=timedelta(seconds=1),
    max_output=1000,
)


def clean(outcome: Outcome) -> FinishRequest:
    redaction = Redactor({"TOKEN": SECRET.encode()}).begin()
    return finish_request(outcomes.without_secrets(outcome, redaction))


def finish_request(outcome: Outcome) -> FinishRequest:
    request = outcomes.end_request(ASSIGNMENT.fence, outcome)
    assert isinstance(request, FinishRequest)
    return request


def test_an_end_is_reported_without_secrets_to_its_last_line() -> None:
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


def test_identifiers_are_reported_as_they_are() -> None:
    branch = f"move-to-{SECRET}-3f2a"
    result = Result(summary=f"on {branch}", branch=branch, base=SECRET, pull_request=f"https://x.test/{SECRET}")
    checkpoint = Checkpoint(branch=branch, session_id=SECRET)

    end = clean(
        Outcome(
            state=AttemptState.COMPLETED,
            reason=Reason.DONE,
            message="done",
            session_id=SECRET,
            result=result,
            checkpoint=checkpoint,
        )
    )

    assert end.result is not None
    assert end.checkpoint is not None
    assert (end.result.branch, end.result.base, end.result.pull_request) == (branch, SECRET, result.pull_request)
    assert (end.checkpoint.branch, end.checkpoint.session_id, end.session_id) == (branch, SECRET, SECRET)
    assert end.result.summary == f"on move-to-{MARK}-3f2a"


def test_an_end_that_outgrew_its_fields_is_cut() -> None:
    patch = f"{SECRET}\n" * (PATCH_MAX // (len(SECRET) + 1))
    change = Change(base_commit="a" * 40, commit="b" * 40, patch=patch)

    end = clean(Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message="done", change=change))

    assert end.change is not None
    assert len(end.change.patch) == len(patch)
    assert SECRET not in end.change.patch


def test_an_end_without_secrets_is_the_same_end() -> None:
    outcome = Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message="done", result=Result(summary="x"))

    assert clean(outcome) == finish_request(outcome)


def test_names_and_words_of_any_length_are_cut_to_what_the_relay_takes() -> None:
    long = Checkpoint(error="e\0" * 10_000, dirty_files=("d/" * 2_000, "plain.py"))

    end = finish_request(
        Outcome(state=AttemptState.FAILED, reason=Reason.SETUP_ERROR, message="m" * 20_000, checkpoint=long)
    )

    assert end.checkpoint is not None
    assert (len(end.message), len(end.checkpoint.error or "")) == (10_000, 10_000)
    assert end.checkpoint.dirty_files is not None
    assert [len(name) for name in end.checkpoint.dirty_files] == [1_000, 8]
    assert end.checkpoint.dirty_files[0].endswith("…")


def test_a_secret_that_a_cut_would_split_is_redacted_first() -> None:
    message = "m" * (outcomes.MESSAGE_MAX - 3) + SECRET

    assert SECRET[:3] not in clean(Outcome(state=AttemptState.FAILED, reason=Reason.CRASHED, message=message)).message


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (outcomes.hand_back("stopped", session_id="s1", wants_agent="codex"), Reason.HANDED_BACK),
        (outcomes.release_as_lost("killed", "s1"), Reason.LOST_RUNNER),
    ],
)
def test_a_task_that_returns_to_the_queue_is_released(outcome: Outcome, reason: Reason) -> None:
    request = outcomes.end_request(ASSIGNMENT.fence, outcome)

    assert isinstance(request, ReleaseRequest)
    assert (request.reason, request.message, request.session_id) == (reason, outcome.message, "s1")
    assert request.wants_agent == outcome.wants_agent


def test_a_saved_outcome_is_loaded_as_it_was(tmp_path: Path) -> None:
    """Also one with text that JSON cannot hold, such as a file name that is not UTF-8."""
    outcome = Outcome(
        state=AttemptState.RELEASED,
        reason=Reason.USAGE_LIMIT,
        message="until \udcff tomorrow",
        not_before=datetime(2026, 1, 1, tzinfo=UTC),
        usage=Usage(cost_usd=0.5, turns=3),
        result=Result(summary="half", files=2),
        checkpoint=Checkpoint(output_tail=("one",), dirty_files=("a\udcffb",), usage=Usage(input_tokens=7)),
    )
    clean_outcome = outcomes.without_secrets(outcome, Redactor({}).begin())

    outcomes.save_outcome(tmp_path, clean_outcome)

    assert outcomes.load_outcome(tmp_path) == clean_outcome
    assert clean_outcome.checkpoint == replace(outcome.checkpoint or Checkpoint(), dirty_files=("a?b",))
    assert clean_outcome.usage == outcome.usage


@pytest.mark.parametrize("content", ["", "{", '{"state": "unheard of"}'])
def test_an_outcome_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / outcomes.OUTCOME_FILE).write_text(content)

    assert outcomes.load_outcome(tmp_path) is None
