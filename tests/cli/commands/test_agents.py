"""What an agent with a model does, as its events tell it; the agent is a scripted one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.fakes.scripted_agent import install
from tests.fakes.world import World, wait_until

STEPS = [
    {"init": {}},
    {"say": "I look\nat it \x1b[2J"},
    {"tool": "Edit", "input": {"file_path": "src/shop.py"}},
    {"print": "a complaint", "to": "stderr"},
    {"tool": "Bash", "input": {"command": "make test"}},
    {"result": "Fixed."},
]
SHOWN = "I look\nat it \\x1b[2J\ntool  Edit src/shop.py\ntool  Bash make test\n"


def script(*steps: object) -> str:
    return json.dumps({"steps": steps})


@pytest.fixture(scope="module")
def agents(busy_world: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Runners that find the scripted agent under the name claude."""
    busy_world.ok("down")
    busy_world.environment["DELEGATE_CLAUDE_COMMAND"] = str(install(tmp_path_factory.mktemp("bin")))
    busy_world.ok("up", "--runners", "1")
    return busy_world


def test_following_an_agent_tells_what_it_does_and_not_its_protocol(agents: World) -> None:
    done = agents.run("delegate", "-f", script(*STEPS))

    assert (done.returncode, done.stdout) == (0, SHOWN)
    assert done.stderr.splitlines()[1:] == ["a complaint"]


def test_logs_tell_the_same_afterwards(agents: World) -> None:
    task_id = agents.submit(script(*STEPS), agent="claude")
    agents.wait_for(task_id)

    whole, tail = agents.run("logs", task_id), agents.run("logs", "--tail", "1", task_id)

    assert (whole.stdout, whole.stderr) == (SHOWN, "a complaint\n")
    assert (tail.stdout, tail.stderr) == ("tool  Bash make test\n", "")


def test_logs_of_an_agent_at_work_are_what_it_did_so_far(agents: World, tmp_path: Path) -> None:
    steps = [*STEPS[:3], {"wait": str(tmp_path / "go")}, *STEPS[3:]]
    task_id = agents.submit(script(*steps), agent="claude")

    wait_until(lambda: agents.ok("logs", task_id) == "I look\nat it \\x1b[2J\ntool  Edit src/shop.py\n")
    events = [json.loads(line) for line in agents.ok("logs", "--json", task_id).splitlines()]
    (tmp_path / "go").touch()

    assert [event["kind"] for event in events] == ["message", "tool"]
    assert agents.wait_for(task_id)["status"] == "completed"


def test_an_agent_that_fails_says_why_and_what_to_do(agents: World) -> None:
    failing = [{"init": {}}, {"result": "no", "fields": {"is_error": True, "subtype": "error_max_turns"}}, {"exit": 1}]

    done = agents.run("delegate", "-f", script(*failing))
    task = agents.tasks()[0]
    logged = agents.run("logs", task["taskId"])

    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == logged.stderr.splitlines()
    assert logged.stderr.startswith(f"delegate: {task['taskId']} failed: {task['reason']}: ")
    assert logged.stderr.splitlines()[1].startswith("hint: ")


def test_the_session_and_the_cost_are_on_the_page(agents: World) -> None:
    task_id = agents.submit(script(*STEPS), agent="claude")
    task = agents.wait_for(task_id)

    page = agents.ok("status", task_id)

    assert re.search(rf"^  session +{task['sessionId']}$", page, re.MULTILINE)
    assert f"${task['usage']['costUsd']:.4f}" in page


def test_the_demo_hands_its_work_to_an_agent(agents: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agents.environment, "SCRIPTED_AGENT", script(*STEPS))

    shown = agents.ok("demo", "--agent", "claude")

    assert shown.count("    │ tool  Edit src/shop.py\n") == 2
    assert shown.count("✓ completed") == 4  # the build and the look at the end, too
    assert shown.count("nothing was changed; I look") == 2
    assert "    > The unit test in test_shop.py fails." in shown
