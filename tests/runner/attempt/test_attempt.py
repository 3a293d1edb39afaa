from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from delegate.model import AgentName, AttemptId, EventKind, Outcome, Stream, TaskId, Usage
from delegate.queue.rescue import lose_attempt
from delegate.runner.agents import Agent, AgentTurn, Ending, Fact, Invocation
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import attempt, outcomes
from delegate.runner.attempt.attempt import run_attempt
from delegate.runner.attempt.directory_state import DirectoryState
from delegate.runner.context import RunnerContext
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason
from delegate.store.attempts import get_attempt
from delegate.store.database import Connection
from delegate.store.tasks import get_task

if TYPE_CHECKING:
    from tests.runner.conftest import Stage

pytestmark = pytest.mark.anyio


@dataclass(slots=True, kw_only=True)
class Script:
    """An agent whose prompt is a shell script that reads messages from its input."""

    name: AgentName = AgentName.CLAUDE
    result: bytes = b"RESULT"
    outcome: Outcome = Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message="done")
    directory: Path | None = None  # where the first segment of a spool becomes a full disk
    sessions: list[str | None] | None = None  # what each start was to resume
    parse_errors: int = 0
    budgets: list[float | None] | None = None  # what each start may cost

    def program(self, environ: Mapping[str, str]) -> str | None:
        return None

    def is_available(self, environ: Mapping[str, str]) -> bool:
        return True

    def invocation(self, turn: AgentTurn, environ: Mapping[str, str]) -> Invocation:
        assignment = turn.assignment
        if self.directory is not None:
            (self.directory / assignment.attempt_id / f"{0:016d}.jsonl").symlink_to("/dev/full")
        if self.sessions is not None:
            self.sessions.append(turn.session)
        if self.budgets is not None:
            self.budgets.append(assignment.budget_usd)
        env = {**environ, "DELEGATE_ATTEMPT_ID": assignment.attempt_id}
        argv = ("/bin/sh", "-c", assignment.prompt)
        return Invocation(argv=argv, env=env, initial_input=b"hello\n", keep_input_open=True)

    def reading(self, turn: AgentTurn) -> ScriptReading:
        return ScriptReading(agent=self, is_resumed=turn.session is not None, parse_errors=self.parse_errors)


@dataclass(slots=True, kw_only=True)
class ScriptReading:
    agent: Script
    is_resumed: bool
    result_seen: bool = False
    left_running: str = ""
    session_missing: bool = False
    session_id: str | None = "session-1"
    usage: Usage = Usage()
    parse_errors: int = 0
    summary: str = ""
    takes_more_turns: bool = False
    seen: bytes = b""

    def feed(self, stream: Stream, data: bytes) -> list[Fact]:
        self.seen += data
        self.result_seen = self.agent.result in self.seen
        self.session_missing = self.is_resumed and b"NO SESSION" in self.seen
        return []

    def message(self, text: str) -> bytes | None:
        return f"{text}\n".encode()

    def replies(self) -> bytes:
        return b""

    def judge(self, exit: Exit, ending: Ending, now: datetime) -> Outcome:
        return replace(self.agent.outcome, message=ending.value)


def with_script(equipment: RunnerContext, script: Script) -> RunnerContext:
    scripted: dict[str, Agent] = {AgentName.CLAUDE: script}
    return replace(equipment, agents=scripted)


async def test_what_a_command_prints_arrives_exactly_and_its_end_too(stage: Stage) -> None:
    equipment, assignment = await stage.take("printf 'a\\0b\\377'; printf oops >&2; exit 7")

    await run_attempt(equipment, assignment)

    detail = await stage.detail(assignment.task_id)
    assert (detail.task.status, detail.task.reason, detail.task.exit_code) == ("failed", Reason.COMMAND_FAILED, 7)
    assert await stage.output(assignment.task_id, "stdout") == b"a\0b\xff"
    assert await stage.output(assignment.task_id, "stderr") == b"oops"
    assert equipment.slot.spooled_attempts() == []


