"""A line of source code in everything that an agent prints: at `summary` it does not reach the relay."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import acp_agent, scripted_agent
from tests.fakes.origin import make_origin
from tests.fakes.world import World, living, wait_until
from tests.git import run_git
from tests.journeys.test_secret_canary import ENVIRONMENT, LOGINS, canaries, forms

from delegate.client.client import Client
from delegate.config.home_files import machine_id
from delegate.config.paths import Home
from delegate.config.settings import load

pytestmark = [pytest.mark.slow, pytest.mark.promise("P18")]

MARK = "acme_margin_7c1e"  # as one word, where only a name fits
LINE = f"return {MARK}(customer, 0.0815)  # floor"
Json = dict[str, Any]
SESSION = "0b5ffb6e-7d52-4d0a-9a52-3f31cf0a33f1"
DONE: list[Json] = [{"say": "All good."}, {"result": "All good."}, {"end_of_input": True}]
ASK = """
import json, os, ssl
import anyio, httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
async def main():
    elsewhere, authority = os.environ.get("DELEGATE_RELAY_URL"), os.environ.get("DELEGATE_CA_FILE")
    url = elsewhere or json.load(open(os.environ["DELEGATE_HOME"] + "/relay.json"))["url"]
    headers = {"Authorization": "Bearer " + os.environ["DELEGATE_TOKEN"]}
    verify = ssl.create_default_context(cafile=authority) if elsewhere else False
    async with httpx2.AsyncClient(headers=headers, verify=verify) as http:
        async with Client(streamable_http_client(url + "/mcp", http_client=http)) as agent:
            await agent.call_tool("ask_user", {"question": "May I round to cents?"})
