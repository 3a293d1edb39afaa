"""kill -9 around every commit of the relay and every step of the runner: each task ends exactly once all the same."""

from __future__ import annotations

import ast
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.both_databases.test_team_transactions import OPERATIONS
from tests.fakes.team import Machine
from tests.fakes.world import World, children_of, command_of, living, wait_until
from tests.git import run_git

from delegate.client.client import Client
from delegate.config.home_files import machine_id
from delegate.config.paths import Home
from delegate.config.settings import load

pytestmark = pytest.mark.slow
SOURCE = Path(__file__).parents[2] / "src" / "delegate"
# What a short journey with commands on a local relay does not reach; their transactions have tests of their own.
NOT_REACHED = {"retain.size", "message", "resume", "ask", "answer", "settle", "prefer", "settings"}
ENDS = ["completed", "completed", "completed", "cancelled", "completed", "completed"]
AT_ONCE = 5  # failpoints armed in one journey; each kills its process once, and the keeper waits longer each time


def calls(folder: Path, name: str) -> Iterator[ast.Call]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None)) == name:
                yield node


def commits() -> set[str]:
    """The name of every transaction: the first argument of `database.write`."""
    names = {
        str(call.args[0].value)
        for call in calls(SOURCE, "write")
        if ast.unparse(call.func).endswith("database.write") and isinstance(call.args[0], ast.Constant)
    }
    reached = {name for name in names - set(OPERATIONS) if not name.startswith("linear.")}
    return reached | {"submit", "retry", "schedule.pause", "schedule.resume"}


def steps() -> set[str]:
    """The names of the failpoints on the runner's way; those of its workspaces have journeys of their own."""
    found = calls(SOURCE / "runner", "failpoint")
    names = {str(call.args[0].value) for call in found if isinstance(call.args[0], ast.Constant)}
    return {name for name in names if name.startswith("runner.")}


COMMITS = [f"{name}.{side}" for side in ("before", "after") for name in sorted(commits() - NOT_REACHED)]


