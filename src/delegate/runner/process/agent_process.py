"""Starts an agent under a supervisor, handles its input and output, and makes sure that none of it stays alive."""

from __future__ import annotations

import errno as errors
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from io import FileIO
from pathlib import Path

import anyio
import anyio.lowlevel

from delegate.model import Stream
from delegate.runner.process import supervisor
from delegate.runner.process.strays import attempt_of, program_of
from delegate.runner.process.supervisor import IS_LINUX, LEFTOVER_GRACE, Process, Table, become_subreaper

__all__ = [
    "AgentProcess",
    "Command",
    "Exit",
    "NotStarted",
    "SpareSupervisor",
    "become_subreaper",
    "end_strays",
    "launch",
    "reap_orphans",
    "start_spare",
]

log = logging.getLogger(__name__)

CHUNK = 64 * 1024  # the capacity of a pipe: a larger read would not return more
START_TIMEOUT = 30.0  # a program on a sleeping disk is slow; a hung network disk must not block the runner
KILL_TIMEOUT = 5.0  # a kill takes milliseconds; a process that stays longer hangs in the kernel
KILL_TICK = 0.01
REAP_TICK = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]  # the whole environment: nothing else is inherited
    cgroup: tuple[str, str] | None = None  # where it starts, and the one its supervisor returns to


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How the agent's first process ended: with a code, or by a signal."""

    code: int | None
    signal: int | None


class NotStarted(Exception):
    """The program could not be started: it or its directory is missing or not accessible."""

    def __init__(self, *, errno: int, why: str) -> None:
        self.errno = errno
        self.why = why
        super().__init__(why)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareSupervisor:
    """A supervisor that was started in advance and waits for its only command."""

    pid: int
    control: socket.socket
    stdin: FileIO
    stdout: FileIO
    stderr: FileIO

    async def discard(self) -> None:
        self.close()
        with anyio.move_on_after(KILL_TIMEOUT, shield=True):
            await _reap(self.pid)

    def close(self) -> None:
        for end in (self.control, self.stdin, self.stdout, self.stderr):
            _close(end)


async def start_spare() -> SpareSupervisor:
    """Start the next supervisor without waiting for it: it reads a command that was sent early once it is up."""
    await anyio.lowlevel.checkpoint()
    return _spawn_supervisor()


def _spawn_supervisor() -> SpareSupervisor:
    with ExitStack() as ours, ExitStack() as theirs:
        control, their_control = socket.socketpair()
        ours.callback(control.close)
        theirs.callback(their_control.close)
        their_stdin, stdin = _pipe(theirs, ours)
        stdout, their_stdout = _pipe(ours, theirs)
        stderr, their_stderr = _pipe(ours, theirs)
        inherited_fds = [end.fileno() for end in (their_stdin, their_stdout, their_stderr)] + [their_control.fileno()]
        # Excludes Delegate's secrets and markers; some interpreters do not start without the loader's variables.
        env = {name: value for name, value in os.environ.items() if name.startswith(("LD_", "DYLD_"))}
        pid = os.posix_spawn(
            sys.executable,
            (sys.executable, "-I", "-S", supervisor.__file__),
            env,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(inherited_fds)],
            setsigmask=supervisor.BLOCKED_SIGNALS,
        )
        for end in (control, stdin, stdout, stderr):
            os.set_blocking(end.fileno(), False)
        ours.pop_all()
        return SpareSupervisor(pid=pid, control=control, stdin=stdin, stdout=stdout, stderr=stderr)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe()
    return reader.enter_context(FileIO(reading, "r")), writer.enter_context(FileIO(writing, "w"))


