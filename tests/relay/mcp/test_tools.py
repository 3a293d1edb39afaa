"""The MCP server: every tool through the official client, over both protocols."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from tests.both_databases.scene import Scene
from tests.both_databases.test_plans import overheard
from tests.relay.peers import (
    TOKEN,
    WAIT,
    Attempt,
    RelayProcess,
    Runner,
    chunk,
    client,
    problem_of,
    relay_in_process,
    runner_of,
)

from delegate.errors import DiskFull
from delegate.intake.submit import Request, submit
from delegate.model import OWNER
from delegate.relay import auth
from delegate.relay.access import Holder
from delegate.relay.app import make_app
from delegate.relay.auth import Caller
from delegate.relay.http.caller_process import UNKNOWN, CallingProcess
from delegate.relay.mcp.calls import ToolCall
from delegate.relay.mcp.endpoint import McpEndpoint
from delegate.relay.mcp.hints import rewrite_for_agents
from delegate.relay.mcp.tools import FOR_AGENTS, FOR_AGENTS_WITH_BRIDGE, FOR_OWNER
from delegate.states import ADVICE, Reason
from delegate.store.questions import keep_ask_hash
from delegate.tokens import hash_token
from delegate.wire.basics import Wire
from delegate.wire.schedules import PipelineStep, ScheduleRequest
from delegate.wire.tasks import SubmitRequest
from delegate.wire.tools import DelegateTask, ScheduleTask, Step, TaskStatus

pytestmark = pytest.mark.anyio

PROTOCOLS = {"auto": "2026-07-28", "legacy": "2025-11-25"}
AGENT_TOKEN = "dat_" + "5" * 64
OWNER_CALLS = Caller(holder=Holder.OWNER, actor=OWNER)


@dataclass(frozen=True, slots=True)
class Outer:
    """An agent that delegates."""

    client: Client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        with anyio.fail_after(WAIT):
            result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        assert result.content[0].text
        return dict(result.structured_content)

    async def text(self, tool: str, **arguments: Any) -> str:
        with anyio.fail_after(WAIT):
            result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return str(result.content[0].text)

    async def refusal(self, tool: str, **arguments: Any) -> str:
        with anyio.fail_after(WAIT):
            result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        assert result.structured_content is None
        return result.content[0].text


@asynccontextmanager
async def speaking(relay: RelayProcess, mode: str = "auto", token: str = TOKEN, **headers: str) -> AsyncIterator[Outer]:
    async with client(relay.url, token) as http:
        http.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
        async with Client(streamable_http_client(f"{relay.url}/mcp", http_client=http), mode=mode) as spoken:
            yield Outer(spoken)


@pytest.fixture
async def outer(relay: RelayProcess, runner: Runner) -> AsyncIterator[Outer]:
    """It sits in a directory of the runner's machine, as behind `delegate mcp start`."""
    async with speaking(relay, delegate_directory="/tmp", delegate_machine=runner.machine) as spoken:
        yield spoken


@pytest.mark.parametrize("mode", PROTOCOLS)
async def test_a_client_of_either_protocol_finds_every_tool_and_how_to_use_them(relay: RelayProcess, mode: str) -> None:
    async with speaking(relay, mode) as outer:
        listed = (await outer.client.list_tools()).tools
        refusal = await outer.refusal("TaskStatus", taskId="task-of-nobody")

        assert outer.client.session.protocol_version == PROTOCOLS[mode]
        assert outer.client.server_info.name == "delegate"
        assert "DelegateTask" in str(outer.client.instructions)
    assert [tool.name for tool in listed] == list(FOR_OWNER)
    assert all(tool.description and tool.output_schema for tool in listed)
    assert {tool.name for tool in listed if tool.annotations.read_only_hint} == {
        "TaskStatus",
        "TaskLogs",
        "ListSchedules",
        "GetSchedule",
    }
    assert {tool.name for tool in listed if tool.annotations.open_world_hint} == {
        "DelegateTask",
        "RetryTask",
        "ResumeTask",
        "AnswerTask",
        "ScheduleTask",
        "ResumeSchedule",
        "CreatePipeline",
    }
    assert refusal == "no task task-of-nobody\nhint: `TaskStatus` lists all tasks\ncode: no_such_task"


