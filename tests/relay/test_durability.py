"""Acknowledged means on disk: the order of system calls is the proof."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx2
import psutil
import pytest
from tests.relay.peers import WAIT, RelayProcess, client, end, start_relay, task

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real,
    pytest.mark.promise("P7"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

CALLS = "trace=fsync,fdatasync,read,recvfrom,recvmsg,write,writev,sendto,sendmsg"
LINE = re.compile(
    r"^(?P<pid>\d+) +(?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<call>\w+)\((?P<file>\d+<.*?>)?)(?P<rest>.*)$"
)
REQUESTS = 200


@dataclass
class Witness:
    """Reads a trace and finds the answers that were written before a flush that began after their request."""

    syncs: list[tuple[int, int]] = field(default_factory=list)  # where each flush of the log began and ended
    asked: dict[str, int] = field(default_factory=dict)  # where the request of a connection was read
    open_calls: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    acknowledged: int = 0
    unproven: list[str] = field(default_factory=list)

    def read(self, lines: Iterator[str]) -> Witness:
        for place, line in enumerate(lines):
            match = LINE.match(line)
            if match is None:
                continue
            began, call, file = place, match["call"], match["file"]
            if match["resumed"]:
                began, call, file = self.open_calls.pop(match["pid"], (place, "", ""))
            elif "<unfinished ...>" in line:
                self.open_calls[match["pid"]] = (place, call, file or "")
                if "write" not in call and "send" not in call:  # what is being written counts from its beginning
                    continue
            self.note(began, place, call or "", file or "", match["rest"])
        return self

    def note(self, began: int, ended: int, call: str, file: str, rest: str) -> None:
        if call in {"fsync", "fdatasync"} and "-wal" in file:
            self.syncs.append((began, ended))
        elif "POST /api/tasks" in rest:
            self.asked[file] = ended
        elif "HTTP/1.1 201" in rest:
            self.acknowledged += 1
            if not any(start > self.asked[file] for start, _ in self.syncs[-20:]):
                self.unproven.append(rest)


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[RelayProcess]:
    prefix = ["strace", "-f", "-y", "-s", "24", "-e", CALLS, "-o", str(tmp_path / "trace")]
    relay = start_relay(tmp_path, prefix=prefix)
    yield relay
    end(relay)


def finish(traced: RelayProcess) -> Witness:
    (relay,) = psutil.Process(traced.process.pid).children()
    relay.terminate()
    traced.process.wait(WAIT * 2)
    with (traced.home / "trace").open() as lines:
        return Witness().read(lines)


async def submit(http: httpx2.AsyncClient, count: int) -> None:
    for _ in range(count):
        assert (await http.post("/api/tasks", json=task())).status_code == 201


@pytest.mark.parametrize("clients", [1, 8])
async def test_the_log_is_flushed_between_every_submit_and_its_answer(traced: RelayProcess, clients: int) -> None:
    async with client(traced.url) as http, anyio.create_task_group() as group:
        for _ in range(clients):
            group.start_soon(submit, http, REQUESTS // clients)

    witness = finish(traced)

    assert witness.acknowledged == REQUESTS // clients * clients
    assert witness.unproven == []
    assert clients > 1 or len(witness.syncs) >= witness.acknowledged


def test_the_witness_notices_an_answer_before_its_flush() -> None:
    ask = '7 read(9<TCP:[a->b]>, "POST /api/tasks HTTP/1.1"..., 100) = 100'
    answer = '7 write(9<TCP:[a->b]>, "HTTP/1.1 201 Created"..., 10) = 10'
    sync = ["8 fdatasync(5</home/delegate.db-wal> <unfinished ...>", "8 <... fdatasync resumed>) = 0"]

    proven = Witness().read(iter([ask, *sync, answer]))
    too_early = Witness().read(iter([ask, sync[0], answer, sync[1]]))
    for_another_caller = Witness().read(iter([*sync, ask, answer]))

    assert (proven.acknowledged, proven.unproven) == (1, [])
    assert too_early.unproven
    assert for_another_caller.unproven
