"""A Delegate whose relay is on another machine: in a network namespace, behind TLS, with a paired runner here."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fakes.audit import database_faults, strays, workspace_faults
from tests.fakes.certificates import Authority
from tests.fakes.namespaces import Namespace, network_namespace
from tests.fakes.world import PATIENCE, World, wait_until

from delegate.config.home_files import lock_holder
from delegate.config.paths import Home

PORT = 8443
RELAY_ONLY = ("DELEGATE_DATABASE_URL", "DELEGATE_DAILY_BUDGET_USD")
# What a journey hands in may run in place, as a command, with any agent, and is read back whole.
OPEN_POLICY = """\
repositories = "*"
agents = ["claude", "codex"]
accept_from = ["me", "members", "schedules"]
in_place = true
shell = true
privacy = "full"
runners = {runners}
"""


class RemoteWorld(World):
    """Its commands have the token of an admin; `home` is that of the paired runner."""

    def __init__(self, home: Path, namespace: Namespace, authority: Authority, **environment: str) -> None:
        super().__init__(home, **environment)
        self.namespace, self.authority = namespace, authority
        self.commands_home, self.home = home, home / "profiles" / "default"
        self.relay_home = home.parent / f"{home.name}-relay"
        self.relay_home.mkdir(mode=0o700)
        self.url = f"https://{namespace.address}:{PORT}"
        self._relay_environment = {**self.environment, "DELEGATE_HOME": str(self.relay_home)}
        self._relay: subprocess.Popen[str] | None = None
        self._is_paired = False
        issued = authority.issue(namespace.address)
        self._serve = ["serve", "--host", namespace.address, "--port", str(PORT), "--public-url", self.url]
        self._serve += ["--tls-cert", str(issued.cert), "--tls-key", str(issued.key)]

    def open(self) -> None:
        self.start_relay()
        made = json.loads(self.at_relay("user", "add", "marek", "--role", "admin", "--json"))
        own = {name: value for name, value in self.environment.items() if name not in RELAY_ONLY}
        address = {"DELEGATE_RELAY_URL": self.url, "DELEGATE_CA_FILE": str(self.authority.file)}
        self.environment = {**own, **address, "DELEGATE_TOKEN": made["token"]["token"]}

    def start_relay(self) -> None:
        with (self.relay_home.parent / "serve.log").open("a") as log:
            self._relay = subprocess.Popen(
                self.namespace.command([sys.executable, "-m", "delegate", *self._serve]),
                env=self._relay_environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        wait_until((self.relay_home / "relay.json").exists)

    def stop_relay(self, number: int = signal.SIGTERM) -> None:
        assert self._relay is not None
        self._relay.send_signal(number)
        self._relay.wait(PATIENCE)

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
        (self.home / "policy.toml").write_text(OPEN_POLICY.format(runners=count))
        return super().run("runner", "start")

    def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        self._start_runner_once()
        tls = ssl.create_default_context(cafile=self.authority.file)
        return self._send(method, self.url + path, self.environment["DELEGATE_TOKEN"], body, tls)

    def relay_pid(self) -> int:
        return int(json.loads((self.relay_home / "relay.json").read_text())["pid"])

    def keeper_pid(self) -> int:
        holder = lock_holder(Home(self.home).keeper_lock)
        assert holder is not None
        return holder.pid

    def down(self) -> None:
        if self._is_paired:
            with suppress(subprocess.TimeoutExpired):
                World.run(self, "runner", "stop", "--now", timeout=30)
        if self._relay is not None and self._relay.poll() is None:
            self.stop_relay()
        for home in (self.home, self.commands_home, self.relay_home):
            for line in strays(home):
                with suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), signal.SIGKILL)

    def audit(self, url: str | None = None) -> None:
        wait_until(lambda: not strays(self.home), 20)
        database = url or f"sqlite:///{self.relay_home / 'delegate.db'}"
        assert database_faults(database) == []
        assert workspace_faults(self.home, database) == []


@contextmanager
def remote_world(home: Path, **environment: str) -> Iterator[RemoteWorld]:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with network_namespace() as namespace:
        world = RemoteWorld(home, namespace, Authority(home.parent), **environment)
        try:
            world.open()
            yield world
        finally:
            world.down()
