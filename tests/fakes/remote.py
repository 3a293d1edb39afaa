"""A Delegate whose relay is on another machine: in a network namespace, behind TLS, with a paired runner here."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.fakes.audit import strays
from tests.fakes.certificates import Authority
from tests.fakes.namespaces import Namespace, network_namespace
from tests.fakes.world import PATIENCE, World, remote_homes, wait_until

from delegate.config.home_files import lock_holder
from delegate.config.paths import Home

PORT = 8443
RESTART_AFTER = 0.1  # seconds
RELAY_ONLY = ("DELEGATE_DATABASE_URL", "DELEGATE_DAILY_BUDGET_USD")
# What a journey hands in may run in place, as a command, with any agent, and is read back whole.
OPEN_POLICY = """\
repositories = "*"
agents = ["claude", "codex", "acp:acp-agent"]
accept_from = ["me", "members", "schedules", "linear"]
in_place = true
shell = true
privacy = "{privacy}"
runners = {runners}
"""


class RemoteWorld(World):
    """Its commands have the token of an admin; `home` is that of the paired runner."""

    def __init__(self, home: Path, namespace: Namespace, authority: Authority, **environment: str) -> None:
        super().__init__(home, **environment)
        self.namespace, self.authority = namespace, authority
        self.commands_home = home
        self.relay_home, self.home = remote_homes(home)
        self.relay_home.mkdir(mode=0o700, exist_ok=True)
        self._relay_environment = {**self.environment, "DELEGATE_HOME": str(self.relay_home)}
        self._is_paired = False
        issued = authority.issue(namespace.address)
        words = ["serve", "--host", namespace.address, "--port", str(PORT), "--public-url", self.url]
        words += ["--tls-cert", str(issued.cert), "--tls-key", str(issued.key)]
        command = namespace.command([sys.executable, "-m", "delegate", *words])
        (log,) = self.relay_logs()
        self._service = Service(command, self._relay_environment, log)

    @property
    def url(self) -> str:
        return f"https://{self.namespace.address}:{PORT}"

    @property
    def token(self) -> str:
        return self.environment["DELEGATE_TOKEN"]

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority.file)

    def relay_logs(self) -> list[Path]:
        return [self.relay_home.parent / "serve.log"]

    def open(self) -> None:
        self._service.start()
        wait_until(self._is_ready)
        made = json.loads(self.at_relay("user", "add", "marek", "--role", "admin", "--json"))
        own = {name: value for name, value in self.environment.items() if name not in RELAY_ONLY}
        address = {"DELEGATE_RELAY_URL": self.url, "DELEGATE_CA_FILE": str(self.authority.file)}
        self.environment = {**own, **address, "DELEGATE_TOKEN": made["token"]["token"]}

    def _is_ready(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=PATIENCE, context=self.tls):
            return (self.relay_home / "relay.json").exists()
        return False

    def at_relay(self, *words: str) -> str:
        """Run a command on the relay's machine, as its owner."""
        command = self.namespace.command([sys.executable, "-m", "delegate", *words])
        done = subprocess.run(
            command,
            env=self._relay_environment,
            text=True,
            capture_output=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        if words[0] == "up":
            return self._start_runner(*words[1:])
        if words[0] == "down":
            return super().run("runner", "stop", *words[1:], **options)
        self._start_runner_once()
        return super().run(*words, **options)

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        self._start_runner_once()
        if words[0] == "down":
            words = ("runner", "stop", *words[1:])
        return super().popen(*words, **options)

    def _start_runner_once(self) -> None:
        if not self._is_paired:
            self._start_runner()

    def _start_runner(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Pair the machine as a person would, then let it accept everything."""
        if not self._is_paired:
            self._is_paired = True
            token = json.loads(self.at_relay("runner", "token", "--name", "vm-1", "--json"))["pairingToken"]
            words = ["--relay-url", self.url, "--pairing-token", token, "--ca-file", str(self.authority.file)]
            paired = super().run("runner", "pair", *words, "--all-repositories", *options)
            assert paired.returncode == 0, paired.stderr
            stopped = super().run("runner", "stop")
            assert stopped.returncode == 0, stopped.stderr
        count = options[options.index("--runners") + 1] if "--runners" in options else '"auto"'
        privacy = self.environment.get("DELEGATE_PRIVACY", "full")
        (self.home / "policy.toml").write_text(OPEN_POLICY.format(runners=count, privacy=privacy))
        return super().run("runner", "start")

    def fetch(self, path: str, body: bytes | None = None) -> bytes:
        self._start_runner_once()
        return super().fetch(path, body)

    def processes(self) -> list[dict[str, Any]]:
        """From the database: over HTTP a relay tells of a paired runner as a whole."""
        query = """SELECT runner_slot.id, name, pid, seen_at, task_id FROM runner_slot
            LEFT JOIN attempt ON slot_id = runner_slot.id AND attempt.state = 'running'"""
        with closing(sqlite3.connect(f"file:{self.relay_home / 'delegate.db'}?mode=ro", uri=True)) as database:
            found = database.execute(query).fetchall()
        silent = (time.time() - float(self.environment["DELEGATE_LEASE"])) * 1e6
        states = ("idle", "busy", "silent")
        return [
            {
                "id": slot,
                "name": name,
                "pid": pid,
                "taskId": task,
                "state": states[2 if seen < silent else task is not None],
            }
            for slot, name, pid, seen, task in found
        ]

    def keeper_pid(self) -> int:
        holder = lock_holder(Home(self.home).keeper_lock)
        assert holder is not None
        return holder.pid

    def down(self) -> None:
        if self._is_paired:
            with suppress(subprocess.TimeoutExpired):
                World.run(self, "runner", "stop", "--now", timeout=30)
        self._service.stop()
        for home in (self.home, self.commands_home, self.relay_home):
            for line in strays(home):
                with suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), signal.SIGKILL)


class Service:
    """A program that is started again whenever it has ended, as by a service manager."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._command, self._environment, self._log = command, environment, log
        self._is_over, self._started = threading.Event(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_running, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _keep_running(self) -> None:
        while self._launch():
            assert self._process is not None
            self._process.wait()
            self._is_over.wait(RESTART_AFTER)

    def _launch(self) -> bool:
        with self._started, self._log.open("ab") as log:
            if self._is_over.is_set():
                return False
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return True

    def stop(self) -> None:
        self._is_over.set()
        with self._started:
            if self._process is not None:
                self._process.terminate()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)


@contextmanager
def remote_world(home: Path, **environment: str) -> Iterator[RemoteWorld]:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    linear = urlsplit(environment.get("DELEGATE_LINEAR_API_URL", "")).port
    with network_namespace() as namespace, namespace.sharing(linear) if linear else nullcontext():
        world = RemoteWorld(home, namespace, Authority(home.parent), **environment)
        try:
            world.open()
            yield world
        finally:
            world.down()
