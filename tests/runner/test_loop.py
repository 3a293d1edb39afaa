from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import Process

from delegate.config.paths import Home
from delegate.model import AgentName, EventKind, Outcome, Stream
from delegate.runner import loop
from delegate.runner.agents import Agent, AgentReading, AgentTurn, Ending, Fact, Invocation
from delegate.runner.agents.base import NoProtocol
from delegate.runner.agents.shell import Shell
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import outcomes
from delegate.runner.attempt.attempt import run_attempt
from delegate.runner.context import RunnerContext
from delegate.runner.keeper_link import KeeperLink
from delegate.runner.loop import RunnerLoop
from delegate.runner.process.agent_process import Exit
from delegate.runner.slot import Slot
from delegate.runner.upload.relay import RelayLink
from delegate.states import AttemptState, Reason
from delegate.wire.runners import ClaimRequest

if TYPE_CHECKING:
    from tests.runner.conftest import Stage

pytestmark = pytest.mark.anyio

DONE = Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message="it was done before the crash", exit_code=0)


async def test_a_runner_drains_the_queue(stage: Stage) -> None:
    tasks = [await stage.submit(f"echo {number}") for number in range(3)]
    equipment = stage.equipment()

    async with anyio.create_task_group() as group:
        group.start_soon(RunnerLoop(equipment).work)
        with anyio.fail_after(5):
            ended = [(await stage.ended(task)).task.status for task in tasks]
        equipment.shutdown.drain()

    assert ended == ["completed"] * 3
    stage.handed_out.remove(equipment)


async def test_a_draining_runner_finishes_what_it_has_and_claims_nothing(stage: Stage) -> None:
    go = stage.work / "go"
    first = await stage.submit(f"echo up; until [ -e {go} ]; do sleep 0.01; done")
    second = await stage.submit("exit 0")
    equipment = stage.equipment()

    async with anyio.create_task_group() as group:
        group.start_soon(RunnerLoop(equipment).work)
        await stage.news(first, "event: output")
        equipment.shutdown.drain()
        go.touch()

    assert (await stage.detail(first)).task.status == "completed"
    assert (await stage.detail(second)).task.status == "queued"


async def test_an_idle_runner_leaves_at_once_and_strands_no_task(stage: Stage) -> None:
    equipment = stage.equipment()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(RunnerLoop(equipment).work)
            await has_asked(equipment.slot)
            equipment.shutdown.drain()

    assert not equipment.slot.has_claim()


async def test_a_runner_waits_for_a_relay_that_is_not_there_until_it_is_asked_to_go(stage: Stage) -> None:
    equipment = replace(stage.equipment(), link=furnished_link(stage, "http://127.0.0.1:9"))
    ended = anyio.Event()

    async def work() -> None:
        await RunnerLoop(equipment).work()
        ended.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await anyio.wait_all_tasks_blocked()
            is_waiting = not ended.is_set()
            equipment.shutdown.drain()

    assert is_waiting
    assert ended.is_set()


def furnished_link(stage: Stage, url: str) -> RelayLink:
    return replace(stage, url=url).equipment("other").link


@dataclass(slots=True, kw_only=True)
class LimitedShell:
    """A shell whose first run meets a usage limit."""

    until: datetime
    runs: int = 0
    name: AgentName = AgentName.SHELL

    def program(self, environ: Mapping[str, str]) -> str | None:
        return None

    def is_available(self, environ: Mapping[str, str]) -> bool:
        return True

    def invocation(self, turn: AgentTurn, environ: Mapping[str, str]) -> Invocation:
        return Shell().invocation(turn, environ)

    def reading(self, turn: AgentTurn) -> AgentReading:
        self.runs += 1
        outcome = replace(DONE, state=AttemptState.RELEASED, reason=Reason.USAGE_LIMIT, not_before=self.until)
        return LimitedReading(outcome=outcome if self.runs == 1 else DONE)


@dataclass(slots=True, kw_only=True)
class LimitedReading(NoProtocol):
    outcome: Outcome

    def feed(self, stream: Stream, data: bytes) -> list[Fact]:
        return []

    def judge(self, exit: Exit, ending: Ending, now: datetime) -> Outcome:
        return self.outcome


