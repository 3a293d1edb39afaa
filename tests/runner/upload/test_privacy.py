"""What leaves at each level: what is listed, and nothing else."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import pytest

from delegate.config.settings import load
from delegate.model import Change, Checkpoint, EventKind, Outcome, Privacy, Result, Stream
from delegate.runner.attempt.outcomes import end_request, failure
from delegate.runner.secrets.redaction import Redactor
from delegate.runner.upload import privacy
from delegate.runner.upload.local_record import LocalRecord, read_items, record_path, remove_old_records
from delegate.runner.upload.record import Record
from delegate.runner.upload.spool import Spool, fact_line, output_line
from delegate.runner.wakeup import Wakeup
from delegate.states import AttemptState, Reason
from delegate.wire.runners import ClaimRequest, FinishRequest

LINE = "return acme_margin(customer)"
AT = datetime(2026, 11, 15, 9, tzinfo=UTC)
BELOW = [Privacy.MINIMAL, Privacy.SUMMARY]
COMMIT = "a" * 40


@pytest.mark.parametrize("kind", EventKind)
@pytest.mark.parametrize("level", BELOW)
def test_an_unlisted_field_of_any_event_stays(level: Privacy, kind: EventKind) -> None:
    sent = privacy.event(level, kind, {"new": LINE, "output": LINE, "command": LINE, "line": LINE})

    assert LINE not in json.dumps(sent)


@pytest.mark.parametrize("level", BELOW)
def test_a_text_where_a_number_or_a_name_belongs_stays(level: Privacy) -> None:
    for kind in EventKind:
        listed = privacy.rules(level, kind)
        texts = {"path", "items", "choices", "carried"}  # texts that `summary` sends
        sent = privacy.event(level, kind, {name: LINE for name in listed if name not in texts})

        assert LINE not in json.dumps(sent), kind


def test_what_was_let_through_is_let_through_again() -> None:
    data: dict[str, object] = {"sessionId": "my-session", "model": "claude-sonnet-4-5"}

    once = privacy.event(Privacy.SUMMARY, EventKind.SESSION, data)

    assert once is not None
    assert privacy.event(Privacy.SUMMARY, EventKind.SESSION, once) == once
    assert once == {"sessionId": privacy.reference("my-session"), "model": "claude-sonnet-4-5"}


@pytest.mark.parametrize("level", BELOW)
def test_items_that_were_spooled_at_another_level_leave_as_gaps_with_their_numbers(level: Privacy) -> None:
    """A runner whose level was lowered may have a spool of before."""
    said = fact_line(7, EventKind.MESSAGE, {"text": LINE}, AT)
    printed = output_line(8, Stream.STDOUT, LINE.encode(), AT)

    sent = [json.loads(privacy.item(level, line)) for line in (said, printed)]

    assert [(one["seq"], one["through"], one["kind"], one["bytes"]) for one in sent] == [
        (7, 7, "skipped", 0),
        (8, 8, "skipped", len(LINE)),
    ]
    assert b64encode(LINE.encode()).decode() not in json.dumps(sent)


def ended(state: AttemptState, reason: Reason, message: str = LINE) -> Outcome:
    left = Checkpoint(session_id="s-1", output_tail=(LINE,), error=LINE, summary=LINE, dirty_files=("src/a.py",))
    result = Result(summary=LINE, branch="b", commit=COMMIT, additions=3)
    change = Change(base_commit=COMMIT, commit=COMMIT, patch=f"+{LINE}")
    return Outcome(state=state, reason=reason, message=message, checkpoint=left, result=result, change=change)


@pytest.mark.parametrize("reason", [Reason.CRASHED, Reason.AGENT_ERROR, Reason.CHECKS_FAILED, Reason.SETUP_ERROR])
@pytest.mark.parametrize("level", BELOW)
def test_a_failure_leaves_with_its_reason_and_numbers_only(level: Privacy, reason: Reason) -> None:
    request = end_request(3, ended(AttemptState.FAILED, reason))

    sent = privacy.end_request(level, request)

    assert LINE not in sent.model_dump_json()
    assert isinstance(sent, FinishRequest)
    assert (sent.fence, sent.reason, sent.change) == (3, reason, None)
    assert sent.result is not None
    assert (sent.result.branch, sent.result.additions) == ("b", 3)


def test_the_summary_of_a_completed_task_leaves_at_summary_and_not_at_minimal() -> None:
    request = end_request(3, ended(AttemptState.COMPLETED, Reason.DONE))

    told, counted = (privacy.end_request(level, request) for level in (Privacy.SUMMARY, Privacy.MINIMAL))

    assert isinstance(told, FinishRequest)
    assert told.result is not None
    assert told.checkpoint is not None
    assert (told.message, told.result.summary, told.checkpoint.summary) == (LINE, LINE, LINE)
    assert (told.checkpoint.output_tail, told.checkpoint.error, told.checkpoint.dirty_files) == ([], None, ["src/a.py"])
    assert LINE not in counted.model_dump_json()


@pytest.mark.parametrize(
    "message",
    [
        "it was stopped because it reached its time limit of 30 minutes",
        "the command ended with exit code 3",
        "pull request opened: https://github.com/acme/shop/pull/3",
        "the runner was stopped",
    ],
)
def test_our_own_sentences_leave_at_every_level(message: str) -> None:
    for level in BELOW:
        assert privacy.end_request(level, end_request(1, failure(Reason.CRASHED, message))).message == message
        longer = failure(Reason.CRASHED, f"{message}: {LINE}")
        assert privacy.end_request(level, end_request(1, longer)).message == privacy.KEPT_MESSAGE


@pytest.mark.parametrize(
    ("problem", "sent"),
    [
        (
            "only 1.0 GiB are free on the disk of /home/my files/.delegate/runners, and 2.0 GiB are needed",
            "only 1.0 GiB are free on its disk, and 2.0 GiB are needed",
        ),
        ("the maximum number of tasks is already running on this machine",) * 2,
        (f"git failed: {LINE}", privacy.KEPT_PROBLEM),
        (None, None),
    ],
)
def test_the_problem_of_a_runner_leaves_without_paths_and_texts(problem: str | None, sent: str | None) -> None:
    request = ClaimRequest(claim_id="claim-12345678", agents=["claude"], problem=problem)

    assert privacy.claim_request(Privacy.SUMMARY, request).problem == sent


@pytest.mark.parametrize(
    ("level", "url", "found"),
    [
        ("", "http://127.0.0.1:4000", Privacy.FULL),
        ("", "https://relay.example", Privacy.SUMMARY),
        ("minimal", "http://127.0.0.1:4000", Privacy.MINIMAL),
        ("FULL", "https://relay.example", Privacy.FULL),
    ],
)
def test_a_relay_elsewhere_gets_a_summary_unless_the_settings_say_otherwise(
    level: str, url: str, found: Privacy, tmp_path: Path
) -> None:
    settings = load({"DELEGATE_HOME": str(tmp_path), "DELEGATE_PRIVACY": level})

    assert privacy.privacy_level(settings, url) is found


def test_the_machine_keeps_what_the_relay_does_not_get(tmp_path: Path) -> None:
    path = record_path(tmp_path / "records", "task-1", "task-1", "att-1")
    spool = Spool(tmp_path / "spool", max_output=1 << 20, next_seq=0)
    local = LocalRecord(path, output_max=20)
    record = Record(spool, Redactor({}).begin(), Wakeup(), local=local, level=Privacy.SUMMARY)
    record.open()

    record.output(Stream.STDOUT, LINE.encode())
    record.flush()
    record.fact(EventKind.MESSAGE, {"text": LINE})
    record.note_kept()
    record.close()

    batch = spool.batch()
    assert batch is not None
    assert json.loads(batch.lines[0])["bytes"] == len(LINE)
    assert LINE.encode() not in b"".join(batch.lines)
    output, message = read_items(path)
    assert output.output == b64encode(LINE.encode()[:20]).decode()
    assert message.data == {"text": LINE}


@pytest.mark.parametrize("name", ["../x", "a/b", "", "-rf", "a.b", "é"])
def test_a_record_stays_in_its_directory_whatever_the_relay_calls_a_task(name: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="not a valid file name"):
        record_path(tmp_path, name, "task-1", "att-1")


def test_old_records_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "a" / "t.1.jsonl", tmp_path / "b" / "t.2.jsonl"
    for path in (old, new):
        path.parent.mkdir()
        path.touch()
    now = datetime.now(UTC)

    remove_old_records(tmp_path, now)
    assert old.exists()
    remove_old_records(tmp_path, replace_year(now))

    assert not old.parent.exists()
    assert not new.exists()


def replace_year(now: datetime) -> datetime:
    return now.replace(year=now.year + 1, day=1)
