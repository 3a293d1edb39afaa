"""What relay and runner hold in memory while nothing happens."""

from __future__ import annotations

import time
from pathlib import Path

from bench.measure import Row
from bench.product import running, wait_for_end

IDLE = 3.0  # seconds
RELAY_MOST_MB, RUNNER_MOST_MB = 110.0, 60.0


def rows() -> list[Row]:
    with running(1) as product:
        connection = product.connect()
        # One task first: what is loaded on first use belongs to the idle memory of a day's work.
        wait_for_end(connection, connection.call("POST", "/api/tasks", product.task_request("true"))["taskId"])
        time.sleep(IDLE)
        info = product.info()
        relay, runner = int(info["pid"]), int(info["runners"][0]["pid"])
        return [
            judged("idle memory, relay", [relay], RELAY_MOST_MB),
            judged("idle memory, runner and spare supervisor", [runner, *children(runner)], RUNNER_MOST_MB),
        ]


def judged(claim: str, pids: list[int], most: float) -> Row:
    """By RSS, which counts shared pages in full: the stricter of the two."""
    resident = [memory_mb(pid, "Rss") for pid in pids]
    proportional = sum(memory_mb(pid, "Pss") for pid in pids)
    parts = f" ({' + '.join(f'{part:.0f}' for part in resident)})" if len(pids) > 1 else ""
    return Row(
        claim=claim,
        ours=f"{sum(resident):.0f} MB RSS{parts}, {proportional:.0f} MB PSS",
        target=f"at most {most:.0f} MB",
        met=sum(resident) <= most,
    )


def memory_mb(pid: int, kind: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"no {kind} of {pid}")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