async def test_a_task_is_delegated_looked_at_and_cancelled(outer: Outer, runner: Runner) -> None:
    first = await outer.call("DelegateTask", prompt="make", agent="shell", priority="P1", timeout=60_000)
    second = await outer.call("DelegateTask", prompt="x" * 300, agent="shell", dependsOn=[first["taskId"]])

    one = await outer.call("TaskStatus", taskId=first["taskId"])
    page = await outer.call("TaskStatus", status="queued", limit=1)
    cancelled = await outer.call("CancelTask", taskId=first["taskId"], reason="not needed")

    assert first["status"] == "queued"
    assert first["taskId"] in second["why"]
    assert (one["task"]["workingDirectory"], one["task"]["machine"]) == ("/tmp", runner.machine)
    assert (one["task"]["priority"], one["task"]["timeout"], one["attempts"]) == ("P1", 60_000, [])
    assert [task["taskId"] for task in page["tasks"]] == [second["taskId"]]
    assert page["tasks"][0]["prompt"] == "x" * 200 + "…"
    assert cancelled == {"taskId": first["taskId"], "status": "cancelled", "alsoCancelled": [second["taskId"]]}
    older = await outer.call("TaskStatus", limit=1, cursor=page["next"])
    assert older["tasks"][0]["taskId"] == first["taskId"]


async def test_what_a_cancellation_sets_free_is_not_reported_as_cancelled(outer: Outer) -> None:
    first = (await outer.call("DelegateTask", prompt="make", agent="shell"))["taskId"]
    fields = {"prompt": "clean", "agent": "shell", "dependsOn": [first]}
    freed = (await outer.call("DelegateTask", onDependencyFailure="run", **fields))["taskId"]
    ended = (await outer.call("DelegateTask", **fields))["taskId"]

    cancelled = await outer.call("CancelTask", taskId=first)
    status = await outer.call("TaskStatus", taskId=freed)

    assert cancelled["alsoCancelled"] == [ended]
    assert status["task"]["status"] == "queued"
    await outer.call("CancelTask", taskId=freed)


async def test_a_cancellation_during_a_push_says_what_is_happening(outer: Outer, runner: Runner) -> None:
    attempt = await runner.take(agent="claude", pr=True)
    push = {"kind": "push", "target": "work-1", "expected": "a" * 40}
    await attempt.tell("effect", **push, state="intent")

    said = await outer.text("CancelTask", taskId=attempt.task_id)
    await attempt.tell("effect", **push, state="done", externalId="a" * 40)

    assert said == (f"{attempt.task_id} is being cancelled, but its branch is being pushed; it ends when that is done")
    await attempt.finish(outcome="cancelled", reason="cancelled", message="cancelled by the user")


async def test_a_running_task_takes_those_that_wait_for_it_along_when_it_ends(outer: Outer, runner: Runner) -> None:
    attempt = await runner.take()
    waiting = (await outer.call("DelegateTask", prompt="x", agent="shell", dependsOn=[attempt.task_id]))["taskId"]

    first = await outer.text("CancelTask", taskId=attempt.task_id)
    again = await outer.call("CancelTask", taskId=attempt.task_id, reason="not needed")
    shown = await attempt.renew()
    await attempt.finish(outcome="cancelled", reason="cancelled", message="cancelled by the user")

    assert first == (
        f"{attempt.task_id} is running; its runner is stopping it, "
        "and the tasks that wait for it are cancelled once it has stopped"
    )
    assert (again["status"], again["alsoCancelled"], shown["cancel"]) == ("running", [], "not needed")
    assert (await outer.call("TaskStatus", taskId=attempt.task_id))["task"]["message"] == "not needed"
    assert (await outer.call("TaskStatus", taskId=waiting))["task"]["status"] == "cancelled"


