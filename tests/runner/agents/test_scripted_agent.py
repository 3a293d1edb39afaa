"""The stand-in for `claude` on PATH is started and read like the real one."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from delegate.model import EventKind, Outcome, Stream
from delegate.runner.agents import AgentTurn, Ending, Fact
from delegate.runner.agents.claude import Claude
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason

PROGRAM = Path(__file__).parents[2] / "fakes" / "scripted_agent.py"


@pytest.fixture
def play(
    new_turn: Callable[..., AgentTurn], tmp_path: Path, now: datetime
) -> Callable[..., tuple[Outcome, list[Fact]]]:
    entry: Path = runpy.run_path(str(PROGRAM))["install"](tmp_path / "bin")

    def run(*steps: dict[str, object], messages: tuple[str, ...] = (), **environ: str) -> tuple[Outcome, list[Fact]]:
        claude = Claude(command=str(entry), is_root=False)
        turn = new_turn(prompt=f"Play this: {json.dumps({'steps': steps})}" if steps else "Hello.")
        made, reading = claude.invocation(turn, {**os.environ, **environ}), claude.reading(turn)
        given = made.initial_input + b"".join(reading.message(text) or b"" for text in messages)
        ended = subprocess.run(made.argv, env=made.env, input=given, capture_output=True, timeout=30)
        facts = reading.feed(Stream.STDOUT, ended.stdout)
        code = ended.returncode
        end = Exit(code=code if code >= 0 else None, signal=-code if code < 0 else None)
        return reading.judge(end, Ending.EXITED, now), facts

    return run


Play = Callable[..., tuple[Outcome, list[Fact]]]


def test_without_a_script_it_does_its_work_at_once(play: Play) -> None:
    outcome, facts = play()

    assert outcome.state is AttemptState.COMPLETED
    assert [fact.kind for fact in facts] == [EventKind.SESSION, EventKind.MESSAGE, EventKind.USAGE]


def test_it_plays_the_script_in_its_prompt(play: Play, tmp_path: Path) -> None:
    outcome, facts = play(
        {"init": {"session_id": "s-1"}},
        {"tool": "Bash", "input": {"command": "make"}},
        {"read": 1},
        {"touch": str(tmp_path / "mark")},
        {"wait": str(tmp_path / "mark")},
        {"print": "not json"},
        {"result": "Finished.", "fields": {"total_cost_usd": 0.25}},
        {"end_of_input": True},
        messages=("And hello.",),
    )

    assert (outcome.reason, outcome.session_id, outcome.usage.cost_usd) == (Reason.DONE, "s-1", 0.25)
    assert [fact.data.get("text") or fact.data.get("summary") for fact in facts[1:3]] == ["make", "And hello."]


@pytest.mark.parametrize(
    ("steps", "reason", "exit_code"),
    [
        ([{"exit": 3}], Reason.CRASHED, 3),
        ([{"signal": "SEGV"}], Reason.CRASHED, 128 + signal.SIGSEGV),
        ([{"ignore": "TERM"}, {"result": "x", "fields": {"is_error": True}}], Reason.AGENT_ERROR, 0),
        ([{"chunk": "x", "times": 3}, {"print": "", "to": "stdout"}, {"result": "ok"}], Reason.DONE, 0),
    ],
)
def test_it_ends_as_its_script_says(steps: list[dict[str, object]], reason: Reason, exit_code: int, play: Play) -> None:
    outcome, _ = play(*steps)

    assert (outcome.reason, outcome.exit_code) == (reason, exit_code)


def test_it_replays_a_captured_transcript_and_keeps_a_log(play: Play, captures: Path, tmp_path: Path) -> None:
    script, log = tmp_path / "script.json", tmp_path / "log"
    script.write_text(json.dumps({"steps": [{"replay": str(captures / "max_turns.jsonl")}, {"exit": 1}]}))

    outcome, _ = play(SCRIPTED_AGENT_FILE=str(script), SCRIPTED_AGENT_LOG=str(log))

    assert outcome.reason is Reason.MAX_TURNS
    (run,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert run["prompt"] == "Hello."
    assert run["environ"]["DELEGATE_TASK_ID"] == "task-0123456789"
