"""Owns one agent's process tree: starts it, reports its end, and leaves no process alive.

Run as `python -I -S supervisor.py` with the agent's pipes as 0, 1, 2 and the control socket as 3. It takes one line
`{"argv", "cwd", "env", "cgroup"}`, answers `{"started": pid}` or `{"failed": errno, "why": sentence}`, later sends
`{"exited": code, "signal": number}` and, when no process is left, `{"gone": true}`. The only further command is
`{"stop": grace_seconds}`. End of file means that the runner died: everything is killed at once.
"""

# Every runner keeps a spare supervisor: imports here cost memory and start-up time, so no pathlib, typing or
# dataclasses.
# ruff: noqa: PTH110, PTH113, PTH118, PTH123, PTH208

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

CONTROL = 3
IS_LINUX = sys.platform == "linux"
PR_SET_CHILD_SUBREAPER = 36
LEFTOVER_GRACE = 2.0  # for descendants to flush their files after the leader has ended by itself
TERM_TICK = 0.1  # how soon a process started during the grace period gets its TERM
KILL_TICK, KILL_TICK_MAX = 0.01, 1.0  # the pause doubles while killed processes hang in the kernel
SNAPSHOT_TICK = 2.0  # without a subreaper, a daemon must be seen before it detaches; `ps` is too slow to run more often
READ_SIZE = 65536
PS_COMMAND = ("/bin/ps", "-A", "-o", "pid=,ppid=,pgid=,state=,lstart=")
ALL_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
# A supervisor must outlive Ctrl-C, a closed terminal and a TERM to the runner's group: only its control socket ends it.
BLOCKED_SIGNALS = ALL_SIGNALS - {
    signal.SIGCHLD,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
}


class Process:
    """One line of the process table; `start` distinguishes a process from a later one with the same pid."""

    __slots__ = ("group", "parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, parent: int, group: int, session: int, state: str, start: str) -> None:
        self.pid, self.parent, self.group, self.session = pid, parent, group, session
        self.state, self.start = state, start

    @property
    def is_zombie(self) -> bool:
        return self.state.startswith("Z")


Table = dict[int, Process]


def become_subreaper() -> None:
    """Make orphaned descendants children of this process, however they detached (Linux only; a no-op elsewhere)."""
    if IS_LINUX:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


# The process table.


def read_process(pid: int) -> Process | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        line = os.read(fd, 4096)
    except OSError:  # it ended between open and read
        return None
    finally:
        os.close(fd)
    # The name in parentheses may itself contain spaces and parentheses.
    fields = line[line.rindex(b")") + 2 :].decode("ascii", "replace").split()
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0], fields[19])


def read_proc() -> Table:
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def parse_ps(text: str) -> Table:
    table: Table = {}
    for line in text.splitlines():
        fields = line.split(None, 4)
        if len(fields) == 5:
            pid, parent, group = (int(field) for field in fields[:3])
            table[pid] = Process(pid, parent, group, 0, fields[3], fields[4])
    return table


def read_ps() -> Table:
    """The table on systems without /proc, except for `ps` itself."""
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    pid = os.posix_spawn(PS_COMMAND[0], PS_COMMAND, {"LC_ALL": "C"}, file_actions=actions, setsigmask=())
    os.close(writing)
    with open(reading, encoding="ascii", errors="replace") as output:
        table = parse_ps(output.read())
    with suppress(ChildProcessError):  # already reaped with the others
        os.waitpid(pid, 0)
    table.pop(pid, None)
    return table


def read_table() -> Table:
    return read_proc() if IS_LINUX else read_ps()


def descendants(table: Table, root: int) -> Table:
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found: Table = {}
    pending = [root]
    while pending:
        for child in children.get(pending.pop(), ()):
            if child.pid != root and child.pid not in found:
                found[child.pid] = child
                pending.append(child.pid)
    return found


def find_live_processes(table: Table, root: int, *, group: int | None = None, seen: Table | None = None) -> Table:
    """The live processes under `root`: descendants, members of the group, and processes seen before they detached."""
    known = seen or {}
    found = descendants(table, root)
    for process in table.values():
        once = known.get(process.pid)
        if process.pid != root and (process.group == group or (once and once.start == process.start)):
            found[process.pid] = process
            found.update(descendants(table, process.pid))
    return {pid: process for pid, process in found.items() if pid != root and not process.is_zombie}