async def test_advice_names_tools(outer: Outer, runner: Runner) -> None:
    attempt = await runner.take(agent="claude")
    waiting = (await outer.call("DelegateTask", prompt="x", agent="shell", dependsOn=[attempt.task_id]))["taskId"]
    await attempt.finish(outcome="failed", reason="pr_rejected", message="no `gh`: `delegate retry` tries it again")

    failed = await outer.call("TaskStatus", taskId=attempt.task_id)
    text = await outer.text("TaskStatus", taskId=waiting)
    page = await outer.call("TaskStatus", limit=2)

    said = "no `gh`: `RetryTask` tries it again"
    assert (failed["task"]["message"], failed["attempts"][0]["message"]) == (said, said)
    assert failed["task"]["advice"].endswith("fix the problem in the message and run the task again with `RetryTask`")
    assert page["tasks"][1]["message"] == said
    assert text.endswith(
        "each task in `dependsOn` shows what failed; run that task again with `RetryTask`, then this one"
    )
    refusal = await outer.refusal("RetryTask", taskId=waiting)
    assert f"hint: `RetryTask {attempt.task_id}` first, then try this task again\n" in refusal
    refusal = await outer.refusal("DelegateTask", prompt="x", agent="shell", dependsOn=[waiting])
    assert f'`RetryTask {waiting}` and depend on the new task, or submit with `"onDependencyFailure": "run"`' in refusal


@pytest.mark.parametrize("reason", Reason)
def test_no_advice_names_a_command_that_is_not_a_tool(reason: Reason) -> None:
    advice = rewrite_for_agents(ADVICE[reason])

    shell = re.findall(r"`(?:delegate |--)[^`]*`(?! \(in a shell\))", advice)
    assert shell == []
    known = {"delegate diff", "delegate workspaces", "--max-turns", "--rerun"}
    assert set(re.findall(r"`([^`]*)` \(in a shell\)", advice)) <= known


async def test_a_task_that_waits_for_an_answer_names_the_tool_that_gives_it(
    relay: RelayProcess, outer: Outer, runner: Runner
) -> None:
    await runner.submit(agent="claude")
    assignment = await runner.ask(askHash=sha256(AGENT_TOKEN.encode()).hexdigest())
    assert assignment is not None
    attempt = Attempt(
        runner=runner, id=assignment["attemptId"], task_id=assignment["taskId"], fence=assignment["fence"]
    )
    async with speaking(relay, token=AGENT_TOKEN) as inner:
        await inner.call("ask_user", question="red or blue?")
    await attempt.finish()

    text = await outer.text("TaskStatus", taskId=attempt.task_id)

    assert f"waits for an answer; use `AnswerTask {attempt.task_id}`" in text
    await outer.call("CancelTask", taskId=attempt.task_id)


async def test_a_completed_task_is_started_again_and_any_other_is_continued(outer: Outer, runner: Runner) -> None:
    completed, failed = await runner.take(), await runner.take()
    await completed.finish()
    await failed.finish(outcome="failed", reason="command_failed", message="exit code 1", exitCode=1)

    assert f"repeats {completed.task_id};" in await outer.text("RetryTask", taskId=completed.task_id)
    assert f"continues {failed.task_id};" in await outer.text("RetryTask", taskId=failed.task_id)
    for task in (await outer.call("TaskStatus", status="queued", limit=2))["tasks"]:
        await outer.call("CancelTask", taskId=task["taskId"])


async def test_a_limit_that_nothing_holds_a_command_to_is_refused(outer: Outer) -> None:
    said = await outer.refusal("DelegateTask", prompt="make", agent="shell", maxBudgetUsd=0.5)

    assert said.startswith("a limit of 0.5 USD is not supported for shell tasks")


