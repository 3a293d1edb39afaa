"""Much output of one agent, through runner and relay to the disk, and the memory it takes on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import Row, seconds
from bench.memory import memory_mb
from bench.product import Connection, Product, running, wait_for_end

MB = 1_000_000
WARM_UP, MUCH = 10 * MB, 100 * MB
KEEP_ALL = str(1024 * 1024 * 1024)
SAMPLE_EVERY = 0.02  # seconds
# Memory is flat when ten times the output takes the same room; buffers and the allocator's fragments are no growth.
FLAT_MB = 16.0
LINE = "The quick brown fox jumps over the lazy dog, and writes down 64 bytes."


class Peak:
    """The most memory that some processes held while it was watching."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self.most = self.now()

    def now(self) -> dict[str, float]:
        return {name: memory_mb(pid, "Rss") for name, pid in self.pids.items()}

    @contextmanager
    def watching(self) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(SAMPLE_EVERY):
                self.most = {name: max(self.most[name], held) for name, held in self.now().items()}

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def rows() -> list[Row]:
    with running(1, DELEGATE_MAX_OUTPUT_BUFFER=KEEP_ALL) as product:
        info = product.info()
        pids = {"relay": int(info["pid"]), "runner": int(info["runners"][0]["pid"])}
        connection = product.connect()
        before = Peak(pids)
        with before.watching():
            print_much(product, connection, WARM_UP)
        during = Peak(pids)
        with during.watching():
            took = seconds(lambda: print_much(product, connection, MUCH))
    return [throughput(took), *(growth(name, before.most[name], during.most[name]) for name in pids)]


def print_much(product: Product, connection: Connection, size: int) -> None:
    wish = product.task_request(f"yes '{LINE}' | head -c {size}")
    detail = wait_for_end(connection, connection.call("POST", "/api/tasks", wish)["taskId"])
    kept = detail["attempts"][-1]["outputBytes"] - detail["attempts"][-1]["truncatedBytes"]
    if kept != size:
        raise RuntimeError(f"{kept} of {size} bytes arrived")


def throughput(took: float) -> Row:
    return Row(claim=f"{MUCH // MB} MB of output, to the relay's disk", ours=f"{MUCH / MB / took:.1f} MB/s")


def growth(name: str, before: float, during: float) -> Row:
    return Row(
        claim=f"memory of the {name} with {MUCH // MB} MB of output",
        ours=f"{during:.0f} MB RSS at most",
        against=f"with {WARM_UP // MB} MB of output {before:.0f} MB",
        ratio=f"{during - before:+.0f} MB",
        target=f"flat: at most +{FLAT_MB:.0f} MB",
        met=during - before <= FLAT_MB,
    )
