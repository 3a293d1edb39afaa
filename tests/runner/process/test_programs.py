from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from tests.fakes.world import is_alive

from delegate.runner.git.program import GitFailed, read_git
from delegate.runner.process import programs
from delegate.runner.process.programs import ProgramMissing, ProgramResult, ProgramTimedOut, run_program

pytestmark = pytest.mark.anyio
ENV = {"PATH": os.environ["PATH"]}
LONG = timedelta(seconds=30)


async def sh(
    script: str, *, cwd: Path, input: bytes = b"", timeout: timedelta = LONG, bound: bool = False
) -> ProgramResult:
    argv = ["/bin/sh", "-c", script]
    return await run_program(argv, cwd=cwd, env=ENV, timeout=timeout, input=input, kill_with_parent=bound)


async def test_input_output_and_exit_code_are_the_programs_own(tmp_path: Path) -> None:
    done = await sh("cat; echo oops >&2; exit 7", cwd=tmp_path, input=b"given\0\xff")

    assert (done.code, done.stdout, done.stderr) == (7, b"given\0\xff", b"oops\n")
    assert done.error_text == "oops"


async def test_megabytes_in_and_out_do_not_wait_for_each_other(tmp_path: Path) -> None:
    data = os.urandom(4 * 1024 * 1024)

    done = await sh("tee /dev/stderr", cwd=tmp_path, input=data)

    assert done.stdout == done.stderr == data


async def test_what_is_cut_off_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "OUTPUT_MAX", 4)

    whole = await sh("printf 1234", cwd=tmp_path)
    cut = await sh("printf 12345", cwd=tmp_path)

    assert (whole.stdout, whole.is_truncated) == (b"1234", False)
    assert (cut.stdout, cut.is_truncated) == (b"1234", True)


async def test_git_does_not_continue_with_half_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = await read_git(ENV, tmp_path / "runner")
    monkeypatch.setattr(programs, "OUTPUT_MAX", 4)

    with pytest.raises(GitFailed, match="printed more than"):
        await git.run("version", cwd=tmp_path)


async def test_a_program_may_leave_its_input_unread(tmp_path: Path) -> None:
    done = await sh("exec <&-; exit 3", cwd=tmp_path, input=bytes(1024 * 1024))

    assert done.code == 3


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramMissing, match="/nowhere could not be started"):
        await run_program(["/nowhere"], cwd=tmp_path, env=ENV, timeout=LONG)


async def test_one_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(ProgramTimedOut):
        await sh("sleep 60 & echo $! > child; wait", cwd=tmp_path, timeout=timedelta(seconds=0.5))

    child = int((tmp_path / "child").read_text())
    await until(lambda: not is_alive(child))
    assert not is_alive(child)


async def test_one_whose_caller_is_cancelled_is_ended(tmp_path: Path) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: sh("echo $$ > pid; sleep 60", cwd=tmp_path))
        await until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
        group.cancel_scope.cancel()

    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_a_left_behind_child_that_holds_the_output_open_delays_nothing(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        done = await sh("setsid sleep 60 & echo $! > child; echo done", cwd=tmp_path)

    assert (done.code, done.stdout) == (0, b"done\n")
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


async def test_one_that_must_die_with_us_runs_as_any_other(tmp_path: Path) -> None:
    done = await sh("echo out", cwd=tmp_path, bound=True)

    assert done.stdout == b"out\n"


async def until(condition: Callable[[], bool]) -> None:
    """There is no event to wait on between another process and us."""
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)
