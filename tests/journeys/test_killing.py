"""kill -9 of anything, at any moment: every task ends once, none runs twice at the same time, nothing is left."""

from __future__ import annotations

import os
import random
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fakes.audit import strays
from tests.fakes.storm import KINDS, agents, runners, strike, supervisors
from tests.fakes.world import World, children_of, is_alive, living, tree_of, wait_until
from tests.git import run_git

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("DELEGATE_TEST_SEED", random.SystemRandom().randrange(10**6)))
TASKS = 50
# Each run holds a lock for its whole life; a second one at the same time would find it taken.
WORK = """
exec 9>>lock-{n}; flock -n 9 || echo {n} >> overlaps
echo {n} >> started; sleep 0.3; echo {n} >> ended
"""


@pytest.mark.promise("P1")
@pytest.mark.promise("P11")
def test_fifty_tasks_end_once_whatever_is_killed(world: World) -> None:
    dice = random.Random(SEED)
    print(f"seed {SEED}")
    world.ok("up", "--runners", "3")
    ids = world.submit_together([WORK.format(n=n) for n in range(TASKS)])
    storms = [[kind] for kind in KINDS] + [[a, b] for i, a in enumerate(KINDS) for b in KINDS[i + 1 :]]

    for kinds in storms:
        wait_until(lambda: agents(world))
        strike(world, kinds, dice)

    ends = {task_id: world.wait_for(task_id, patience=180) for task_id in ids}
    world.ok("down", timeout=120)
    world.audit()
    assert not (world.work / "overlaps").exists()
    assert {end["status"] for end in ends.values()} <= {"completed", "failed"}
    odd = {i: (e["status"], e["reason"]) for i, e in ends.items() if e["status"] != "completed"}
    # An agent that is killed by a signal has failed; three lost runners are poison. Nothing else may happen.
    assert set(odd.values()) <= {("failed", "crashed"), ("failed", "poison")}
    completed = [n for n, task_id in enumerate(ids) if ends[task_id]["status"] == "completed"]
    assert set(completed) <= {int(n) for n in (world.work / "ended").read_text().split()}


@pytest.mark.promise("P5")
def test_a_shell_task_whose_runner_is_killed_fails_because_a_command_may_not_be_repeatable(world: World) -> None:
    world.ok("up", "--runners", "1")
    task_id = world.submit("touch started; sleep 600")
    wait_until((world.work / "started").exists)

    os.kill(runners(world)[0], signal.SIGKILL)

    ended = world.wait_for(task_id)
    assert (ended["status"], ended["reason"], ended["attempt"]) == ("failed", "lost_runner", 1)
    assert "--rerun" in ended["advice"]


@pytest.mark.promise("P5")
def test_a_task_that_kills_three_runners_is_poison(world: World) -> None:
    world.ok("up", "--runners", "1")
    task_id = world.submit("kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $$)); sleep 600", "--rerun")

    ended = world.wait_for(task_id)

    assert (ended["status"], ended["reason"], ended["attempt"]) == ("failed", "poison", 3)


@pytest.mark.promise("P11")
def test_cancel_from_another_shell_ends_a_stubborn_process_tree(world: World) -> None:
    world.ok("up", "--runners", "1")
    stubborn = "trap '' TERM; (setsid sh -c \"trap '' TERM; touch deep; sleep 600\" &) ; sleep 600 & wait; sleep 600"
    task_id = world.submit(stubborn)
    wait_until((world.work / "deep").exists)
    tree = tree_of(agents(world)[0])

    world.ok("cancel", task_id, "not needed")

    ended = world.wait_for(task_id)
    assert (ended["status"], ended["reason"], ended["message"]) == ("cancelled", "cancelled", "not needed")
    assert [pid for pid in tree if Path(f"/proc/{pid}").exists()] == []
    assert [line for line in strays(world.home) if "sleep 600" in line] == []


@pytest.mark.promise("P11")
def test_runner_and_supervisor_killed_together_leave_nothing(world: World) -> None:
    world.ok("up", "--runners", "1")
    task_id = world.submit("(env -i setsid sh -c 'echo $$ > daemon; sleep 600' &) ; touch started; sleep 600")
    wait_until(lambda: (world.work / "started").exists() and (world.work / "daemon").exists())
    daemon = int((world.work / "daemon").read_text())
    supervisor = next(pid for pid in supervisors(world) if children_of(pid))

    for pid in (supervisor, runners(world)[0]):
        os.kill(pid, signal.SIGKILL)

    wait_until(lambda: not Path(f"/proc/{daemon}").exists())
    assert world.wait_for(task_id)["reason"] == "lost_runner"


