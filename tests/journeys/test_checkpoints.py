"""What an attempt leaves, however it ends, and what becomes of it: read from the relay, made by a real runner."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.storm import runners
from tests.fakes.world import World, living, wait_until
from tests.git import run_git

pytestmark = pytest.mark.slow


class Project:
    """A user's own repository, worked on in place."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.path = world.work / "project"
        self.path.mkdir()
        self.git("init", "-q", "-b", "main")
        (self.path / "kept.txt").write_text("first\n")
        self.git("add", ".")
        self.git("commit", "-qm", "first")
        self.commit = self.git("rev-parse", "HEAD")

    def git(self, *words: str) -> str:
        return run_git(*words, cwd=self.path)

    def submit(self, command: str, *options: str) -> str:
        return self.world.submit(command, "--working-directory", str(self.path), *options)

    def again(self, task_id: str, verb: str, **body: Any) -> str:
        return str(self.world.post(f"/api/tasks/{task_id}/{verb}", body)["taskId"])

    def left(self, task_id: str) -> tuple[Any, ...]:
        left = self.checkpoint(task_id)
        return left["branch"], left["commit"], left["dirtyFiles"], left["outputTail"], left["error"]

    def checkpoint(self, task_id: str) -> dict[str, Any]:
        self.world.wait_for(task_id)
        return dict(self.world.get(f"/api/tasks/{task_id}")["checkpoint"])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with living(tmp_path_factory.mktemp("checkpoints") / "home") as world:
        world.ok("up", "--runners", "2")
        yield Project(world)
        world.ok("down")
        world.audit()


def test_an_end_of_every_kind_leaves_the_state_of_the_directory(project: Project) -> None:
    here = ("main", project.commit)

    done = project.submit("echo made; echo new > new.txt")
    assert project.left(done) == (*here, ["new.txt"], ["made"], None)
    failed = project.submit("echo oops >&2; exit 3")
    assert project.left(failed) == (*here, ["new.txt"], ["oops"], "the command ended with exit code 3")
    late = project.submit("echo begun; rm new.txt; exec sleep 600", "--timeout", "1s")
    assert project.left(late) == (*here, [], ["begun"], "it was stopped because it reached its time limit of 1 second")
    cancelled = project.submit("echo waiting; touch up; exec sleep 600")
    wait_until((project.path / "up").exists)
    wait_until(lambda: "waiting" in project.world.ok("logs", cancelled))
    project.world.post(f"/api/tasks/{cancelled}/cancel", {"reason": "enough"})
    assert project.left(cancelled) == (*here, ["up"], ["waiting"], "enough")


def test_a_lost_attempt_leaves_what_the_relay_knows(project: Project) -> None:
    lost = project.submit("echo last words; exec sleep 600")
    wait_until(lambda: "last words" in project.world.ok("logs", lost))

    for pid in runners(project.world):
        os.kill(pid, signal.SIGKILL)

    assert project.left(lost) == (None, None, None, ["last words"], "its runner went away")


def test_an_attempt_that_could_not_begin_keeps_what_the_one_before_has_left(project: Project) -> None:
    gone = project.world.work / "gone"
    gone.mkdir()
    first = project.world.submit("echo here; exit 1", "--working-directory", str(gone))
    assert project.left(first) == (None, None, None, ["here"], "the command ended with exit code 1")
    gone.rmdir()

    left = project.left(project.again(first, "retry"))

    assert left[:4] == (None, None, None, ["here"])
    assert f"the directory {gone} cannot be used" in left[4]


def test_a_resumed_command_finds_what_was_left_and_added_and_nothing_is_nested(project: Project) -> None:
    command = 'printf "%s" "$DELEGATE_CONTEXT"; exit 1'
    task = project.submit(command)
    assert project.checkpoint(task)["outputTail"] == []

    for words in ("first words", "second words"):
        resumed = project.again(task, "resume", context=words)
        output = "\n".join(project.checkpoint(resumed)["outputTail"])
        shown = project.world.task(resumed)
        task, before = resumed, task

        assert output.startswith("The person who runs you adds:")
        assert output.count(words) == 1
        assert "the command ended with exit code 1" in output
        assert (shown["prompt"], shown["context"], shown["retryOf"]) == (command, words, before)


def test_a_command_that_continues_another_finds_what_that_one_has_left(project: Project) -> None:
    build = project.submit("echo built in 2 s; echo out > out.js")
    follower = 'printf "%s" "$DELEGATE_CONTEXT"; test -f out.js'

    output = "\n".join(project.checkpoint(project.submit(follower, "--continue-from", build))["outputTail"])

    assert f"continues another task, {build}, which has completed" in output
    assert "\nbuilt in 2 s\n" in output
    assert "\nout.js\n" in output
    assert f"branch main, commit {project.commit}." in output
    assert "exit code" not in output


def test_a_worktree_that_continues_another_starts_from_its_branch_while_that_is_there(project: Project) -> None:
    """And what was pushed is not reported as uncommitted."""
    first = project.submit("echo one > one.txt", "--worktree")
    left = project.checkpoint(first)
    pushed = project.world.task(first)["result"]
    second = project.submit("cp one.txt two.txt", "--worktree", "--continue-from", first)
    project.world.wait_for(second)
    project.git("branch", "-D", pushed["branch"])
    third = project.submit("test ! -e one.txt && touch three.txt", "--worktree", "--continue-from", first)
    named = project.submit("test ! -e one.txt", "--worktree", "--continue-from", second, "--base", "main")

    assert (left["branch"], left["commit"], left["dirtyFiles"]) == (pushed["branch"], pushed["commit"], [])
    result = project.world.wait_for(second)["result"]
    assert (result["base"], result["baseCommit"], result["files"]) == (pushed["branch"], pushed["commit"], 1)
    fresh = project.world.wait_for(third)
    assert (fresh["status"], fresh["result"]["base"]) == ("completed", "main")
    warned = [event["data"]["text"] for event in fresh["timeline"] if event["kind"] == "warning"]
    gone = (
        f"the branch {pushed['branch']} of {first} no longer exists, perhaps because it was merged; "
        "the work starts from main"
    )
    assert warned == [gone]
    assert project.world.wait_for(named)["status"] == "completed"