async def test_the_start_is_a_fact_of_the_timeline(stage: Stage) -> None:
    equipment, assignment = await stage.take("exit 0")

    await run_attempt(equipment, assignment)

    detail = await stage.detail(assignment.task_id)
    started = next(event for event in detail.events if event.kind is EventKind.STARTED)
    assert started.data["argv0"] == "/bin/sh"
    assert detail.task.status == "completed"


async def test_output_is_seen_while_the_command_still_runs(stage: Stage) -> None:
    go = stage.work / "go"
    equipment, assignment = await stage.take(f"echo early; until [ -e {go} ]; do sleep 0.01; done; echo late")

    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, equipment, assignment)
        with anyio.fail_after(5):
            await stage.news(assignment.task_id, "event: output")
        early = await stage.output(assignment.task_id)
        go.touch()

    assert early == b"early\n"
    assert await stage.output(assignment.task_id) == b"early\nlate\n"


@pytest.mark.promise("P10")
async def test_many_megabytes_arrive_byte_by_byte(stage: Stage) -> None:
    equipment, assignment = await stage.take("seq 1 1000000", maxOutputBuffer=64 * 1024 * 1024)

    await run_attempt(equipment, assignment)

    expected = "".join(f"{number}\n" for number in range(1, 1_000_001)).encode()
    assert await stage.output(assignment.task_id) == expected


async def test_a_directory_that_is_gone_is_named(stage: Stage) -> None:
    gone = stage.work / "gone"
    gone.mkdir()
    equipment, assignment = await stage.take("exit 0", workingDirectory=str(gone))
    gone.rmdir()

    await run_attempt(equipment, assignment)

    task = (await stage.detail(assignment.task_id)).task
    assert (task.status, task.reason) == ("failed", Reason.SETUP_ERROR)
    assert str(gone) in (task.message or "")


async def test_a_file_is_refused_as_a_working_directory(stage: Stage) -> None:
    file = stage.work / "file"
    file.touch()
    equipment, assignment = await stage.take("exit 0", workingDirectory=str(file))

    await run_attempt(equipment, assignment)

    task = (await stage.detail(assignment.task_id)).task
    assert task.message == f"{file} is not a directory"


async def test_an_agent_that_is_not_there_any_more_is_not_installed(stage: Stage) -> None:
    equipment, assignment = await stage.take("hello", agent="claude")

    await run_attempt(equipment, assignment)

    task = (await stage.detail(assignment.task_id)).task
    assert (task.status, task.reason) == ("failed", Reason.NOT_INSTALLED)


@pytest.mark.promise("P11")
async def test_cancel_ends_the_tree_of_a_command_that_does_not_listen(stage: Stage) -> None:
    pid_file = stage.work / "pid"
    deaf = f"trap '' TERM; echo $$ > {pid_file}; echo up; while :; do sleep 0.1; done"
    equipment, assignment = await stage.take(deaf)

    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, equipment, assignment)
        await stage.news(assignment.task_id, "event: output")
        await stage.client.post(f"/api/tasks/{assignment.task_id}/cancel", json={"reason": "wrong branch"})

    task = (await stage.detail(assignment.task_id)).task
    assert (task.status, task.reason, task.message) == ("cancelled", Reason.CANCELLED, "wrong branch")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


async def test_a_command_that_takes_too_long_is_stopped(stage: Stage) -> None:
    equipment, assignment = await stage.take("echo begun; sleep 60", timeout=1000)

    await run_attempt(equipment, assignment)

    task = (await stage.detail(assignment.task_id)).task
    assert (task.status, task.reason) == ("failed", Reason.TIMEOUT)
    assert await stage.output(assignment.task_id) == b"begun\n"


@pytest.mark.promise("P5")
@pytest.mark.parametrize(
    ("prompt", "ending"),
    [
        ("sleep 60", Ending.NO_START),
        ("echo something; sleep 60", Ending.STALLED),
        ("echo RESULT; sleep 60", Ending.LINGERED),
        ("read line; read line; sleep 60", Ending.NO_START),
    ],
)
async def test_an_agent_that_hangs_is_ended_for_the_right_reason(stage: Stage, prompt: str, ending: Ending) -> None:
    equipment, assignment = await stage.take(prompt, agent="claude")
    soon = timedelta(seconds=0.2)
    hasty = replace(equipment.settings, no_start_after=soon, stalled_after=soon, linger_after=soon)

    await run_attempt(replace(with_script(equipment, Script()), settings=hasty), assignment)

    assert (await stage.detail(assignment.task_id)).task.message == ending