@pytest.mark.promise("P1")
def test_a_killed_keeper_takes_everything_down_and_the_next_command_continues(world: World) -> None:
    world.ok("up", "--runners", "1")
    gate = world.work / "go"
    task_id = world.submit(f"touch started; while [ ! -e {gate} ]; do sleep 0.05; done", "--rerun")
    wait_until((world.work / "started").exists)

    os.kill(world.keeper_pid(), signal.SIGKILL)
    wait_until(lambda: not strays(world.home))
    gate.touch()

    ended = world.wait_for(task_id)
    assert (ended["status"], ended["attempt"]) == ("completed", 1)  # handed back, not lost


@pytest.mark.promise("P5")
def test_a_command_broken_off_by_a_killed_keeper_is_not_run_again_unasked(world: World) -> None:
    world.ok("up", "--runners", "1")
    task_id = world.submit("echo ran >> runs; sleep 600")
    wait_until((world.work / "runs").exists)

    os.kill(world.keeper_pid(), signal.SIGKILL)
    wait_until(lambda: not strays(world.home))
    ended = world.wait_for(task_id)

    assert (ended["status"], ended["reason"], ended["attempt"]) == ("failed", "lost_runner", 1)
    assert (world.work / "runs").read_text() == "ran\n"


@pytest.mark.promise("P4")
def test_a_runner_that_slept_through_its_lease_writes_nothing_after_its_rival(tmp_path: Path) -> None:
    with living(tmp_path / "home", DELEGATE_RECLAIM_AFTER="3") as world:
        world.ok("up", "--runners", "2")
        wait_until(lambda: len(world.processes()) == 2)
        task_id = world.submit("echo $$ >> pids; sleep 2; echo done-$(wc -l < pids)", "--rerun")
        first = wait_until(lambda: (world.work / "pids").exists() and world.task(task_id)["attempts"][0])
        sleeper = next(r["pid"] for r in world.processes() if r["id"] == first["slotId"])
        frozen = tree_of(sleeper)

        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        ended = world.wait_for(task_id)
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        command = (world.work / "pids").read_text().split()[0]  # the tree also has the supervisor of the next attempt
        wait_until(lambda: not Path(f"/proc/{command}").exists())
        next_id = world.submit("true")
        world.wait_for(next_id)
        after = world.task(task_id)

        assert (ended["status"], ended["attempt"]) == ("completed", 2)
        assert {key: after[key] for key in ended if key != "why"} == {key: ended[key] for key in ended if key != "why"}
        assert [attempt["state"] for attempt in after["attempts"]] == ["lost", "completed"]
        assert world.ok("logs", task_id).split()[-1] == "done-2"
        world.ok("down")
        world.audit()


@pytest.mark.promise("P4")
def test_a_runner_that_slept_without_a_rival_continues_its_task(world: World) -> None:
    world.ok("up", "--runners", "1")
    task_id = world.submit("echo $$ >> pids; sleep 1; echo done")
    wait_until((world.work / "pids").exists)
    frozen = tree_of(runners(world)[0])

    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: any(runner["state"] == "silent" for runner in world.processes()))
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    ended = world.wait_for(task_id)

    assert (ended["status"], ended["attempt"]) == ("completed", 1)
    world.ok("down")
    world.audit()


def test_a_machine_whose_id_changed_sweeps_the_workspaces_of_its_old_id(world: World, tmp_path: Path) -> None:
    run_git("init", "-q", "--bare", "-b", "main", "origin.git", cwd=tmp_path)
    run_git("init", "-q", "-b", "main", cwd=world.work)
    run_git("remote", "add", "origin", str(tmp_path / "origin.git"), cwd=world.work)
    run_git("commit", "-q", "--allow-empty", "-m", "first", cwd=world.work)
    run_git("push", "-q", "-u", "origin", "main", cwd=world.work)
    task_id = world.submit(f"echo work > work.txt; touch {tmp_path}/up; sleep 600", "--worktree")
    wait_until((tmp_path / "up").exists)
    tree = tree_of(world.keeper_pid())
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in tree:
            os.kill(pid, number)
    wait_until(lambda: not any(map(is_alive, tree)))
    (world.home / "machine").write_text("renamed-12345678\n")
    shutil.rmtree(world.home / "runners")
    world.ok("up", "--runners", "0")
    world.ok("cancel", task_id)
    world.wait_for(task_id, "cancelled", "failed")
    world.ok("down", "--now")

    world.ok("up", "--runners", "1")

    wait_until(lambda: not [path for path in (world.home / "workspaces").iterdir() if path.is_dir()])
    assert task_id in world.ok("workspaces")