class AgentProcess:
    """A running agent. The caller of `launch` must `aclose` it to free its descriptors and its supervisor."""

    def __init__(self, spare: SpareSupervisor) -> None:
        self.pid = 0
        self.supervisor_lost = False
        self._spare = spare
        self._outputs = {Stream.STDOUT: spare.stdout, Stream.STDERR: spare.stderr}
        self._unread = b""
        self._exit: Exit | None = None
        self._failure: NotStarted | None = None
        self._gone = False
        # There is no reader task for the control socket: the waiting callers read it in turn.
        self._read_lock = anyio.Lock()
        self._send_lock = anyio.Lock()

    async def receive(self) -> tuple[Stream, bytes]:
        """The next bytes of either stream, at most `CHUNK`; raises EndOfStream when both have ended."""
        await anyio.lowlevel.checkpoint()
        while self._outputs:
            was_gone = self._gone  # checked before reading: dead processes have written all by then
            for stream, output in list(self._outputs.items()):
                data = None if output.closed else output.read(CHUNK)
                if data:
                    self._outputs[stream] = self._outputs.pop(stream)  # the other stream is first next time
                    return stream, data
                if data == b"" or output.closed or was_gone:
                    # A process outside the agent's tree may hold the pipe open; it is not waited for.
                    _close(self._outputs.pop(stream))
            if self._outputs:
                await self._wait_for_output_or_end()
        raise anyio.EndOfStream

    async def _wait_for_output_or_end(self) -> None:
        async with anyio.create_task_group() as group:

            async def watch_output(output: FileIO) -> None:
                await _wait_ready(anyio.wait_readable, output)
                group.cancel_scope.cancel()

            async def watch_end() -> None:
                await self._wait_until(lambda: self._gone)
                group.cancel_scope.cancel()

            for output in self._outputs.values():
                group.start_soon(watch_output, output)
            group.start_soon(watch_end)

    async def send(self, data: bytes) -> bool:
        """Write to the agent's input; False when the agent has closed it or ended."""
        unsent = memoryview(data)
        async with self._send_lock:
            while unsent and not self._spare.stdin.closed:
                try:
                    written = self._spare.stdin.write(unsent)
                except BrokenPipeError:
                    _close(self._spare.stdin)
                    return False
                if written is None:
                    await _wait_ready(anyio.wait_writable, self._spare.stdin)
                else:
                    unsent = unsent[written:]
        return not unsent

    async def close_input(self) -> None:
        await anyio.lowlevel.checkpoint()
        _close(self._spare.stdin)

    async def stop(self, grace: timedelta) -> None:
        """TERM everything the agent started, KILL it after `grace`; returns when no process is left."""
        with anyio.move_on_after(grace.total_seconds() + KILL_TIMEOUT):
            await self._send_command({"stop": grace.total_seconds()})
            await self._wait_until(lambda: self._gone)
        if not self._gone:
            await self._kill_lost_tree()

    async def wait(self) -> Exit:
        """How the agent's first process ended; its descendants may live a little longer, see `stop`."""
        await self._wait_until(lambda: self._exit is not None)
        assert self._exit is not None
        return self._exit

    async def aclose(self) -> None:
        """Leave no process alive: descendants of an agent that ended by itself get their grace period, everything else
        is killed at once."""
        if self._exit and not self._gone:
            with anyio.move_on_after(LEFTOVER_GRACE + 1, shield=True):
                await self._wait_until(lambda: self._gone)
        with anyio.move_on_after(KILL_TIMEOUT, shield=True):
            await self._close_control()
        if not self._gone:
            await self._kill_lost_tree()
        with anyio.move_on_after(KILL_TIMEOUT, shield=True):
            await _reap(self._spare.pid)
        self._spare.close()

    async def _close_control(self) -> None:
        """Close the control socket, so that the supervisor kills everything, as if the runner had died."""
        if not self._gone:
            with suppress(OSError):  # it may have been killed just now
                self._spare.control.shutdown(socket.SHUT_WR)
            await self._wait_until(lambda: self._gone)

    async def _start(self, command: Command) -> None:
        request = _build_request(command)
        with anyio.move_on_after(START_TIMEOUT) as scope:
            await self._send_command(request)
            await self._wait_until(lambda: bool(self.pid) or self._gone)
        if scope.cancelled_caught:
            raise NotStarted(errno=errors.ETIMEDOUT, why=f"{command.argv[0]} did not start in {START_TIMEOUT:.0f} s")
        if self._failure:
            raise self._failure
        if not self.pid:
            raise NotStarted(errno=errors.ECONNRESET, why=f"the supervisor was killed while {command.argv[0]} started")

    async def _send_command(self, message: Mapping[str, object]) -> None:
        unsent = memoryview(json.dumps(message).encode() + b"\n")
        while unsent and not self._gone:
            try:
                unsent = unsent[self._spare.control.send(unsent) :]
            except BlockingIOError:
                await _wait_ready(anyio.wait_writable, self._spare.control)
            except (BrokenPipeError, ConnectionResetError):
                return  # it has ended; the reader learns how

    async def _wait_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            async with self._read_lock:
                if not reached():
                    await self._read_messages()

    async def _read_messages(self) -> None:
        await _wait_ready(anyio.wait_readable, self._spare.control)
        try:
            data = self._spare.control.recv(CHUNK)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._handle_message(json.loads(line))
        if not data and not self._gone:
            await self._kill_lost_tree()

    def _handle_message(self, message: Mapping[str, object]) -> None:
        match message:
            case {"started": int(pid)}:
                self.pid = pid
            case {"failed": int(number), "why": str(why)}:
                self._failure = NotStarted(errno=number, why=why)
                self._gone = True
            case {"exited": (int() | None) as code, "signal": (int() | None) as number}:
                self._exit = Exit(code=code, signal=number)
            case {"gone": True}:
                self._exit = self._exit or Exit(code=None, signal=signal.SIGKILL)
                self._gone = True

    async def _kill_lost_tree(self) -> None:
        """Kill the supervisor if it does not respond, then its children, which become children of the runner."""
        if not self.supervisor_lost:
            log.warning("supervisor lost, killing the agent", extra={"pid": self.pid})
        self.supervisor_lost = True
        with anyio.move_on_after(KILL_TIMEOUT, shield=True):
            if not _has_ended(self._spare.pid):
                os.kill(self._spare.pid, signal.SIGKILL)
            await _reap(self._spare.pid)  # its socket closes before its children are reparented; once reaped, they are
            await _end_orphans(self.pid)
        self._handle_message({"gone": True})


