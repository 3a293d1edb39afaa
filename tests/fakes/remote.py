"""A Delegate whose relay is on another machine: in a network namespace, behind TLS, with a paired runner here."""

from __future__ import annotations

import json
import os
import signal
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

REMOTE = "DELEGATE_TEST_RELAY"  # set by `pytest --relay=remote`
PORT = 8443
PROFILE = "default"
# What a journey hands in runs in place, as a command, and is read back whole.
OPEN_POLICY = """\
repositories = "*"
directories = ["/"]
agents = ["claude", "codex", "acp:*", "shell"]
accept_from = ["members", "schedules"]
in_place = true
shell = true
"""


class RemoteWorld(World):
    """Commands run here with a person's token; `home` is that of the paired runner."""

    def __init__(self, home: Path, namespace: Namespace, **environment: str) -> None:
        super().__init__(home, **environment)
        self.namespace, self.outer = namespace, home
        self.home = home / "profiles" / PROFILE
        self.relay_home = home.parent / f"{home.name}-relay"
        self.relay_home.mkdir(mode=0o700)
        self._pairing = ""
        self._relay: subprocess.Popen[str] | None = None

    def open(self, authority: Authority) -> None:
        """Start the relay, add a person and pair the runner; it starts with the first `up`, or the first task."""
        issued = authority.issue(self.namespace.address)
        url = f"https://{self.namespace.address}:{PORT}"
        self._serve = ["serve", "--host", self.namespace.address, "--port", str(PORT), "--public-url", url]
        self._serve += ["--tls-cert", str(issued.cert), "--tls-key", str(issued.key)]
        self.start_relay()
        made = json.loads(self.at_relay("user", "add", "marek", "--role", "admin", "--json"))
        self.environment |= {
            "DELEGATE_RELAY_URL": url,
            "DELEGATE_TOKEN": made["token"],
            "DELEGATE_CA_FILE": str(authority.file),
        }

    def at_relay(self, *words: str) -> str:
        """Run a command on the relay's machine."""
        command = self.namespace.command([sys.executable, "-m", "delegate", *words])
        done = subprocess.run(
            command, env=self.relay_environment, text=True, capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def relay_environment(self) -> dict[str, str]:
        own = {k: v for k, v in self.environment.items() if k not in ("DELEGATE_RELAY_URL", "DELEGATE_TOKEN")}
        return {**own, "DELEGATE_HOME": str(self.relay_home)}

    def start_relay(self) -> None:
        with (self.relay_home / "serve.log").open("a") as log:
            self._relay = subprocess.Popen(
                self.namespace.command([sys.executable, "-m", "delegate", *self._serve]),
                env=self.relay_environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        wait_until((self.relay_home / "relay.json").exists)
        self.at_relay("info")

    def stop_relay(self, number: int = signal.SIGTERM) -> None:
        assert self._relay is not None
        self._relay.send_signal(number)
        self._relay.wait(30)

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        if words[:1] == ("up",):
            return self._start_runner(*words[1:])
        if words[:1] == ("down",):
            return super().run("runner", "stop", *words[1:], **options)
        self._pair_once()
        return super().run(*words, **options)

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        self._pair_once()
        return super().popen(*words, **options)

    def _pair_once(self) -> None:
        if not self._pairing:
            self._start_runner()

    def _start_runner(self, *options: str) -> subprocess.CompletedProcess[str]:
        if self._pairing:
            return super().run("runner", "start", *options)
        token = json.loads(self.at_relay("runner", "token", "--name", "vm-1", "--json"))
        self._pairing = token["pairingToken"]
        self.home.mkdir(parents=True, mode=0o700)
        words = ["--relay-url", self.environment["DELEGATE_RELAY_URL"], "--pairing-token", self._pairing]
        words += ["--all-repositories", "--privacy", "full"]
        paired = super().run("runner", "pair", *words, *options)
        assert paired.returncode == 0, paired.stderr
        (self.home / "policy.toml").write_text(OPEN_POLICY)
        return paired

    def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        self._pair_once()
        raise NotImplementedError

    def relay_pid(self) -> int:
        return int(json.loads((self.relay_home / "relay.json").read_text())["pid"])

    def down(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            World.run(self, "runner", "stop", "--now", timeout=30)
        if self._relay is not None and self._relay.poll() is None:
            self.stop_relay()
        for line in [*strays(self.home), *strays(self.outer), *strays(self.relay_home)]:
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
        world = RemoteWorld(home, namespace, **environment)
        try:
            world.open(Authority(home.parent))
            yield world
        finally:
            world.down()
