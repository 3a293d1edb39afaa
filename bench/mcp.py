"""`delegate mcp start` beside the peer's MCP server: how soon it answers, what it holds, and how fast it takes tasks.

The peer does not flush its tasks to disk; ours are there before the answer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from bench import peer
from bench.measure import Row, beside, seconds, spread_ms
from bench.memory import memory_mb
from bench.product import DELEGATE, Product, running, workplace

STARTS = 15
ROUNDS = 5
COUNT = 200  # submits in a round
MOST_OF_PEERS_START, MOST_MB = 0.25, 15.0
MOST_CALL_MS = 10.0
LEAST_OF_PEERS_RATE = 0.4
Server = Callable[[], AbstractContextManager[peer.Session]]


def rows() -> list[Row]:
    with running(0) as product, workplace() as place:
        other = peer.Peer(place) if peer.version() else None
        with session(product):
            pass  # the relay loads what it needs for MCP when somebody comes
        return [*starts(product, other), *submits(product, other)]


@contextmanager
def session(product: Product) -> Iterator[peer.Session]:
    """The bridge to a relay that is up, initialised."""
    with peer.mcp_server([DELEGATE, "mcp", "start"], product.environment, product.work) as process:
        yield peer.Session(process, product.work, agent="shell")


def starts(product: Product, other: peer.Peer | None) -> list[Row]:
    ours: list[float] = []
    theirs: list[float] = []
    held: list[float] = []
    held_by_other: list[float] = []
    for _ in range(STARTS):
        started(lambda: session(product), ours, held)
        if other is not None:
            started(other.session, theirs, held_by_other)
    claim = "MCP: from spawn to `initialize` answered"
    answered = (
        beside(claim, ours, theirs, "peer", MOST_OF_PEERS_START)
        if theirs
        else Row(claim=claim, ours=spread_ms(ours), against=peer.NONE, target=f"at most {MOST_OF_PEERS_START}")
    )
    return [answered, memory(held, held_by_other)]


def started(server: Server, times: list[float], held: list[float]) -> None:
    began = time.perf_counter()
    with server() as opened:
        times.append(time.perf_counter() - began)
        held.append(memory_mb(opened.pid, "Rss"))


def memory(held: Sequence[float], held_by_other: Sequence[float]) -> Row:
    ours = max(held)
    theirs = statistics.median(held_by_other) if held_by_other else None
    return Row(
        claim="MCP: memory of the server a client starts",
        ours=f"{ours:.1f} MB RSS",
        against=f"peer {theirs:.0f} MB" if theirs else peer.NONE,
        ratio=f"{ours / theirs:.2f}" if theirs else "",
        target=f"under {MOST_MB:.0f} MB",
        met=ours < MOST_MB,
    )


def submits(product: Product, other: peer.Peer | None) -> list[Row]:
    alone: list[float] = []
    rates: dict[str, list[float]] = {"one at a time": [], "pipelined": []}
    others: dict[str, list[float]] = {"one at a time": [], "pipelined": []}
    with ExitStack() as stack:
        ours = stack.enter_context(session(product))
        theirs = stack.enter_context(other.session()) if other is not None else None
        ours.submit("true")
        for _ in range(ROUNDS):  # in turn, so that both see the same noise
            calls = [seconds(lambda: ours.submit("true")) for _ in range(COUNT)]
            alone += calls
            rates["one at a time"].append(COUNT / sum(calls))
            rates["pipelined"].append(COUNT / seconds(lambda: ours.submit_all("true", COUNT)))
            if theirs is not None:
                others["one at a time"].append(COUNT / seconds(lambda: one_by_one(theirs)))
                others["pipelined"].append(COUNT / seconds(lambda: theirs.submit_all("true", COUNT)))
    return [call(alone), *(rate(way, rates[way], others[way]) for way in rates)]


def one_by_one(session: peer.Session) -> None:
    for _ in range(COUNT):
        session.submit("true")


def call(samples: Sequence[float]) -> Row:
    middle = statistics.median(samples) * 1000
    return Row(
        claim="MCP: one durable DelegateTask",
        ours=spread_ms(samples),
        target=f"under {MOST_CALL_MS:.0f} ms",
        met=middle < MOST_CALL_MS,
    )


def rate(way: str, ours: Sequence[float], others: Sequence[float]) -> Row:
    middle = statistics.median(ours)
    ratio = statistics.median(one / other for one, other in zip(ours, others, strict=True)) if others else None
    judged = way == "one at a time"
    return Row(
        claim=f"MCP: DelegateTask, {way}",
        ours=f"{middle:.0f}/s",
        against=f"peer, not flushed {statistics.median(others):.0f}/s" if others else peer.NONE,
        ratio=f"{ratio:.2f}" if ratio else "",
        target=f"at least {LEAST_OF_PEERS_RATE}" if judged else "",
        met=ratio >= LEAST_OF_PEERS_RATE if ratio and judged else None,
    )
