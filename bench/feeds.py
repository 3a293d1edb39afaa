"""How long a short request waits while a crowd that does not read holds feeds of all tasks open."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import create_engine, insert

from bench.claim import CHUNK, task_row
from bench.measure import Row, median_ms, progress
from bench.product import Connection, Product, running_in, workplace
from delegate.config.paths import Home
from delegate.model import EventKind
from delegate.store.schema import prepare
from delegate.store.tables import event_table, task

EVENTS = 50_000  # some 15 MB: more than the buffers of a connection hold
CROWD = 100
ROUNDS = 4
REQUESTS = 500  # in a round
PAUSE = 0.004  # seconds between two requests
READ_FIRST = 65_536  # bytes that each of the crowd reads before it stops
MOST = 3.0


def rows() -> list[Row]:
    progress(f"feeds: {EVENTS:,} events, {CROWD} clients that do not read")
    crowded: list[float] = []
    alone: list[float] = []
    with workplace() as place:
        fill(place / "home")
        with running_in(place, 0) as product, closing_connection(product) as connection:
            waits(connection)
            for _ in range(ROUNDS):
                alone += waits(connection)
                with crowd(product):
                    crowded += waits(connection)
    ratio = p99(crowded) / p99(alone)
    return [
        Row(
            claim=f"p99 of /healthz, {CROWD} feeds that nobody reads",
            ours=shown(crowded),
            against=f"without them {shown(alone)}",
            ratio=f"{ratio:.2f}",
            target=f"at most {MOST:.0f}",
            met=ratio <= MOST,
        )
    ]


def fill(place: Path) -> None:
    """A history as a busy month leaves it."""
    now = datetime.now(UTC)
    place.mkdir(mode=0o700)
    home = Home(place)
    prepare(home, url="", now=now)
    only = task_row(0, now)
    words = {"text": "I looked at the module, and changed the function that the test calls. " * 3}
    event = {"task_id": only["id"], "kind": EventKind.MESSAGE, "at": now, "data": words}
    engine = create_engine(f"sqlite:///{home.database}")
    with engine.begin() as connection:
        connection.execute(insert(task), only)
        for _ in range(0, EVENTS, CHUNK):
            connection.execute(insert(event_table), [event] * CHUNK)
    engine.dispose()


@contextmanager
def closing_connection(product: Product) -> Iterator[Connection]:
    connection = product.connect()
    with closing(connection.socket):
        yield connection


@contextmanager
def crowd(product: Product) -> Iterator[None]:
    with ExitStack() as stack:
        feeds = [stack.enter_context(closing_connection(product)) for _ in range(CROWD)]
        for feed in feeds:
            feed.send("GET", "/api/events")
        for feed in feeds:
            left = READ_FIRST
            while left > 0:
                left -= len(feed.socket.recv(left)) or left
        yield


def waits(connection: Connection) -> list[float]:
    samples = []
    for _ in range(REQUESTS):
        time.sleep(PAUSE)
        began = time.perf_counter()
        connection.call("GET", "/healthz")
        samples.append(time.perf_counter() - began)
    return samples


def p99(samples: Sequence[float]) -> float:
    return sorted(samples)[int(len(samples) * 0.99)]


def shown(samples: Sequence[float]) -> str:
    return f"{p99(samples) * 1000:.1f} ms (median {median_ms(samples):.1f})"
