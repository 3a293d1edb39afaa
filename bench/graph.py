"""How long a task of a chain of 60 waits after the one before it has ended, beside tasks that wait for nothing."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

from bench.measure import Row, median_ms, spread_ms
from bench.product import Connection, Product, running, wait_for_end

LENGTH = 60


def rows() -> list[Row]:
    with running(1) as product:
        connection = product.connect()
        free = submitted(connection, product, chained=False)
        chain = submitted(connection, product, chained=True)
    return [
        Row(
            claim=f"from an end to the next start, chain of {LENGTH}",
            ours=spread_ms(gaps(chain)),
            against=f"independent tasks {spread_ms(gaps(free))}",
            ratio=f"{median_ms(gaps(chain)) / median_ms(gaps(free)):.2f}",
            target="no visible delay",
        )
    ]


def submitted(connection: Connection, product: Product, *, chained: bool) -> list[dict[str, Any]]:
    """One batch; the details of all its tasks when the last one has ended."""
    entries = []
    for number in range(LENGTH):
        before = [f"n{number - 1}"] if chained and number else []
        entries.append({**product.task_request("true"), "name": f"n{number}", "dependsOn": before})
    made = connection.call("POST", "/api/tasks/batch", {"tasks": entries})["tasks"]
    return [wait_for_end(connection, task["taskId"])["task"] for task in made]


def gaps(tasks: list[dict[str, Any]]) -> list[float]:
    """Seconds; one runner takes them in turn, chained or not."""
    moments = [(moment(task["startedAt"]), moment(task["finishedAt"])) for task in tasks]
    ordered = sorted(moments)
    return [(later[0] - earlier[1]).total_seconds() for earlier, later in pairwise(ordered)]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
