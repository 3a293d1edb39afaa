"""From the pull request to the end of its task: a large tree beside a small one."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Row, median_ms, progress, spread_ms
from bench.origins import Origin, in_memory, origin
from bench.product import Connection, Product, running_in, wait_for_end, wait_until
from bench.start import PAUSE
from bench.workspace import event_time

FEW, MANY = 100, 60_000  # files
REPEATS = 3
MOST_SECONDS = 5.0  # more than with few files
WORK = "echo new >new.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A Delegate with one runner, and the repository that its tasks work on."""

    product: Product
    source: Origin
    connection: Connection

    def seconds_to_end(self) -> float:
        wish = {**self.product.task_request(WORK), "workingDirectory": str(self.source.clone), "pr": True}
        task_id = self.connection.call("POST", "/api/tasks", wish)["taskId"]
        ended = wait_for_end(self.connection, task_id)
        took = event_time(ended, "finished") - event_time(ended, "pull_request")
        wait_until(lambda: not any((self.product.home / "workspaces").iterdir()))  # its rest is removed later
        return took


def rows() -> list[Row]:
    progress(f"ending: {MANY:,} files")
    with in_memory() as place, ExitStack() as stack:
        small, large = (opened(stack, place / str(files), files) for files in (FEW, MANY))
        few: list[float] = []
        many: list[float] = []
        for _ in range(REPEATS):
            few.append(small.seconds_to_end())
            many.append(large.seconds_to_end())
            time.sleep(PAUSE)
    more = (median_ms(many) - median_ms(few)) / 1000
    return [
        Row(
            claim=f"pull request to end of the task, {MANY:,} files",
            ours=spread_ms(many),
            against=f"{FEW} files {spread_ms(few)}",
            ratio=f"{more:+.1f} s",
            target=f"at most +{MOST_SECONDS:.0f} s",
            met=more <= MOST_SECONDS,
        )
    ]


def opened(stack: ExitStack, place: Path, files: int) -> Place:
    place.mkdir()
    source = stack.enter_context(origin(place / "origin", files))
    product = stack.enter_context(running_in(place, 1, **source.environment))
    made = Place(product=product, source=source, connection=product.connect())
    made.seconds_to_end()  # the first one makes the mirror
    return made
