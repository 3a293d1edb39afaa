"""What the processes of a task can do with the relay: what their own token allows, and nothing with the owner's."""

from __future__ import annotations

import json
import socket
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.world import World, living, wait_until
from tests.journeys.shop import audited_market, open_shop

pytestmark = pytest.mark.promise("P22")

# Run inside a task: sends a submit with a token that is not its own, in one of several ways to hide.
THIEF = """
import ctypes, json, os, socket, sys, time
home, how = os.environ["DELEGATE_HOME"], sys.argv[1]
port = json.load(open(home + "/relay.json"))["port"]
token = os.environ.get("STOLEN") or open(home + "/token").read().strip()
machine = open(home + "/machine").read().strip()
body = json.dumps({"prompt": "touch stolen", "agent": "shell", "workingDirectory": os.getcwd(), "machine": machine})
head = f"POST /api/tasks HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nAuthorization: Bearer {token}\\r\\n"
head += f"Content-Type: application/json\\r\\nContent-Length: {len(body)}\\r\\nConnection: close\\r\\n\\r\\n"
def fork():
    if os.fork():
        if how != "orphan":
            os.wait()
        os._exit(0)
if how in ("daemon", "orphan"):
    fork(); os.setsid(); fork()
if how == "hidden":
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
if how == "unmarked" and len(sys.argv) < 3:
    keep = {"DELEGATE_HOME": home, "PATH": os.environ["PATH"]}
    os.execve(sys.executable, [sys.executable, __file__, how, "again"], keep)
with socket.create_connection(("127.0.0.1", port)) as peer:
    peer.sendall((head + body).encode())
    if how == "gone":
        os._exit(0)
    if how == "in flight":
        mine, other = socket.socketpair()
        socket.send_fds(mine, [b"x"], [peer.fileno()])
        peer.close()
        time.sleep(1)
        peer = socket.socket(fileno=socket.recv_fds(other, 1, 1)[1][0])
    said = b""
    while piece := peer.recv(65536):
        said += piece
print(said.partition(b"\\r\\n\\r\\n")[2].decode(), flush=True)
open("said." + how, "wb").write(said)
"""


@pytest.fixture
def thief(world: World) -> Path:
    path = world.work / "thief.py"
    path.write_text(THIEF)
    return path


def ids(world: World) -> set[str]:
    return {task["taskId"] for task in world.tasks()}


def run_inside(world: World, command: str) -> dict[str, Any]:
    task = world.wait_for(world.submit(command))
    return {**task, "output": world.ok("logs", task["taskId"])}


@pytest.mark.parametrize("how", ["plain", "daemon", "unmarked", "hidden", "in flight", "gone"])
def test_the_owners_token_is_refused_to_every_process_of_a_task(world: World, thief: Path, how: str) -> None:
    before = ids(world)
    said = world.work / f"said.{how}"
    said.unlink(missing_ok=True)
    # The shell stays until the relay has answered, except when all ends at once.
    waiting = "true" if how == "gone" else f"while [ ! -e '{said.name}' ]; do sleep 0.1; done"

    task = run_inside(world, f"{sys.executable} {thief} '{how}'; {waiting}")

    assert task["status"] == "completed"
    assert how == "gone" or b"inside_attempt" in said.read_bytes()
    assert ids(world) - before == {task["taskId"]}
    assert not (world.work / "stolen").exists()


@pytest.mark.promise("P18")
@pytest.mark.parametrize("how", ["plain", "hidden"])
def test_a_persons_token_is_refused_to_every_process_of_a_task(world: World, thief: Path, how: str) -> None:
    name = f"marek-{how}"
    token = world.ok("user", "add", name, "--role", "admin").strip()
    before = ids(world)

    task = run_inside(world, f"STOLEN={token} {sys.executable} {thief} {how}")

    assert task["status"] == "completed"
    assert b"inside_attempt" in (world.work / f"said.{how}").read_bytes()
    assert ids(world) - before == {task["taskId"]}
    assert token not in task["output"]


