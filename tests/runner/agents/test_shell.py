from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from datetime import datetime

import pytest

from delegate.model import Outcome, Stream
from delegate.runner.agents import AgentTurn, Ending
from delegate.runner.agents.shell import Shell
from delegate.runner.process.agent_process import Exit
from delegate.states import AttemptState, Reason

NewTurn = Callable[..., AgentTurn]


@pytest.fixture
def run(new_turn: NewTurn) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    def run_it(prompt: str, cut: int | None = None) -> subprocess.CompletedProcess[bytes]:
        made = Shell().invocation(new_turn(prompt=prompt), os.environ)
        assert not made.keep_input_open
        return subprocess.run(made.argv, env=made.env, input=made.initial_input[:cut], capture_output=True, timeout=30)

    return run_it


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.mark.parametrize(
    ("prompt", "code", "output"),
    [
        ("echo hi; echo there", 0, b"hi\nthere\n"),
        ("exit 7", 7, b""),
        ("true\nfalse", 1, b""),
        ("set -e; false; echo no", 1, b""),
        ("cat; read x; echo end", 0, b"end\n"),
        ("cat <<E\nä€😀\nE", 0, "ä€😀\n".encode()),
        ('echo "$0 $#"', 0, b"sh 0\n"),
        ("trap 'echo bye' EXIT; exit 5", 5, b"bye\n"),
        ("# nothing", 0, b""),
        ("echo hi #att-0123456789abcdef", 0, b"hi\n"),
        ('echo "$delegate_command"', 0, b"\n"),
        ("for i in 1 2", 2, b""),
    ],
)
def test_the_prompt_is_a_command_line(prompt: str, code: int, output: bytes, run: Run) -> None:
    ended = run(prompt)

    assert (ended.returncode, ended.stdout) == (code, output)


@pytest.mark.parametrize("prompt", ["-x", "--help", "-c 'echo no'"])
def test_a_prompt_that_looks_like_an_option_is_a_command(prompt: str, run: Run) -> None:
    ended = run(prompt)

    assert (ended.returncode, ended.stdout) == (127, b"")
    assert prompt.split(maxsplit=1)[0].encode() in ended.stderr


def test_the_largest_prompt_runs_whole(run: Run) -> None:
    start, end = "echo '", "' | wc -c"
    prompt = start + "😀" * (250_000 - len(start) - len(end)) + end

    ended = run(prompt)

    assert int(ended.stdout) == 4 * (250_000 - len(start) - len(end)) + 1


def test_error_messages_count_lines_as_the_prompt_does(run: Run) -> None:
    assert b"2: " in run("true\nno-such-program").stderr


def test_a_command_that_was_cut_on_its_way_is_not_run(run: Run) -> None:
    ended = run("echo hi; echo there", cut=7)

    assert (ended.returncode, ended.stdout) == (125, b"")
    assert ended.stderr == b"delegate: the command arrived incomplete and was not run\n"


def test_the_prompt_is_not_shown_to_other_users(new_turn: NewTurn) -> None:
    made = Shell().invocation(new_turn(prompt="echo secret"), {})

    assert "secret" not in " ".join(made.argv)


def judged(turn: AgentTurn, exit: Exit, ending: Ending, now: datetime) -> Outcome:
    return Shell().reading(turn).judge(exit, ending, now)


@pytest.mark.parametrize(
    ("exit", "ending", "state", "reason", "code", "message"),
    [
        (Exit(code=0, signal=None), "exited", "completed", "done", 0, "the command ended with exit code 0"),
        (Exit(code=7, signal=None), "exited", "failed", "command_failed", 7, "the command ended with exit code 7"),
        (Exit(code=None, signal=9), "exited", "failed", "crashed", 137, "the command was killed by SIGKILL"),
        (Exit(code=None, signal=63), "exited", "failed", "crashed", 191, "the command was killed by signal 63"),
        (
            Exit(code=None, signal=15),
            "timeout",
            "failed",
            "timeout",
            143,
            "it was stopped because it reached its time limit of 30 minutes",
        ),
        (Exit(code=0, signal=None), "cancelled", "cancelled", "cancelled", 0, "it was cancelled"),
    ],
)
def test_its_end_is_judged_by_its_exit_alone(
    exit: Exit,
    ending: str,
    state: str,
    reason: str,
    code: int,
    message: str,
    new_turn: NewTurn,
    now: datetime,
) -> None:
    outcome = judged(new_turn(), exit, Ending(ending), now)

    assert (outcome.state, outcome.reason) == (AttemptState(state), Reason(reason))
    assert (outcome.exit_code, outcome.message) == (code, message)


def test_its_output_tells_nothing_and_it_takes_no_messages(new_turn: NewTurn) -> None:
    reading = Shell().reading(new_turn())

    assert reading.feed(Stream.STDOUT, b'{"type":"result","subtype":"success","is_error":false}\n') == []
    assert reading.message("hello") is None
    assert (reading.replies(), reading.summary, reading.takes_more_turns) == (b"", "", False)
    assert not reading.result_seen
    assert Shell().is_available({})
