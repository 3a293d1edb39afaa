"""A team: a relay made by `delegate serve` in one home, and paired runners in others."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.world import World, wait_until


class Machine(World):
    """A machine with paired runners; its home has no relay."""

    def pair(self, command: list[str], *options: str) -> str:
        """Run the words of a pairing command on this machine."""
        assert command[:3] == ["delegate", "runner", "pair"]
        return self.ok(*command[1:], *options)

    def accept_commands(self, profile: str = "default") -> None:
        """Widen the policy, as its owner would with an editor."""
        policy = self.profile_home(profile) / "policy.toml"
        text = policy.read_text().replace("shell = false", "shell = true")
        policy.write_text(text.replace("in_place = false", "in_place = true"))

    def runner(self, profile: str = "default") -> dict[str, Any]:
        return dict(json.loads(self.ok("runner", "status", "--profile", profile, "--json")))

    def profile_home(self, profile: str = "default") -> Path:
        return self.home / "profiles" / profile

    def down(self) -> None:
        for path in sorted((self.home / "profiles").glob("*/pairing.json")):
            self.run("runner", "stop", "--now", "--profile", path.parent.name, timeout=30)
        super().down()


class TeamRelay(World):
    """A relay in the foreground, without runners."""

    def __init__(self, home: Path, **environment: str) -> None:
        super().__init__(home, **environment)
        self.process: subprocess.Popen[str] | None = None

    def serve(self, *options: str) -> str:
        """Start it, and return its URL when it answers."""
        with (self.work / "serve.log").open("a") as log:
            self.process = self.popen("serve", *options, stdout=log, stderr=log)
        return str(wait_until(lambda: (self.home / "relay.json").exists() and self.url))

    def pairing_command(self, name: str) -> list[str]:
        """The words that `delegate runner token` prints for another machine."""
        return self.ok("runner", "token", "--name", name).split()

    def shell_task(self, machine: Machine, prompt: str, profile: str = "default") -> str:
        """A command in place on that machine, which its policy must accept; returns the task's id."""
        known = (machine.home / "machine").read_text().strip()
        name = json.loads((machine.profile_home(profile) / "pairing.json").read_text())["name"]
        where = {"machine": known, "workingDirectory": str(machine.work), "runner": name}
        body = {"prompt": prompt, "agent": "shell", **where}
        return str(self.post("/api/tasks", body)["taskId"])

    def runners(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in map(json.loads, self.ok("runner", "list", "--json").splitlines())}

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)
        self.process = None

    def down(self) -> None:
        self.stop()
        super().down()


class Team:
    """One relay, and any number of machines; each has a home of its own."""

    def __init__(self, root: Path, **environment: str) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.environment = environment
        self.relay = TeamRelay(root / "relay", **environment)
        self.machines: list[Machine] = []

    def machine(self, name: str, **environment: str) -> Machine:
        made = Machine(self.root / name, **{**self.environment, **environment})
        self.machines.append(made)
        return made

    def paired_machine(self, name: str, *options: str, **environment: str) -> Machine:
        """A machine whose runner polls, for tasks of any kind."""
        made = self.machine(name, **environment)
        made.pair(self.relay.pairing_command(name), "--all-repositories", "--runners", "1", *options)
        made.accept_commands()
        wait_until(lambda: (self.relay.runners()[name]["policy"] or {}).get("shell"))
        return made

    def down(self) -> None:
        for machine in self.machines:
            machine.down()
        self.relay.down()


@contextmanager
def team_in(root: Path, **environment: str) -> Iterator[Team]:
    made = Team(root, **environment)
    made.relay.serve()
    try:
        yield made
    finally:
        made.down()
        shutil.rmtree(root, ignore_errors=True)