async def test_the_input_is_closed_when_the_result_is_there(stage: Stage) -> None:
    equipment, assignment = await stage.take("read first; echo RESULT; read more || echo closed", agent="claude")

    await run_attempt(with_script(equipment, Script()), assignment)

    assert await stage.output(assignment.task_id) == b"RESULT\nclosed\n"
    assert (await stage.detail(assignment.task_id)).task.message == Ending.EXITED


async def test_a_message_reaches_the_agent_while_it_works_and_not_as_a_command(stage: Stage) -> None:
    until = 'until [ "$word" = /compact ]; do read word; done'
    script = f"read first; echo $first; read second; echo ${{second%%.*}}; {until}; echo $word; echo RESULT"
    equipment, assignment = await stage.take(script, agent="claude")

    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, with_script(equipment, Script()), assignment)
        await stage.news(assignment.task_id, "event: output")
        await stage.client.post(f"/api/tasks/{assignment.task_id}/messages", json={"text": "/compact"})

    words = b"hello\nA message from the person who runs you\n/compact\nRESULT\n"
    assert await stage.output(assignment.task_id) == words


async def test_a_message_that_came_after_the_result_is_not_lost_without_a_word(stage: Stage) -> None:
    go = stage.work / "go"
    script = f"echo RESULT; until [ -e {go} ]; do sleep 0.01; done"
    equipment, assignment = await stage.take(script, agent="claude")

    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, with_script(equipment, Script()), assignment)
        await stage.news(assignment.task_id, "event: output")
        await stage.client.post(f"/api/tasks/{assignment.task_id}/messages", json={"text": "use tabs " * 20})
        for _ in range(3):  # of the answers to come, only the first may have been on its way before the message
            await equipment.shutdown.wakeup.wait()
        go.touch()

    warnings = [e.data["text"] for e in (await stage.detail(assignment.task_id)).events if e.kind is EventKind.WARNING]
    assert warnings == ["a message arrived too late: " + ("use tabs " * 20)[:80] + "…"]


async def test_a_message_to_an_agent_that_reads_no_more_is_not_lost_without_a_word(stage: Stage) -> None:
    go = stage.work / "go"
    script = f"exec <&-; echo up; until [ -e {go} ]; do sleep 0.01; done"
    equipment, assignment = await stage.take(script, agent="claude")

    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, with_script(equipment, Script()), assignment)
        await stage.news(assignment.task_id, "event: output")
        await stage.client.post(f"/api/tasks/{assignment.task_id}/messages", json={"text": "use tabs"})
        for _ in range(3):
            await equipment.shutdown.wakeup.wait()
        go.touch()

    warnings = [e.data["text"] for e in (await stage.detail(assignment.task_id)).events if e.kind is EventKind.WARNING]
    assert warnings == ["a message arrived too late: use tabs"]


async def test_the_saved_outcome_tells_which_messages_the_agent_got(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'read hello; echo up; until [ "$word" = tabs ]; do read word; done; echo RESULT'
    equipment, assignment = await stage.take(script, agent="claude")
    spool = equipment.slot.spool(assignment.attempt_id)
    saved: list[Outcome | None] = []

    async def read_state(*_: object) -> DirectoryState:
        saved.append(outcomes.load_outcome(spool))
        return DirectoryState()

    monkeypatch.setattr(attempt, "read_directory_state", read_state)
    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, with_script(equipment, Script()), assignment)
        await stage.news(assignment.task_id, "event: output")
        await stage.client.post(f"/api/tasks/{assignment.task_id}/messages", json={"text": "tabs"})

    assert [outcome and outcome.messages_seen for outcome in saved] == [1]
    assert EventKind.WARNING not in [event.kind for event in (await stage.detail(assignment.task_id)).events]


