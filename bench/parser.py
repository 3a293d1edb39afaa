"""How fast the output of Claude Code is read: captured transcripts, over and over, in the pieces a pipe gives."""

from __future__ import annotations

import json
import statistics
from datetime import timedelta

from bench.measure import Row, seconds
from bench.product import ROOT
from delegate.model import Stream
from delegate.runner.agents import AgentTurn
from delegate.runner.agents.claude_reading import ClaudeReading
from delegate.runner.assignment import Assignment

TRANSCRIPTS = ROOT / "tests" / "fixtures" / "claude"
SIZE = 24_000_000  # bytes in a round
ROUNDS = 5
PIECE = 65_536
LEAST_MB_PER_SECOND = 20.0
TURN = AgentTurn(
    assignment=Assignment(
        attempt_id="att-bench",
        task_id="task-bench",
        fence=1,
        number=1,
        agent="claude",
        prompt="-",
        timeout=timedelta(milliseconds=60_000),
        max_output=1_000_000,
        lineage="task-bench",
    ),
    text="-",
)


def rows() -> list[Row]:
    once = b"".join(path.read_bytes() for path in sorted(TRANSCRIPTS.glob("*.jsonl")))
    data = once * (SIZE // len(once) + 1)
    ours = statistics.median(seconds(lambda: read(data)) for _ in range(ROUNDS))
    floor = statistics.median(seconds(lambda: parse(data)) for _ in range(ROUNDS))
    rate = len(data) / 1e6 / ours
    return [
        Row(
            claim="reading of Claude Code's stream",
            ours=f"{rate:.0f} MB/s",
            against=f"json.loads of each line {len(data) / 1e6 / floor:.0f} MB/s",
            ratio=f"{floor / ours:.2f}",
            target=f"at least {LEAST_MB_PER_SECOND:.0f} MB/s",
            met=rate >= LEAST_MB_PER_SECOND,
        )
    ]


def read(data: bytes) -> None:
    reading = ClaudeReading(TURN)
    for start in range(0, len(data), PIECE):
        reading.feed(Stream.STDOUT, data[start : start + PIECE])


def parse(data: bytes) -> None:
    for line in data.split(b"\n"):
        if line.startswith(b"{"):
            json.loads(line)
