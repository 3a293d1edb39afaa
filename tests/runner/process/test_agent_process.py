from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from delegate.model import Stream, new_attempt_id
from delegate.runner.process.agent_process import (
    AgentProcess,
    Command,
    Exit,
    NotStarted,
    end_strays,
    launch,
    start_spare,
)
from delegate.runner.process.supervisor import (
    Process,
    Supervisor,
    descendants,
    find_live_processes,
    find_program,
    parse_ps,
    read_proc,
    read_process,
    read_ps,
    send_signal,
    spawn,
)

pytestmark = pytest.mark.anyio

FAKES = Path(__file__).parents[2] / "fakes"
ROLES = {"leader", "daemon1", "daemon2", "daemon3", "bare", "holder", "forker", "forked"}
GONE_WITHIN = 15  # what P11 promises
GRACE = timedelta(seconds=0.2)
FLOOD = 200_000_000


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(GONE_WITHIN):
        while not condition():  # noqa: ASYNC110  (there is no event for the end of these processes)
            await anyio.sleep(0.02)


@asynccontextmanager
async def running(
    *argv: str, cwd: Path = Path("/"), env: Mapping[str, str] = os.environ
) -> AsyncIterator[AgentProcess]:
    agent = await launch(await start_spare(), Command(argv=argv, cwd=cwd, env=env))
    try:
        with anyio.fail_after(GONE_WITHIN):
            yield agent
    finally:
        await agent.aclose()


async def read_all(agent: AgentProcess) -> dict[Stream, bytes]:
    output = {Stream.STDOUT: b"", Stream.STDERR: b""}
    with suppress(anyio.EndOfStream):
        while True:
            stream, data = await agent.receive()
            output[stream] += data
    return output


async def output_of(*argv: str, cwd: Path = Path("/"), env: Mapping[str, str] = os.environ) -> bytes:
    async with running(*argv, cwd=cwd, env=env) as agent:
        return (await read_all(agent))[Stream.STDOUT]


def is_running(pid: int) -> bool:
    found = read_process(pid)
    return found is not None and not found.is_zombie


def supervisor_of(agent: AgentProcess) -> int:
    leader = read_process(agent.pid)
    assert leader
    return leader.parent


# The tree.