async def test_an_ended_task_is_run_again_or_gone_on_with(outer: Outer, runner: Runner) -> None:
    attempt = await runner.take(agent="claude")
    await attempt.finish(outcome="failed", reason="agent_error", message="no idea")

    resumed = await outer.call("ResumeTask", taskId=attempt.task_id, additionalContext="try the other way")
    await outer.call("CancelTask", taskId=resumed["taskId"])
    retried = await outer.call("RetryTask", taskId=attempt.task_id)

    context = (await outer.call("TaskStatus", taskId=resumed["taskId"]))["task"]["context"]
    assert context == "try the other way"
    for again in (resumed, retried):
        assert again.pop("taskId") != attempt.task_id
        assert again == {
            "status": "queued",
            "retryOf": attempt.task_id,
            "parentTaskId": attempt.task_id,
            "retryCount": 1,
        }
    await outer.call("CancelTask", taskId=(await outer.call("TaskStatus", limit=1))["tasks"][0]["taskId"])


async def test_the_last_lines_and_then_only_new_ones(outer: Outer, runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.record(chunk(0, b"one\ntwo\nthr"), chunk(1, b"oops\n", "stderr"))

    seen = await outer.call("TaskLogs", taskId=attempt.task_id, tail=2)
    await attempt.record(chunk(2, b"ee\nfo"))
    await attempt.finish(3)
    new = await outer.call("TaskLogs", taskId=attempt.task_id, since=seen["next"])

    assert [(line["stream"], line["text"]) for line in seen["lines"]] == [("stdout", "two"), ("stderr", "oops")]
    assert [line["text"] for line in new["lines"]] == ["three", "fo"]
    assert (seen["status"], new["status"]) == ("running", "completed")
    assert (await outer.call("TaskLogs", taskId=attempt.task_id, since=new["next"]))["lines"] == []
    assert "since: is not a `next`" in await outer.refusal("TaskLogs", taskId=attempt.task_id, since="yesterday")


@pytest.mark.parametrize("mode", PROTOCOLS)
async def test_a_client_that_keeps_reading_gets_new_lines_until_the_task_ends(
    relay: RelayProcess, runner: Runner, mode: str
) -> None:
    attempt = await runner.take()
    shown: list[str | None] = []
    received = anyio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        shown.append(message)
        received.set()

    async def work() -> None:
        await attempt.record(chunk(0, b"first\n"))
        await received.wait()
        await attempt.record(chunk(1, b"second\n"))
        await attempt.finish(2)

    async with speaking(relay, mode) as outer, anyio.create_task_group() as group:
        since = (await outer.call("TaskLogs", taskId=attempt.task_id))["next"]
        group.start_soon(work)
        with anyio.fail_after(WAIT):
            arguments = {"taskId": attempt.task_id, "since": since}
            result = await outer.client.call_tool("TaskLogs", arguments, progress_callback=on_progress)

    answer = result.structured_content
    assert shown == ["first", "second"]
    assert ([line["text"] for line in answer["lines"]], answer["status"]) == (["first", "second"], "completed")


async def test_a_client_that_keeps_reading_waits_without_progress_too(outer: Outer, runner: Runner) -> None:
    attempt = await runner.take()

    async def work() -> None:
        await attempt.record(chunk(0, b"first\n"))
        await attempt.record(chunk(1, b"second\n"))
        await attempt.finish(2)

    async with anyio.create_task_group() as group:
        since = (await outer.call("TaskLogs", taskId=attempt.task_id))["next"]
        group.start_soon(work)
        answer = await outer.call("TaskLogs", taskId=attempt.task_id, since=since)

    assert ([line["text"] for line in answer["lines"]], answer["status"]) == (["first", "second"], "completed")


async def test_who_does_not_say_where_it_stopped_never_waits(outer: Outer, runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.record(chunk(0, b"first\n"))

    with anyio.fail_after(WAIT):
        result = await outer.client.call_tool("TaskLogs", {"taskId": attempt.task_id}, progress_callback=unheard)

    assert [line["text"] for line in result.structured_content["lines"]] == ["first"]
    await attempt.finish(1)


async def unheard(progress: float, total: float | None, message: str | None) -> None:
    raise AssertionError(f"no client waits, and yet there is progress: {message}")


async def test_a_task_is_scheduled_looked_at_paused_resumed_and_cancelled(outer: Outer, runner: Runner) -> None:
    nightly = await outer.call(
        "ScheduleTask",
        prompt="back up",
        agent="shell",
        scheduleType="cron",
        cronExpression="0 2 * * *",
        timezone="America/New_York",
        missedRunPolicy="catchup",
    )
    once = await outer.call(
        "ScheduleTask", prompt="deploy", scheduleType="one_time", scheduledAt="2030-02-19T08:00:00Z"
    )

    paused = await outer.call("PauseSchedule", scheduleId=nightly["scheduleId"], reason="holiday")
    full = await outer.call("GetSchedule", scheduleId=nightly["scheduleId"])
    stands = await outer.text("GetSchedule", scheduleId=nightly["scheduleId"])
    resumed = await outer.call("ResumeSchedule", scheduleId=nightly["scheduleId"])
    cancelled = await outer.call("CancelSchedule", scheduleId=once["scheduleId"], cancelTasks=True)
    page = await outer.call("ListSchedules", status="active", limit=1)

    assert (nightly["status"], len(nightly["nextRuns"]), nightly["nextRuns"][0]) == ("active", 3, nightly["nextRunAt"])
    assert once["nextRuns"] == ["2030-02-19T08:00:00Z"]
    assert (paused["status"], resumed["status"]) == ("paused", "active")
    assert stands == f"{nightly['scheduleId']} is paused: holiday"
    assert full["schedule"]["task"]["workingDirectory"] == "/tmp"
    assert (full["schedule"]["timezone"], full["history"]) == ("America/New_York", [])
    assert cancelled == {"scheduleId": once["scheduleId"], "status": "cancelled", "cancelledTasks": []}
    assert page["schedules"][0]["scheduleId"] == nightly["scheduleId"]
    bare = await outer.call("GetSchedule", scheduleId=nightly["scheduleId"], includeHistory=False)
    assert "history" not in bare
    assert "cronExpression" in await outer.refusal("ScheduleTask", prompt="x", scheduleType="cron")
    await outer.call("CancelSchedule", scheduleId=nightly["scheduleId"])


async def test_a_pipeline_begins_at_once_and_its_steps_wait_for_each_other(outer: Outer, runner: Runner) -> None:
    steps = [{"prompt": "build", "agent": "shell"}, {"prompt": "test", "agent": "shell", "delay": 60_000}]

    pipeline = await outer.call("CreatePipeline", steps=steps)
    assignment = await runner.ask(wait=WAIT)
    listed = (await outer.call("ListSchedules", limit=2))["schedules"]
    shown = await outer.text("ListSchedules", limit=2)
    refusal = await outer.refusal("CreatePipeline", steps=[*steps, {"prompt": "x", "dependsOn": ["task-of-nobody"]}])

    first, second = pipeline["steps"]
    assert (pipeline["pipelineId"], second["status"]) == (first["scheduleId"], "active")
    assert first["scheduleId"] in second["why"]
    assert [(one["status"], one.get("lastOutcome")) for one in listed] == [("active", None), ("completed", "started")]
    assert f"{first['scheduleId']} is completed (last run: started)" in shown
    assert assignment is not None
    assert (assignment["prompt"], assignment["workingDirectory"]) == ("build", "/tmp")
    assert refusal.startswith("steps.2.dependsOn: no task task-of-nobody")
    await outer.call("CancelSchedule", scheduleId=second["scheduleId"])


@pytest.mark.parametrize(
    ("tool", "body"), [(DelegateTask, SubmitRequest), (ScheduleTask, ScheduleRequest), (Step, PipelineStep)]
)
def test_a_tool_validates_its_parameters_as_the_request_that_they_become(tool: type[Wire], body: type[Wire]) -> None:
    assert set(tool.model_fields) <= set(body.model_fields)
    for name, field in tool.model_fields.items():
        same = body.model_fields[name]
        assert (field.annotation, field.metadata, field.default) == (same.annotation, same.metadata, same.default)


async def test_a_call_sent_again_with_its_key_is_one_task(outer: Outer) -> None:
    meta: Any = {"delegate/requestKey": "key-of-one-call"}
    bad_meta: Any = {"delegate/requestKey": "a\x00b"}
    calls = [
        await outer.client.call_tool("DelegateTask", {"prompt": "once", "agent": "shell"}, meta=meta) for _ in range(2)
    ]
    refused = await outer.client.call_tool("DelegateTask", {"prompt": "x"}, meta=bad_meta)

    assert calls[0].structured_content["taskId"] == calls[1].structured_content["taskId"]
    assert refused.content[0].text.startswith("_meta.delegate/requestKey: ")


async def test_the_place_of_a_task_is_that_of_the_client_or_what_it_names(relay: RelayProcess) -> None:
    async with speaking(relay) as outer:
        nowhere = await outer.refusal("DelegateTask", prompt="x")
        whose = await outer.refusal("DelegateTask", prompt="x", workingDirectory="/src")
        remote = await outer.call("DelegateTask", prompt="x", repository="owner/name")
        both = await outer.refusal("DelegateTask", prompt="x", repository="owner/name", workingDirectory="/src")
        remote_task = (await outer.call("TaskStatus", taskId=remote["taskId"]))["task"]
        await outer.call("CancelTask", taskId=remote["taskId"])  # any runner would take it
    async with speaking(relay, delegate_directory="/tmp/gr%C3%BCn%20haus", delegate_machine="mine") as outer:
        local = await outer.call("DelegateTask", prompt="x", worktree=True)
        path = await outer.call("DelegateTask", prompt="x", repository="/src/project")
        places = [(await outer.call("TaskStatus", taskId=task["taskId"]))["task"] for task in (local, path)]
    async with speaking(relay, delegate_directory="%ff", delegate_machine="mine") as outer:
        garbled = await outer.refusal("DelegateTask", prompt="x")
    async with speaking(relay, delegate_machine="mine") as outer:
        removed = await outer.refusal("DelegateTask", prompt="x")
    async with speaking(
        relay, delegate_directory="/", delegate_machine="mine", delegate_default_agent="nobody"
    ) as outer:
        unknown = await outer.refusal("DelegateTask", prompt="x")

    assert nowhere.startswith("workingDirectory: is missing, and the client has not sent its location")
    assert "delegate-machine" in whose
    assert both.startswith("repository: cannot be combined with workingDirectory")
    assert (remote_task["repository"], remote_task["machine"]) == ("owner/name", "*")
    assert [(place.get("workingDirectory"), place["machine"]) for place in places] == [
        ("/tmp/grün haus", "mine"),
        (None, "mine"),
    ]
    assert garbled.startswith("delegate-directory: is not UTF-8")
    assert "no longer exists: give an absolute path, or give a repository" in removed
    assert "nobody" in unknown
    assert "claude" in unknown


async def test_the_agent_of_an_attempt_can_ask_and_nothing_else(
    relay: RelayProcess, outer: Outer, runner: Runner
) -> None:
    await runner.submit(agent="claude")
    assignment = await runner.ask(askHash=sha256(AGENT_TOKEN.encode()).hexdigest())
    assert assignment is not None

    for mode in PROTOCOLS:
        async with speaking(relay, mode, AGENT_TOKEN) as inner:
            assert [tool.name for tool in (await inner.client.list_tools()).tools] == list(FOR_AGENTS) == ["ask_user"]
            assert "DelegateTask" not in str(inner.client.instructions)
            with pytest.raises(MCPError, match="there is no tool DelegateTask; the tools are ask_user"):
                await inner.client.call_tool("DelegateTask", {"prompt": "x"})
            asked = await inner.call("ask_user", question="red or blue?", options=["red", "blue"])
    async with client(relay.url, AGENT_TOKEN) as http:
        problem_of(await http.get("/api/tasks"), 403, "forbidden")
    with pytest.raises(MCPError, match="there is no tool ask_user"):
        await outer.client.call_tool("ask_user", {"question": "?"})
    answered = await outer.call("AnswerTask", taskId=assignment["taskId"], answer="blue")

    assert (asked["taskId"], asked["asked"]) == (assignment["taskId"], 1)
    assert "end your turn" in asked["next"]
    assert answered == {"taskId": assignment["taskId"], "status": "running"}
    (question,) = (await outer.call("TaskStatus", taskId=assignment["taskId"]))["task"]["questions"]
    assert (question["text"], question["answer"]) == ("red or blue?", "blue")


async def test_the_agent_of_an_attempt_with_a_bridge_submits_children(relay: RelayProcess, runner: Runner) -> None:
    token = f"dat_{secrets.token_hex(32)}"
    parent = (await runner.submit(agent="claude"))["taskId"]
    assert await runner.ask(askHash=sha256(token.encode()).hexdigest())

    for mode in PROTOCOLS:
        async with speaking(relay, mode, token, delegate_directory="/tmp", delegate_machine=runner.machine) as inner:
            assert [tool.name for tool in (await inner.client.list_tools()).tools] == list(FOR_AGENTS_WITH_BRIDGE)
            assert "DelegateTask" in str(inner.client.instructions)
            child = await inner.call("DelegateTask", prompt="x")
            shown = await inner.call("TaskStatus", taskId=child["taskId"])
            beyond = await inner.refusal("DelegateTask", prompt="x", agent="shell")

        assert shown["task"]["submittedBy"] == parent
        assert "code: child_refused" in beyond


async def test_a_process_that_hides_its_open_files_can_ask_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codex hides them. Such a process may also belong to another task, whose token it has read."""

    async def find_nobody(_request: Any, _relay: Any) -> CallingProcess:
        return UNKNOWN

    monkeypatch.setattr(auth, "_caller_of", find_nobody)
    async with relay_in_process(tmp_path) as relay:
        held = await Scene(relay.database).take(agent="claude")
        await relay.database.write("test", lambda c: keep_ask_hash(c, held.attempt, hash_token(AGENT_TOKEN)))
        app = make_app(relay)
        headers = {"authorization": f"Bearer {AGENT_TOKEN}", "delegate-directory": "/tmp", "delegate-machine": "desk"}
        transport = httpx2.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http,
            Client(streamable_http_client("http://localhost/mcp", http_client=http)) as spoken,
        ):
            inner = Outer(spoken)
            await inner.call("ask_user", question="red or blue?")
            refusal = await inner.refusal("DelegateTask", prompt="x")

    assert "it is for the processes of its own task" in refusal


async def test_a_token_that_opens_nothing_is_refused(relay: RelayProcess, runner: Runner) -> None:
    for token, status, code in [
        ("wrong", 401, "unauthenticated"),
        (AGENT_TOKEN.replace("5", "6"), 401, "unauthenticated"),
        (runner.token, 403, "forbidden"),
    ]:
        async with client(relay.url, token) as http:
            assert "token" in problem_of(await http.post("/mcp", json={}), status, code)["detail"]


def test_the_sdk_is_not_loaded_before_the_first_request() -> None:
    code = "import sys, delegate.relay.__main__; sys.exit(any(name.split('.')[0] == 'mcp' for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


async def test_a_relay_that_stops_waits_for_no_open_stream(own_relay: RelayProcess) -> None:
    received = {mode: anyio.Event() for mode in PROTOCOLS}
    statuses: list[str] = []

    async def follow(mode: str, task_id: str) -> None:
        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            received[mode].set()

        async with speaking(own_relay, mode) as outer:
            await outer.client.list_tools()  # else it does so afterwards, to check the answer
            arguments = {"taskId": task_id, "since": "1.0-1.0"}
            result = await outer.client.call_tool("TaskLogs", arguments, progress_callback=on_progress)
            statuses.append(result.structured_content["status"])

    async with client(own_relay.url) as owner, runner_of(owner) as runner, anyio.create_task_group() as group:
        attempt = await runner.take()
        await attempt.record(chunk(0, b"still busy\n"))
        for mode in PROTOCOLS:
            group.start_soon(follow, mode, attempt.task_id)
            await received[mode].wait()
        code = await anyio.to_thread.run_sync(own_relay.stop)

    assert (code, statuses) == (0, ["running", "running"])
    assert "Cancel" not in own_relay.log  # what the server says when it ends a request by force
    assert "Traceback" not in own_relay.log


async def test_a_client_that_goes_away_is_not_waited_for(tmp_path: Path) -> None:
    async with relay_in_process(tmp_path) as relay:
        request = Request(prompt="x", repository="owner/name")
        task = (await submit(relay.database, request, relay.settings, relay.now())).task
        call = {"name": "TaskLogs", "arguments": {"taskId": task.id, "since": "1.0-1.0"}}
        body = json.dumps(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {
                    **call,
                    "_meta": {
                        "progressToken": 1,
                        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                        "io.modelcontextprotocol/clientCapabilities": {},
                    },
                },
            }
        ).encode()
        headers = {
            "host": "localhost",
            "authorization": f"Bearer {TOKEN}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "TaskLogs",
        }
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/mcp",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        received = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])
        sent: list[Any] = []

        async def receive() -> Any:
            return next(received)

        async def send(message: Any) -> None:
            sent.append(message)

        app = make_app(relay)
        async with app.router.lifespan_context(app):
            with anyio.fail_after(WAIT):
                await app(scope, receive, send)

    assert sent == []  # it was not over, and no client was connected


async def test_no_new_work_is_taken_when_the_disk_runs_full(tmp_path: Path) -> None:
    async with relay_in_process(tmp_path, relay_min_free=2**60) as relay:
        call = ToolCall(relay=relay, caller=OWNER_CALLS, headers={})

        for name in ("DelegateTask", "RetryTask", "ResumeTask", "ScheduleTask", "CreatePipeline"):
            with pytest.raises(DiskFull):
                await FOR_OWNER[name].run(call, cast(Any, None))
        assert await FOR_OWNER["TaskStatus"].run(call, TaskStatus())


async def test_the_status_of_a_task_is_read_without_its_events(tmp_path: Path) -> None:
    async with relay_in_process(tmp_path) as relay:
        task = (await submit(relay.database, Request(prompt="x", repository="o/n"), relay.settings, relay.now())).task
        call = ToolCall(relay=relay, caller=OWNER_CALLS, headers={})

        with overheard() as statements:
            await FOR_OWNER["TaskStatus"].run(call, TaskStatus(task_id=task.id))

    assert statements
    assert not any("FROM event" in sql for sql, _ in statements)


async def test_tools_that_cannot_be_loaded_do_not_stop_the_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade whose files do not fit what is already loaded."""
    monkeypatch.setitem(sys.modules, "delegate.relay.mcp.sdk_servers", None)
    async with relay_in_process(tmp_path) as relay, anyio.create_task_group() as group:
        endpoint = McpEndpoint(relay)
        endpoint.open(group)

        await endpoint.load_for_agent()
        await endpoint.load_for_agent()

        assert not group.cancel_scope.cancel_called
