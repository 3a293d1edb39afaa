"""The real Claude Code and the real Codex, from an issue to a pull request, with scripted models."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.world import PATIENCE
from tests.journeys.shop import FIXED, SHOP, Market, Shop, audited_market, open_shop

pytestmark = [pytest.mark.slow, pytest.mark.real]
WRONG = SHOP.replace("discount_percent)\n", "discount_percent / 10)\n")
SUMMARY = "The discount is read as a percentage now.\n\n- `total` divides it by 100.\n- The unit test passes."
CLAUDE = {"agent": "claude", "model": "claude-sonnet-4-5"}
CODEX = {"agent": "codex", "model": "gpt-5.5"}


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    place = tmp_path_factory.mktemp("market")
    with audited_market(place, "git", "gh", "claude", "codex", runners=2) as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, market: Market) -> Shop:
    return open_shop(market, tmp_path)


def writing(name: str, text: str) -> str:
    return f"cat > {name} <<'EOF'\n{text}EOF\n"


def bash(command: str, **more: Any) -> dict[str, Any]:
    return {"tool": "Bash", "input": {"command": command, "description": "work"}, **more}


def shell(command: str, **more: Any) -> dict[str, Any]:
    return {"shell": command, **more}


def claude_plays(shop: Shop, *steps: dict[str, Any]) -> None:
    shop.market.claude.define("default", {"steps": list(steps)})


def codex_plays(shop: Shop, *steps: dict[str, Any]) -> None:
    shop.market.codex.define("default", {"steps": list(steps)})


def claude_requests(shop: Shop) -> list[str]:
    """The newest request that each turn of the model was given, as text."""
    return [
        str(request["body"]["messages"]) for request in shop.market.claude.requests if request.get("kind") == "main"
    ]


def test_claude_and_codex_at_the_same_time_end_in_two_pull_requests(shop: Shop) -> None:
    claude_plays(shop, bash(writing("shop.py", FIXED)), {"text": SUMMARY})
    codex_plays(
        shop, shell(writing("shop.py", FIXED) + "echo a note > NOTES.md"), {"text": "Wrote a note.\n\n- NOTES.md"}
    )
    issue = {"key": "PER-44", "title": "Read the discount as a percentage", "url": "https://linear.app/acme/PER-44"}

    first = shop.submit("The discount of 50 gives a price of -1470.", issue=issue, **CLAUDE)
    second = shop.submit("Write a note and fix the discount", **CODEX)
    ended = [shop.world.wait_for(task_id) for task_id in (first, second)]

    assert [task["status"] for task in ended] == ["completed", "completed"], [task["message"] for task in ended]
    by_branch = {pull.head: pull for pull in shop.pulls}
    of_claude, of_codex = (by_branch[task["result"]["branch"]] for task in ended)
    assert of_claude.title == "PER-44 · Read the discount as a percentage"
    assert "`total` divides it by 100" in of_claude.body
    assert "claude · sonnet-4-5" in of_claude.body
    assert of_codex.title == "Write a note and fix the discount"
    assert "codex · gpt-5.5" in of_codex.body
    assert shop.on_remote(of_codex.head, "NOTES.md") == "a note"
    shop.wait_until_tidy()


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_a_failed_check_goes_back_to_the_agent_which_fixes_it_in_the_same_session(shop: Shop, agent: str) -> None:
    if agent == "claude":
        claude_plays(
            shop,
            bash(writing("shop.py", WRONG)),
            {"text": "Done."},
            bash(writing("shop.py", FIXED)),
            {"text": SUMMARY},
        )
    else:
        codex_plays(
            shop,
            shell(writing("shop.py", WRONG)),
            {"text": "Done."},
            shell(writing("shop.py", FIXED)),
            {"text": SUMMARY},
        )

    task = shop.deliver("Fix the discount", **(CLAUDE if agent == "claude" else CODEX))

    checks = [event["data"]["ok"] for event in task["timeline"] if event["kind"] == "check"]
    sessions = {event["data"]["sessionId"] for event in task["timeline"] if event["kind"] == "session"}
    assert (task["status"], checks) == ("completed", [False, True]), task["message"]
    assert len(sessions) == 1
    (pull,) = shop.pulls
    assert "The discount is read as a percentage now." in pull.body
    assert shop.on_remote(pull.head, "shop.py") == FIXED.strip()


def test_an_agent_that_never_gets_the_checks_green_fails_with_its_branch_kept(shop: Shop) -> None:
    claude_plays(shop, bash(writing("shop.py", WRONG)), *({"text": "I cannot find it."} for _ in range(6)))

    task = shop.deliver("Fix the discount", **CLAUDE)

    assert (task["status"], task["reason"]) == ("failed", "checks_failed")
    assert len([event for event in task["timeline"] if event["kind"] == "check"]) == 3
    assert task["result"]["isKept"]
    assert shop.branches == ["main"]
    assert "    FAIL: test_half_price" in shop.world.ok("logs", task["taskId"])


@pytest.mark.promise("P21")
def test_a_half_done_merge_goes_back_to_the_agent_which_finishes_it(shop: Shop) -> None:
    both = "git checkout -qb other; echo a > a.txt; git add -A; git commit -qm a; git checkout -q -; echo b > a.txt"
    half = f"{writing('shop.py', FIXED)}{both}; git add -A; git commit -qm b; git merge other"
    claude_plays(
        shop,
        bash(half),
        {"text": "Done."},
        bash("echo ab > a.txt; git add a.txt; git commit -qm merged"),
        {"text": SUMMARY},
    )

    task = shop.deliver("Fix the discount", **CLAUDE)

    checks = [(event["data"]["command"], event["data"]["ok"]) for event in task["timeline"] if event["kind"] == "check"]
    assert checks == [("git status", False), ("python3 -m unittest", True)]
    assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
    assert any("a merge is not finished; unresolved conflicts in a.txt" in asked for asked in claude_requests(shop))
    assert shop.on_remote(task["result"]["branch"], "a.txt") == "ab"


def test_commits_of_the_agent_are_kept_as_they_are(shop: Shop) -> None:
    commit = "git commit -qam 'shop: read the discount as a percentage'"
    claude_plays(shop, bash(writing("shop.py", FIXED) + commit), {"text": SUMMARY})

    task = shop.deliver("Fix the discount", **CLAUDE)

    bare = shop.github.bare(shop.repository)
    subjects = shop.git("log", "--format=%s", f"main..{task['result']['branch']}", cwd=bare)
    assert subjects == "shop: read the discount as a percentage"


@pytest.mark.promise("P21")
def test_a_number_in_the_prompt_is_the_tasks_own(shop: Shop) -> None:
    commit = "git commit -qam 'Read the discount as a percentage' -m 'Fixes #5'"
    claude_plays(shop, bash(f"{writing('shop.py', FIXED)}{commit}; echo more > more.txt"), {"text": SUMMARY})

    task = shop.deliver("Fix #5: the discount\n\nIt is a percentage.", **CLAUDE)

    assert task["status"] == "completed", task["message"]
    (pull,) = shop.pulls
    assert pull.title == "Fix #5: the discount"
    assert "\n\nCloses #5.\n\n" in pull.body
    log = shop.git("log", "--format=%s%n%b", f"main..{pull.head}", cwd=shop.github.bare(shop.repository))
    assert [line for line in log.splitlines() if line and "Delegate-Task" not in line] == [
        "Fix #5: the discount",
        "Read the discount as a percentage",
        "Fixes #5",
    ]
    assert [event["data"] for event in task["timeline"] if event["kind"] == "warning"] == []


@pytest.mark.promise("P21")
def test_from_a_subfolder_the_agent_is_told_its_folder(shop: Shop) -> None:
    folder = shop.clone / "packages" / "till"
    folder.mkdir(parents=True)
    shop.market.claude.requests.clear()
    claude_plays(shop, bash(writing("shop.py", FIXED)), {"text": SUMMARY})

    task = shop.deliver("Fix the discount", workingDirectory=str(folder), **CLAUDE)

    assert task["status"] == "completed", task["message"]
    assert ">\\npackages/till\\n</folder-" in claude_requests(shop)[0]


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_a_retry_continues_in_the_session_and_the_tree_of_the_cancelled_task(shop: Shop, agent: str) -> None:
    half = writing("half.txt", "half\n")
    if agent == "claude":
        claude_plays(shop, bash(half), {"text": "…", "gate": "never"})
    else:
        codex_plays(shop, shell(half), {"text": "…", "gate": "never"})
    task_id = shop.submit("Fix the discount", **(CLAUDE if agent == "claude" else CODEX))
    shop.wait_for_file(task_id, "half.txt")
    session = shop.events_until(task_id, "session")["session"]["sessionId"]
    shop.world.ok("cancel", task_id)
    rest = "test -f half.txt && " + writing("shop.py", FIXED)
    if agent == "claude":
        claude_plays(shop, bash(rest), {"text": SUMMARY})
    else:
        codex_plays(shop, shell(rest), {"text": SUMMARY})

    retried = shop.world.wait_for(shop.world.ok("retry", task_id).strip())

    assert retried["status"] == "completed", retried["message"]
    assert retried["sessionId"] == session
    assert retried["lineage"] == task_id
    assert shop.on_remote(retried["result"]["branch"], "half.txt") == "half"


def test_a_resume_whose_session_is_gone_tells_the_agent_what_is_left(shop: Shop) -> None:
    claude_plays(
        shop,
        bash(writing("half.txt", "half\n")),
        {"text": "I began with half.txt."},
        *({"text": "No."} for _ in range(4)),
    )
    failed = shop.deliver("Fix the discount", **CLAUDE)
    shutil.rmtree(Path(shop.world.environment["CLAUDE_CONFIG_DIR"]) / "projects")
    shop.market.claude.requests.clear()
    claude_plays(shop, bash("cat half.txt; " + writing("shop.py", FIXED)), {"text": SUMMARY})

    resumed = shop.world.wait_for(shop.world.ok("resume", failed["taskId"], "--context", "-- divide by 100").strip())

    assert resumed["status"] == "completed", resumed["message"]
    request = claude_requests(shop)[0]
    assert "-- divide by 100" in request
    assert "half.txt" in request
    assert "python3 -m unittest" in request
    assert shop.on_remote(resumed["result"]["branch"], "half.txt") == "half"


def test_a_resumed_task_adopts_the_pull_request_that_is_there(shop: Shop) -> None:
    claude_plays(shop, bash(writing("shop.py", FIXED)), {"text": SUMMARY})
    first = shop.deliver("Fix the discount", **CLAUDE)
    claude_plays(shop, bash("echo more > more.txt"), {"text": "Added more."})

    second = shop.world.wait_for(shop.world.ok("resume", first["taskId"], "--context", "Add more.txt").strip())

    (pull,) = shop.pulls
    assert second["status"] == "completed", second["message"]
    assert second["result"]["pullRequest"] == first["result"]["pullRequest"]
    assert "Added more." in pull.body
    assert shop.on_remote(pull.head, "more.txt") == "more"


def test_a_summary_that_is_cut_says_so(shop: Shop) -> None:
    claude_plays(shop, bash(writing("shop.py", FIXED)), {"text": "word " * 6_000 + "end"})

    task = shop.deliver("Fix the discount", **CLAUDE)

    (pull,) = shop.pulls
    note = "(cut here: the whole summary has 30,003 characters)"
    assert task["result"]["summary"].endswith(note)
    assert note in pull.body


def test_after_a_resume_the_pull_request_covers_the_whole_work(shop: Shop) -> None:
    claude_plays(shop, bash(writing("shop.py", FIXED)), {"text": SUMMARY})
    first = shop.deliver("Fix the discount", **CLAUDE)
    claude_plays(shop, bash("echo more > more.txt"), {"text": "Added more."})
    second = shop.world.wait_for(shop.world.ok("resume", first["taskId"], "--context", "Add more.txt").strip())
    claude_plays(shop, bash("echo last > last.txt"), {"text": "Added the last."})

    third = shop.world.wait_for(shop.world.ok("resume", second["taskId"], "--context", "Add last.txt").strip())

    (pull,) = shop.pulls
    subjects = shop.git("log", "--format=%s", f"main..{pull.head}", cwd=shop.github.bare(shop.repository))
    spent = [task["usage"]["outputTokens"] for task in (first, second, third)]
    assert subjects.splitlines() == ["Add last.txt", "Add more.txt", "Fix the discount"]
    parts = ["The discount is read as a percentage now.", "Added more.", "Added the last."]
    assert sorted(parts, key=pull.body.index) == parts
    assert f" tokens in, {sum(spent)} out" in pull.body
    assert all(spent)


def test_a_message_in_mid_turn_waits_for_codex_to_end_and_then_continues(shop: Shop) -> None:
    codex_plays(
        shop,
        shell(writing("shop.py", FIXED) + "touch begun"),
        {"text": "Done.", "gate": "extra"},
        shell("echo extra > extra.txt"),
        {"text": "Told."},
    )
    task_id = shop.submit("Fix the discount", **CODEX)
    shop.wait_for_file(task_id, "begun")

    shop.world.post(f"/api/tasks/{task_id}/messages", {"text": "-write extra.txt too"})
    shop.market.codex.open_gate("extra")
    task = shop.world.wait_for(task_id)

    assert task["status"] == "completed", task["message"]
    assert shop.on_remote(task["result"]["branch"], "extra.txt") == "extra"


def test_a_message_while_the_pull_request_is_opened_is_told_in_the_log_as_unheard(shop: Shop) -> None:
    claude_plays(shop, bash(writing("shop.py", FIXED)), {"text": SUMMARY})
    gate = shop.github.hub.hold("PullRequestCreate")
    task_id = shop.submit("Fix the discount", **CLAUDE)
    assert gate.reached.wait(PATIENCE)

    shop.world.post(f"/api/tasks/{task_id}/messages", {"text": "add a note too"})
    gate.open()

    assert shop.world.wait_for(task_id)["status"] == "completed"
    told = [line for line in shop.world.ok("logs", task_id).splitlines() if "too late" in line]
    assert len(told) == 1
    assert told[0].endswith("warning: a message arrived too late: add a note too")