anyio.run(main)
"""


def tool(name: str, **given: object) -> Json:
    return {"tool": name, "input": given}


def call(name: str, call_id: str) -> Json:
    block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return {"event": {"type": "assistant", "parent_tool_use_id": None, "message": {"content": [block]}}}


def result_of_tool(*, is_error: bool) -> Json:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": LINE, "is_error": is_error}
    return {"event": {"type": "user", "message": {"content": [block]}, "tool_use_result": {"stdout": LINE}}}


def system(subtype: str, **fields: object) -> Json:
    return {"event": {"type": "system", "subtype": subtype, **fields}}


def failed(text: str = LINE, **fields: object) -> list[Json]:
    return [{"result": text, "fields": {"is_error": True, **fields}}, {"end_of_input": True}]


def limit(**info: object) -> Json:
    return {"event": {"type": "rate_limit_event", "rate_limit_info": info}}


CHILD = f"{sys.executable} -m delegate delegate -a claude -- '{LINE}' >child.txt 2>&1"
INIT: list[Json] = [{"init": {"session_id": SESSION}}]
# Where the line is, and what Claude Code does; it ends well if nothing else is said.
CLAUDE: dict[str, list[Json]] = {
    "stdout": [{"print": LINE}, *DONE],
    "stdout without a newline": [*INIT, {"chunk": LINE}, {"chunk": "\n"}, *DONE, {"chunk": LINE}],
    "stderr": [*INIT, {"print": LINE, "to": "stderr"}, {"chunk": LINE, "to": "stderr"}, *DONE],
    "a message before the last": [*INIT, {"say": LINE}, *DONE],
    "the last message of a failed agent": [*INIT, {"say": LINE}, *failed()],
    "the command of a tool": [*INIT, tool("Bash", command=f"echo '{LINE}'", description=LINE), *DONE],
    "the old and new text of an edit": [*INIT, tool("Edit", file_path="a.py", old_string=LINE, new_string=LINE), *DONE],
    "a written file": [*INIT, tool("Write", file_path="a.py", content=f"{LINE}\n" * 3), *DONE],
    "the input of an unknown tool": [*INIT, tool("Dance", path=LINE, query=LINE, other={"deep": [LINE]}), *DONE],
    "the name of a tool": [*INIT, call(LINE, "toolu_1"), call(MARK, "toolu_2"), *DONE],
    "the id of a tool call": [*INIT, call("Read", LINE), call("Read", MARK), *DONE],
    "a file outside the repository": [*INIT, tool("Read", file_path=f"/etc/{MARK}/x.py"), *DONE],
    "a path that is no file": [*INIT, tool("Read", file_path=LINE), tool("Grep", pattern=LINE, path=MARK), *DONE],
    "the result of a tool": [*INIT, result_of_tool(is_error=False), *DONE],
    "the error of a tool": [*INIT, result_of_tool(is_error=True), *DONE],
    "a denied tool": [
        *INIT,
        {"result": "All good.", "fields": {"permission_denials": [{"tool_name": LINE, "tool_input": {"x": LINE}}]}},
        {"end_of_input": True},
    ],
    "a retry of the model's service": [*INIT, system("api_retry", error_status=529, error=LINE, attempt=1), *DONE],
    "a replaced model": [
        *INIT,
        system("model_fallback", original_model=LINE, fallback_model=MARK, trigger=LINE),
        *DONE,
    ],
    "the model's name": [{"init": {"session_id": SESSION, "model": MARK}}, *DONE],
    "the id of the session": [{"init": {"session_id": MARK}}, *DONE],
    "a limit that is near": [*INIT, limit(status="allowed_warning", rateLimitType=LINE, utilization=0.9), *DONE],
    "a limit that is reached": [*INIT, limit(status="rejected", rateLimitType=LINE, resetsAt=0), *failed()],
    "an unknown event": [*INIT, {"event": {"type": MARK, "text": LINE, "deep": {LINE: LINE}}}, *DONE],
    "a command in the background": [*INIT, {"command": f"echo '{LINE}'", "background": "b1"}, *DONE],
    "an error": [*INIT, *failed(subtype="error_during_execution", errors=[LINE])],
    "a refusal of the model": [*INIT, *failed(api_error_status=400)],
    "a crash": [*INIT, {"say": LINE}, {"print": LINE, "to": "stderr"}, {"exit": 3}],
    "a signal": [*INIT, {"print": LINE, "to": "stderr"}, {"say": LINE}, {"signal": "KILL"}],
    "no protocol at all": [{"print": LINE}, {"print": LINE, "to": "stderr"}, {"exit": 1}],
    "the prompt of a child task": [*INIT, {"shell": CHILD}, *DONE],
    "a message beside a question": [
        *INIT,
        {"shell": f"{sys.executable} ask.py"},
        {"say": LINE},
        {"result": LINE},
        {"end_of_input": True},
    ],
}


def item(kind: str, **fields: object) -> Json:
    return {"event": {"type": "item.completed", "item": {"id": "item_1", "type": kind, **fields}}}


THREAD: Json = {"event": {"type": "thread.started", "thread_id": SESSION}}
ENDED: list[Json] = [
    item("agent_message", text="All good."),
    {"event": {"type": "turn.completed", "usage": {"input_tokens": 9}}},
]
CODEX: dict[str, list[Json]] = {
    "a message, a thought and stderr of Codex": [
        THREAD,
        item("agent_message", text=LINE),
        item("reasoning", text=LINE),
        {"print": LINE, "to": "stderr"},
        *ENDED,
    ],
    "a command and its output in Codex": [
        THREAD,
        item("command_execution", command=f"bash -lc 'echo {LINE}'", aggregated_output=LINE),
        *ENDED,
    ],
    "a file change of Codex outside the repository": [
        THREAD,
        item("file_change", changes=[{"path": f"/etc/{MARK}.py", "kind": "add", "diff": LINE}]),
        *ENDED,
    ],
    "a search and a tool of a server in Codex": [
        THREAD,
        item("web_search", query=LINE),
        item("mcp_tool_call", server=MARK, tool=MARK, arguments={"x": LINE}, result=LINE),
        *ENDED,
    ],
    "an error that Codex survives": [
        THREAD,
        {"event": {"type": "error", "message": LINE}},
        item("error", message=LINE),
        *ENDED,
    ],
    "an error that ends Codex": [
        THREAD,
        {"event": {"type": "error", "message": f"Reconnecting... 1/5 ({LINE})"}},
        {"event": {"type": "turn.failed", "error": {"message": LINE}}},
        {"exit": 1},
    ],
    "an unknown item and the thread of Codex": [
        {"event": {"type": "thread.started", "thread_id": MARK}},
        item(MARK, text=LINE),
        *ENDED,
    ],
}


def acp_call(**fields: object) -> Json:
    return {"update": {"sessionUpdate": "tool_call", **fields}}


DIFF = {"type": "diff", "path": "a.py", "oldText": LINE, "newText": f"{LINE}\n{LINE}"}
ACP: dict[str, list[Json]] = {
    "a message and a thought of an ACP agent": [{"say": LINE}, {"think": LINE}, {"say": "All good."}],
    "a tool call of an ACP agent": [
        acp_call(toolCallId=LINE, title=LINE, kind=MARK, rawInput={"command": LINE, "path": LINE}),
        acp_call(toolCallId="c2", title="Edit", kind="edit", content=[DIFF], rawInput={"x": LINE}),
        acp_call(toolCallId="c3", title=MARK, kind="read", locations=[{"path": f"/etc/{MARK}"}]),
        {"say": "All good."},
    ],
    "an error of an ACP agent": [{"say": LINE}, {"error": {"code": -32603, "message": LINE, "data": {"x": LINE}}}],
}
# What a shell command does; its text is in a file, as the prompt is known to the relay.
SHELL = {
    "the output of a command": f"echo '{LINE}'; echo '{LINE}' >&2; printf '{LINE}'",
    "the output of a failed command": f"echo '{LINE}' >&2; exit 3",
}
LEAK = f"echo '{LINE}'"
WORKTREE = {
    "a diff, a commit and an untracked file": f"echo '{LINE}' >>a.py; git add -A; {{git}} commit -qm '{LINE}'; {LEAK}",
    "the output of checks": f"echo '{LINE}' >broken.py",
}
REPOSITORY_FILE = f"""
setup = ["{LEAK}"]
checks = ["if grep -q {MARK} broken.py 2>/dev/null; then {LEAK}; exit 1; fi"]
check_turns = 0
"""
AGENT = "git -c user.name=Agent -c user.email=agent@example.test"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    place = tmp_path_factory.mktemp("privacy")
    user = place / "user"
    for name, (text, value) in LOGINS.items():
        file = user / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(value))
    for name in ("claude", "codex"):
        scripted_agent.install(place / "bin", name)
    acp_agent.install(place / "bin")
    own = {"HOME": str(user), "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "DELEGATE_ACP_AGENTS": "acp-agent"}
    quick = {
        "DELEGATE_LINGER_AFTER": "1",
        "DELEGATE_LEASE": "30",
        "DELEGATE_RECLAIM_AFTER": "60",
        "DELEGATE_MAX_RUNNERS": "4",
    }
    with living(place / "home", DELEGATE_PRIVACY="summary", **own, **quick, **ENVIRONMENT) as made:
        make_origin(made.work)
        (made.work / "ask.py").write_text(ASK)
        (made.work / "repo").mkdir()
        made.ok("up", "--runners", "4")
        yield made


def script(world: World, name: str, steps: list[Json]) -> str:
    """A prompt that names the file with the steps."""
    file = world.work.parent / f"{re.sub(r'[^a-z]', '-', name.lower())}.json"
    file.write_text(json.dumps({"steps": steps}))
    return json.dumps({"steps": [{"script": str(file)}]})


def command(world: World, name: str, text: str) -> str:
    file = world.work.parent / f"{re.sub(r'[^a-z]', '-', name.lower())}.sh"
    file.write_text(text.replace("{git}", AGENT))
    return f"sh {file}"


def submit(world: World, requests: dict[str, Json]) -> dict[str, str]:
    here = {"workingDirectory": str(world.work), "machine": machine_id(Home(world.home))}
    client = Client(load(world.environment))
    return {name: client.submit({**here, **request})["taskId"] for name, request in requests.items()}


@pytest.fixture(scope="module")
def tasks(world: World) -> dict[str, Json]:
    """All tasks, ended or waiting, by the name of their path."""
    requests: dict[str, Json] = {}
    for agent, cases in (("claude", CLAUDE), ("codex", CODEX), ("acp:acp-agent", ACP)):
        requests |= {name: {"agent": agent, "prompt": script(world, name, steps)} for name, steps in cases.items()}
    requests |= {name: {"agent": "shell", "prompt": command(world, name, text)} for name, text in SHELL.items()}
    run_git("checkout", "-q", "-B", "with-file", cwd=world.work)
    (world.work / ".delegate.toml").write_text(REPOSITORY_FILE)
    run_git("add", ".delegate.toml", cwd=world.work)
    run_git("commit", "-qm", "file", cwd=world.work)
    run_git("push", "-q", "origin", "with-file", cwd=world.work)
    base = {"agent": "shell", "worktree": True, "base": "with-file"}
    requests |= {name: {**base, "prompt": command(world, name, text)} for name, text in WORKTREE.items()}
    ids = submit(world, requests)
    return {name: wait_until(partial(settled, world, task_id)) for name, task_id in ids.items()}


def settled(world: World, task_id: str) -> Json | None:
    found = world.get(f"/api/tasks/{task_id}")
    task = {**found["task"], "timeline": found["events"]}
    return task if found["attempts"] and task["status"] != "running" else None


def at_the_relay(world: World) -> bytes:
    """All that the database has, and the relay's log."""
    with sqlite3.connect(world.relay_home / "delegate.db") as database:
        dump = "\n".join(database.iterdump()).encode()
        output = b"".join(row[0] for row in database.execute("SELECT data FROM output ORDER BY id"))
    database.close()
    logs = b"".join(file.read_bytes() for file in world.relay_logs())
    return dump + output + logs


