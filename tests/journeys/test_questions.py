"""Real agents with scripted models ask a person, wait, and finish in the same session with the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.journeys.shop import FIXED, Market, Shop, audited_market, contents, open_shop

pytestmark = [pytest.mark.slow, pytest.mark.real]
QUESTION = {"question": "Percent or per mille?", "options": ["percent", "per mille"]}


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    """Started for each test: an agent finds the tool to ask with in the first seconds, too."""
    patient = {"DELEGATE_LEASE": "30", "DELEGATE_RECLAIM_AFTER": "60"}  # the relay loads the tool within half a lease
    with audited_market(tmp_path / "market", "git", "claude", "codex", runners=1, **patient) as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, market: Market) -> Shop:
    return open_shop(market, tmp_path)


def asked(shop: Shop, task_id: str) -> dict[str, Any]:
    """The task, when its agent has asked and the only runner is free for another one."""
    waiting = shop.world.wait_for(task_id, "waiting", "failed", "completed")
    other = shop.world.wait_for(shop.world.submit("echo something else"))
    assert (waiting["status"], other["status"]) == ("waiting", "completed"), waiting["message"]
    return waiting


def answered(shop: Shop, task_id: str) -> dict[str, Any]:
    shop.world.ok("answer", task_id, "Percent, as the test has it.")
    return shop.world.wait_for(task_id)


def sessions(task: dict[str, Any]) -> set[str]:
    return {event["data"]["sessionId"] for event in task["timeline"] if event["kind"] == "session"}


def no_token_is_left(shop: Shop) -> bool:
    return not any(b"dat_" in data for _, data in contents(shop.world.home).values())


def test_claude_asks_from_its_worktree_and_publishes_nothing_before_it_has_the_answer(shop: Shop) -> None:
    fix = f"cat > shop.py <<'EOF'\n{FIXED}EOF\n"
    steps = [
        {"tool": "Bash", "input": {"command": "echo begun > NOTES.md", "description": "work"}},
        {"tool": "mcp__delegate_ask__ask_user", "input": QUESTION},
        {"text": "I have asked, and wait."},
        {"tool": "Bash", "input": {"command": fix, "description": "work"}, "expect": "Percent, as the test has it"},
        {"text": "The discount is a percentage."},
    ]
    shop.market.claude.define("default", {"steps": steps})

    task_id = shop.submit("Fix the discount", agent="claude", model="claude-sonnet-4-5")
    waiting = asked(shop, task_id)
    pulls_before, branches_before = list(shop.pulls), shop.branches
    task = answered(shop, task_id)

    (question,) = waiting["questions"]
    assert (question["text"], question["options"]) == (QUESTION["question"], QUESTION["options"])
    assert (pulls_before, branches_before, waiting["result"]) == ([], ["main"], None)
    assert "check" not in {event["kind"] for event in waiting["timeline"]}
    assert (task["status"], task["attempt"]) == ("completed", 1), task["message"]
    assert len(sessions(task)) == 1
    (pull,) = shop.pulls
    assert shop.on_remote(pull.head, "NOTES.md") == "begun"
    assert no_token_is_left(shop)


def test_codex_asks_from_its_sandbox_and_continues_in_the_same_thread(shop: Shop) -> None:
    steps = [
        {"tool": "ask_user", "namespace": "mcp__delegate_ask", "input": QUESTION},
        {"text": "I have asked, and wait."},
        {"text": "It is a percentage.", "expect": "Percent, as the test has it"},
    ]
    shop.market.codex.define("default", {"steps": steps})

    task_id = shop.submit("Fix the discount", agent="codex", model="gpt-5.5", permissionMode="acceptEdits", pr=False)
    waiting = asked(shop, task_id)
    logs_before = shop.world.run("logs", task_id)
    task = answered(shop, task_id)
    logs_after = shop.world.run("logs", task_id)

    hint = f"delegate: {task_id} waits for an answer\nhint: delegate answer {task_id} TEXT\n"
    assert (logs_before.returncode, logs_before.stderr) == (0, hint)
    assert "waits for an answer" not in logs_after.stderr
    assert [question["text"] for question in waiting["questions"]] == [QUESTION["question"]]
    assert (task["status"], task["attempt"]) == ("completed", 1), task["message"]
    assert len(sessions(task)) == 1
    kinds = [event["kind"] for event in task["timeline"] if event["kind"] in ("question", "released", "answer")]
    assert kinds == ["question", "released", "answer"]
    assert no_token_is_left(shop)