def send_signal(process: Process, number: int) -> bool:
    """Signal exactly this process; False when it belongs to another user and may not be signalled."""
    if IS_LINUX:
        now = read_process(process.pid)
        if now is None or now.start != process.start:
            return True
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


# The start.


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def find_program(name: str, search: str) -> str:
    """The file to execute, found in the agent's PATH, not in ours."""
    if "/" in name:
        return name
    denied = None
    for directory in search.split(":"):
        candidate = os.path.join(directory or ".", name)
        if os.path.isfile(encode(candidate)):
            if os.access(encode(candidate), os.X_OK):
                return candidate
            denied = candidate
    if denied:
        raise PermissionError(errno.EACCES, f"{denied} is not executable")
    raise FileNotFoundError(errno.ENOENT, f"{name} was not found on PATH")


def enter_directory(path: str) -> None:
    sentences = {
        errno.ENOENT: f"the directory {path} does not exist",
        errno.ENOTDIR: f"{path} is not a directory",
        errno.EACCES: f"the directory {path} is not accessible",
    }
    try:
        os.chdir(encode(path))
    except OSError as error:
        number = error.errno or errno.EIO
        why = sentences.get(number, f"the directory {path} cannot be entered: {os.strerror(number)}")
        raise OSError(number, why) from error


def explain_start_failure(path: str, number: int) -> str:
    if number == errno.ENOENT:
        missing = "names an interpreter that does not exist" if os.path.exists(encode(path)) else "does not exist"
        return f"the program {path} {missing}"
    if number == errno.EACCES:
        return f"{path} is not executable"
    return f"{path} cannot be started: {os.strerror(number)}"


def join_group(directory: str) -> None:
    try:
        with open(os.path.join(directory, "cgroup.procs"), "w", encoding="ascii") as members:
            members.write("0")  # 0: the writing process
    except OSError as error:
        number = error.errno or errno.EIO
        raise OSError(number, f"the memory limit cannot be set: {os.strerror(number)}") from error


def spawn(argv: list[str], cwd: str, env: dict[str, str], cgroup: list[str] | None) -> int:
    enter_directory(cwd)
    path = find_program(argv[0], env.get("PATH", os.defpath))
    if cgroup is None:
        return spawn_here(path, argv, env)
    inside, outside = cgroup
    join_group(inside)  # the agent starts inside the group, and so do all its descendants
    leader = None
    try:
        leader = spawn_here(path, argv, env)
    finally:
        leave_group(outside, leader)
    return leader


def leave_group(outside: str, leader: int | None) -> None:
    """The supervisor must not be killed with the group; if it cannot leave, the agent just started is killed."""
    try:
        join_group(outside)
    except OSError:
        if leader is not None:
            os.killpg(leader, signal.SIGKILL)
            os.waitpid(leader, 0)
        raise


def spawn_here(path: str, argv: list[str], env: dict[str, str]) -> int:
    environment = {encode(name): encode(value) for name, value in env.items()}
    arguments = [encode(argument) for argument in argv]
    try:
        return os.posix_spawn(
            encode(path), arguments, environment, setsid=True, setsigmask=(), setsigdef=tuple(ALL_SIGNALS)
        )
    except OSError as error:
        number = error.errno or errno.EIO
        raise OSError(number, explain_start_failure(path, number)) from error