async def launch(spare: SpareSupervisor, command: Command) -> AgentProcess:
    """Start the command under this supervisor; raises NotStarted. Either way the supervisor is used up."""
    if _has_ended(spare.pid):  # killed while it waited: nothing was started yet, so use another one
        spare.close()
        spare = await start_spare()
    process = AgentProcess(spare)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(process.aclose)
        await process._start(command)  # noqa: SLF001
        stack.pop_all()
    return process


def _build_request(command: Command) -> dict[str, object]:
    try:
        return {
            "argv": [_to_utf8(argument) for argument in command.argv],
            "cwd": _to_utf8(str(command.cwd)),
            "env": {_to_utf8(name): _to_utf8(value) for name, value in command.env.items()},
            "cgroup": command.cgroup,
        }
    except UnicodeEncodeError as error:
        raise NotStarted(errno=errors.EINVAL, why=f"the command cannot be started: {error.reason}") from error


def _to_utf8(text: str) -> str:
    """Keeps the bytes the same in the supervisor, whose locale may differ."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


async def _wait_ready(wait: Callable[[FileIO | socket.socket], Awaitable[None]], end: FileIO | socket.socket) -> None:
    """Wait for a descriptor; one that is closed meanwhile counts as ready, and the caller checks again."""
    with suppress(anyio.ClosedResourceError, ValueError):  # ValueError: closed before the wait began
        await wait(end)


def _close(end: FileIO | socket.socket) -> None:
    with suppress(ValueError):  # closed already
        anyio.notify_closing(end)
    end.close()


async def _reap(pid: int) -> None:
    while not _has_ended(pid):  # noqa: ASYNC110  (no portable way to await one child without reaping the others)
        await anyio.sleep(REAP_TICK)


def _has_ended(pid: int) -> bool:
    """Waits for this child only: other code reaps its own."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # reaped already
        return True


