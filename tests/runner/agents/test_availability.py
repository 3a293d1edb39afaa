from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from delegate.config.home_files import acquire_lock
from delegate.runner.agents.availability import Trials
from delegate.runner.agents.claude import Claude
from delegate.runner.agents.codex import Codex
from delegate.runner.agents.shell import Shell

pytestmark = pytest.mark.anyio
CLAUDE, CODEX, SHELL = Claude(command="claude", is_root=False), Codex(command="codex"), Shell()
ALL = (CLAUDE, CODEX, SHELL)


class Machine:
    def __init__(self, root: Path) -> None:
        self.memory = root / "home" / "agents.json"
        self.calls = root / "calls"
        self.bin = root / "bin"
        self.bin.mkdir()
        self.environ = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(root)}

    def install(self, name: str, *, exit: int = 0) -> Path:
        program = self.bin / name
        program.unlink(missing_ok=True)
        program.write_text(f'#!/bin/sh\necho "{name} $@" >> {self.calls}\nexit {exit}\n')
        program.chmod(0o755)
        return program

    def ran(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    async def tried(self, trials: Trials) -> list[str]:
        """Try all that is due; the agents that can be offered then."""
        while (agent := trials.next_due(ALL, self.environ)) is not None:
            await trials.try_out(agent, self.environ)
        return [agent.name for agent in ALL if trials.has_passed(agent, self.environ)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_only_what_has_been_seen_to_run_is_offered(machine: Machine) -> None:
    machine.install("claude")
    machine.install("codex", exit=1)
    trials = Trials(machine.memory)
    assert not trials.has_passed(CLAUDE, machine.environ)

    assert await machine.tried(trials) == ["claude", "shell"]


async def test_a_program_is_tried_once_by_all_runners_of_a_home(machine: Machine) -> None:
    machine.install("claude")

    assert await machine.tried(Trials(machine.memory)) == ["claude", "shell"]
    assert await machine.tried(Trials(machine.memory)) == ["claude", "shell"]

    assert machine.ran() == ["claude --version"]


async def test_a_changed_program_is_tried_again(machine: Machine) -> None:
    machine.install("claude")
    trials = Trials(machine.memory)
    await machine.tried(trials)

    machine.install("claude", exit=1)

    assert not trials.has_passed(CLAUDE, machine.environ)
    assert await machine.tried(trials) == ["shell"]
    machine.install("claude")
    assert await machine.tried(trials) == ["claude", "shell"]


async def test_a_program_that_is_gone_is_not_offered(machine: Machine) -> None:
    program = machine.install("claude")
    trials = Trials(machine.memory)
    await machine.tried(trials)

    program.unlink()

    assert not trials.has_passed(CLAUDE, machine.environ)
    assert trials.next_due(ALL, machine.environ) is None


async def test_a_program_that_could_not_be_started_after_all_is_left_alone_and_tried_by_others(
    machine: Machine,
) -> None:
    machine.install("claude")
    trials = Trials(machine.memory)
    await machine.tried(trials)

    trials.mark_failed("claude")

    assert await machine.tried(trials) == ["shell"]
    assert Trials(machine.memory).next_due(ALL, machine.environ) is CLAUDE


async def test_while_another_runner_tries_it_is_waited_for(machine: Machine) -> None:
    machine.install("claude")
    trials, lock = Trials(machine.memory), acquire_lock(machine.memory.with_suffix(".lock"), 1.0)
    assert lock is not None
    await trials.try_out(CLAUDE, machine.environ)
    assert machine.ran() == []

    os.close(lock)

    with anyio.fail_after(5):
        assert await machine.tried(trials) == ["claude", "shell"]


async def test_a_spoilt_memory_is_none(machine: Machine) -> None:
    machine.install("claude")
    machine.memory.parent.mkdir()
    for text in ("", "[1]", '{"claude": 7}', "\x00"):
        machine.memory.write_text(text)

        assert Trials(machine.memory).next_due(ALL, machine.environ) is CLAUDE
