"""No process of Delegate that stays has Delegate's secrets in the environment that other programs can read."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from tests.fakes.world import World, living, tree_of, wait_until

pytestmark = [pytest.mark.promise("P22"), pytest.mark.real]
CANARY = "canary-5f3a9c71d2"


def secretive(home: Path, url: str) -> AbstractContextManager[World]:
    return living(home, DELEGATE_DATABASE_URL=url, DELEGATE_SECRET_KEY=CANARY, DELEGATE_TOKEN=CANARY)


def exposed(pid: int, url: str) -> list[int]:
    texts: dict[int, bytes] = {}
    for one in tree_of(pid):
        with suppress(OSError):  # a short command of the task has ended
            texts[one] = Path(f"/proc/{one}/environ").read_bytes()
    return [one for one, text in texts.items() if CANARY.encode() in text or url.encode() in text]


def assert_hidden(world: World, keeper: int, url: str) -> None:
    task = world.submit(f"until [ -e go ]; do sleep 0.1; done; echo {CANARY}")
    world.wait_for(task, "running")

    processes, found = tree_of(keeper), exposed(keeper, url)
    (world.work / "go").touch()

    assert len(processes) >= 5  # keeper, relay, runner, supervisor and the command
    assert found == []
    assert world.wait_for(task)["status"] == "completed"
    assert "[redacted: DELEGATE_SECRET_KEY]" in world.ok("logs", task)


def test_processes_in_the_background_have_no_secrets_in_their_environments(tmp_path: Path, postgres_url: str) -> None:
    with secretive(tmp_path / "home", postgres_url) as world:
        world.ok("up", "--runners", "1")

        assert_hidden(world, world.keeper_pid(), postgres_url)
        assert world.info()["database"] == "postgresql"


def test_a_keeper_in_the_foreground_erases_its_secrets(tmp_path: Path, postgres_url: str) -> None:
    with (
        secretive(tmp_path / "home", postgres_url) as world,
        world.popen("up", "--foreground", "--runners", "1") as keeper,
    ):
        try:
            wait_until((world.home / "relay.json").exists)
            assert_hidden(world, keeper.pid, postgres_url)
            assert world.info()["database"] == "postgresql"
        finally:
            world.down()  # or the end of this block would wait for the keeper


def test_a_relay_in_the_foreground_erases_its_secrets(tmp_path: Path, postgres_url: str) -> None:
    with secretive(tmp_path / "home", postgres_url) as world:
        with world.popen("serve", "--port", "0") as relay:
            wait_until((world.home / "relay.json").exists)
            wait_until(lambda: world.run("info").returncode == 0)
            found = exposed(relay.pid, postgres_url)
            relay.terminate()

        assert found == []