@pytest.mark.parametrize("how", ["plain", "hidden"])
def test_the_token_of_another_task_is_refused(world: World, thief: Path, how: str) -> None:
    other = world.submit("printf %s $DELEGATE_TOKEN > other.txt; until [ -e go ]; do sleep 0.1; done")
    wait_until((world.work / "other.txt").exists)

    task = run_inside(world, f"STOLEN=$(cat other.txt) {sys.executable} {thief} {how}")
    (world.work / "go").touch()

    assert world.wait_for(other)["status"] == "completed"
    assert b"it is for the processes of its own task" in (world.work / f"said.{how}").read_bytes()
    assert not (world.work / "stolen").exists()
    assert task["status"] == "completed"


def test_an_owner_with_an_ipv6_socket_is_served(world: World) -> None:
    world.ok("up")
    port = json.loads((world.home / "relay.json").read_text())["port"]
    token = (world.home / "token").read_text().strip()
    head = f"GET /api/relay HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"

    with socket.create_connection(("::ffff:127.0.0.1", port)) as peer:
        peer.sendall(head.encode())
        answer = peer.recv(65536)

    assert answer.startswith(b"HTTP/1.1 200")


def test_the_owner_is_served_while_tasks_run(world: World) -> None:
    running = world.submit("until [ -e go ]; do sleep 0.1; done")
    world.wait_for(running, "running")

    other = world.wait_for(world.submit("echo beside"))
    (world.work / "go").touch()

    assert other["status"] == "completed"
    assert world.wait_for(running)["status"] == "completed"


def test_a_child_runs_on_a_machine_that_has_room_for_its_waiting_parent_only(tmp_path: Path) -> None:
    no_room = {"DELEGATE_MEMORY_RESERVE": str(1 << 49), "DELEGATE_HEARTBEAT": "0.5"}
    with living(tmp_path / "home", **no_room) as world:
        task = run_inside(world, f"{sys.executable} -m delegate run -a shell -f -- 'echo from the child'")

    assert task["status"] == "completed", task["output"]
    assert "from the child" in task["output"]


def test_with_a_limit_of_one_task_a_child_is_refused(world: World) -> None:
    world.ok("up", "--runners", "1")

    task = run_inside(world, f"{sys.executable} -m delegate run -a shell -- 'echo never' 2>&1")

    assert task["status"] == "failed"
    assert "tasks that wait for their children would hold them all" in " ".join(task["output"].split())


def test_the_command_line_inside_a_task_submits_reads_and_cancels_children(world: World) -> None:
    script = textwrap.dedent(f"""
        set -e
        {sys.executable} -m delegate run -a shell -f -- 'echo waited for'
        {sys.executable} -m delegate run -a shell --json -- 'echo grown up' > child.json
    """)

    task = run_inside(world, script)

    assert task["status"] == "completed", task["output"]
    assert "waited for" in task["output"]
    child = json.loads((world.work / "child.json").read_text())
    assert child["submittedBy"] == task["taskId"]
    assert world.wait_for(child["taskId"])["status"] == "completed"
    (submitted,) = [event for event in world.task(child["taskId"])["timeline"] if event["kind"] == "submitted"]
    assert submitted["data"]["submittedBy"] == task["taskId"]


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("status", "{other}"),
        ("logs", "{other}"),
        ("prompt", "{other}"),
        ("cancel", "{other}"),
        ("retry", "{other}"),
        ("schedule", "list"),
        ("info",),
    ],
    ids=" ".join,
)
def test_an_agents_token_opens_nothing_else(world: World, words: tuple[str, ...]) -> None:
    other = world.wait_for(world.submit("echo the user's own"))["taskId"]

    command = " ".join(word.format(other=other) for word in words)
    task = run_inside(world, f"{sys.executable} -m delegate --version; {sys.executable} -m delegate {command} 2>&1")

    assert task["status"] == "failed"
    assert "the user's own" not in task["output"]
    assert "this token does not give access" in " ".join(task["output"].split())


