"""Two real agents that speak the Agent Client Protocol, against a scripted model, run as an attempt runs them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes.anthropic_standin import AnthropicStandin

from delegate.model import EventKind, Outcome, Usage
from delegate.runner.agents import AgentTurn, Ending, Fact
from delegate.runner.agents.acp import Acp
from delegate.runner.agents.acp_reading import AcpReading
from delegate.runner.agents.probes import can_start, probe
from delegate.runner.process.agent_process import Command, become_subreaper, launch, start_spare
from delegate.states import AttemptState, Reason

pytestmark = [pytest.mark.real, pytest.mark.anyio]
ADAPTER, OPENCODE = "claude-agent-acp", "opencode acp"
QUIET = {
    "ANTHROPIC_API_KEY": "test-key",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    outcome: Outcome
    facts: list[Fact]
    reading: AcpReading

    def data_of(self, kind: EventKind) -> list[dict[str, object]]:
        return [fact.data for fact in self.facts if fact.kind is kind]


class Bench:
    """A user's machine whose agents speak to the stand-in."""

    def __init__(self, home: Path, model: AnthropicStandin) -> None:
        self.model = model
        self.work = home / "work"
        self.work.mkdir()
        provider = {"anthropic": {"options": {"baseURL": f"{model.base_url()}/v1", "apiKey": "test-key"}}}
        opencode = {"autoupdate": False, "model": "anthropic/claude-sonnet-4-5", "provider": provider}
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
            **QUIET,
            "HOME": str(home),
            "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "ANTHROPIC_BASE_URL": model.base_url(),
            "OPENCODE_CONFIG_CONTENT": json.dumps(opencode),
        }

    def plays(self, *steps: dict[str, Any], **more: Any) -> None:
        self.model.define("default", {"steps": list(steps), **more})

    def asked(self) -> list[dict[str, Any]]:
        return [request["body"] for request in self.model.requests if request.get("kind") == "main"]

    async def run(self, command: str, turn: AgentTurn, *messages: str) -> Ran:
        agent = agent_of(command)
        made, reading, facts = agent.invocation(turn, self.environ), agent.reading(turn), []
        waiting = list(messages)
        process = await launch(await start_spare(), Command(argv=made.argv, cwd=self.work, env=made.env))
        try:
            with anyio.fail_after(60):
                await process.send(made.initial_input)
                while True:
                    stream, data = await process.receive()
                    facts += reading.feed(stream, data)
                    await process.send(reading.replies())
                    if reading.result_seen and waiting:
                        await process.send(reading.message(waiting.pop(0)) or b"")
                    elif reading.result_seen:
                        await process.close_input()
        except anyio.EndOfStream:
            ended = await process.wait()
        finally:
            await process.aclose()
        return Ran(outcome=reading.judge(ended, Ending.EXITED, datetime.now(UTC)), facts=facts, reading=reading)