def batches(points: list[str]) -> list[list[str]]:
    """The two sides of a commit are struck in different journeys: a good-bye, for one, is said only once."""
    count = -(-len(points) // AT_ONCE)
    while len(COMMITS) // 2 % count == 0:
        count += 1
    return [points[start::count] for start in range(count)]


def journey(world: World) -> list[str]:
    """Submit, run, publish, retry, cancel, and lose a runner, by hand, in a graph and by the clock: every transaction
    on the way of a task is in here."""
    make_clone(world)
    world.ok("up", "--runners", "1")
    by_the_clock(world)
    first = world.submit("echo one >> ran", "--rerun")
    world.wait_for(first)
    again = world.ok("retry", first).split()[-1]
    published = world.submit("echo made > made.txt", "--worktree", "--rerun")
    world.wait_for(published)
    stopped = world.submit("touch long; sleep 600", "--rerun")
    world.wait_for(stopped, "running")
    world.ok("cancel", stopped)
    world.wait_for(stopped)
    orphaned = world.submit("test -e alone || { touch alone; sleep 600; }", "--rerun")
    wait_until((world.work / "alone").exists)
    for pid in children_of(world.keeper_pid()):
        if "delegate.runner" in command_of(pid):
            os.kill(pid, signal.SIGKILL)
    last = graph(world)
    ends = [world.wait_for(task_id)["status"] for task_id in (first, again, published, stopped, orphaned, last)]
    assert (world.work / "clock").read_text().split() == ["one", "two"]
    world.ok("down")
    return ends


def by_the_clock(world: World) -> None:
    """A schedule that is steered and never runs, and a pipeline, each step of which leaves one mark."""
    options = ("-a", "shell", "--rerun")
    yearly = world.ok("schedule", "create", *options, "--cron", "0 0 29 2 *", "--", "false").split()[0]
    for verb in ("pause", "resume", "cancel"):
        world.ok("schedule", verb, yearly)
    steps = json.loads(world.ok("pipeline", *options, "--json", "--", "echo one >> clock", "echo two >> clock"))
    wait_until(lambda: outcomes(world, steps["steps"][-1]["scheduleId"]) == ["completed"])


def outcomes(world: World, schedule_id: str) -> list[str]:
    found = json.loads(world.ok("schedule", "get", schedule_id, "--json"))
    return [run["outcome"] for run in found["history"]]


def graph(world: World) -> str:
    """The last of two tasks that were submitted together."""
    fields = {
        "agent": "shell",
        "rerun": True,
        "workingDirectory": str(world.work),
        "machine": machine_id(Home(world.home)),
    }
    entries = [{**fields, "prompt": "true", "name": "a"}, {**fields, "prompt": "true", "dependsOn": ["a"]}]
    return Client(load(world.environment)).submit_together(entries)[-1]["taskId"]


def make_clone(world: World) -> None:
    """The world's directory as a clone of a repository beside it."""
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    for words in (
        ("init", "-q", "-b", "main"),
        (*who, "commit", "-q", "--allow-empty", "-m", "Begin"),
        ("clone", "-q", "--bare", ".", str(world.home.parent / "origin.git")),
        ("remote", "add", "origin", str(world.home.parent / "origin.git")),
    ):
        run_git(*words, cwd=world.work, env=world.environment)


def armed(points: list[str], marks: Path) -> str:
    marks.mkdir()
    return ",".join(f"{point}=kill:{marks / point}" for point in points)


@pytest.mark.promise("P1")
@pytest.mark.parametrize("points", batches(COMMITS + sorted(steps())), ids=lambda points: points[0])
def test_a_process_killed_at_these_points_loses_and_repeats_nothing(points: list[str], tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    with living(tmp_path / "home", DELEGATE_FAILPOINTS=armed(points, marks)) as world:
        ends = journey(world)

        world.audit()
        assert ends == ENDS
        assert sorted(path.name for path in marks.iterdir()) == sorted(points)


LOST_RESPONSES = ["user.add.after", "token.create.after", "pair.after", "runner.revoke.after", "user.disable.before"]


@pytest.mark.promise("P1")
def test_a_relay_killed_around_the_writes_of_a_team_repeats_nothing_and_loses_no_token(tmp_path: Path) -> None:
    """The clients send the requests again."""
    marks, machine = tmp_path / "marks", Machine(tmp_path / "machine")
    with living(tmp_path / "home", DELEGATE_FAILPOINTS=armed(LOST_RESPONSES, marks)) as world:
        world.ok("up", "--runners", "1")
        made = json.loads(world.ok("user", "add", "marek", "--role", "admin", "--json"))["token"]["token"]
        token = json.loads(world.ok("token", "create", "ci", "--user", "marek", "--json"))["token"]
        try:
            machine.pair(world.ok("runner", "token", "--name", "studio").split(), "--runners", "1")
            own, url = world.environment, json.loads((world.home / "relay.json").read_text())["url"]
            for one in (made, token):
                world.environment = {**own, "DELEGATE_RELAY_URL": url, "DELEGATE_TOKEN": one}
                assert world.ok("whoami").startswith("marek (admin)")
            world.environment = own
            world.ok("runner", "revoke", "studio")
            world.ok("user", "disable", "marek")
        finally:
            machine.down()
        entries = world.get("/api/audit?limit=100")["entries"]

        assert [entry["action"] for entry in reversed(entries)] == [
            *("user.add", "token.create", "token.create", "invite", "pair", "runner.revoke", "user.disable")
        ]
        assert sorted(path.name for path in marks.iterdir()) == sorted(LOST_RESPONSES)


def test_every_step_on_the_way_of_a_task_can_be_struck() -> None:
    assert commits() >= {"submit", "claim", "record", "renew", "finish", "release", "cancel", "register"}
    assert len(steps()) >= 5
