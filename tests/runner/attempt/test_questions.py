"""An attempt whose agent asks a person: reported by the relay, ended with the turn, never published."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.runner.attempt.test_attempt import Script, with_script

from delegate.model import AttemptId, EventKind
from delegate.queue.questions import ask
from delegate.runner.agents import AgentTurn, Invocation
from delegate.runner.assignment import Assignment
from delegate.runner.attempt import attempt as attempt_module
from delegate.runner.attempt.attempt import run_attempt
from delegate.runner.attempt.watchdog import TimeLimits
from delegate.runner.lease import Lease
from delegate.runner.wakeup import Wakeup
from delegate.states import Reason
from delegate.tokens import hash_token
from delegate.wire.runners import ClaimRequest, Control

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.runner.conftest import Stage

    from delegate.runner.context import RunnerContext

pytestmark = pytest.mark.anyio
TOKEN = "dat_" + "7" * 64


@dataclass(slots=True, kw_only=True)
class Asker(Script):
    """Its prompt finds the token in a variable, as codex does, and in a file, as claude does."""

    turns: list[AgentTurn] = field(default_factory=list)

    def invocation(self, turn: AgentTurn, environ: Mapping[str, str]) -> Invocation:
        self.turns.append(turn)
        made = Script.invocation(self, turn, environ)
        asking = turn.ask_endpoint
        assert asking is not None
        env = {**made.env, "ASK": asking.token, "FILE": str(asking.file)}
        return replace(made, env=env, files={asking.file: json.dumps({"token": asking.token})})


async def take(stage: Stage, prompt: str) -> tuple[RunnerContext, Assignment]:
    """As the runner's loop takes a task: the relay knows the agent's token by its hash."""
    await stage.submit(prompt, agent="claude")
    equipment = stage.equipment()
    await equipment.link.register()
    request = ClaimRequest(claim_id=equipment.slot.claim_id(), agents=["claude"], wait=5, ask_hash=hash_token(TOKEN))
    answer = await equipment.link.claim(request)
    equipment.slot.forget_claim()
    assert answer is not None
    return equipment, answer


async def asks(stage: Stage, assignment: Assignment, text: str = "Red or blue?") -> None:
    task = await ask(stage.relay.database, AttemptId(assignment.attempt_id), text, (), stage.relay.now())
    stage.relay.hub.notify_with_holder(task.id)


UNTIL_ALLOWED = 'until [ "$word" = go ]; do read word; done'


@pytest.mark.parametrize("last", ["echo RESULT", "exit 3"])
async def test_an_agent_that_asked_leaves_its_task_waiting_however_its_turn_ends(stage: Stage, last: str) -> None:
    equipment, assignment = await take(stage, f"echo up; {UNTIL_ALLOWED}; {last}")
    ends = []

    async def work() -> None:
        ends.append(await run_attempt(with_script(equipment, Asker()), assignment, TOKEN))

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await stage.news(assignment.task_id, "event: output")
        await asks(stage, assignment)
        await stage.client.post(f"/api/tasks/{assignment.task_id}/messages", json={"text": "go"})

    (end,) = ends
    assert end is not None
    detail = await stage.detail(assignment.task_id)
    assert (detail.task.status, detail.attempts[0].reason) == ("waiting", Reason.QUESTION)
    assert [question.text for question in detail.task.questions] == ["Red or blue?"]
    assert (detail.task.session_id, detail.checkpoint and detail.checkpoint.session_id) == ("session-1", "session-1")
    assert f"delegate answer {assignment.task_id}" in (detail.task.why or "")


async def test_an_agent_that_asked_and_works_on_is_stopped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    equipment, assignment = await take(stage, "echo up; sleep 60")
    monkeypatch.setattr(attempt_module, "time_limits_for", lambda *_: TimeLimits(total=60, asked=0.1))

    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, with_script(equipment, Asker()), assignment, TOKEN)
        await stage.news(assignment.task_id, "event: output")
        await asks(stage, assignment)

    assert (await stage.detail(assignment.task_id)).task.status == "waiting"


async def test_the_answer_reaches_the_session_that_asked(stage: Stage) -> None:
    equipment, assignment = await take(stage, "echo RESULT")
    await asks(stage, assignment)
    await run_attempt(with_script(equipment, Asker()), assignment, TOKEN)
    await stage.client.post(f"/api/tasks/{assignment.task_id}/answer", json={"text": "Blue, please."})

    again = await stage.claim(equipment)
    agent = Asker()
    await run_attempt(with_script(equipment, agent), again, TOKEN)

    assert [question.answer for question in again.questions] == ["Blue, please."]
    assert (again.resume_session, again.number) == ("session-1", 1)
    (turn,) = agent.turns
    assert "Red or blue?" in turn.text
    assert "Blue, please." in turn.text
    assert (await stage.detail(assignment.task_id)).task.status == "completed"


async def test_the_agents_token_is_in_a_private_file_and_never_in_what_it_prints(stage: Stage) -> None:
    prints = (
        'ls -l "$FILE" | cut -c1-10; cat "$FILE"; echo; echo "$ASK"; printf %s "$ASK" | base64 -w0; echo; echo RESULT'
    )
    equipment, assignment = await take(stage, prints)

    await run_attempt(with_script(equipment, Asker()), assignment, TOKEN)

    output = await stage.output(assignment.task_id)
    assert output.startswith(
        b'-rw-------\n{"token": "[redacted: token of the attempt]"}\n[redacted: token of the attempt]\n'
    )
    assert b"[redacted: token of the attempt (base64)]" in output
    assert TOKEN.encode() not in output
    assert equipment.slot.spooled_attempts() == []
    warnings = [event for event in (await stage.detail(assignment.task_id)).events if event.kind is EventKind.WARNING]
    assert "token of the attempt" in str(warnings[-1].data)


async def test_a_command_has_its_token_in_its_environment_and_no_server_to_ask(stage: Stage) -> None:
    equipment, assignment = await stage.take("env; ls -A $(dirname $PWD)/home/runners/1/spool/*")

    await run_attempt(equipment, assignment, TOKEN)

    output = await stage.output(assignment.task_id)
    assert b"DELEGATE_TOKEN=[redacted: token of the attempt]" in output
    assert TOKEN.encode() not in output
    assert b"mcp.json" not in output


async def test_the_lease_hears_at_once_that_the_agent_has_asked(stage: Stage) -> None:
    equipment, assignment = await take(stage, "unused")
    equipment.link.timings = equipment.link.timings.model_copy(update={"heartbeat": 50})
    attention = Wakeup()
    lease = Lease(equipment.link, assignment, attention)

    async with anyio.create_task_group() as group:
        group.start_soon(lease.keep_renewed)
        with anyio.fail_after(5):
            await lease.refresh()
            assert lease.asked_at is None
            await asks(stage, assignment)
            while lease.asked_at is None:
                await attention.wait()
        group.cancel_scope.cancel()


async def test_news_are_what_the_relay_knows_now_and_not_what_it_said_before(stage: Stage) -> None:
    equipment, assignment = await take(stage, "unused")
    equipment.link.timings = equipment.link.timings.model_copy(update={"heartbeat": 50})
    lease = Lease(equipment.link, assignment, Wakeup())

    async with anyio.create_task_group() as group:
        group.start_soon(lease.keep_renewed)
        with anyio.fail_after(5):
            await lease.refresh()
            task = await ask(stage.relay.database, AttemptId(assignment.attempt_id), "Which?", (), stage.relay.now())
            assert task.questions
            await lease.refresh()  # the relay did not wake it
        group.cancel_scope.cancel()

    assert lease.asked_at is not None


async def test_a_question_is_received_once(stage: Stage) -> None:
    equipment, assignment = await take(stage, "unused")
    lease = Lease(equipment.link, assignment, Wakeup())

    lease.apply_control(Control(next_seq=0, asked=True))
    first = lease.asked_at
    lease.apply_control(Control(next_seq=0, asked=True))

    assert lease.asked_at == first is not None
