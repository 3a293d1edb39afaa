"""The relay as a process: how it starts, what it says, how it ends, what it needs."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from tests.fakes.world import wait_until
from tests.relay.peers import (
    TIMINGS,
    TOKEN,
    WAIT,
    RelayProcess,
    client,
    end,
    listener,
    runner_of,
    running_relay,
    start_relay,
    task,
)

pytestmark = pytest.mark.anyio

IDLE_MEMORY_MAX = 110 * 1024 * 1024


def refused_start(home: Path, **environ: str) -> tuple[int, dict[str, str]]:
    """The exit code and the error of a relay that does not come up."""
    with closing(listener()) as listening:
        done = subprocess.run(
            [sys.executable, "-m", "delegate.relay", "--socket-fd", str(listening.fileno())],
            pass_fds=[listening.fileno()],
            env={**os.environ, **TIMINGS, "DELEGATE_HOME": str(home), "DELEGATE_TOKEN": TOKEN, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WAIT * 4,
        )
    (line,) = done.stdout.splitlines()
    assert b"Traceback" not in done.stderr
    error: dict[str, str] = json.loads(line)["error"]
    return done.returncode, error


def test_a_stop_signal_ends_it_cleanly_and_closes_the_database(own_relay: RelayProcess) -> None:
    assert own_relay.stop() == 0
    assert not own_relay.database.with_name("delegate.db-wal").exists()
    assert "Traceback" not in own_relay.log


def test_it_does_not_outlive_its_keeper(own_relay: RelayProcess) -> None:
    assert own_relay.process.stdin is not None

    own_relay.process.stdin.close()

    assert own_relay.process.wait(WAIT * 2) == 0


def test_a_keeper_that_dies_while_its_relay_starts_leaves_one_log_line(tmp_path: Path) -> None:
    with (
        closing(listener()) as listening,
        subprocess.Popen(
            [sys.executable, "-m", "delegate.relay", "--socket-fd", str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[listening.fileno()],
            env={**os.environ, **TIMINGS, "DELEGATE_HOME": str(tmp_path), "DELEGATE_TOKEN": TOKEN},
        ) as starting,
    ):
        assert starting.stdin is not None
        assert starting.stdout is not None
        assert starting.stderr is not None
        starting.stdin.close()
        starting.stdout.close()
        log = starting.stderr.read().decode()

    assert starting.returncode == 0
    assert log.count("the keeper is gone: stopping") == 1
    assert "Traceback" not in log
    assert "BrokenPipe" not in log


async def test_once_its_keeper_is_gone_it_takes_no_new_work_but_what_runners_hand_back(own_relay: RelayProcess) -> None:
    async with client(own_relay.url) as owner, runner_of(owner) as runner:
        attempt = await runner.take()
        assert own_relay.process.stdin is not None
        own_relay.process.stdin.close()
        wait_until(lambda: "the keeper is gone" in own_relay.log)

        refused = await owner.post("/api/tasks", json=task())
        by_mcp = await owner.post("/mcp", json={})
        shown = await owner.get(f"/api/tasks/{attempt.task_id}")
        await attempt.finish()

    assert [answer.status_code for answer in (refused, by_mcp, shown)] == [503, 503, 200]
    assert (refused.json()["type"], refused.headers["retry-after"]) == ("stopping", "1")


def test_what_it_writes_is_for_its_owner_alone(own_relay: RelayProcess) -> None:
    assert stat.S_IMODE(own_relay.database.stat().st_mode) == 0o600


def test_a_damaged_database_is_reported_in_one_line_and_left_alone(tmp_path: Path) -> None:
    damaged = b"this is no database" * 100
    (tmp_path / "delegate.db").write_bytes(damaged)

    code, error = refused_start(tmp_path)

    assert (code, error["code"], error["exitCode"]) == (3, "damaged_database", 3)
    assert str(tmp_path / "delegate.db") in error["message"]
    assert "restore" in error["hint"]
    assert (tmp_path / "delegate.db").read_bytes() == damaged


def test_a_setting_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    code, error = refused_start(tmp_path, DELEGATE_LEASE="soon")

    assert (code, error["code"]) == (3, "bad_setting")
    assert "DELEGATE_LEASE" in error["message"]


async def test_a_killed_relay_comes_back_with_all_it_had(tmp_path: Path) -> None:
    first = start_relay(tmp_path)
    async with client(first.url) as owner, runner_of(owner) as runner:
        attempt = await runner.take()
        waiting = await runner.submit()
        token = runner.token
    end(first)

    second = start_relay(tmp_path)
    async with client(second.url) as owner, client(second.url, token) as runners_own:
        held = (await runners_own.get("/api/runners/attempts")).json()["assignments"]
        shown = (await owner.get(f"/api/tasks/{waiting['taskId']}")).json()
    end(second)

    assert [assignment["attemptId"] for assignment in held] == [attempt.id]
    assert shown["task"]["status"] == "queued"


@pytest.mark.slow
async def test_an_idle_relay_needs_little_memory(own_relay: RelayProcess) -> None:
    async with client(own_relay.url) as owner:
        for _ in range(100):
            await owner.post("/api/tasks", json=task())
        await owner.get("/api/tasks?limit=100")
        await owner.get("/api/openapi.json")

    assert psutil.Process(own_relay.process.pid).memory_info().rss <= IDLE_MEMORY_MAX


async def test_no_secret_is_in_the_log(own_relay: RelayProcess) -> None:
    async with client(own_relay.url) as owner, runner_of(owner) as runner:
        attempt = await runner.take(prompt="echo the-prompt-is-private")
        await attempt.finish()
        await owner.get("/api/relay", headers={"authorization": "Bearer wrong-token"})

    assert "attempt ended" in own_relay.log
    for secret in (TOKEN, runner.token, "the-prompt-is-private", "wrong-token"):
        assert secret not in own_relay.log


def test_a_relay_that_cannot_write_at_its_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="disk_full"):
        start_relay(tmp_path, DELEGATE_FAILPOINTS="welcome_back.before=error")


def test_an_unforeseen_error_does_not_end_the_housekeeping(tmp_path: Path) -> None:
    with running_relay(tmp_path, DELEGATE_HEARTBEAT="0.1", DELEGATE_LEASE="0.5") as relay:
        with closing(sqlite3.connect(relay.database)) as database:
            database.execute("ALTER TABLE relay RENAME TO mislaid")
            database.commit()
            wait_until(lambda: "housekeeping" in relay.log)
            database.execute("ALTER TABLE mislaid RENAME TO relay")
            database.execute("DELETE FROM relay")
            database.commit()

            wait_until(lambda: database.execute("SELECT count(*) FROM relay").fetchone()[0] == 1)

        assert "Traceback" in relay.log or "housekeeping skipped" in relay.log
