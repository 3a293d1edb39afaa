"""One task leaves one branch and one pull request, whatever breaks on the way to them: real git, real gh."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.audit import FINAL
from tests.fakes.github_repositories import Pull
from tests.fakes.github_standin import Gate, GitHubStandin
from tests.fakes.storm import runners
from tests.fakes.world import PATIENCE, World, command_of, tree_of, wait_until
from tests.journeys.shop import FIXED, Market, Shop, audited_market, open_shop

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.promise("P2")]

# Around each effect, and between the last one and the word that the task is done.
POINTS = (
    "runner.push.before",
    "runner.push.guarded",
    "runner.push.after",
    "runner.pull_request.before",
    "runner.pull_request.after",
    "workspace.decided",
    "runner.finish.before",
)
UNDONE_WITHIN = 30.0  # seconds after a runner woke up
PUSH, CREATE = "git-receive-pack", "PullRequestCreate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traps:
    """Failpoints that stand in every process from its start, and strike only where a test takes the mark away."""

    directory: Path

    @property
    def environment(self) -> str:
        return ",".join(f"{point}=kill:{self.directory / point}" for point in POINTS)

    def set(self, point: str) -> None:
        (self.directory / point).unlink()

    def has_sprung(self, point: str) -> bool:
        return (self.directory / point).exists()


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Traps:
    made = Traps(directory=tmp_path_factory.mktemp("traps"))
    for point in POINTS:
        (made.directory / point).touch()
    return made


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory, traps: Traps) -> Iterator[Market]:
    more = {"DELEGATE_FAILPOINTS": traps.environment, "DELEGATE_RECLAIM_AFTER": "3"}
    with audited_market(tmp_path_factory.mktemp("market"), "git", "gh", runners=2, **more) as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, market: Market) -> Iterator[Shop]:
    yield open_shop(market, tmp_path, checks=["test -s shop.py"])
    market.github.hub.restore()


def ended(shop: Shop, task_id: str) -> dict[str, Any]:
    """Asked over HTTP: the command line, again and again, would take a core from those who work."""
    wait_until(lambda: shop.world.get(f"/api/tasks/{task_id}")["task"]["status"] in FINAL)
    return shop.world.task(task_id)


def fix_command(shop: Shop) -> str:
    """A command that leaves a trace of each time it ran."""
    return f"cat > shop.py <<'EOF'\n{FIXED}EOF\necho run >> {runs(shop)}"


def runs(shop: Shop) -> Path:
    return shop.clone.parent / "runs"


def pulls(shop: Shop) -> list[Pull]:
    with shop.github.hub.lock:  # a look at the branches closes and opens them, too
        return shop.pulls


def bare(shop: Shop) -> Path:
    return shop.github.bare(shop.repository)


def standing(shop: Shop) -> list[Pull]:
    return [pull for pull in pulls(shop) if pull.state in ("OPEN", "MERGED")]


def is_published_once(shop: Shop, task: dict[str, Any]) -> bool:
    result = task["result"]
    heads = {name: shop.github.head(shop.repository, name) for name in shop.branches if name != "main"}
    return [pull.url for pull in standing(shop)] == [result["pullRequest"]] and heads in (
        {},
        {result["branch"]: result["commit"]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """A runner, and the program that it waits for."""

    runner: int
    program: int


def reached(gate: Gate, world: World, words: str) -> At:
    assert gate.reached.wait(PATIENCE)
    found = ((runner, pid) for runner in runners(world) for pid in tree_of(runner) if words in command_of(pid))
    runner, program = next(found)
    return At(runner=runner, program=program)


@contextmanager
def asleep(runner: int) -> Iterator[None]:
    """The runner and all that it started are stopped, as when a laptop is closed."""
    processes = tree_of(runner)
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            with suppress(ProcessLookupError):  # the runner was quicker to end what it waited for
                os.kill(pid, signal.SIGCONT)


def squash(shop: Shop, task: dict[str, Any], *, is_branch_kept: bool) -> None:
    """A person merges what the task has made."""
    assert task["status"] == "completed", task["message"]
    repository = shop.github.hub.repository(shop.repository)
    (pull,) = pulls(shop)
    repository.merge(pull, "SQUASH")
    if not is_branch_kept:
        repository.git("update-ref", "-d", f"refs/heads/{pull.head}")


def journalled(world: World, task_id: str) -> list[Path]:
    """What runners have begun for the task, and do not know to be settled."""
    entries = (world.home / "runners").glob("*/effects/*.json")
    return [path for path in entries if json.loads(path.read_text())["task_id"] == task_id]


@pytest.mark.parametrize("point", POINTS)
def test_a_runner_killed_around_an_effect_publishes_once_and_its_agent_works_once(
    point: str, shop: Shop, traps: Traps
) -> None:
    traps.set(point)

    task = ended(shop, shop.submit(fix_command(shop), rerun=True))

    assert traps.has_sprung(point)
    assert task["status"] == "completed", task["message"]
    assert is_published_once(shop, task)
    assert standing(shop)[0].commit == task["result"]["commit"]
    assert runs(shop).read_text() == "run\n"


def test_what_checks_left_in_the_tree_is_not_published_and_does_not_bring_the_agent_back(
    shop: Shop, traps: Traps
) -> None:
    shop.seed({".delegate.toml": 'checks = ["echo checked >> report.txt"]\n'})
    traps.set("runner.push.before")

    task = ended(shop, shop.submit(fix_command(shop), rerun=True))

    assert is_published_once(shop, task)
    assert "report.txt" not in shop.git("ls-tree", "--name-only", task["result"]["commit"], cwd=bare(shop))
    assert runs(shop).read_text() == "run\n"


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda hub: hub.drop(PUSH, after_acting=True), id="pushed, answer lost"),
        pytest.param(lambda hub: hub.drop(CREATE, after_acting=True), id="opened, answer lost"),
        pytest.param(lambda hub: hub.fail(CREATE, status=500, after_acting=True), id="opened, answered 500"),
    ],
)
def test_an_answer_that_was_lost_is_looked_for(break_it: Callable[[GitHubStandin], None], shop: Shop) -> None:
    break_it(shop.github.hub)

    task = ended(shop, shop.submit(fix_command(shop)))

    assert task["status"] == "completed", task["message"]
    assert is_published_once(shop, task)
    assert [event["kind"] for event in task["timeline"]].count("claimed") == 1


@pytest.mark.parametrize("victim", ["git", "runner"])
def test_a_push_killed_in_mid_transfer_is_made_again(victim: str, shop: Shop) -> None:
    gate = shop.github.hub.hold(PUSH)
    task_id = shop.submit(fix_command(shop), rerun=True)
    pushing = reached(gate, shop.world, "push --porcelain")

    if victim == "git":
        os.killpg(pushing.program, signal.SIGKILL)
    else:
        os.kill(pushing.runner, signal.SIGKILL)
    task = ended(shop, task_id)
    gate.open()  # what had arrived is taken in only now

    assert task["status"] == "completed", task["message"]
    assert is_published_once(shop, task)
    assert runs(shop).read_text() == "run\n"


@pytest.mark.promise("P4")
@pytest.mark.parametrize("is_branch_kept", [True, False], ids=["branch kept", "branch deleted"])
def test_a_runner_that_slept_over_its_pull_request_takes_it_back(is_branch_kept: bool, shop: Shop) -> None:
    gate = shop.github.hub.hold(CREATE)
    task_id = shop.submit(fix_command(shop), rerun=True)
    sleeper = reached(gate, shop.world, "pr create")

    with asleep(sleeper.runner):
        task = ended(shop, task_id)
        squash(shop, task, is_branch_kept=is_branch_kept)
        gate.open()
        if is_branch_kept:
            wait_until(lambda: len(pulls(shop)) == 2)

    wait_until(lambda: is_published_once(shop, task) and not journalled(shop.world, task_id), UNDONE_WITHIN)
    assert [pull.state for pull in pulls(shop)] == (["MERGED", "CLOSED"] if is_branch_kept else ["MERGED"])
    assert all(task["result"]["pullRequest"] in pull.comments[0] for pull in pulls(shop)[1:])
    assert runs(shop).read_text() == "run\n"
    shop.wait_until_tidy()


@pytest.mark.promise("P4")
def test_a_pull_request_that_the_rival_of_a_sleeper_took_over_stays_open(shop: Shop) -> None:
    gate = shop.github.hub.hold(CREATE, after_acting=True)
    task_id = shop.submit(fix_command(shop), rerun=True)
    sleeper = reached(gate, shop.world, "pr create")

    with asleep(sleeper.runner):
        task = ended(shop, task_id)
        gate.open()

    wait_until(lambda: not journalled(shop.world, task_id), UNDONE_WITHIN)
    assert is_published_once(shop, task)
    assert [(pull.state, pull.comments) for pull in pulls(shop)] == [("OPEN", [])]
    shop.wait_until_tidy()


@pytest.mark.promise("P4")
def test_a_runner_that_slept_over_its_push_takes_the_branch_back(shop: Shop) -> None:
    gate = shop.github.hub.hold(PUSH)
    task_id = shop.submit(fix_command(shop), rerun=True)
    sleeper = reached(gate, shop.world, "push --porcelain")

    with asleep(sleeper.runner):
        task = ended(shop, task_id)
        squash(shop, task, is_branch_kept=False)
        gate.open()
        wait_until(lambda: task["result"]["branch"] in shop.branches)

    wait_until(lambda: is_published_once(shop, task) and not journalled(shop.world, task_id), UNDONE_WITHIN)
    assert shop.branches == ["main"]
    assert [pull.state for pull in pulls(shop)] == ["MERGED"]
    shop.wait_until_tidy()


def test_a_cancel_while_the_pull_request_is_opened_says_so_and_the_task_completes(shop: Shop) -> None:
    gate = shop.github.hub.hold(CREATE)
    task_id = shop.submit(fix_command(shop))
    assert gate.reached.wait(PATIENCE)

    cancelling = shop.world.popen("cancel", task_id)
    assert cancelling.stderr is not None
    said = cancelling.stderr.readline()
    why = shop.world.task(task_id)["why"]
    gate.open()
    _, rest = cancelling.communicate(timeout=PATIENCE)
    task = ended(shop, task_id)

    assert why == "is being cancelled, but its pull request is being opened; it ends when that is done"
    assert said == f"delegate: {task_id} {why}\n"
    assert (task["status"], task["reason"]) == ("completed", "done")
    assert task["message"].endswith("; the request to cancel came too late")
    assert cancelling.returncode == 5
    assert rest == f"delegate: {task_id} had completed before it could be cancelled: {task['message']}\n"
    assert is_published_once(shop, task)


def test_a_cancel_while_the_branch_is_pushed_opens_no_pull_request(shop: Shop) -> None:
    gate = shop.github.hub.hold(PUSH)
    task_id = shop.submit(fix_command(shop))
    assert gate.reached.wait(PATIENCE)

    shop.world.post(f"/api/tasks/{task_id}/cancel", {"reason": "not needed"})
    wait_until(lambda: "its branch is being pushed" in (shop.world.task(task_id)["why"] or ""))
    gate.open()
    task = ended(shop, task_id)

    branch = task["result"]["branch"]
    assert (task["status"], task["reason"]) == ("cancelled", "cancelled")
    assert task["message"] == f"not needed; {branch} was pushed, and no pull request was opened"
    assert (branch in shop.branches, pulls(shop)) == (True, [])