async def test_an_agent_at_its_limit_gets_nothing_until_that_is_over(stage: Stage) -> None:
    until = datetime.now(UTC) + timedelta(seconds=1)
    agents: dict[str, Agent] = {"shell": LimitedShell(until=until)}
    equipment = replace(stage.equipment(), agents=agents)
    first, second = await stage.submit("exit 0"), await stage.submit("exit 0")

    async with anyio.create_task_group() as group:
        group.start_soon(RunnerLoop(equipment).work)
        with anyio.fail_after(5):
            ended = [await stage.ended(first), await stage.ended(second)]
        equipment.shutdown.drain()

    claims = sorted(event.at for detail in ended for event in detail.events if event.kind == "claimed")
    assert claims[0] < until
    assert all(at >= until for at in claims[1:])
    assert [detail.task.status for detail in ended] == ["completed"] * 2


@pytest.mark.promise("P1")
async def test_a_claim_whose_response_was_lost_is_handed_back_uncounted(stage: Stage) -> None:
    equipment, assignment = await stage.take("exit 0")
    await stage.leave(equipment)

    await one_turn(stage, assignment.task_id)

    detail = await stage.detail(assignment.task_id)
    assert [attempt.state for attempt in detail.attempts] == [AttemptState.RELEASED, AttemptState.COMPLETED]
    assert detail.task.attempt == 1


@pytest.mark.promise("P1")
@pytest.mark.parametrize(("rerun", "status"), [(False, "failed"), (True, "completed")])
async def test_what_a_dead_runner_was_at_is_lost_and_its_output_is_not(stage: Stage, rerun: bool, status: str) -> None:
    mark = stage.work / "mark"
    command = f"[ -e {mark} ] && exit 0; touch {mark}; echo first; sleep 60"
    equipment, assignment = await stage.take(command, rerun=rerun)
    await die_at_work(stage, equipment, assignment)

    await one_turn(stage, assignment.task_id)

    detail = await stage.detail(assignment.task_id)
    assert detail.task.status == status
    assert detail.attempts[0].state == AttemptState.LOST
    assert detail.attempts[0].output_bytes == len("first\n")


async def die_at_work(stage: Stage, equipment: RunnerContext, assignment: Assignment) -> None:
    """The runner stops in the middle of everything, and says nothing to anybody."""
    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, equipment, assignment)
        await stage.news(assignment.task_id, "event: output")
        group.cancel_scope.cancel()
    await stage.leave(equipment)


@pytest.mark.promise("P1")
async def test_an_end_that_was_not_reported_is_reported_after_the_restart(stage: Stage) -> None:
    equipment, assignment = await stage.take("exit 0")
    spool = equipment.slot.spool(assignment.attempt_id)
    spool.mkdir()
    outcomes.save_outcome(spool, DONE)
    await stage.leave(equipment)

    await one_turn(stage, assignment.task_id)

    detail = await stage.detail(assignment.task_id)
    assert (detail.task.status, detail.task.message) == ("completed", DONE.message)
    assert [attempt.state for attempt in detail.attempts] == [AttemptState.COMPLETED]


async def test_spools_of_attempts_that_are_over_are_removed(stage: Stage) -> None:
    equipment = stage.equipment()
    equipment.slot.spool("att-0123").mkdir()
    await stage.leave(equipment)

    successor = await one_turn(stage)

    assert successor.slot.spooled_attempts() == []


async def one_turn(stage: Stage, *task_ids: str) -> RunnerContext:
    """The next process in the same slot, until these tasks have ended and it asks for more."""
    equipment = stage.equipment()
    async with anyio.create_task_group() as group:
        group.start_soon(RunnerLoop(equipment).work)
        with anyio.fail_after(5):
            for task_id in task_ids:
                await stage.ended(task_id)
            await has_asked(equipment.slot)
        equipment.shutdown.drain()
    return equipment


async def has_asked(slot: Slot) -> None:
    while not slot.has_claim():  # noqa: ASYNC110 - a file: nothing rings when it appears
        await anyio.sleep(0.01)


async def has_claimed_again(stage: Stage) -> None:
    claim = Home(stage.settings.home).runners / "1" / "claim"
    while not claim.exists():  # noqa: ASYNC110 - another process makes it
        await anyio.sleep(0.01)