@pytest.mark.parametrize("name", [*CLAUDE, *CODEX, *ACP, *SHELL, *WORKTREE])
def test_the_line_stays_on_the_machine(world: World, tasks: dict[str, Json], name: str) -> None:
    task = tasks[name]
    shown = json.dumps(world.get(f"/api/tasks/{task['taskId']}")).encode()
    # A stream ends with its task; it has the output in base64, and `raw` has it as it was printed.
    parts = ("stream", "output", "output/raw") if task["finishedAt"] else ("output", "output/raw")
    followed = b"".join(world.fetch(f"/api/tasks/{task['taskId']}/{part}") for part in parts)
    records = b"".join(file.read_bytes() for file in (world.home / "records").glob(f"*/{task['taskId']}.*"))

    assert MARK.encode() not in shown + followed
    assert b'"kind":"end"' in records or task["status"] == "queued"


def test_no_line_and_no_secret_is_in_the_database_or_the_log_of_the_relay(world: World, tasks: dict[str, Json]) -> None:
    steps = [
        *INIT,
        {"say": f"I found {' '.join(canaries(world))}"},
        {"result": f"Done with {' '.join(canaries(world))}"},
    ]
    told = submit(world, {"secrets": {"agent": "claude", "prompt": script(world, "secrets", [*steps, DONE[-1]])}})
    world.wait_for(told["secrets"], "completed")

    stored = at_the_relay(world)

    assert len(tasks) > 40
    assert MARK.encode() not in stored
    assert [canary for canary in canaries(world) if any(form in stored for form in forms(canary))] == []
    assert len(canaries(world)) >= 12