async def test_lines_that_could_not_be_understood_are_counted_in_the_timeline(stage: Stage) -> None:
    equipment, assignment = await stage.take("echo RESULT", agent="claude")

    await run_attempt(with_script(equipment, Script(parse_errors=2)), assignment)

    warnings = [e.data["text"] for e in (await stage.detail(assignment.task_id)).events if e.kind is EventKind.WARNING]
    assert warnings == ["lines of the agent's output that could not be parsed: 2"]


async def test_a_session_that_is_gone_is_not_resumed_twice(stage: Stage) -> None:
    equipment, assignment = await stage.take("echo NO SESSION", agent="claude")
    sessions: list[str | None] = []

    resuming = replace(assignment, resume_session="old")
    await run_attempt(with_script(equipment, Script(sessions=sessions)), resuming)

    assert sessions == ["old", None]
    warnings = [e.data["text"] for e in (await stage.detail(assignment.task_id)).events if e.kind is EventKind.WARNING]
    assert warnings == ["the session of the previous attempt no longer exists; the agent starts a new one"]


async def test_the_smallest_budget_reaches_the_agent_as_it_is(stage: Stage) -> None:
    equipment, assignment = await stage.take("echo RESULT", agent="claude", maxBudgetUsd=0.001)
    budgets: list[float | None] = []

    await run_attempt(with_script(equipment, Script(budgets=budgets)), assignment)

    assert budgets == [0.001]


@pytest.mark.promise("P10")
async def test_a_full_disk_ends_the_attempt_and_not_the_runner(stage: Stage) -> None:
    equipment, assignment = await stage.take("echo something; sleep 60", agent="claude")
    directory = equipment.slot.spool(assignment.attempt_id).parent

    end = await run_attempt(with_script(equipment, Script(directory=directory)), assignment)

    task = (await stage.detail(assignment.task_id)).task
    assert (task.status, task.reason) == ("failed", Reason.DISK_FULL)
    assert os.strerror(errno.ENOSPC) in (task.message or "")
    assert end is not None


async def test_a_usage_limit_parks_the_task(stage: Stage) -> None:
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    limit = Outcome(state=AttemptState.RELEASED, reason=Reason.USAGE_LIMIT, message="limit", not_before=until)
    equipment, assignment = await stage.take("exit 0", agent="claude")

    end = await run_attempt(with_script(equipment, Script(outcome=limit)), assignment)

    task = (await stage.detail(assignment.task_id)).task
    assert (task.status, task.not_before) == ("queued", until)
    assert end is not None
    assert end.not_before == until


@pytest.mark.promise("P3")
async def test_an_attempt_taken_away_is_stopped_and_leaves_nothing_behind(stage: Stage) -> None:
    pid_file = stage.work / "pid"
    equipment, assignment = await stage.take(f"echo $$ > {pid_file}; echo up; sleep 60", rerun=True)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(run_attempt, equipment, assignment)
            await stage.news(assignment.task_id, "event: output")
            await take_away(stage, assignment)

    detail = await stage.detail(assignment.task_id)
    assert detail.task.status == "queued"
    assert [attempt.state for attempt in detail.attempts] == [AttemptState.LOST]
    assert equipment.slot.spooled_attempts() == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


async def take_away(stage: Stage, assignment: Assignment) -> None:
    def act(connection: Connection) -> None:
        attempt = get_attempt(connection, AttemptId(assignment.attempt_id))
        task = get_task(connection, TaskId(assignment.task_id))
        assert attempt is not None
        assert task is not None
        lose_attempt(connection, task, attempt, datetime.now(UTC))

    await stage.relay.database.write("test", act)


async def test_a_supervisor_that_is_killed_counts_as_a_lost_runner(stage: Stage) -> None:
    equipment, assignment = await stage.take("kill -9 $PPID; sleep 60")

    await run_attempt(equipment, assignment)

    task = (await stage.detail(assignment.task_id)).task
    assert (task.status, task.reason) == ("failed", Reason.LOST_RUNNER)