# Run inside a task: an MCP client of `delegate mcp start`, as an agent with that server in its settings.
INNER = """
import json, os, sys
import anyio
from mcp import Client, StdioServerParameters
own, other, said = os.environ["DELEGATE_TASK_ID"], sys.argv[1], {}
async def main():
    words = ["-m", "delegate", "mcp", "start"]
    bridge = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with Client(bridge, read_timeout_seconds=60) as client:
        async def call(name, tool, **arguments):
            result = await client.call_tool(tool, arguments)
            said[name] = result.content[0].text if result.is_error else result.structured_content
            return said[name]
        said["tools"] = [tool.name for tool in (await client.list_tools()).tools]
        child = (await call("child", "DelegateTask", prompt="echo grown up", agent="shell"))["taskId"]
        while (await call("logs", "TaskLogs", taskId=child))["status"] not in ("completed", "failed"):
            await anyio.sleep(0.1)
        await call("status", "TaskStatus", taskId=child)
        long = (await call("long", "DelegateTask", prompt="sleep 600", agent="shell"))["taskId"]
        await call("cancel", "CancelTask", taskId=long)
        await call("own", "TaskStatus", taskId=own)
        for tool in ("TaskStatus", "TaskLogs", "CancelTask"):
            await call(tool, tool, taskId=other)
        await call("own cancel", "CancelTask", taskId=own)
        await call("list", "TaskStatus")
anyio.run(main)
json.dump(said, open("said.json", "w"))
"""


def test_over_mcp_a_task_submits_reads_and_cancels_its_children_and_nothing_else(world: World) -> None:
    other = world.wait_for(world.submit("echo the user's own"))["taskId"]
    inner = world.work / "inner.py"
    inner.write_text(INNER)

    task = run_inside(world, f"{sys.executable} {inner} {other} 2>&1")

    assert task["status"] == "completed", task["output"]
    said = json.loads((world.work / "said.json").read_text())
    assert said["tools"] == ["ask_user", "DelegateTask", "TaskStatus", "TaskLogs", "CancelTask"]
    assert world.task(said["child"]["taskId"])["submittedBy"] == task["taskId"]
    assert [line["text"] for line in said["logs"]["lines"]] == ["grown up"]
    assert said["status"]["task"]["status"] == "completed"
    assert world.wait_for(said["long"]["taskId"])["status"] == "cancelled"
    assert said["own"]["task"]["taskId"] == task["taskId"]
    for refused in ("TaskStatus", "TaskLogs", "CancelTask", "own cancel", "list"):
        assert "code: forbidden" in said[refused], refused


def test_a_token_is_worth_nothing_when_its_attempt_has_ended(world: World) -> None:
    run_inside(world, "printf %s $DELEGATE_TOKEN > token.txt")
    token = (world.work / "token.txt").read_text()

    world.environment = {**world.environment, "DELEGATE_TOKEN": token}
    refused = world.run("run", "-a", "shell", "echo late")

    assert token.startswith("dat_")
    assert refused.returncode == 4
    assert "does not accept this token" in refused.stderr


def test_a_delegate_started_inside_a_task_uses_its_own_token(world: World, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    delegate = f"env -u DELEGATE_RELAY_URL DELEGATE_HOME={inner} {sys.executable} -m delegate"

    task = run_inside(world, f"{delegate} run -a shell -f -- 'echo inside'; {delegate} down --now")

    assert task["status"] == "completed"
    assert "inside" in task["output"]
    wait_until(lambda: not (inner / "relay.json").exists())


@pytest.mark.slow
@pytest.mark.real
def test_codex_in_its_sandbox_has_its_own_token_and_no_use_for_the_owners(tmp_path: Path) -> None:
    with audited_market(tmp_path / "market", "git", "codex", runners=2) as market:
        shop = open_shop(market, tmp_path)
        (shop.clone / "thief.py").write_text(THIEF)
        attacks = "; ".join(f"{sys.executable} thief.py {how}" for how in ("plain", "daemon", "unmarked", "hidden"))
        own = 'printf %s "${DELEGATE_TOKEN%%_*}" > prefix.txt'
        market.codex.define("default", {"steps": [{"shell": f"{own}; {attacks}; sleep 1"}, {"text": "Tried."}]})

        task = shop.deliver("Try", agent="codex", model="gpt-5.5", permissionMode="acceptEdits", pr=False)

        answers = {path.name: path.read_bytes() for path in shop.clone.glob("said.*")}
        assert task["status"] == "completed", task["message"]
        assert (shop.clone / "prefix.txt").read_text() == "dat"
        assert {"said.plain", "said.unmarked", "said.hidden"} <= set(answers)
        assert all(b"inside_attempt" in said for said in answers.values())
        assert ids(market.world) == {task["taskId"]}
