"""A task from the command line through relay and runner to its end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.fakes.world import PATIENCE, World, wait_until
from tests.git import run_git

pytestmark = pytest.mark.slow
TASK_KEYS = {
    *("taskId", "status", "priority", "agent", "model", "prompt", "workingDirectory", "exitCode", "reason", "why"),
    *("createdAt", "startedAt", "finishedAt", "retryOf", "parentTaskId", "attempt", "usage"),
}


def test_following_a_task_streams_its_lines_live_and_ends_with_its_exit_code(world: World) -> None:
    gate = world.work / "go"
    command = f"echo hi; while [ ! -e {gate} ]; do sleep 0.05; done; echo there"

    following = world.popen("delegate", "-a", "shell", "-f", command)
    assert following.stdout is not None
    first = following.stdout.readline()
    gate.touch()
    rest, _ = following.communicate(timeout=PATIENCE)

    assert (first, rest, following.returncode) == ("hi\n", "there\n", 0)


def test_logs_show_the_output_afterwards_from_another_shell(world: World) -> None:
    world.ok("delegate", "-a", "shell", "-f", "echo hi; echo there >&2")
    task_id = world.tasks()[0]["taskId"]

    done = world.run("logs", task_id)

    assert sorted((done.stdout + done.stderr).split()) == ["hi", "there"]


def test_a_failing_command_gives_its_exit_code_to_status_and_to_the_follower(world: World) -> None:
    following = world.run("delegate", "-a", "shell", "-f", "exit 7")
    task = world.tasks()[0]

    assert following.returncode == 7
    assert (task["status"], task["reason"], task["exitCode"]) == ("failed", "command_failed", 7)


def test_following_the_logs_of_a_failed_command_says_how_it_ended(world: World) -> None:
    task_id = world.submit("exit 4")

    done = world.run("logs", "-f", task_id)

    assert (done.returncode, done.stdout) == (4, "")
    assert "exit code 4" in done.stderr


def test_status_as_json_has_the_names_that_scripts_rely_on(world: World) -> None:
    world.ok("delegate", "-a", "shell", "-f", "true")
    listed = world.tasks()[0]
    single = world.task(listed["taskId"])

    assert set(listed) >= TASK_KEYS
    assert set(single) >= TASK_KEYS | {"attempts", "timeline"}
    assert [entry["kind"] for entry in single["timeline"]] == ["submitted", "claimed", "started", "finished"]


def test_info_tells_where_the_relay_is_and_who_works_for_it(world: World) -> None:
    world.ok("up", "--runners", "2")
    processes = wait_until(lambda: len(found := world.processes()) == 2 and found)
    info = world.info()

    assert set(info) >= {"url", "pid", "version", "database", "runners"}
    assert {"id", "name", "pid", "state"} <= set(processes[0])
    assert info["pid"] == world.relay_pid()


def test_another_up_with_another_number_of_runners_says_that_nothing_changes(world: World) -> None:
    world.ok("up", "--runners", "1")

    done = world.run("up", "--runners", "2")

    assert (done.returncode, "already up" in done.stdout) == (0, True)
    assert "--runners has no effect on a relay that is up" in done.stderr


def test_after_a_stop_no_task_waits_for_a_runner_that_has_gone(world: World) -> None:
    world.ok("up", "--runners", "1")
    wait_until(world.processes)
    world.ok("down")
    world.ok("up", "--runners", "0")

    task = world.task(world.submit("true"))

    assert world.processes() == []
    assert "no runner is connected" in task["why"]


def test_a_queued_task_says_why_it_waits(world: World) -> None:
    world.ok("up", "--runners", "1")
    world.submit("sleep 60")
    second = world.submit("true")

    waiting = wait_until(lambda: (task := world.task(second))["why"] and "busy" in task["why"] and task)

    assert waiting["status"] == "queued"


def test_a_task_that_takes_too_long_ends_with_timeout_and_code_124(world: World) -> None:
    following = world.run("delegate", "-a", "shell", "-t", "1s", "-f", "sleep 60")

    task = world.tasks()[0]
    assert following.returncode == 124
    assert (task["status"], task["reason"]) == ("failed", "timeout")


def test_a_retry_is_a_new_task_that_names_the_old_one(world: World) -> None:
    marker = world.work / "fixed"
    first = world.submit(f"test -e {marker}")
    world.wait_for(first, "failed")
    marker.touch()

    answer = json.loads(world.ok("retry", first, "--json"))
    second = world.wait_for(answer["taskId"])

    assert (second["status"], second["retryOf"], second["parentTaskId"]) == ("completed", first, first)


def test_the_runner_drains_the_queue_without_a_pause_between_tasks(world: World) -> None:
    world.ok("up", "--runners", "1")
    ids = [world.submit(f"echo {n} >> order") for n in range(5)]

    for task_id in ids:
        assert world.wait_for(task_id)["status"] == "completed"

    assert (world.work / "order").read_text().split() == ["0", "1", "2", "3", "4"]


def test_an_urgent_task_overtakes_those_that_wait(world: World) -> None:
    world.ok("up", "--runners", "1")
    gate = world.work / "go"
    first = world.submit(f"while [ ! -e {gate} ]; do sleep 0.05; done")
    world.wait_for(first, "running")
    late = world.submit("echo P2 >> order", "-p", "P2")
    urgent = world.submit("echo P0 >> order", "-p", "P0")

    gate.touch()
    for task_id in (late, urgent):
        world.wait_for(task_id, "completed")

    assert (world.work / "order").read_text().split() == ["P0", "P2"]


def test_down_lets_the_running_task_finish_and_leaves_no_process(world: World) -> None:
    world.ok("up", "--runners", "1")
    gate = world.work / "go"
    task_id = world.submit(f"touch started; while [ ! -e {gate} ]; do sleep 0.05; done; echo finished")
    wait_until((world.work / "started").exists)

    stopping = world.popen("down")
    with pytest.raises(subprocess.TimeoutExpired):
        stopping.communicate(timeout=1.5)
    gate.touch()
    stopping.communicate(timeout=PATIENCE)

    assert stopping.returncode == 0

    world.audit()
    assert world.task(task_id)["status"] == "completed"


def test_after_down_now_the_next_up_runs_a_command_that_may_run_again(world: World) -> None:
    world.ok("up", "--runners", "1")
    gate = world.work / "go"
    task_id = world.submit(f"touch started; while [ ! -e {gate} ]; do sleep 0.05; done", "--rerun")
    wait_until((world.work / "started").exists)

    world.ok("down", "--now")
    world.audit()
    gate.touch()
    world.ok("up", "--runners", "1")

    ended = world.wait_for(task_id)
    assert (ended["status"], ended["attempt"]) == ("completed", 1)  # handed back, not lost


def test_down_now_fails_a_command_that_may_not_run_again(world: World) -> None:
    world.ok("up", "--runners", "1")
    task_id = world.submit("echo ran >> runs; sleep 600")
    wait_until((world.work / "runs").exists)

    world.ok("down", "--now")
    world.ok("up", "--runners", "1")
    world.ok("delegate", "-a", "shell", "-f", "true")

    task = world.task(task_id)
    assert (task["status"], task["reason"]) == ("failed", "lost_runner")
    assert (world.work / "runs").read_text() == "ran\n"


@pytest.mark.promise("P22")
def test_an_attempt_has_a_temporary_directory_of_its_own_that_goes_with_it(world: World) -> None:
    world.ok("up", "--runners", "1")
    leave = 'echo "$TMPDIR"; ls -A "$TMPDIR"; mkdir -p "$TMPDIR/locked/inner"; chmod 500 "$TMPDIR/locked"'

    first, second = (world.ok("delegate", "-a", "shell", "-f", leave).split() for _ in range(2))

    assert first == second == [str(world.home / "runners" / "1" / "tmp")]
    wait_until(lambda: not any(Path(first[0]).iterdir()))


@pytest.mark.promise("P22")
def test_the_empty_directories_of_a_killed_codex_are_removed(world: World, tmp_path: Path) -> None:
    codex = tmp_path / "codex"
    codex.write_text(
        '#!/bin/sh\n[ "$1" = exec ] || exec echo codex-cli 1.0\nmkdir .git .codex .agents .aws; kill -9 $$\n'
    )
    codex.chmod(0o755)
    world.environment["DELEGATE_CODEX_COMMAND"] = str(codex)
    (world.work / ".agents").mkdir()
    (world.work / ".agents" / "mine").touch()

    task = world.wait_for(world.submit("anything", agent="codex"))

    assert (task["status"], task["reason"]) == ("failed", "crashed"), task["message"]
    assert [path.name for path in world.work.iterdir()] == [".agents"]


@pytest.mark.promise("P22")
def test_what_codex_leaves_in_a_checkouts_git_directory_is_removed(world: World, tmp_path: Path) -> None:
    codex = tmp_path / "codex"
    leave = "cd .git; echo ../evil > commondir; : > config.worktree; : > info; kill -9 $$"
    codex.write_text(f'#!/bin/sh\n[ "$1" = exec ] || exec echo codex-cli 1.0\n{leave}\n')
    codex.chmod(0o755)
    world.environment["DELEGATE_CODEX_COMMAND"] = str(codex)
    run_git("init", "-q", "--template=", cwd=world.work)
    (world.work / ".git" / "hooks").mkdir()
    before = sorted(path.name for path in (world.work / ".git").iterdir())

    task = world.wait_for(world.submit("anything", agent="codex"))

    assert sorted(path.name for path in (world.work / ".git").iterdir()) == before
    warnings = [event["data"]["text"] for event in world.task(task["taskId"])["timeline"] if event["kind"] == "warning"]
    assert any(text.startswith(f"the agent created {world.work / '.git' / 'commondir'}") for text in warnings)
