"""A relay whose disk is nearly full, or full."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.relay.peers import client, fact, problem_of, runner_of, running_relay, task

from delegate.config.disk import free_bytes
from delegate.config.settings import Settings
from delegate.relay.disk import BALLAST, RelayDisk, disk_of

pytestmark = pytest.mark.anyio
TOO_MUCH = 1 << 49


@pytest.mark.promise("P13")
async def test_below_the_floor_new_work_is_refused_and_old_work_ends(tmp_path: Path) -> None:
    with running_relay(tmp_path) as relay:
        async with client(relay.url) as owner, runner_of(owner) as runner:
            attempt = await runner.take()
    with running_relay(tmp_path, DELEGATE_RELAY_MIN_FREE=str(TOO_MUCH)) as relay:
        async with client(relay.url) as owner, client(relay.url, runner.token) as runner.http:
            submitted = await owner.post("/api/tasks", json=task())
            retried = await owner.post(f"/api/tasks/{attempt.task_id}/retry", json={})
            claim = {"claimId": runner.new_claim(), "agents": ["shell"], "wait": 0}
            claimed = await runner.http.post("/api/runners/claim", json=claim)
            await attempt.renew()
            await attempt.record(fact(0))
            await attempt.finish(1)
            shown = await owner.get(f"/api/tasks/{attempt.task_id}")

    problem = problem_of(submitted, 507, "disk_full")
    assert f"are free on the disk of {tmp_path}, and 512.0 TiB are needed" in problem["detail"]
    assert problem["retry_after"] == 5
    problem_of(retried, 507, "disk_full")
    problem_of(claimed, 507, "disk_full")
    assert shown.json()["task"]["status"] == "completed"


@pytest.mark.promise("P13")
async def test_a_database_without_space_gets_that_of_the_ballast(tmp_path: Path) -> None:
    failing = {"DELEGATE_FAILPOINTS": "submit.before=error"}  # as SQLite fails on a full disk
    with running_relay(tmp_path, **failing) as relay:
        async with client(relay.url) as owner:
            with anyio.fail_after(5):
                while not (tmp_path / "ballast").exists():
                    await owner.get("/healthz")
            size = (tmp_path / "ballast").stat().st_size
            refused = await owner.post("/api/tasks", json=task())

        assert size == BALLAST
        problem_of(refused, 507, "disk_full")
        assert not (tmp_path / "ballast").exists()
        assert "ballast dropped" in relay.log


@pytest.mark.parametrize(
    ("method", "path", "is_refused"),
    [
        ("POST", "/api/tasks", True),
        ("POST", "/api/tasks/task-1/retry", True),
        ("POST", "/api/tasks/task-1/resume", True),
        ("POST", "/api/tasks/task-1/messages", True),
        ("POST", "/api/runners/claim", True),
        ("POST", "/api/tasks/task-1/cancel", False),
        ("POST", "/api/runners/register", False),
        ("POST", "/api/runners/attempts/att-1/record", False),
        ("POST", "/api/runners/attempts/att-1/finish", False),
        ("GET", "/api/tasks", False),
    ],
)
def test_what_is_refused_below_the_floor(tmp_path: Path, method: str, path: str, is_refused: bool) -> None:
    disk = RelayDisk(directory=tmp_path, min_free=TOO_MUCH)

    assert (disk.explain_refusal(method, path) is not None) is is_refused


def test_output_is_refused_when_there_is_space_only_for_ends(tmp_path: Path) -> None:
    disk = RelayDisk(directory=Path("/proc"), min_free=8)  # a file system without free space

    assert disk.explain_refusal("POST", "/api/runners/attempts/att-1/record") is not None
    assert disk.explain_refusal("POST", "/api/runners/attempts/att-1/finish") is None


def test_ballast_is_written_where_there_is_space_and_takes_it(tmp_path: Path) -> None:
    disk = RelayDisk(directory=tmp_path, min_free=1024 * 1024)

    disk.check_ballast()
    disk.check_ballast()

    laid = disk.ballast.stat()
    assert (laid.st_size, laid.st_mode & 0o777) == (128 * 1024, 0o600)
    assert laid.st_blocks * 512 >= 128 * 1024
    disk.drop_ballast()
    disk.drop_ballast()
    assert not disk.ballast.exists()


def test_ballast_does_not_take_the_space_it_is_to_keep(tmp_path: Path) -> None:
    free = free_bytes(tmp_path)
    assert free is not None
    disk = RelayDisk(directory=tmp_path, min_free=free)

    disk.check_ballast()

    assert not disk.ballast.exists()


def test_a_database_elsewhere_has_no_floor_and_no_ballast_here(tmp_path: Path) -> None:
    disk = disk_of(Settings(home=tmp_path, relay_min_free=TOO_MUCH, database_url="postgresql://db.example/delegate"))

    disk.check_ballast()

    assert disk.explain_shortage() is None
    assert not disk.ballast.exists()


def test_a_floor_of_nothing_asks_for_nothing(tmp_path: Path) -> None:
    disk = disk_of(Settings(home=tmp_path, relay_min_free=0))

    disk.check_ballast()

    assert disk.explain_refusal("POST", "/api/tasks") is None
    assert not disk.ballast.exists()