def tree(directory: Path, ending: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", str(FAKES / "tree_agent.py"), str(directory), ending)


def has_grown(directory: Path) -> bool:
    return {path.name.partition("-")[0] for path in directory.glob("*-*")} == ROLES


def survivors(directory: Path) -> list[int]:
    """Everything of the tree that is alive or a zombie: known by its own note, or by the directory it runs in."""
    table = read_proc()
    noted = {int(path.name.partition("-")[2]): path.read_text() for path in directory.glob("*-*")}
    alive = [pid for pid, start in noted.items() if pid in table and table[pid].start == start]
    return alive + [pid for pid in table if runs_in(pid, directory)]


def runs_in(pid: int, directory: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == directory
    except OSError:
        return False


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process
        process.communicate()


@pytest.mark.promise("P11")
async def test_nothing_outlives_an_agent_that_ended_by_itself(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    async with running(*tree(tmp_path, "exit"), cwd=tmp_path) as agent:
        await read_all(agent)

        assert await agent.wait() == Exit(code=0, signal=None)

    assert has_grown(tmp_path)
    assert survivors(tmp_path) == []
    assert bystander.poll() is None


@pytest.mark.promise("P11")
@pytest.mark.parametrize("cause", ["timeout", "cancel"])
async def test_nothing_outlives_an_agent_that_was_stopped(
    cause: str, tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    async with running(*tree(tmp_path, "stay"), cwd=tmp_path) as agent:
        await until(lambda: has_grown(tmp_path))

        await agent.stop(GRACE if cause == "timeout" else timedelta(0))

        assert survivors(tmp_path) == []
        assert await agent.wait() == Exit(code=None, signal=signal.SIGKILL)
    assert bystander.poll() is None


@pytest.mark.promise("P11")
async def test_nothing_outlives_an_agent_whose_lease_was_lost(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    async with running(*tree(tmp_path, "stay"), cwd=tmp_path) as agent:
        await until(lambda: has_grown(tmp_path))

        await agent.aclose()

        assert survivors(tmp_path) == []
        assert not agent.supervisor_lost
    assert bystander.poll() is None


@contextmanager
def runner(directory: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(FAKES / "tree_runner.py"), str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


async def next_line(process: subprocess.Popen[str]) -> dict[str, int]:
    assert process.stdout
    line: dict[str, int] = json.loads(await anyio.to_thread.run_sync(process.stdout.readline))
    return line


@pytest.mark.promise("P11")
async def test_nothing_outlives_a_runner_that_was_killed(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
    with runner(tmp_path) as process:
        pids = await next_line(process)
        await until(lambda: has_grown(tmp_path))

        process.kill()

        await until(lambda: survivors(tmp_path) == [])
        await until(lambda: not is_running(pids["supervisor"]))
    assert bystander.poll() is None


@pytest.mark.promise("P11")
async def test_nothing_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    with runner(tmp_path) as process:
        pids = await next_line(process)
        await until(lambda: has_grown(tmp_path))

        os.kill(pids["supervisor"], signal.SIGKILL)
        ending = await next_line(process)

        assert ending == {"code": None, "signal": signal.SIGKILL, "lost": True}
        assert survivors(tmp_path) == []
        assert list(descendants(read_proc(), process.pid)) == [pids["bystander"]]


BESIDE_A_LOST_SUPERVISOR = """
import os, signal, sys
from datetime import timedelta
from pathlib import Path
import anyio
from delegate.runner.process.agent_process import Command, become_subreaper, launch, start_spare
from delegate.runner.process.programs import run_program
from delegate.runner.process.supervisor import read_process

async def main():
    become_subreaper()
    gate, env = Path(sys.argv[1]), dict(os.environ)
    agent = await launch(await start_spare(), Command(argv=("sleep", "600"), cwd=Path("/"), env=env))
    async def run_own():
        words = ["sh", "-c", f"touch {gate}.up; until [ -e {gate} ]; do sleep 0.05; done"]
        done = await run_program(words, cwd=Path("/"), env=env, timeout=timedelta(seconds=30))
        print(done.code)
    async with anyio.create_task_group() as group:
        group.start_soon(run_own)
        while not Path(f"{gate}.up").exists():
            await anyio.sleep(0.01)
        os.kill(read_process(agent.pid).parent, signal.SIGKILL)
        await agent.wait()
        await agent.aclose()
        print(read_process(agent.pid))
        gate.touch()

anyio.run(main)
"""


@pytest.mark.promise("P11")
def test_a_lost_supervisor_takes_no_program_of_the_runner_with_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_A_LOST_SUPERVISOR, str(tmp_path / "gate")],
        capture_output=True, text=True, timeout=60, start_new_session=True,
    )  # fmt: skip

    assert done.stdout.split() == ["None", "0"], done.stderr


ABOVE_A_DAEMON = """
import os, sys
from datetime import timedelta
from pathlib import Path
import anyio
from delegate.runner.process.agent_process import become_subreaper, reap_orphans
from delegate.runner.process.programs import run_program
from delegate.runner.process.supervisor import descendants, read_proc

async def main():
    become_subreaper()
    await run_program(["sh", "-c", sys.argv[1]], cwd=Path("/"), env=dict(os.environ), timeout=timedelta(seconds=30))
    left = lambda: list(descendants(read_proc(), os.getpid()).values())
    with anyio.fail_after(20):
        while not all(process.is_zombie for process in left()):
            await anyio.sleep(0.01)
    before = len(left())
    reap_orphans()
    print(before, len(left()))

anyio.run(main)
"""


@pytest.mark.parametrize("daemon", ["(setsid sleep 0.2 >/dev/null 2>&1 &)", "(sleep 0.2 >/dev/null 2>&1 &)"])
def test_a_daemon_that_outlived_a_program_of_the_runner_is_reaped(daemon: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABOVE_A_DAEMON, daemon],
        capture_output=True, text=True, timeout=60, start_new_session=True,
    )  # fmt: skip

    assert done.stdout.split() == ["1", "0"], done.stderr


@pytest.mark.slow
@pytest.mark.promise("P11")
async def test_nothing_outlives_a_supervisor_that_hangs(tmp_path: Path) -> None:
    with runner(tmp_path) as process:
        pids = await next_line(process)
        await until(lambda: has_grown(tmp_path))
        os.kill(pids["supervisor"], signal.SIGSTOP)

        assert process.stdin
        print("close", file=process.stdin, flush=True)
        ending = await next_line(process)

        assert ending["lost"]
        assert survivors(tmp_path) == []


async def test_what_hangs_in_the_kernel_is_looked_at_less_and_less_often() -> None:
    """A process that outlives its kill cannot be arranged; one that is gone before it is killed is taken for one."""
    stuck = Process(2**22 + 1, 1, 1, 1, "D", "1")
    newborn = Process(2**22 + 2, 1, 1, 1, "R", "1")
    supervisor = Supervisor(leader=0, unread_commands=b"")
    supervisor.end_within(0)

    pauses = []
    for living in [[stuck]] * 9 + [[stuck, newborn]]:
        assert not supervisor.end(living)
        pauses.append(round(supervisor.poll_timeout() or 0))

    assert pauses == [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 10]


@pytest.mark.promise("P11")
async def test_leftovers_get_a_moment_to_end_well(tmp_path: Path) -> None:
    leftover = f"trap 'echo saved > {tmp_path}/note; exit' TERM; echo up; while :; do sleep 0.01; done"
    async with running("/bin/bash", "-c", f"({leftover}) & read line", cwd=tmp_path) as agent:
        await agent.receive()
        await agent.close_input()
        await agent.wait()

    assert (tmp_path / "note").read_text() == "saved\n"


@pytest.mark.promise("P11")
async def test_a_stopped_process_hears_the_end_too() -> None:
    async with running("/bin/sh", "-c", "trap 'echo heard; exit 3' TERM; echo up; kill -STOP $$; sleep 60") as agent:
        await agent.receive()

        await agent.stop(timedelta(seconds=10))

        assert await agent.wait() == Exit(code=3, signal=None)


@pytest.mark.promise("P11")
async def test_strays_are_found_by_their_marker(bystander: subprocess.Popen[bytes]) -> None:
    marker = new_attempt_id()  # a plain one may be in use by another program on this machine, and end_strays kills
    script = "env -i /bin/sleep 60 & echo $!; exec sleep 60"
    async with running("/bin/sh", "-c", script, env={**os.environ, "DELEGATE_ATTEMPT_ID": marker}) as agent:
        child = int((await agent.receive())[1])

        assert end_strays(new_attempt_id()) == []
        assert end_strays(marker) == sorted([agent.pid, child])

        assert not is_running(child)
    assert bystander.poll() is None


async def test_signals_meant_for_the_runner_do_not_end_a_supervisor() -> None:
    async with running("/bin/sh", "-c", "read line; exit 4") as agent:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(supervisor_of(agent), number)
        await agent.close_input()

        assert await agent.wait() == Exit(code=4, signal=None)


# Reading and feeding.


async def test_both_streams_arrive_and_then_end() -> None:
    async with running("/bin/sh", "-c", "echo out; echo err >&2; exit 7") as agent:
        output = await read_all(agent)

        assert output == {Stream.STDOUT: b"out\n", Stream.STDERR: b"err\n"}
        assert await agent.wait() == Exit(code=7, signal=None)


async def test_a_flood_takes_no_memory() -> None:
    async with running("/bin/sh", "-c", f"head -c {FLOOD} /dev/zero | tee /dev/stderr") as agent:
        received = {Stream.STDOUT: 0, Stream.STDERR: 0}
        before = resident_bytes()
        with suppress(anyio.EndOfStream):
            while True:
                stream, data = await agent.receive()
                received[stream] += len(data)

    assert received == {Stream.STDOUT: FLOOD, Stream.STDERR: FLOOD}
    assert resident_bytes() - before < 20_000_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_an_outsider_that_holds_the_output_does_not_hold_the_end() -> None:
    async with running("/bin/sh", "-c", "echo last; read line") as agent:
        outsider = os.open(f"/proc/{agent.pid}/fd/1", os.O_WRONLY)
        await agent.close_input()

        output = await read_all(agent)

        assert output[Stream.STDOUT] == b"last\n"
        os.close(outsider)


async def test_what_is_sent_is_the_agents_input() -> None:
    async with running("/bin/cat") as agent:
        text = os.urandom(1_000_000)
        received: dict[Stream, bytes] = {}

        async def read() -> None:
            received.update(await read_all(agent))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await agent.send(text)
            await agent.close_input()

    assert received[Stream.STDOUT] == text


async def test_sending_to_an_agent_that_does_not_read_can_be_given_up() -> None:
    async with running("/bin/sleep", "60") as agent:
        with anyio.move_on_after(0.1) as scope:
            await agent.send(b"x" * 1_000_000)

        assert scope.cancelled_caught
        await agent.stop(GRACE)


async def test_sending_to_an_agent_that_closed_its_input_succeeds() -> None:
    async with running("/bin/sh", "-c", "exec 0<&-; echo closed; sleep 60") as agent:
        await agent.receive()

        await agent.send(b"x" * 1_000_000)
        await agent.close_input()
        await agent.send(b"more")

        assert is_running(agent.pid)


async def test_waiting_in_several_tasks_is_one_news_for_all() -> None:
    exits: list[Exit] = []
    async with running("/bin/sh", "-c", "read line") as agent, anyio.create_task_group() as group:

        async def wait() -> None:
            exits.append(await agent.wait())

        for _ in range(3):
            group.start_soon(wait)
        group.start_soon(read_all, agent)
        await agent.close_input()

    assert exits == [Exit(code=1, signal=None)] * 3


async def test_nothing_is_asked_of_an_agent_that_is_gone() -> None:
    async with running("/bin/true") as agent:
        await agent.wait()
        await agent.aclose()

        await agent.send(b"hello?")
        await agent.stop(GRACE)

        with pytest.raises(anyio.EndOfStream):
            await agent.receive()


# The start.


async def test_the_agent_starts_with_a_clean_slate() -> None:
    status = (await output_of("/bin/sh", "-c", "cat /proc/self/status; ls /proc/self/fd")).decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    assert [n for n in signal.valid_signals() if int(fields["SigIgn"], 16) >> (n - 1) & 1] == []
    assert int(fields["SigBlk"], 16) == 0
    assert status.split()[-4:-1] == ["0", "1", "2"]  # and the directory that `ls` reads


async def test_the_agent_gets_exactly_its_environment_and_arguments() -> None:
    odd = b"caf\xe9 \xc3\xa9 \n'\"".decode("utf-8", "surrogateescape")
    env = {"PATH": "/usr/bin:/bin", "ODD": odd}

    assert await output_of("/usr/bin/env", "-0", env=env) == b"".join(
        os.fsencode(f"{name}={value}\0") for name, value in env.items()
    )
    assert await output_of("/usr/bin/printf", "%s", odd, env=env) == os.fsencode(odd)


async def test_the_program_is_looked_for_on_the_agents_own_path(tmp_path: Path) -> None:
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\nexec pwd\n")
    program.chmod(0o700)

    found = await output_of("only-here", cwd=tmp_path, env={"PATH": f"/usr/bin:{tmp_path}:/bin"})

    assert found.decode() == f"{tmp_path}\n"


@pytest.mark.parametrize(
    ("program", "directory", "number", "why"),
    [
        ("no-such-program", ".", errno.ENOENT, "no-such-program was not found on PATH"),
        ("./missing", ".", errno.ENOENT, "the program ./missing does not exist"),
        ("./plain", ".", errno.EACCES, "./plain is not executable"),
        ("plain", ".", errno.EACCES, "{here}/plain is not executable"),
        ("./stale", ".", errno.ENOENT, "the program ./stale names an interpreter that does not exist"),
        ("sh", "missing", errno.ENOENT, "the directory {here}/missing does not exist"),
        ("sh", "plain", errno.ENOTDIR, "{here}/plain is not a directory"),
        ("nul\0byte", ".", errno.ENOENT, "nul\0byte was not found on PATH"),
        ("./nul\0byte", ".", errno.EINVAL, "the command contains a NUL byte or a variable without a name"),
        ("./\ud800", ".", errno.EINVAL, "the command cannot be started: surrogates not allowed"),
    ],
)
async def test_a_program_that_cannot_start_says_why(
    program: str, directory: str, number: int, why: str, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("not a program")
    (tmp_path / "stale").write_text("#!/no/such/interpreter\n")
    (tmp_path / "stale").chmod(0o700)
    command = Command(argv=(program,), cwd=tmp_path / directory, env={"PATH": f"/bin:{tmp_path}"})

    with pytest.raises(NotStarted) as caught:
        await launch(await start_spare(), command)

    assert (caught.value.errno, caught.value.why) == (number, why.format(here=tmp_path))


async def test_a_spare_that_was_killed_is_replaced() -> None:
    spare = await start_spare()
    os.kill(spare.pid, signal.SIGKILL)
    await until(lambda: not is_running(spare.pid))

    agent = await launch(spare, Command(argv=("/bin/true",), cwd=Path("/"), env={}))

    assert await agent.wait() == Exit(code=0, signal=None)
    await agent.aclose()


async def test_a_discarded_spare_is_gone() -> None:
    spare = await start_spare()

    await spare.discard()

    assert read_process(spare.pid) is None


async def test_a_launch_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    spare = await start_spare()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await launch(spare, Command(argv=tree(tmp_path, "stay"), cwd=tmp_path, env={}))

    assert scope.cancelled_caught
    assert survivors(tmp_path) == []
    assert read_process(spare.pid) is None


def open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


async def test_two_hundred_launches_leave_no_descriptor_and_no_process() -> None:
    async def once() -> None:
        async with running("/bin/sh", "-c", "echo x; echo y >&2") as agent:
            await read_all(agent)

    await once()
    before, others = open_files(), set(descendants(read_proc(), os.getpid()))
    for _ in range(50):
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(once)

    assert open_files() == before
    assert set(descendants(read_proc(), os.getpid())) == others


# The process table.


def entry(pid: int, parent: int, group: int = 0, start: str = "then", state: str = "S") -> Process:
    return Process(pid, parent, group, 0, state, start)


def table(*entries: Process) -> dict[int, Process]:
    return {process.pid: process for process in entries}


async def test_the_family_is_the_tree_the_group_and_what_detached() -> None:
    root, child, grandchild = entry(10, 1), entry(11, 10), entry(12, 11)
    in_group, detached, its_child = entry(13, 1, group=11), entry(14, 1), entry(15, 14)
    stranger, zombie = entry(16, 1), entry(17, 10, state="Z")
    everything = table(root, child, grandchild, in_group, detached, its_child, stranger, zombie)

    found = find_live_processes(everything, 10, group=11, seen=table(detached))

    assert sorted(found) == [11, 12, 13, 14, 15]


async def test_a_pid_that_is_used_again_is_a_stranger() -> None:
    once, again = entry(14, 10, start="then"), entry(14, 1, start="later")

    assert find_live_processes(table(entry(10, 1), again), 10, seen=table(once)) == {}


async def test_a_signal_for_a_dead_process_does_not_reach_its_successor(bystander: subprocess.Popen[bytes]) -> None:
    send_signal(entry(bystander.pid, 1, start="earlier"), signal.SIGKILL)

    assert bystander.poll() is None


async def test_the_listing_of_ps_reads_like_proc(bystander: subprocess.Popen[bytes]) -> None:
    listed, known = read_ps(), read_proc()
    ours, theirs = listed[bystander.pid], known[bystander.pid]

    assert (ours.parent, ours.group, ours.is_zombie) == (theirs.parent, theirs.group, False)
    assert bystander.pid in descendants(listed, os.getpid())
    assert set(descendants(listed, os.getpid())) == set(descendants(known, os.getpid()))


async def test_a_line_of_ps_may_have_any_width() -> None:
    text = "    1     0     1 Ss   Sat Nov 15 08:21:05 2025\n99999 1 99999 Z Sat Nov  1 08:21:05 2025\n\n"

    found = parse_ps(text)

    assert [(p.pid, p.parent, p.group, p.is_zombie) for p in found.values()] == [
        (1, 0, 1, False),
        (99999, 1, 99999, True),
    ]
    assert found[1].start == "Sat Nov 15 08:21:05 2025"


async def test_a_name_with_a_slash_is_not_searched() -> None:
    assert find_program("./here", "/bin") == "./here"


def test_an_agent_whose_supervisor_cannot_leave_its_group_does_not_live_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = tmp_path / "inside"
    inside.mkdir()

    with pytest.raises(OSError, match="the memory limit cannot be set: No such file or directory"):
        spawn(["sleep", "600"], str(tmp_path), {"PATH": os.defpath}, [str(inside), str(tmp_path / "gone")])

    assert survivors(tmp_path) == [os.getpid()]