def agent_of(command: str) -> Acp:
    return Acp(command=command, is_root=os.geteuid() == 0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    for program in (ADAPTER, OPENCODE.split(maxsplit=1)[0]):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    become_subreaper()
    with AnthropicStandin({}) as model:
        yield Bench(tmp_path, model)


@pytest.fixture
def turn(bench: Bench, new_turn: Callable[..., AgentTurn]) -> Callable[..., AgentTurn]:
    return lambda **fields: new_turn(working_directory=str(bench.work), **fields)


NewTurn = Callable[..., AgentTurn]


async def test_the_adapter_edits_a_file_and_runs_a_command_and_everything_is_reported(
    bench: Bench, turn: NewTurn
) -> None:
    made = bench.work / "made.txt"
    write = {"type": "tool_use", "name": "Write", "input": {"file_path": str(made), "content": "made\n"}}
    todo = {"content": "Make it", "status": "in_progress", "activeForm": "Making it"}
    bench.plays(
        {"content": [{"type": "text", "text": "I will write the file first."}, write]},
        {"tool": "TodoWrite", "input": {"todos": [todo]}},
        {"tool": "Bash", "input": {"command": "cp made.txt copied.txt", "description": "copy"}},
        {"text": "Wrote made.txt and copied it."},
    )

    ran = await bench.run(ADAPTER, turn(prompt="Make made.txt", model="claude-sonnet-4-6", effort="low"))

    assert (ran.outcome.state, ran.outcome.reason) == (AttemptState.COMPLETED, Reason.DONE), ran.outcome
    assert (bench.work / "copied.txt").read_text() == "made\n"
    assert " ".join(fact.kind for fact in ran.facts) == "session message tool todo tool message usage"
    assert [tool["summary"] for tool in ran.data_of(EventKind.TOOL)] == [str(made), "cp made.txt copied.txt"]
    assert ran.data_of(EventKind.TODO) == [{"items": [{"title": "Make it", "state": "in_progress"}]}]
    assert ran.reading.summary == "Wrote made.txt and copied it."
    assert (ran.outcome.usage.input_tokens, ran.outcome.usage.output_tokens) == (400, 80)
    assert ran.outcome.usage.cost_usd > 0
    (first, *_) = bench.asked()
    assert (first["model"], first["output_config"]) == ("claude-sonnet-4-6", {"effort": "low"})


@pytest.mark.slow
async def test_a_message_is_the_next_prompt_and_a_later_turn_continues_the_session(bench: Bench, turn: NewTurn) -> None:
    bench.plays({"text": "One."}, {"expect": "And two", "text": "Two."}, {"expect": "And three", "text": "Three."})
    first = await bench.run(ADAPTER, turn(prompt="Say one"), "And two?")

    second = await bench.run(ADAPTER, turn(text="And three?", session=first.outcome.session_id))

    assert first.data_of(EventKind.MESSAGE) == [{"text": "One."}, {"text": "Two."}]
    assert first.reading.takes_more_turns
    assert second.data_of(EventKind.MESSAGE) == [{"text": "Three."}]
    assert second.outcome.session_id == first.outcome.session_id
    assert "Say one" in json.dumps(bench.asked()[-1]["messages"])


async def test_a_session_that_is_not_there_is_reported_at_once(bench: Bench, turn: NewTurn) -> None:
    ran = await bench.run(ADAPTER, turn(session="99999999-2222-4333-8444-555555555555"))

    assert ran.reading.session_missing
    assert ran.outcome.session_id is None
    assert bench.asked() == []


async def test_what_the_mode_does_not_allow_is_refused_and_reported(bench: Bench, turn: NewTurn) -> None:
    command = 'python3 -c \'open("made.txt", "w")\''
    bench.plays({"tool": "Bash", "input": {"command": command, "description": "make"}}, {"text": "I may not."})

    ran = await bench.run(ADAPTER, turn(permission_mode="acceptEdits"))

    assert not (bench.work / "made.txt").exists()
    assert ran.data_of(EventKind.WARNING) == [{"text": "tool calls denied: 1 (execute)"}]
    assert ran.outcome.reason is Reason.DONE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "fields", "reason"),
    [
        ({"steps": [{"error": {"status": 429, "type": "rate_limit_error"}, "repeat": -1}]}, {}, Reason.RATE_LIMITED),
        ({"steps": [{"error": {"status": 529, "type": "overloaded_error"}, "repeat": -1}]}, {}, Reason.OVERLOADED),
        ({"api_keys": ["another"]}, {}, Reason.NOT_LOGGED_IN),
        ({"models": ["another"]}, {}, Reason.UNKNOWN_MODEL),
        ({}, {"model": "gpt-5"}, Reason.UNKNOWN_MODEL),
        ({"steps": [{"text": "no", "stop_reason": "refusal"}]}, {}, Reason.REFUSED),
    ],
    ids=["rate-limit", "overloaded", "bad-key", "model-gone", "model-unknown", "refusal"],
)
async def test_the_adapters_troubles_have_the_same_reasons_as_claudes_own(
    bench: Bench, turn: NewTurn, script: dict[str, Any], fields: dict[str, object], reason: Reason
) -> None:
    bench.plays(*script.get("steps", []), **{name: part for name, part in script.items() if name != "steps"})

    ran = await bench.run(ADAPTER, turn(**fields))

    assert ran.outcome.reason is reason, ran.outcome
    assert (ran.outcome.not_before is not None) == (reason is Reason.RATE_LIMITED)
    assert ran.outcome.message


@pytest.mark.slow
async def test_another_agent_does_the_same_work_and_continues_in_its_session(bench: Bench, turn: NewTurn) -> None:
    made = bench.work / "made.txt"
    bench.plays(
        {"tool": "write", "input": {"filePath": str(made), "content": "made\n"}},
        {"tool": "bash", "input": {"command": "cp made.txt copied.txt", "description": "copy"}},
        {"text": "Wrote made.txt and copied it."},
    )
    first = await bench.run(OPENCODE, turn(prompt="Make made.txt", model="claude-sonnet-4-5"))
    bench.plays({"expect": "And now", "text": "Nothing more."})

    spent = first.outcome.usage
    second = await bench.run(OPENCODE, turn(text="And now?", session=first.outcome.session_id, spent=spent))

    assert (bench.work / "copied.txt").read_text() == "made\n"
    assert first.data_of(EventKind.TOOL)[0]["summary"] == str(made)
    assert first.data_of(EventKind.SESSION)[0]["model"] == "anthropic/claude-sonnet-4-5"
    assert (first.outcome.reason, second.outcome.reason) == (Reason.DONE, Reason.DONE)
    assert second.data_of(EventKind.MESSAGE) == [{"text": "Nothing more."}]
    assert Usage().cost_usd < second.outcome.usage.cost_usd < spent.cost_usd


async def test_the_adapter_is_probed_by_a_greeting(bench: Bench) -> None:
    found = await probe(agent_of(ADAPTER), bench.environ)

    assert found.problem is None
    assert found.version is not None
    assert found.version.startswith("0.")
    assert await can_start(agent_of(ADAPTER), bench.environ)
    assert bench.asked() == []
