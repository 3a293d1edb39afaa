"""A Delegate of its own for one benchmark: started and stopped through its commands, spoken to over plain sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from delegate.config.home_files import machine_id
from delegate.config.paths import Home

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
DELEGATE = str(Path(PYTHON).parent / "delegate")
# Not in /tmp, which is often memory: a durable write must cost what it costs.
WORKPLACE = ROOT / ".tools" / "bench"
PATIENCE = 120.0  # seconds for anything that must happen at all
FINAL = {"completed", "failed", "cancelled"}


@contextmanager
def workplace() -> Iterator[Path]:
    WORKPLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORKPLACE, ignore_cleanup_errors=True) as name:
        yield Path(name)


def clean_environment() -> dict[str, str]:
    """Without settings of a Delegate, or of a session around this one."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("DELEGATE_", "CLAUDE"))}


class Connection:
    """One kept connection to a relay, with nothing between it and the socket."""

    def __init__(self, url: str, token: str) -> None:
        address = urlsplit(url)
        self.host = f"{address.hostname}:{address.port}"
        self.token = token
        self.socket = socket.create_connection((address.hostname or "", address.port or 80), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held = b""

    def send(self, method: str, path: str, body: object = None) -> None:
        payload = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + payload)

    def receive(self) -> Any:
        while b"\r\n\r\n" not in self._held:
            self._read()
        head, _, rest = self._held.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:"))
        self._held = rest
        while len(self._held) < length:
            self._read()
        payload, self._held = self._held[:length], self._held[length:]
        if lines[0].split(" ")[1] not in {"200", "201"}:
            raise RuntimeError(f"{lines[0]}: {payload[:300]!r}")
        return json.loads(payload)

    def call(self, method: str, path: str, body: object = None) -> Any:
        self.send(method, path, body)
        return self.receive()

    def _read(self) -> None:
        piece = self.socket.recv(262_144)
        if not piece:
            raise ConnectionError("the relay closed the connection")
        self._held += piece


class Product:
    """One home. Tasks are shell commands that run in its `work` folder."""

    def __init__(self, place: Path, **settings: str) -> None:
        self.home = place / "home"
        self.work = place / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        # Whoever asks for a number of runners measures those, however busy the machine is; `pool` measures the rest.
        unheld = {"DELEGATE_CPU_THRESHOLD": "100", "DELEGATE_MEMORY_RESERVE": "0"}
        self.environment = {**clean_environment(), **unheld, "DELEGATE_HOME": str(self.home), **settings}

    def command(self, *words: str) -> str:
        done = subprocess.run(
            [DELEGATE, *words],
            env=self.environment,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"delegate {' '.join(words)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def up(self, runners: int) -> None:
        """Returns when all of them have asked for work for the first time."""
        self.command("up", "--runners", str(runners))
        self.wait_for_idle(runners)

    def down(self) -> None:
        self.command("down", "--now")

    def info(self) -> dict[str, Any]:
        return dict(json.loads(self.command("info", "--json")))

    def wait_for_idle(self, runners: int) -> None:
        def all_idle() -> bool:
            states = [process["state"] for process in self.info()["processes"]]
            return states.count("idle") >= runners

        wait_until(all_idle)

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    @property
    def machine(self) -> str:
        return machine_id(Home(self.home))

    def connect(self) -> Connection:
        address = json.loads((self.home / "relay.json").read_text())
        return Connection(address["url"], self.token)

    def task_request(self, prompt: str) -> dict[str, object]:
        """The body of a submit."""
        return {"prompt": prompt, "agent": "shell", "workingDirectory": str(self.work), "machine": self.machine}


@contextmanager
def running(runners: int, **settings: str) -> Iterator[Product]:
    with workplace() as place, running_in(place, runners, **settings) as product:
        yield product


@contextmanager
def running_in(place: Path, runners: int, **settings: str) -> Iterator[Product]:
    product = Product(place, **settings)
    try:
        product.up(runners)
        yield product
    finally:
        product.down()


def wait_for_end(connection: Connection, task_id: str) -> dict[str, Any]:
    """The task's details once it has ended."""

    def ended() -> dict[str, Any] | None:
        detail: dict[str, Any] = connection.call("GET", f"/api/tasks/{task_id}")
        return detail if detail["task"]["status"] in FINAL else None

    detail: dict[str, Any] = wait_until(ended)
    if detail["task"]["status"] != "completed":
        raise RuntimeError(f"a task did not complete: {detail['task']}")
    return detail


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE} s")
        time.sleep(0.02)
    return value
