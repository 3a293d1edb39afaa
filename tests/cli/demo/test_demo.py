from __future__ import annotations

import json
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fakes.audit import strays
from tests.fakes.github import GitHub
from tests.fakes.github import github as github
from tests.fakes.world import PATIENCE, World, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(world: World, tmp_path: Path) -> World:
    """The demo's places are made under TMPDIR, so that what it leaves behind is seen."""
    (tmp_path / "tmp").mkdir()
    world.environment["TMPDIR"] = str(tmp_path / "tmp")
    return world


def left_behind(stage: World) -> list[str]:
    return [path.name for path in Path(stage.environment["TMPDIR"]).iterdir()]


def strays_under(directory: str) -> list[int]:
    """Every process whose environment names the directory, but not the one that has it as its TMPDIR alone."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"DELEGATE_HOME={directory}/".encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def test_the_demo_shows_a_chain_ends_in_two_pull_requests_and_leaves_nothing_behind(stage: World) -> None:
    shown = stage.ok("demo")

    headings = [line for line in shown.splitlines() if re.fullmatch(r"[A-Z][^:]*", line) and not line.startswith("Del")]
    assert headings == [
        "A small repository with a bug",
        "A relay and its runners",
        "Two tasks at the same time, and one that waits for both",
        "Your checkout",
        "Where everything is",
    ]
    assert re.findall("^Pull request: (.*)$", shown, re.M) == [
        "Read the discount as a percentage",
        "Say what a basket costs in words",
    ]
    assert re.findall(r"^(\d/3) (.*)  task-.*$|^    [✓✗] (\w+)", shown, re.M) == [
        *(("1/3", "build", ""), ("", "", "completed")),
        *(("2/3", "test", ""), ("", "", "failed")),
        *(("3/3", "deploy", ""), ("", "", "cancelled")),
        *(("1/3", "Read the discount as a percentage", ""), ("", "", "completed")),
        *(("2/3", "Say what a basket costs in words", ""), ("", "", "completed")),
        *(("3/3", "List the work that is ready", ""), ("", "", "completed")),
    ]
    assert re.search(r"^  task-\w+        queued  build\n  └─ task-\w+     queued  test\n     └─ task", shown, re.M)
    assert shown.count("1 of 1 passed") == 2
    assert "    │ FAILED (failures=1)\n" in shown
    assert "    │ OK\n" in shown
    assert "  changes     none: Delegate does not touch it\n" in shown
    assert "+    return sum(prices) * (1 - discount_percent / 100)\n" in shown
    assert left_behind(stage) == []
    assert not stage.home.exists()


def test_the_demo_of_linear_shows_both_sides_from_the_issue_to_the_pull_request(stage: World) -> None:
    shown = stage.ok("demo", "--linear").replace("info queued for linear", "ok   posted to linear")

    story = re.findall(r"^(?:Linear|runner|      ) │ \d\d:\d\d:\d\d (\w+ +.*)$", shown, re.M)
    beginnings = [
        "label    Marek added label delego:claude-sonnet-4-5",
        "issue    Marek delegated PER-44 to Delegate · webhook fired",
        'info webhook received issue=PER-44 repo="acme/shop"',
        "ok   claimed job runner=",
        'info creating worktree branch="per-44-',
        'exec claude code session opened model="sonnet-4-5" thinking=high',
        'tool read "shop.py"',
        'tool edit "shop.py" +1 -1',
        'tool run "python3 -m unittest"',
        "ok   check passed",
        'git  commit "',
        "ok   pr opened",
        "ok   posted to linear issue=PER-44",
    ]
    places = [next(n for n, line in enumerate(story) if line.startswith(begin)) for begin in beginnings]
    assert places == sorted(places), shown
    visible = [line for line in story if line.startswith(("thought", "plan", "issue", "link", "done"))]
    for words in (
        "thought  claude · sonnet-4-5 · high (label) in acme/shop (project)",
        "issue    Delegate moved it to In Progress",
        "plan     ✓ Find where the discount is applied  ✓ Divide it by 100  ✓ Run the tests",
        "issue    Delegate moved it to In Review",
    ):
        assert words in visible, shown
    assert visible[-1].startswith("done     - Pull request: local:per-44-")
    assert "Pull request: PER-44 · Read the discount as a percentage\n" in shown
    assert "+    return sum(prices) * (1 - discount_percent / 100)\n" in shown
    assert "Your turn: delegate linear connect\n" in shown
    assert left_behind(stage) == []


def test_a_kept_demo_can_be_looked_at(stage: World) -> None:
    shown = stage.ok("demo", "--keep")

    (place,) = left_behind(stage)
    root = Path(stage.environment["TMPDIR"]) / place
    assert f"DELEGATE_HOME={root / 'home'} delegate status" in shown
    assert len(list((root / "shop.git" / "refs" / "heads").iterdir())) == 2
    assert strays(root / "home") == []
    shutil.rmtree(root)


def test_the_demo_as_json_is_its_tasks(stage: World) -> None:
    tasks = [json.loads(line) for line in stage.ok("demo", "--json").splitlines()]

    assert [task["status"] for task in tasks] == ["completed", "failed", "cancelled", *["completed"] * 3]
    assert [len(task["dependsOn"]) for task in tasks] == [0, 1, 1, 0, 0, 2]


def test_an_agent_that_is_not_there_is_named(stage: World) -> None:
    stage.environment["DELEGATE_CLAUDE_COMMAND"] = "/nowhere/claude"

    done = stage.run("demo", "--agent", "claude")

    assert done.returncode == 1
    assert done.stderr == (
        "delegate: the demo failed: claude cannot be used here\nhint: install claude and log in, or leave out --agent\n"
    )
    assert left_behind(stage) == []


@pytest.mark.real
def test_with_a_repository_on_github_the_demo_ends_in_a_real_pull_request(stage: World, github: GitHub) -> None:
    github.seed("acme/playground", {"README.md": "# playground\n"})
    stage.environment.update(github.env)

    shown = stage.ok("demo", "--repository", "acme/playground")

    (pull,) = github.pulls("acme/playground")
    assert pull.title == "Say hello from Delegate"
    assert pull.url in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", ["A small", "A chain", "1/3", "3/3"])
def test_an_interrupted_demo_cleans_up(stage: World, after: str, number: signal.Signals) -> None:
    playing = stage.popen("demo")
    assert playing.stdout is not None
    while not (line := playing.stdout.readline()).startswith(after):
        assert line, "it ended"

    playing.send_signal(number)
    playing.communicate(timeout=PATIENCE)

    assert playing.returncode == 130
    assert left_behind(stage) == []
    wait_until(lambda: not strays_under(stage.environment["TMPDIR"]))
