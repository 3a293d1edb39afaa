"""A team's relay is restarted under load, behind TLS: no attempt is lost, no lease reclaimed, no line missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.certificates import Authority
from tests.fakes.serving import Served, free_port, serving
from tests.fakes.team import Machine
from tests.fakes.world import World, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.promise("P8")]

RUNNERS = 2
LINES = 100


def talk(work: Path, name: str) -> str:
    """Numbered lines, each after the next step of the test or a tenth of a second, until the gate is open."""
    gate = work / "gate"
    return (
        f"n=0; while [ $n -lt {LINES} ]; do echo {name}-$n; n=$((n+1)); "
        f"[ -e {gate} ] || sleep 0.1; [ $n -lt {LINES - 5} ] || while [ ! -e {gate} ]; do sleep 0.05; done; done"
    )


@contextmanager
def remote_runners(world: World, url: str) -> Iterator[None]:
    """Runners of another home, which knows the relay by its URL only."""
    with ExitStack() as running:
        log = running.enter_context((world.home.parent / "runners.log").open("ab"))
        for number in range(RUNNERS):
            command = [sys.executable, "-m", "delegate.runner", "--slot", f"{number + 1}", "--relay-url", url]
            process = subprocess.Popen(
                command, env=world.environment, cwd=world.work, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
            running.callback(_end, process)
        yield


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    if process.stdin is not None:
        process.stdin.close()
    process.wait(30)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Its URL for the relay, and for the audit."""
    if request.param == "sqlite":
        return "", f"sqlite:///{tmp_path / 'relay' / 'delegate.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url, url.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.mark.parametrize("restarts", [3, pytest.param(40, marks=pytest.mark.soak)])
def test_restarting_the_relay_under_load_costs_nothing(
    tmp_path: Path, database: tuple[str, str], restarts: int
) -> None:
    authority, port = Authority(tmp_path), free_port()
    url, audited = database
    relay = World(tmp_path / "relay", **({"DELEGATE_DATABASE_URL": url} if url else {}))
    with ExitStack() as stack:
        first = stack.enter_context(restarting(relay, authority, port))
        remote = World(
            tmp_path / "machine",
            DELEGATE_RELAY_URL=first.url,
            DELEGATE_CA_FILE=str(authority.file),
            DELEGATE_TOKEN=first.token,
        )
        stack.enter_context(remote_runners(remote, first.url))
        ids = [remote.submit(talk(remote.work, f"line-{number}")) for number in range(RUNNERS)]
        wait_until(lambda: all(remote.task(task_id)["status"] == "running" for task_id in ids))
        following = [remote.popen("logs", "-f", task_id) for task_id in ids]

        for _ in range(restarts):
            stack.enter_context(restarting(relay, authority, port))
            later = remote.submit("true")
            assert remote.task(later)["status"] == "queued"

        (remote.work / "gate").touch()
        ended = [remote.wait_for(task_id) for task_id in ids]
        followed = [process.communicate(timeout=60)[0] for process in following]
        queued = [task["taskId"] for task in remote.tasks() if task["taskId"] not in ids]
        rest = [remote.wait_for(task_id) for task_id in queued]

    lines = ["".join(f"line-{number}-{n}\n" for n in range(LINES)) for number in range(RUNNERS)]
    log = (tmp_path / "serve.log").read_text()
    assert followed == lines
    assert [(task["status"], task["attempt"]) for task in ended] == [("completed", 1)] * RUNNERS
    assert [(task["status"], task["attempt"]) for task in rest] == [("completed", 1)] * restarts
    assert [[attempt["state"] for attempt in task["attempts"]] for task in ended] == [["completed"]] * RUNNERS
    assert log.count("relay ready") == restarts + 1
    assert "graceful shutdown exceeded" not in log  # nobody was cut off: waiting calls were answered
    assert "Traceback" not in log
    relay.audit(audited)


def test_a_machine_paired_with_a_private_authority_is_online_again_after_a_restart(tmp_path: Path) -> None:
    authority, port = Authority(tmp_path), free_port()
    relay, machine = World(tmp_path / "relay"), Machine(tmp_path / "machine")
    (machine.work / "ca.pem").write_bytes(authority.file.read_bytes())
    with ExitStack() as stack:
        stack.enter_context(restarting(relay, authority, port))
        stack.callback(machine.down)
        command = str(relay.post("/api/pairing-tokens", {"name": "studio"})["command"]).split()
        unknown = machine.run(*command[1:])
        machine.pair(command, "--ca-file", "ca.pem", "--runners", "1", "--all-repositories")
        wait_until(lambda: machine.runner()["state"] == "online")

        stack.enter_context(restarting(relay, authority, port))
        restarted = datetime.now(UTC)
        seen = wait_until(lambda: [one for one in relay.get("/api/runners")["runners"] if is_after(one, restarted)])

    assert unknown.returncode == 6
    assert "the certificate of localhost is not trusted" in unknown.stderr
    assert [one["name"] for one in seen] == ["studio"]


def is_after(runner: dict[str, Any], moment: datetime) -> bool:
    return datetime.fromisoformat(runner["seenAt"]) > moment


@contextmanager
def restarting(world: World, authority: Authority, port: int) -> Iterator[Served]:
    """Stops the relay of this home, if one runs, as a service manager does; starts the next at the same port."""
    address = world.home / "relay.json"
    if address.exists():
        os.kill(world.relay_pid(), 15)
        wait_until(lambda: not address.exists())
    with serving(world, authority, port=port) as served:
        yield served
