"""What agents print in a workspace, and how they end: kept as it was, and of no effect but what it says."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import scripted_agent
from tests.fakes.hostile import C1, EVERYTHING, OSC_8, OSC_52, TITLE_CHANGE, UP_AND_ERASE, active, driving
from tests.fakes.world import World
from tests.journeys.shop import Market, Shop, audited_market, open_shop

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.promise("P19")]
Step = dict[str, Any]
DRIVING = (OSC_52, OSC_8, TITLE_CHANGE, UP_AND_ERASE, C1, "overwritten\rby this")
FAKE_LOG_LINE = "2026-01-01T00:00:00.000+00:00 info delegate.queue.finish attempt ended state=completed"


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    place = tmp_path_factory.mktemp("market")
    program = scripted_agent.install(place / "agents")
    with audited_market(place, "git", "gh", runners=2, DELEGATE_CLAUDE_COMMAND=str(program)) as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, market: Market) -> Shop:
    return open_shop(market, tmp_path, checks=[])


def playing(*steps: Step) -> str:
    return "Do it.\n" + json.dumps({"steps": [{"init": {}}, {"touch": "new.txt"}, {"say": "Working."}, *steps]})


def as_bytes(data: bytes) -> Step:
    return {"chunk": b64encode(data).decode(), "base64": True}


WAITING: Step = {"end_of_input": True}
GOOD: list[Step] = [{"result": "Done."}, WAITING]
NOT_JSON = b"\xff\xfe\x00\x80 not UTF-8\r\r\rno end of line in it\r\n"
# What an agent does, how its task ends, and in how many lines it was not understood.
ENDS: dict[str, tuple[list[Step], tuple[str, str], int]] = {
    "half a line of JSON": ([{"chunk": '{"type":"result","subtype":"succ'}, {"exit": 0}], ("failed", "crashed"), 1),
    "two results": ([{"result": "One."}, {"result": "Two."}, WAITING], ("completed", "done"), 0),
    "a result and exit code 1": ([{"result": "Done."}, {"exit": 1}], ("failed", "crashed"), 0),
    "exit code 0 and no result": ([{"exit": 0}], ("failed", "crashed"), 0),
    "bytes that are no text": ([as_bytes(NOT_JSON), *GOOD], ("completed", "done"), 1),
    "half a character": (
        [{"print": '{"type":"result","subtype":"success","is_error":false,"result":"\\ud800 \\u0000"}'}, WAITING],
        ("completed", "done"),
        0,
    ),
    "half a character in an error": (
        [{"print": '{"type":"result","is_error":true,"result":"\\ud800 \\u0000"}'}, WAITING],
        ("failed", "agent_error"),
        0,
    ),
    "output closed before the end": (
        [{"result": "Done."}, {"close": "stdout"}, {"close": "stderr"}, WAITING],
        ("completed", "done"),
        0,
    ),
}


def test_how_an_agent_ends_decides_what_becomes_of_its_work(shop: Shop) -> None:
    asked = {name: shop.submit(playing(*steps), agent="claude") for name, (steps, _, _) in ENDS.items()}

    ended = {name: shop.world.wait_for(task_id) for name, task_id in asked.items()}

    found = {name: (task["status"], task["reason"]) for name, task in ended.items()}
    assert found == {name: end for name, (_, end, _) in ENDS.items()}
    assert {name: not_understood(task) for name, task in ended.items()} == {
        n: errors for n, (*_, errors) in ENDS.items()
    }
    published = {task["result"]["pullRequest"] is not None for task in ended.values() if task["status"] == "completed"}
    assert published == {True}
    assert {task["result"]["isKept"] for task in ended.values() if task["status"] == "failed"} == {True}
    assert len(shop.pulls) == sum(end[0] == "completed" for _, end, _ in ENDS.values())
    assert NOT_JSON in raw(shop.world, asked["bytes that are no text"])


def not_understood(task: dict[str, Any]) -> int:
    texts = [event["data"]["text"] for event in task["timeline"] if event["kind"] == "warning"]
    return sum(int(text.rpartition(": ")[2]) for text in texts if "could not be parsed" in text)


def raw(world: World, task_id: str) -> bytes:
    running = world.popen("logs", "--raw", task_id)
    output: Any = running.stdout
    data: bytes = output.buffer.read()
    running.communicate()
    return data


def test_nothing_that_an_agent_prints_drives_a_terminal_a_forge_or_a_log(shop: Shop) -> None:
    words = "\n".join(
        [*EVERYTHING, FAKE_LOG_LINE, f"![x](data:image/png;base64,{'A' * 5_000})", "a **bold** word and `code`"]
    )
    session = {"init": {"model": f"model{OSC_52}{FAKE_LOG_LINE}", "session_id": "session-1"}}
    steps = [
        session,
        {"touch": "new.txt"},
        *({"print": text} for text in (*DRIVING, FAKE_LOG_LINE)),
        *({"print": text, "to": "stderr"} for text in (*DRIVING, FAKE_LOG_LINE)),
        {"tool": f"Bash{TITLE_CHANGE}", "input": {"command": f"echo {OSC_8}{UP_AND_ERASE}{C1}"}},
        {"say": words},
        {"result": words},
        WAITING,
    ]

    task = shop.deliver("Do it.\n" + json.dumps({"steps": steps}), agent="claude")

    assert task["status"] == "completed", task["message"]
    (pull,) = shop.pulls
    assert active(pull.title) + active(pull.body) == []
    assert "a **bold** word and `code`" in pull.body
    assert len(pull.body) < 20_000
    for command in (("status",), ("status", task["taskId"]), ("logs", task["taskId"]), ("logs", "-f", task["taskId"])):
        assert driving(shop.world.on_a_terminal(*command)) == []
    logs = "".join(file.read_text() for file in [*(shop.world.home / "logs").iterdir(), *shop.world.relay_logs()])
    assert FAKE_LOG_LINE not in logs
    assert OSC_52.encode() in raw(shop.world, task["taskId"])


def test_what_a_check_prints_reaches_the_agent_and_the_reader_without_escapes(shop: Shop) -> None:
    noise = "".join(f"\\{ord(character):03o}" for character in f"{OSC_52}{UP_AND_ERASE}")
    check = f"printf '{noise}broken\\n'; test -e fixed"
    shop.seed({".delegate.toml": f"checks = [{json.dumps(check)}]\ncheck_turns = 1\n"})

    task = shop.deliver(playing({"result": "Done."}, WAITING), agent="claude")

    assert (task["status"], task["reason"]) == ("failed", "checks_failed")
    for command in (("status", task["taskId"]), ("logs", task["taskId"])):
        assert driving(shop.world.on_a_terminal(*command)) == []