async def test_stopping_the_runner_hands_an_agents_task_back_uncounted(stage: Stage) -> None:
    equipment, assignment = await stage.take("echo up; sleep 60", agent="claude")

    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, with_script(equipment, Script()), assignment)
        await stage.news(assignment.task_id, "event: output")
        equipment.shutdown.stop_now()

    detail = await stage.detail(assignment.task_id)
    assert (detail.task.status, detail.task.attempt) == ("queued", 0)
    assert await stage.output(assignment.task_id) == b"up\n"


@pytest.mark.promise("P5")
@pytest.mark.parametrize(
    ("rerun", "expected"),
    [(False, ("failed", 1, AttemptState.LOST)), (True, ("queued", 0, AttemptState.RELEASED))],
)
async def test_a_command_broken_off_by_its_runner_is_lost_unless_it_may_run_again(
    stage: Stage, rerun: bool, expected: tuple[str, int, AttemptState]
) -> None:
    equipment, assignment = await stage.take("echo up; sleep 60", rerun=rerun)

    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, equipment, assignment)
        await stage.news(assignment.task_id, "event: output")
        equipment.shutdown.stop_now()

    detail = await stage.detail(assignment.task_id)
    assert (detail.task.status, detail.task.attempt, detail.attempts[0].state) == expected
    assert await stage.output(assignment.task_id) == b"up\n"


async def test_a_command_that_had_not_begun_is_handed_back_uncounted(stage: Stage) -> None:
    equipment, assignment = await stage.take(f"touch {stage.work / 'begun'}")
    equipment.shutdown.stop_now()

    await run_attempt(equipment, assignment)

    task = (await stage.detail(assignment.task_id)).task
    assert (task.status, task.attempt) == ("queued", 0)
    assert not (stage.work / "begun").exists()


async def test_a_defect_of_an_agent_is_reported_as_a_defect(stage: Stage) -> None:
    class Broken(Script):
        def reading(self, turn: AgentTurn) -> ScriptReading:
            raise ZeroDivisionError

    equipment, assignment = await stage.take("exit 0", agent="claude")

    await run_attempt(with_script(equipment, Broken()), assignment)

    assert (await stage.detail(assignment.task_id)).task.reason == Reason.INTERNAL


@pytest.mark.parametrize(
    "damage",
    [
        "printf 'gitdir: a\\0b' > .git",
        "git init -q . && printf 'ref: refs/heads/ma\\0in' > .git/HEAD",
        "cd .. && rmdir work && ln -s work work",
    ],
)
async def test_a_command_that_damages_its_directory_has_still_ended_well(stage: Stage, damage: str) -> None:
    equipment, assignment = await stage.take(damage)

    await run_attempt(equipment, assignment)

    detail = await stage.detail(assignment.task_id)
    assert (detail.task.status, detail.task.reason) == ("completed", Reason.DONE)


async def test_the_outcome_is_saved_before_the_directory_is_read_and_again_after(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    equipment, assignment = await stage.take("exit 0")
    spool = equipment.slot.spool(assignment.attempt_id)
    saved: list[Outcome | None] = []

    async def read_state(*_: object) -> DirectoryState:
        saved.append(outcomes.load_outcome(spool))
        return DirectoryState(branch="main")

    monkeypatch.setattr(attempt, "read_directory_state", read_state)
    reported = await run_attempt(equipment, assignment)

    assert [outcome and outcome.reason for outcome in saved] == [Reason.DONE]
    assert reported is not None
    assert reported.checkpoint is not None
    assert reported.checkpoint.branch == "main"
    checkpoint = (await stage.detail(assignment.task_id)).checkpoint
    assert checkpoint is not None
    assert checkpoint.branch == "main"


async def test_an_outcome_without_a_readable_directory_is_reported_as_it_is(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    equipment, assignment = await stage.take("exit 0")

    async def fail(*_: object) -> DirectoryState:
        raise LookupError("an error that no handler expects")

    monkeypatch.setattr(attempt, "read_directory_state", fail)
    await run_attempt(equipment, assignment)

    assert (await stage.detail(assignment.task_id)).task.status == "completed"
    assert "checkpoint not added to the outcome of the attempt" in caplog.messages