def release_agent_files() -> None:
    """Copies of the agent's pipes would prevent their end of file, and a working directory keeps a disk mounted."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    os.chdir("/")


# Supervision.


class Supervisor:
    def __init__(self, leader: int, unread_commands: bytes) -> None:
        self.leader: int | None = leader  # None once it is reaped: its pid may be reused
        self.group = None if IS_LINUX else leader  # a subreaper does not need it
        self.orders = unread_commands
        self.deadline: float | None = None  # of the grace period; set when the tree must end
        self.signalled: set[tuple[int, str]] = set()
        self.killed: set[tuple[int, str]] = set()
        self.kill_pause = KILL_TICK
        self.seen: Table = {}

    def run(self, wake: int) -> None:
        poller = select.poll()
        poller.register(CONTROL, select.POLLIN)
        poller.register(wake, select.POLLIN)
        self.handle_commands(b"")
        while not self.is_over():
            for fd, _ in poller.poll(self.poll_timeout()):
                if fd == wake:
                    os.read(wake, READ_SIZE)
                elif not self.listen():
                    poller.unregister(CONTROL)
        send_message({"gone": True})

    def poll_timeout(self) -> float | None:
        """Milliseconds until something must be done that no event announces."""
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            return 1000 * (min(TERM_TICK, left) if left > 0 else self.kill_pause)
        return None if IS_LINUX else 1000 * SNAPSHOT_TICK

    def listen(self) -> bool:
        try:
            data = os.read(CONTROL, READ_SIZE)
        except ConnectionResetError:
            data = b""
        if data:
            self.handle_commands(data)
        else:
            self.end_within(0)
        return bool(data)

    def handle_commands(self, data: bytes) -> None:
        *lines, self.orders = (self.orders + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "stop" in order:
                self.end_within(order["stop"])

    def end_within(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)

    def is_over(self) -> bool:
        has_children = self.reap()
        if IS_LINUX and not has_children:
            return True  # a subreaper without children has no descendants
        if IS_LINUX and self.deadline is None:
            return False
        living = self.find_living()
        if self.deadline is not None and living:
            return self.end(living)
        return not IS_LINUX and self.leader is None and not living

    def reap(self) -> bool:
        """Reap children that have ended; False when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.leader:
                self.leader = None
                code = os.waitstatus_to_exitcode(status)
                send_message({"exited": code if code >= 0 else None, "signal": -code if code < 0 else None})
                if self.deadline is None:
                    self.end_within(LEFTOVER_GRACE)

    def find_living(self) -> list[Process]:
        table = find_live_processes(read_table(), os.getpid(), group=self.group, seen=self.seen)
        if not IS_LINUX:
            self.seen = table
        return list(table.values())

    def end(self, living: list[Process]) -> bool:
        """TERM every process, or KILL it after the grace period; True when no process left can be signalled."""
        if self.deadline is None or time.monotonic() < self.deadline:
            for process in living:
                if (process.pid, process.start) not in self.signalled:
                    self.signalled.add((process.pid, process.start))
                    send_signal(process, signal.SIGTERM)
                    send_signal(process, signal.SIGCONT)  # a stopped process handles no other signal
            return False
        known = {(process.pid, process.start) for process in living}
        self.kill_pause = min(2 * self.kill_pause, KILL_TICK_MAX) if known <= self.killed else KILL_TICK
        self.killed |= known
        # A program that runs as another user (sudo) cannot be killed, and must not block the runner forever.
        return not [process for process in living if send_signal(process, signal.SIGKILL)]


def send_message(message: dict[str, object]) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the runner died, as `listen` will notice
        os.write(CONTROL, json.dumps(message).encode() + b"\n")


def read_request() -> tuple[bytes, bytes] | None:
    """The first line from the runner and the bytes after it; None when the runner closed the socket first."""
    data = b""
    while b"\n" not in data:
        chunk = os.read(CONTROL, READ_SIZE)
        if not chunk:
            return None
        data += chunk
    line, _, rest = data.partition(b"\n")
    return line, rest


def open_wake() -> int:
    """A descriptor that becomes readable when a child ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return reading


def close_foreign_files() -> None:
    """The agent inherits only its three pipes, whatever was open in the shell that started the runner."""
    os.set_inheritable(CONTROL, False)  # noqa: FBT003
    for name in os.listdir("/dev/fd"):
        if int(name) > CONTROL:
            with suppress(OSError):  # the listing itself
                os.close(int(name))


def main() -> None:
    close_foreign_files()
    become_subreaper()
    wake = open_wake()
    request = read_request()
    if request is None:
        return
    try:
        leader = spawn(**json.loads(request[0]))
    except OSError as error:
        send_message({"failed": error.errno, "why": error.strerror})
        return
    except ValueError:
        send_message({"failed": errno.EINVAL, "why": "the command contains a NUL byte or a variable without a name"})
        return
    release_agent_files()
    send_message({"started": leader})
    Supervisor(leader, request[1]).run(wake)


if __name__ == "__main__":
    main()
    os._exit(0)  # the runner waits for this exit, and a full interpreter shutdown takes milliseconds