async def _end_orphans(leader: int) -> None:
    while orphans := _find_orphans(supervisor.read_table(), leader):
        for process in orphans:
            supervisor.send_signal(process, signal.SIGKILL)
        _reap_zombies(orphans)
        await anyio.sleep(KILL_TICK)


def _find_orphans(table: Table, leader: int) -> list[Process]:
    """What a killed supervisor left. An agent leads its own session and cannot join the runner's, and the runner starts
    no children in other sessions itself: a child of the runner in another session came from an agent."""
    if IS_LINUX:
        own = os.getsid(0)
        roots = [process for process in table.values() if process.parent == os.getpid() and process.session != own]
    else:
        roots = [process for process in table.values() if leader and process.group == leader]
    return _with_descendants(table, roots)


def _with_descendants(table: Table, roots: list[Process]) -> list[Process]:
    found = {process.pid: process for process in roots}
    for process in roots:
        found.update(supervisor.descendants(table, process.pid))
    return list(found.values())


def _reap_zombies(processes: list[Process]) -> None:
    for process in processes:
        if process.is_zombie and process.parent == os.getpid():
            _has_ended(process.pid)


def reap_orphans() -> None:
    """Reap what ended after its parent, for example a daemon of git, and became a child of the runner (Linux)."""
    with suppress(ChildProcessError):  # no children
        if IS_LINUX and os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            _reap_zombies([process for process in supervisor.read_table().values() if not _is_awaited(process)])


def _is_awaited(process: Process) -> bool:
    """Whether other code of the runner waits for it: a supervisor is in the runner's group, a program leads its own."""
    return process.session == os.getsid(0) and process.group in (os.getpgid(0), process.pid)


def end_strays(attempt_id: str) -> list[int]:
    """Kill this user's processes whose environment names the attempt, and their descendants; returns the dead pids.

    For processes that survived both their runner and their supervisor. Blocks briefly. Linux only: other systems do
    not show the environment of another process.
    """
    if not IS_LINUX:
        return []
    found: set[int] = set()
    deadline = time.monotonic() + KILL_TIMEOUT
    while strays := _find_strays(attempt_id):
        found.update(process.pid for process in strays)
        within_reach = [process for process in strays if supervisor.send_signal(process, signal.SIGKILL)]
        if not within_reach or time.monotonic() >= deadline:
            break
        time.sleep(KILL_TICK)
    for process in strays:
        what = {"attempt_id": attempt_id, "pid": process.pid, "command": program_of(process.pid)}
        log.warning("stray process could not be killed", extra=what)
    _reap_zombies(_find_orphans(supervisor.read_table(), 0))
    return sorted(found - {process.pid for process in strays})


def _find_strays(attempt_id: str) -> list[Process]:
    table = supervisor.read_proc()
    roots = [
        process for process in table.values() if process.pid != os.getpid() and _belongs_to(process.pid, attempt_id)
    ]
    killable_roots = [root for root in roots if os.getpid() not in supervisor.descendants(table, root.pid)]
    return [process for process in _with_descendants(table, killable_roots) if not process.is_zombie]


def _belongs_to(pid: int, attempt_id: str) -> bool:
    """Only for processes of this user: root could read, and kill, those of all users."""
    try:
        is_own = Path(f"/proc/{pid}").stat().st_uid == os.getuid()
    except OSError:  # it ended
        return False
    return is_own and attempt_of(pid) == attempt_id


class SpareSupervisors:
    def __init__(self) -> None:
        self._spare: SpareSupervisor | None = None
        self._start_lock = anyio.Lock()

    async def refill(self) -> None:
        async with self._start_lock:
            if self._spare is None:
                try:
                    self._spare = await start_spare()
                except OSError as error:  # `take` tries again and reports the failure
                    log.warning("spare supervisor not started", extra={"why": error.strerror})

    async def take(self) -> SpareSupervisor:
        async with self._start_lock:
            spare, self._spare = self._spare, None
        return spare if spare is not None else await start_spare()

    async def discard(self) -> None:
        if self._spare is not None:
            await self._spare.discard()
            self._spare = None