def test_the_tasks_ended_as_they_should(tasks: dict[str, Json]) -> None:
    ended = {name: (task["status"], task["reason"]) for name, task in tasks.items()}
    asked = tasks["a message beside a question"]["questions"][0]["text"]

    assert ended["a written file"] == ("completed", "done")
    assert ended["a crash"][0] == ended["an error that ends Codex"][0] == "failed"
    assert ended["the output of checks"] == ("failed", "checks_failed")
    assert (ended["a message beside a question"][0], asked) == ("waiting", "May I round to cents?")
    assert ended["the prompt of a child task"] == ("completed", "done")


def test_a_child_task_is_refused_with_the_reason(world: World, tasks: dict[str, Json]) -> None:
    assert tasks["the prompt of a child task"]["status"] == "completed"

    assert "reports at the privacy level summary" in (world.work / "child.txt").read_text()


def test_the_allowed_texts_and_counts_reach_the_relay(world: World) -> None:
    todo: Json = {"todos": [{"content": "Round to cents", "status": "in_progress"}]}
    steps = [
        *INIT,
        tool("TodoWrite", **todo),
        tool("Edit", file_path="src/price.py", old_string="a\nb", new_string="a\nB\nc"),
        {"say": "Prices are rounded."},
        {"result": "Prices are rounded."},
        {"end_of_input": True},
    ]
    ids = submit(world, {"told": {"agent": "claude", "prompt": script(world, "told", steps)}})

    ended = world.wait_for(ids["told"])

    events = {event["kind"]: event["data"] for event in ended["timeline"]}
    edit = {"name": "Edit", "verb": "edit", "path": "src/price.py", "additions": 2, "deletions": 1}
    assert edit in [event["data"] for event in ended["timeline"] if event["kind"] == "tool"]
    assert events["todo"] == {"items": [{"title": "Round to cents", "state": "in_progress"}]}
    assert ended["message"] == "claude finished: Prices are rounded."
    assert ended["checkpoint"]["summary"] == "Prices are rounded."
    assert events["skipped"]["kept"] is True
    assert "message" not in events


