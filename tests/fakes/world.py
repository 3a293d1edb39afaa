"""A whole Delegate in a temporary home: its own relay and runners, driven through the command line."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fakes.audit import database_faults, strays, workspace_faults

from delegate.client.client import Client
from delegate.config.home_files import machine_id, process_start
from delegate.config.paths import Home
from delegate.config.settings import load

QUICK = {
    "DELEGATE_HEARTBEAT": "0.5",
    "DELEGATE_LEASE": "2",
    "DELEGATE_RECLAIM_AFTER": "5",
    "DELEGATE_GRACE": "1",
    # Tests keep the machine busy themselves: their runners take work all the same.
    "DELEGATE_CPU_THRESHOLD": "100",
    "DELEGATE_MEMORY_RESERVE": "0",
    "DELEGATE_AGENT_MEMORY": "1048576",
    "DELEGATE_MAX_RUNNERS": "2",
}
REMOTE_RELAY = "DELEGATE_TEST_REMOTE"  # set by `pytest --relay=remote`
PATIENCE = 120.0


def lean_path() -> str:
    """Without the agents that `make tools` brings: every runner would try them all out first, which takes seconds."""
    return os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if not part.endswith(".tools/bin"))


class World:
    prefix: tuple[str, ...] = ()  # before every command: a program that starts it in other surroundings

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = self.relay_home = home
        self.work = home.parent / f"{home.name}-work"
        self.work.mkdir(exist_ok=True)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DELEGATE_", "CLAUDE"))}
        self.environment = {**inherited, **QUICK, "PATH": lean_path(), "DELEGATE_HOME": str(home), **environment}

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("stdin", subprocess.DEVNULL)
        command = [*self.prefix, sys.executable, "-m", "delegate", *words]
        return subprocess.Popen(command, env=self.environment, cwd=self.work, text=True, **options)

    def run(self, *words: str, stdin: str | None = None, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        command = [*self.prefix, sys.executable, "-m", "delegate", *words]
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run(
            command, env=self.environment, cwd=self.work, text=True, capture_output=True, timeout=timeout, **given
        )

    def ok(self, *words: str, **options: Any) -> str:
        done = self.run(*words, **options)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def on_a_terminal(self, *words: str) -> str:
        """What a person sees on the screen."""
        ours, theirs = os.openpty()
        command = [*self.prefix, sys.executable, "-m", "delegate", *words]
        running = subprocess.Popen(
            command, env=self.environment, cwd=self.work, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # its other end is closed
            while piece := os.read(ours, 65_536):
                seen += piece
        os.close(ours)
        running.wait(PATIENCE)
        return seen.decode().replace("\r\n", "\n")

    def submit(self, prompt: str, *options: str, agent: str = "shell") -> str:
        answer = json.loads(self.ok("delegate", "-a", agent, "--json", *options, "--", prompt))
        return str(answer["taskId"])

    def submit_together(self, prompts: Sequence[str]) -> list[str]:
        """Commands that may run again, all there at one moment."""
        here = {"workingDirectory": str(self.work), "machine": machine_id(Home(self.home))}
        requests = [{"agent": "shell", "rerun": True, **here, "prompt": prompt} for prompt in prompts]
        return [task["taskId"] for task in Client(load(self.environment)).submit_together(requests)]

    def task(self, task_id: str) -> dict[str, Any]:
        return dict(json.loads(self.ok("status", task_id, "--json")))

    def tasks(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ok("status", "--json").splitlines()]

    def info(self) -> dict[str, Any]:
        return dict(json.loads(self.ok("info", "--json")))

    def processes(self) -> list[dict[str, Any]]:
        """The runners' processes, as the relay knows them."""
        return list(self.info()["processes"])

    @property
    def url(self) -> str:
        return str(json.loads((self.relay_home / "relay.json").read_text())["url"])

    @property
    def token(self) -> str:
        return (self.relay_home / "token").read_text().strip()

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None

    def relay_logs(self) -> list[Path]:
        return sorted((self.relay_home / "logs").glob("relay*"))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return dict(json.loads(self.fetch(path, json.dumps(body).encode())))

    def get(self, path: str) -> dict[str, Any]:
        return dict(json.loads(self.fetch(path)))

    def fetch(self, path: str, body: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE, context=self.tls) as answer:
            return bytes(answer.read())

    def wait_for(self, task_id: str, *states: str, patience: float = PATIENCE) -> dict[str, Any]:
        wanted = states or ("completed", "failed", "cancelled")
        return wait_until(lambda: (task := self.task(task_id))["status"] in wanted and task, patience)

    def relay_pid(self) -> int:
        return int(json.loads((self.relay_home / "relay.json").read_text())["pid"])

    def keeper_pid(self) -> int:
        return int(json.loads((self.home / "relay.json").read_text())["keeperPid"])

    def down(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.run("down", "--now", timeout=30)
        for line in strays(self.home):
            with suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)

    def audit(self, url: str | None = None) -> None:
        """The invariants hold, and nothing of this home is alive any more."""
        wait_until(lambda: not strays(self.home))
        database = url or f"sqlite:///{self.relay_home / 'delegate.db'}"
        assert database_faults(database) == []
        assert workspace_faults(self.home, database) == []


def wait_until(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Poll a condition of other processes; there is no event to wait on between them and us."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience} s: {condition}")
        time.sleep(0.05)


def homes_in(home: Path) -> tuple[Path, Path]:
    """Where a world in this home has its relay, and where its runners."""
    return remote_homes(home) if os.environ.get(REMOTE_RELAY) else (home, home)


def remote_homes(home: Path) -> tuple[Path, Path]:
    return home.parent / f"{home.name}-relay", home / "profiles" / "default"


@contextmanager
def living(home: Path, **environment: str) -> Iterator[World]:
    if os.environ.get(REMOTE_RELAY):
        from tests.fakes.remote import remote_world  # noqa: PLC0415  # it is built on this module

        with remote_world(home, **environment) as remote:
            yield remote
        return
    world = World(home, **environment)
    try:
        yield world
    finally:
        world.down()


def children_of(pid: int) -> list[int]:
    """Whichever of its threads started them."""
    found: list[int] = []
    for listed in sorted(Path(f"/proc/{pid}/task").glob("*/children")):
        with suppress(OSError):  # the thread, or the process, has ended
            found += [int(word) for word in listed.read_text().split()]
    return found


def tree_of(pid: int) -> list[int]:
    found = [pid]
    for child in children_of(pid):
        found += tree_of(child)
    return found


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def is_alive(pid: int) -> bool:
    """A process that has ended and waits for its parent to notice is not: an init need not collect what it adopts."""
    return process_start(pid) is not None
