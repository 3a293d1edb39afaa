"""Many starts at one instant, odd homes, and what a stranger types wrong."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fakes.audit import strays
from tests.fakes.small_disk import filled, small_disk
from tests.fakes.world import PATIENCE, World, command_of, homes_in, living, tree_of, wait_until
from tests.git import PERSON, run_git, try_git

from delegate import __version__
from delegate.config.home_files import lock_home
from delegate.config.paths import Home

pytestmark = pytest.mark.slow


@pytest.mark.promise("P1")
def test_two_ups_and_ten_submits_at_one_instant_make_one_relay_and_ten_tasks(world: World) -> None:
    ups = [world.popen("up", "--runners", "2") for _ in range(2)]
    submits = [world.popen("delegate", "-a", "shell", "--json", f"echo {n}") for n in range(10)]

    answers = [submit.communicate(timeout=PATIENCE) for submit in submits]
    said = [up.communicate(timeout=PATIENCE) for up in ups]
    assert [up.returncode for up in ups] == [0, 0], said
    ids = {json.loads(out)["taskId"] for out, _ in answers}

    assert len(ids) == 10
    for task_id in ids:
        assert world.wait_for(task_id)["status"] == "completed"
    assert len(world.tasks()) == 10
    assert len([pid for pid in tree_of(world.keeper_pid()) if "delegate.relay" in command_of(pid)]) == 1
    assert len([line for line in strays(world.home) if "delegate.relay" in line]) == 1
    world.ok("down")
    world.audit()


@pytest.mark.parametrize(
    ("words", "stdin", "code", "said"),
    [
        (["delegate", "-a", "gpt", "x"], None, 2, "unknown agent gpt"),
        (["delegate", "-a", "shell", "-w", "/no/such/place", "x"], None, 2, "/no/such/place"),
        (["delegate", "-a", "shell", ""], None, 2, "empty"),
        (["delegate", "-a", "shell", "-"], "x" * 2_000_000, 2, "250,000"),
        (["delegate", "-a", "shell", "-x"], None, 2, "--"),
        (["delegate", "-a", "shell", "-t", "0", "x"], None, 2, "1,000"),
        (["delegate", "-a", "shell", "-p", "P9", "x"], None, 2, "P9"),
        (["status", "task-nope"], None, 5, "no task task-nope"),
        (["logs", "task-nope"], None, 5, "no task task-nope"),
        (["cancel", "task-nope"], None, 5, "no task task-nope"),
        (["retry", "task-nope"], None, 5, "no task task-nope"),
        (["statsu"], None, 2, "status"),
    ],
)
def test_what_a_stranger_types_wrong_gets_one_clear_line(
    world: World, words: list[str], stdin: str | None, code: int, said: str
) -> None:
    done = world.run(*words, stdin=stdin)

    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 4


def test_a_prompt_that_starts_with_a_dash_works_behind_two_dashes(world: World) -> None:
    done = world.run("delegate", "-a", "shell", "-f", "--", "-x 2>/dev/null; echo ran")

    assert (done.stdout, done.returncode) == ("ran\n", 0)


def test_the_name_of_the_machine_exists_when_up_returns(world: World) -> None:
    world.ok("up", "--runners", "0")

    assert Home(world.home).machine.read_text()


@pytest.mark.parametrize("place", ["missing", "."])
def test_the_command_line_refuses_a_pull_request_without_a_repository(world: World, place: str) -> None:
    done = world.run("run", "--pr", "-w", place, "fix it")

    why = "does not exist" if place == "missing" else "is not in a git repository; use `--repository`"
    assert done.returncode == 2
    assert done.stderr.startswith("delegate: --working-directory: ")
    assert why in done.stderr


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def first_words(command: subprocess.Popen[str]) -> str:
    assert command.stderr is not None
    if not select.select([command.stderr], [], [], PATIENCE)[0]:
        command.kill()
        command.communicate()
        raise AssertionError("it waits in silence")
    return command.stderr.readline()


def test_a_command_says_that_it_waits_for_a_relay_that_does_not_respond(world: World) -> None:
    world.ok("up", "--runners", "0")

    with suspended(world.relay_pid()):
        command = world.popen("run", "-a", "shell", "true")
        said = first_words(command)

    assert said == f"delegate: waiting for the relay at {world.url} to respond\n"
    out, _ = command.communicate(timeout=PATIENCE)
    assert (command.returncode, out[:5]) == (0, "task-")


def test_down_says_that_it_waits_for_a_keeper_that_does_not_respond(world: World) -> None:
    world.ok("up", "--runners", "0")
    keeper = world.keeper_pid()

    with suspended(keeper):
        command = world.popen("down")
        said = first_words(command)

    assert said == f"delegate: waiting for the keeper, process {keeper}, to stop\n"
    assert command.communicate(timeout=PATIENCE)[0] == "stopped\n"


def test_a_start_says_that_it_waits_for_a_keeper_that_never_gets_ready(world: World) -> None:
    lock = lock_home(Home(world.home), timeout=1)  # this process holds the home, and starts no relay

    command = world.popen("status")
    said = first_words(command)
    os.close(lock)

    assert said.startswith(f"delegate: waiting for the keeper, process {os.getpid()}, which holds ")
    command.communicate(timeout=PATIENCE)
    assert command.returncode == 0


def test_a_reader_may_go_away(world: World) -> None:
    for n in range(3):
        world.submit(f"echo {n}")

    done = subprocess.run(
        ["sh", "-c", '"$0" -m delegate status | head -1', sys.executable],
        env=world.environment,
        cwd=world.work,
        text=True,
        capture_output=True,
        timeout=PATIENCE,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_behind_standard_output_is_reported_as_such(world: World) -> None:
    world.submit("true")
    with Path("/dev/full").open("w") as full:
        done = world.popen("status", stdout=full)
        _, said = done.communicate(timeout=PATIENCE)

    assert done.returncode == 6
    assert said.startswith("delegate: the disk is full: standard output cannot be written")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mount to make a read-only home")
def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", home], check=True)
    try:
        with living(home) as world:
            done = world.run("delegate", "-a", "shell", "true")
            assert done.returncode == 3
            assert str(home) in done.stderr
            assert "Traceback" not in done.stderr
    finally:
        subprocess.run(["umount", home], check=True)


@pytest.mark.promise("P15")
def test_a_damaged_database_is_named_and_left_as_it_is(world: World) -> None:
    world.home.mkdir(mode=0o700)
    damaged = b"this is not a database" * 100
    (world.home / "delegate.db").write_bytes(damaged)

    done = world.run("status")

    assert done.returncode == 3
    assert "delegate.db" in done.stderr
    assert "delegate restore" in done.stderr
    assert (world.home / "delegate.db").read_bytes() == damaged
    wait_until(lambda: not strays(world.home))


@pytest.mark.promise("P15")
def test_a_database_of_a_newer_version_is_refused(world: World) -> None:
    task_id = world.submit("true")
    world.wait_for(task_id)
    world.ok("down")
    database = world.home / "delegate.db"
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sqlite3; c = sqlite3.connect({str(database)!r}); "
            "c.execute(\"UPDATE alembic_version SET version_num = '9999'\"); c.commit()",
        ],
        check=True,
    )

    done = world.run("status")

    assert done.returncode == 3
    assert "newer" in done.stderr


@pytest.mark.promise("P15")
def test_a_backup_brings_back_what_a_damaged_file_has_lost(world: World) -> None:
    task_id = world.submit("echo precious")
    world.wait_for(task_id)
    world.ok("backup")
    world.ok("down")
    (world.home / "delegate.db").write_bytes(b"gone")
    assert world.run("status").returncode == 3

    world.ok("restore", "--yes")

    assert world.task(task_id)["status"] == "completed"


def test_a_full_disk_is_said_and_nothing_accepted_is_lost(tmp_path: Path) -> None:
    limits = {"DELEGATE_RELAY_MIN_FREE": "0", "DELEGATE_RUNNER_MIN_FREE": "0"}
    home = tmp_path / "home"
    with small_disk(homes_in(home)[0], megabytes=6) as disk, living(home, **limits) as world:
        kept = world.submit("true")
        world.wait_for(kept)
        with filled(disk):
            full = wait_until(
                lambda: (done := world.run("delegate", "-a", "shell", "-", stdin="x" * 200_000)).returncode and done
            )
        after = wait_until(lambda: (done := world.run("delegate", "-a", "shell", "true")).returncode == 0 and done)

        assert full.returncode == 6
        assert "disk" in full.stderr
        assert world.task(kept)["status"] == "completed"
        assert world.wait_for(after.stdout.split()[-1])["status"] == "completed"
        world.ok("down")
        world.audit()


def test_everything_on_disk_belongs_to_its_user_alone(world: World) -> None:
    world.ok("delegate", "-a", "shell", "-f", "true")
    world.ok("down")

    places = [path for home in {world.home, world.relay_home} for path in (home, *home.rglob("*"))]
    assert [path for path in places if path.lstat().st_mode & 0o077] == []


def test_the_version_is_printed(world: World) -> None:
    assert __version__ in world.ok("--version")


@pytest.mark.promise("P22")
def test_a_relay_started_by_a_git_hook_leaves_the_repository_of_the_hook_alone(world: World, tmp_path: Path) -> None:
    git = {**world.environment, **PERSON, "GIT_CONFIG_GLOBAL": os.devnull}
    mine, other = tmp_path / "mine", tmp_path / "other"
    for place in (mine, other):
        run_git("init", "-q", "-b", "main", str(place), cwd=tmp_path, env=git)
    work = (
        "echo x > agent.txt; git add agent.txt; git commit -qm agent; env | grep -c -E '^GIT_(DIR|INDEX|WORK|PREFIX)'"
    )
    hook = mine / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        f'#!/bin/sh\nrm "$0"\nexec {sys.executable} -m delegate run -a shell -w {other} -f "{work}" > {tmp_path}/seen\n'
    )
    hook.chmod(0o755)
    (mine / "staged.txt").write_text("staged\n")
    here = ("--git-dir", str(mine / ".git"), "--work-tree", str(mine))
    run_git(*here, "add", "staged.txt", cwd=mine, env=git)

    try_git(*here, "commit", "-qm", "mine", cwd=mine, env=git)  # the hook's exit code is that of `grep`

    assert (tmp_path / "seen").read_text().split()[-1] == "0"
    assert run_git("log", "--format=%s", cwd=other, env=git) == "agent"
    assert run_git("status", "--porcelain", cwd=mine, env=git) == "A  staged.txt"