async def start_program(stage: Stage, **environ: str) -> Process:
    """The runner as its keeper starts it."""
    command = [sys.executable, "-m", "delegate.runner", "--slot", "1", "--relay-url", stage.url]
    settings = {"DELEGATE_HOME": str(stage.settings.home), "DELEGATE_GRACE": "1"}
    env = {**os.environ, **settings, **environ}
    return await anyio.open_process(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


async def test_the_program_finishes_its_task_when_it_is_asked_to_stop(stage: Stage) -> None:
    go = stage.work / "go"
    task = await stage.submit(f"echo up; until [ -e {go} ]; do sleep 0.01; done")

    async with await start_program(stage) as program:
        await stage.news(task, "event: output")
        program.send_signal(signal.SIGTERM)
        go.touch()
        code = await program.wait()

    assert (code, (await stage.detail(task)).task.status) == (0, "completed")


@pytest.mark.parametrize("ask", ["twice", "keeper"])
async def test_the_program_gives_up_its_task_when_it_must_go(stage: Stage, ask: str) -> None:
    task = await stage.submit("echo up; sleep 60", rerun=True)

    async with await start_program(stage) as program:
        await stage.news(task, "event: output")
        if ask == "twice":
            program.send_signal(signal.SIGTERM)
            program.send_signal(signal.SIGINT)
        else:
            assert program.stdin is not None
            await program.stdin.aclose()
        code = await program.wait()

    detail = await stage.detail(task)
    assert (code, detail.task.status, detail.task.attempt) == (0, "queued", 0)
    assert detail.attempts[0].state == AttemptState.RELEASED


@pytest.mark.slow
@pytest.mark.promise("P11")
@pytest.mark.parametrize("ask", ["timeout", "cancel"])
async def test_a_supervisor_that_does_not_obey_holds_up_no_end(stage: Stage, ask: str) -> None:
    pid_file = stage.work / "pid"
    limit = {"timeout": 1000} if ask == "timeout" else {}
    task = await stage.submit(f"echo $$ > {pid_file}; kill -STOP $PPID; echo up; sleep 60", **limit)

    async with await start_program(stage) as program:
        await stage.news(task, "event: output")
        if ask == "cancel":
            await stage.client.post(f"/api/tasks/{task}/cancel", json={"reason": "enough"})
        with anyio.fail_after(15):
            ended = (await stage.ended(task)).task
        program.send_signal(signal.SIGTERM)
        await program.wait()

    expected = ("failed", Reason.TIMEOUT) if ask == "timeout" else ("cancelled", Reason.CANCELLED)
    assert (ended.status, ended.reason) == expected
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


@pytest.mark.promise("P1")
@pytest.mark.parametrize(
    "point", ["runner.claimed", "runner.launched", "runner.spooled", "runner.finish.before", "runner.finish.after"]
)
async def test_wherever_the_program_is_killed_its_task_ends_once(stage: Stage, tmp_path: Path, point: str) -> None:
    task = await stage.submit("echo hello", rerun=True)
    armed = f"{point}=kill:{tmp_path / 'killed'}"
    async with await start_program(stage, DELEGATE_FAILPOINTS=armed) as program:
        code = await program.wait()

    async with await start_program(stage, DELEGATE_FAILPOINTS=armed) as program:
        detail = await stage.ended(task)
        await has_claimed_again(stage)
        program.send_signal(signal.SIGTERM)
        await program.wait()

    assert code == -signal.SIGKILL
    assert detail.task.status == "completed"
    assert await stage.output(task) == b"hello\n"
    assert [event.kind for event in detail.events].count(EventKind.FINISHED) == 1
    assert list((Home(stage.settings.home).runners / "1" / "spool").iterdir()) == []


async def start_kept(stage: Stage) -> tuple[Process, FileIO]:
    """The runner as its keeper starts it, and what it reports."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "delegate.runner", "--slot", "1", "--relay-url", stage.url]
    env = {**os.environ, "DELEGATE_HOME": str(stage.settings.home), "DELEGATE_GRACE": "1"}
    program = await anyio.open_process(
        [*command, "--report-fd", str(writing)],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[writing],
    )
    os.close(writing)
    return program, FileIO(reading)


async def order(program: Process, **words: object) -> None:
    assert program.stdin is not None
    await program.stdin.send(json.dumps(words).encode() + b"\n")


async def reported(reports: FileIO) -> dict[str, object]:
    await anyio.wait_readable(reports)
    return dict(json.loads(reports.readline()))


async def why_is(stage: Stage, task: str, part: str) -> None:
    while part not in ((await stage.detail(task)).task.why or ""):  # noqa: ASYNC110 - nothing rings for it
        await anyio.sleep(0.01)


async def test_a_runner_claims_when_its_keeper_lets_it_and_says_when_it_is_busy(stage: Stage) -> None:
    first = await stage.submit("exit 0")
    program, reports = await start_kept(stage)

    async with program:
        with anyio.fail_after(15):
            ready = await reported(reports)
            await order(program, hold="the machine lacks memory since noon")
            await why_is(stage, first, "the machine lacks memory since noon")
            await order(program, open=True)
            said = [await reported(reports), await reported(reports)]
            ended = await stage.ended(first)
        program.send_signal(signal.SIGTERM)
        await program.wait()
    reports.close()

    assert ready == {"idle": True}
    assert said == [
        {"busy": ended.attempts[0].attempt_id, "task": first, "agent": "shell"},
        {"idle": True},
    ]
    assert ended.task.status == "completed"


async def test_a_runner_that_cannot_claim_says_so_and_is_idle_again_when_it_can(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "RETRY_PAUSE", 0.01)
    reading, writing = os.pipe()
    made = stage.equipment()
    equipment = replace(made, keeper_link=KeeperLink(writing))
    equipment.keeper_link.handle_command(b'{"open": true}')
    claim = Home(stage.settings.home).runners / "1" / "claim"
    claim.mkdir()

    with FileIO(reading) as reports, FileIO(writing, "w"):
        async with anyio.create_task_group() as group:
            group.start_soon(RunnerLoop(equipment).work)
            with anyio.fail_after(5):
                said = [await reported(reports), await reported(reports)]
                claim.rmdir()
                while (last := await reported(reports)) == {"trouble": True}:
                    pass
            equipment.shutdown.drain()
    stage.handed_out.remove(made)

    assert [*said, last] == [{"idle": True}, {"trouble": True}, {"idle": True}]


@pytest.mark.promise("P1")
async def test_a_runner_that_is_held_back_while_it_asks_strands_nothing(stage: Stage) -> None:
    """Held and let go in the very moments in which tasks arrive: each of them runs, and runs once."""
    equipment = stage.equipment()
    orders = equipment.keeper_link

    async with anyio.create_task_group() as group:
        group.start_soon(RunnerLoop(equipment).work)
        with anyio.fail_after(20):
            tasks = []
            for number in range(12):
                await has_asked(equipment.slot)
                tasks.append(await stage.submit(f"echo {number}"))
                for _ in range(number % 4):
                    await anyio.lowlevel.checkpoint()
                orders.handle_command(b'{"hold": "the machine lacks CPU"}')
                for _ in range(20 * number):
                    await anyio.lowlevel.checkpoint()
                orders.handle_command(b'{"open": true}')
            ended = [await stage.ended(task) for task in tasks]
        equipment.shutdown.drain()
    stage.handed_out.remove(equipment)

    assert [detail.task.status for detail in ended] == ["completed"] * 12
    assert [len(detail.attempts) for detail in ended] == [1] * 12


async def test_what_the_relay_answered_while_the_claim_was_broken_off_is_carried_out(stage: Stage) -> None:
    equipment = stage.equipment()
    equipment.keeper_link.handle_command(b'{"hold": "the machine lacks CPU"}')
    task = await stage.submit("echo late")

    async with anyio.create_task_group() as group:
        group.start_soon(RunnerLoop(equipment).work)
        with anyio.fail_after(5):
            await has_asked(equipment.slot)
            await why_is(stage, task, "the machine lacks CPU")
            # A claim that was broken off, and that the relay answers all the same.
            broken_off = ClaimRequest(claim_id=equipment.slot.claim_id(), agents=["shell"], wait=5)
            await equipment.link.claim(broken_off)
            ended = await stage.ended(task)
        equipment.shutdown.drain()
    stage.handed_out.remove(equipment)

    assert ended.task.status == "completed"
