"""The log of a machine's runners, for a whole task, beside the one on the product's page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import scripted_agent
from tests.fakes.origin import make_origin
from tests.fakes.world import World, living
from tests.git import run_git

from delegate.client.client import Client
from delegate.config.home_files import machine_id
from delegate.config.paths import Home
from delegate.config.settings import load

SEED = """
21:54:09 info webhook received issue=PER-36 repo="zietek/delego-saas"
21:54:10 ok   claimed job runner=marek-mbp-16 attempt=1
21:54:11 info creating worktree branch="per-36-format-pref"
21:54:17 exec claude code session opened model="sonnet-4-5" thinking=high
21:54:31 tool read "apps/web/lib/serverless/services/execute-job-from-webhook.ts"
21:54:42 tool edit "…/execution-preference-problems.ts" +48 -12
21:55:01 tool run "pnpm test execution"
21:55:09 ok   tests passed 17/17 1.2s
21:55:14 git  commit "fix(execution): exhaustive default for preference problems"
21:55:25 ok   pr opened #324 "zietek/delego-saas"
21:55:25 ok   posted to linear issue=PER-36
"""
LINE = re.compile(r"(?P<time>\d\d:\d\d:\d\d) (?P<level>[a-z]+) +(?P<message>.*)")
LEVELS = ["info", "ok", "exec", "tool", "git", "warn", "fail"]
OWN_WORDS = {  # where our words differ, and why
    "webhook": "task",  # it came from the command line
    "pr": "pr",
    "posted": "reported",  # to the relay; Linear comes later
}
DEEP = "apps/web/lib/server/relay/rate-limit/middleware/runner-rate-limit.ts"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    agent = scripted_agent.install(tmp_path / "bin")
    path = {"PATH": f"{agent.parent}:{os.environ['PATH']}"}
    with living(tmp_path / "home", SCRIPTED_AGENT_FILE=str(tmp_path / "script.json"), **path) as made:
        make_origin(made.work)
        (made.work / ".delegate.toml").write_text("checks = [\"echo 'Tests: 17 passed, 17 total'\"]\n")
        (made.work / "README.md").write_text("hello\n")
        run_git("add", ".", cwd=made.work)
        run_git("commit", "-qm", "files", cwd=made.work)
        run_git("push", "-q", "origin", "main", cwd=made.work)
        made.ok("up", "--runners", "1")
        yield made


def deliver(world: World, **more: object) -> str:
    steps = [
        {"init": {"model": "claude-sonnet-4-5"}},
        {"tool": "Read", "input": {"file_path": "README.md"}},
        {"shell": f"mkdir -p {Path(DEEP).parent} && echo new > {DEEP}"},
        {"tool": "Edit", "input": {"file_path": DEEP, "old_string": "a\n" * 12, "new_string": "b\n" * 48}},
        {"tool": "Bash", "input": {"command": "pnpm test execution"}},
        {"say": "The limit is in."},
        {"result": "The limit is in."},
        {"end_of_input": True},
    ]
    Path(world.environment["SCRIPTED_AGENT_FILE"]).write_text(json.dumps({"steps": steps}))
    task = {
        "prompt": "Limit the rate of runners",
        "agent": "claude",
        "effort": "high",
        "pr": True,
        "workingDirectory": str(world.work),
        "machine": machine_id(Home(world.home)),
        "issue": {"key": "PER-36", "title": "Add an exhaustive default"},
        **more,
    }
    return str(Client(load(world.environment)).submit(task)["taskId"])


def lines(text: str) -> list[re.Match[str]]:
    found = [LINE.fullmatch(line) for line in text.strip().splitlines()]
    return [line for line in found if line is not None]


def test_the_log_of_a_whole_task_has_the_lines_of_the_page_in_their_order(world: World) -> None:
    ended = world.wait_for(deliver(world))
    assert ended["status"] == "completed", ended["message"]

    head, *rest = world.ok("runner", "logs").splitlines()

    ours, theirs = lines("\n".join(rest)), lines(SEED)
    assert len(ours) == len(rest)
    assert re.fullmatch(r"\S+ · delegate runner v\S+ · Online · [\d.]+s ago", head)
    assert [line["level"] for line in ours] == [line["level"] for line in theirs]
    words = [line["message"].split()[0] for line in theirs]
    assert [line["message"].split()[0] for line in ours] == [OWN_WORDS.get(word, word) for word in words]
    messages = [line["message"] for line in ours]
    assert messages[0] == "task received issue=PER-36"
    assert re.fullmatch(r"claimed job runner=\S+ attempt=1", messages[1])
    assert messages[2].startswith('creating worktree branch="per-36-')
    assert messages[3] == 'claude code session opened model="sonnet-4-5" thinking=high'
    assert messages[4:7] == [
        'read "README.md"',
        'edit "apps/…/runner-rate-limit.ts" +48 -12',
        'run "pnpm test execution"',
    ]
    assert re.fullmatch(r"tests passed 17/17 \d+\.\ds", messages[7])
    assert messages[8] == 'commit "Add an exhaustive default" change="1 file touched · 1 line added"'
    assert messages[-1] == "reported to the relay state=completed reason=done"


def test_json_lines_have_the_facts_of_the_timeline(world: World) -> None:
    task_id = deliver(world)
    ended = world.wait_for(task_id)

    entries = [json.loads(line) for line in world.ok("runner", "logs", "--log-format", "json").splitlines()]

    assert {entry["taskId"] for entry in entries} == {task_id}
    assert {entry["level"] for entry in entries} <= set(LEVELS)
    edits = [event["data"] for event in ended["timeline"] if event["data"].get("verb") == "edit"]
    (edit,) = (entry for entry in entries if entry["message"] == "edit")
    assert (edits[0]["path"], edits[0]["additions"], edits[0]["deletions"]) == (DEEP, 48, 12)
    assert (edit["additions"], edit["deletions"]) == (48, 12)
    assert [entry["at"] for entry in entries] == sorted(entry["at"] for entry in entries)


def test_a_failure_and_a_warning_have_their_level_and_a_terminal_has_colour(world: World) -> None:
    world.wait_for(world.submit("exit 3"))

    plain, coloured = world.ok("runner", "logs"), world.on_a_terminal("runner", "logs")

    assert [line["level"] for line in lines(plain)] == ["info", "ok", "exec", "fail"]
    assert lines(plain)[-1]["message"] == "the command ended with exit code 3 state=failed reason=command_failed"
    assert "\x1b[" not in plain
    assert "\x1b[31mfail\x1b[0m" in coloured