def test_the_commands_say_where_the_texts_are(world: World, tasks: dict[str, Json]) -> None:
    name = tasks["a diff, a commit and an untracked file"]
    runner = next(event["data"]["runner"] for event in name["timeline"] if event["kind"] == "claimed")

    logs, diff = world.run("logs", name["taskId"]), world.run("diff", name["taskId"])

    assert f"is kept on {runner}" in logs.stderr
    assert f"is kept on {runner}" in diff.stderr
    assert f"kept on {runner}" in world.ok("status", name["taskId"])
    assert (name["status"], name["result"]["additions"]) == ("completed", 1)


def test_the_machine_itself_continues_with_the_texts_it_kept(world: World) -> None:
    """The session of an ACP agent has a name that does not leave; a resumed task finds it all the same."""
    first = submit(world, {"one": {"agent": "acp:acp-agent", "prompt": script(world, "acp one", [{"say": "Half."}])}})
    told = world.wait_for(first["one"])

    again = json.loads(world.ok("resume", first["one"], "--context", "go on", "--json"))
    ended = world.wait_for(again["taskId"])

    assert told["sessionId"].startswith("kept-")
    assert ended["status"] == "completed", ended["message"]
    sessions = [event["data"]["sessionId"] for event in ended["timeline"] if event["kind"] == "session"]
    assert sessions == [told["sessionId"]]
    assert "no longer exists" not in json.dumps(ended["timeline"])


def test_at_minimal_only_states_and_numbers_reach_the_relay(tmp_path: Path) -> None:
    scripted_agent.install(tmp_path / "bin")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    steps = [
        {"init": {"session_id": SESSION, "model": MARK}},
        tool("TodoWrite", todos=[{"content": LINE, "status": "in_progress"}]),
        tool("Edit", file_path=f"src/{MARK}.py", old_string="a", new_string="b\nc"),
        {"say": LINE},
        {"result": LINE},
        {"end_of_input": True},
    ]
    with living(tmp_path / "home", DELEGATE_PRIVACY="minimal", PATH=path) as world:
        world.ok("up", "--runners", "1")
        task_id = submit(world, {"one": {"agent": "claude", "prompt": script(world, "minimal", steps)}})["one"]
        ended = world.wait_for(task_id)
        logs, page = world.run("logs", task_id), world.ok("status", task_id)
        local = world.ok("runner", "privacy", task_id, "--show", "full")

        assert MARK.encode() not in at_the_relay(world)
    events = {event["kind"]: event["data"] for event in ended["timeline"]}
    assert (ended["status"], ended["message"]) == ("completed", "")
    assert events["tool"] == {"verb": "edit", "additions": 2, "deletions": 1}
    assert "todo" not in events
    assert "kept on" in logs.stderr
    assert "  change" in page
    assert "2 lines added" in page
    assert MARK in local
