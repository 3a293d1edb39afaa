"""Runs trusted programs such as git and gh. Commands from a repository run under a supervisor instead."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import IO, TypedDict, cast

import anyio
from anyio.abc import Process

OUTPUT_MAX = 256 * 1024 * 1024  # bytes kept of one stream; a list of a million paths takes half of it
CHUNK = 64 * 1024
POLL_INTERVAL = 0.25  # seconds of silence before checking whether the program still runs
REAP_TIMEOUT = 5.0  # seconds for a killed program to be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    code: int  # negative: the signal that ended it
    stdout: bytes
    stderr: bytes
    is_truncated: bool = False  # it printed more than OUTPUT_MAX

    @property
    def error_text(self) -> str:
        """A readable error: the last lines of stderr, or of stdout when stderr is empty."""
        text = (self.stderr.strip() or self.stdout.strip()).decode(errors="replace")
        return "; ".join(line.strip() for line in text.splitlines()[-3:] if line.strip())


class ProgramMissing(Exception):
    """The program is not installed or cannot be executed."""


class ProgramTimedOut(Exception):
    """The program was killed because it took too long."""


async def run_program(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: timedelta,
    input: bytes = b"",
    kill_with_parent: bool = False,
) -> ProgramResult:
    """Run a program to its end; when this returns or raises, the program and its process group have ended.

    `kill_with_parent`: the kernel kills the program when this process dies, so that it has no late effects.
    """
    command = [*_death_signal_prefix(), *argv] if kill_with_parent else list(argv)
    run = _ProgramRun(command, cwd, env, input)
    try:
        with anyio.fail_after(timeout.total_seconds()):
            # A blocking thread starts and reads it in less than half the time that the event loop needs.
            return await anyio.to_thread.run_sync(run.run_to_end, abandon_on_cancel=True)
    except TimeoutError as error:  # before OSError, its base class
        raise ProgramTimedOut(f"{argv[0]} timed out after {timeout.total_seconds():g} s") from error
    except OSError as error:
        raise ProgramMissing(f"{argv[0]} could not be started: {error.strerror}") from error
    finally:
        await run.end()


class _Separation(TypedDict, total=False):
    process_group: int
    start_new_session: bool


class _ProgramRun:
    """One program, started and read in a thread; if that thread ended first, the kernel would kill the program."""

    def __init__(self, command: list[str], cwd: Path, env: Mapping[str, str], input: bytes) -> None:
        self._command, self._cwd, self._env, self._input = command, cwd, dict(env), input
        self._process: Popen[bytes] | None = None
        self._is_cancelled = False
        self._start_lock = threading.Lock()
        self._ended = threading.Event()

    def run_to_end(self) -> ProgramResult:
        try:
            with self._start_lock:
                if self._is_cancelled:
                    raise InterruptedError
                self._process = Popen(
                    self._command,
                    cwd=self._cwd,
                    env=self._env,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=PIPE,
                    **_own_group(),
                )
            out, err, is_truncated = _communicate(self._process, self._input)
            return ProgramResult(code=self._process.wait(), stdout=out, stderr=err, is_truncated=is_truncated)
        finally:
            self._ended.set()

    async def end(self) -> None:
        if self._ended.is_set():
            return
        with self._start_lock:
            self._is_cancelled = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(self._process.pid, signal.SIGKILL)
        with anyio.move_on_after(REAP_TIMEOUT, shield=True):
            await anyio.to_thread.run_sync(self._ended.wait, REAP_TIMEOUT)


def _own_group() -> _Separation:
    """A group of its own, to kill it as a whole. A runner of a keeper has no terminal: what it starts stays in its
    session, because it takes its children in other sessions for an agent's."""
    return {"process_group": 0} if os.getsid(0) == os.getpid() else {"start_new_session": True}


def _communicate(process: Popen[bytes], data: bytes) -> tuple[bytes, bytes, bool]:
    """Write the input and read the output as each is ready; returns both outputs and whether one was cut."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    rest = memoryview(data)
    with process, selectors.DefaultSelector() as ready:
        for stream in (process.stdout, process.stderr):
            ready.register(stream, selectors.EVENT_READ)
        if data:
            os.set_blocking(process.stdin.fileno(), False)
            ready.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        out, err = kept.values()
        while ready.get_map():
            events = ready.select(POLL_INTERVAL)
            if not events and process.poll() is not None:
                break  # a child, such as the ssh process that shares connections, may hold its output open for hours
            for key, _ in events:
                if key.fileobj is process.stdin:
                    rest = _write_some(process.stdin, rest)
                    is_over = not rest
                else:
                    is_over = not _read_into(kept[key.fd], key.fd)
                if is_over:
                    ready.unregister(key.fileobj)
                    cast("IO[bytes]", key.fileobj).close()  # registered above
        is_truncated = any(len(read) > OUTPUT_MAX for read in (out, err))
        return bytes(memoryview(out)[:OUTPUT_MAX]), bytes(memoryview(err)[:OUTPUT_MAX]), is_truncated


def _read_into(kept: bytearray, descriptor: int) -> bool:
    piece = os.read(descriptor, CHUNK)
    kept += piece[: OUTPUT_MAX + 1 - len(kept)]  # one more byte shows that output was cut
    return bool(piece)


def _write_some(stdin: IO[bytes], rest: memoryview) -> memoryview:
    try:
        return rest[os.write(stdin.fileno(), rest[:CHUNK]) :]
    except BrokenPipeError:
        return rest[:0]  # it did not read all of its input; the exit code shows whether that matters
    except BlockingIOError:
        return rest


async def ask_program(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: timedelta,
    question: bytes,
    is_answer: Callable[[bytes], bool],
) -> bytes:
    """Send a question to an interactive program; returns what it printed up to the answer or its end."""
    try:
        process = await anyio.open_process(
            list(argv), cwd=cwd, env=dict(env), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
        )
    except OSError as error:
        raise ProgramMissing(f"{argv[0]} could not be started: {error.strerror}") from error
    assert process.stdin is not None
    assert process.stdout is not None
    printed = bytearray()
    try:
        with anyio.fail_after(timeout.total_seconds()):
            with suppress(anyio.BrokenResourceError, BrokenPipeError):  # it has ended; its output shows why
                await process.stdin.send(question)
            async for piece in process.stdout:
                printed += piece[: OUTPUT_MAX - len(printed)]
                if is_answer(bytes(printed)):
                    break
    except TimeoutError as error:
        raise ProgramTimedOut(f"{argv[0]} did not answer within {timeout.total_seconds():g} s") from error
    finally:
        await _end(process)
    return bytes(printed)


async def _end(process: Process) -> None:
    with anyio.move_on_after(REAP_TIMEOUT, shield=True):
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(process.pid, signal.SIGKILL)
        await process.aclose()


@cache
def _death_signal_prefix() -> tuple[str, ...]:
    """A command prefix that makes the kernel kill a program with its parent; empty where setpriv is missing."""
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()
