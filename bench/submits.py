"""Durable submits over HTTP, beside the peer's over MCP, which it does not flush to disk."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench import peer
from bench.measure import Row, seconds
from bench.product import PATIENCE, PYTHON, ROOT, Product, running, workplace

ROUNDS = 5
COUNT = 600  # submits in a round
CLIENTS = 8  # rate and latency are judged with these
CROWD = 16  # shown beside them: one writer takes more from many
LEAST_OF_PEER = 1.5
MOST_LATENCY_MS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    rate: float  # submits a second
    mean: float  # seconds from a request to its answer


def rows() -> list[Row]:
    alone: list[Load] = []
    together: list[Load] = []
    crowded: list[Load] = []
    others: list[float] = []
    with running(0) as product, workplace() as place, ExitStack() as stack:
        session = stack.enter_context(peer.Peer(place).session()) if peer.version() else None
        load(product, 1)
        for _ in range(ROUNDS):  # in turn, so that all of them see the same noise
            alone.append(load(product, 1))
            together.append(load(product, CLIENTS))
            crowded.append(load(product, CROWD))
            if session is not None:
                others.append(peer_rate(session))
    return [*rates({CROWD: crowded, CLIENTS: together, 1: alone}, others), latency(together)]


def rates(by_clients: Mapping[int, Sequence[Load]], others: Sequence[float]) -> list[Row]:
    theirs = statistics.median(others) if others else None
    found = []
    for clients, loads in by_clients.items():
        claim = f"durable submits, {clients} clients" if clients > 1 else "durable submits, 1 client"
        ours = statistics.median(load.rate for load in loads)
        ratio = ours / theirs if theirs else None
        judged = clients == CLIENTS
        found.append(
            Row(
                claim=claim,
                ours=f"{ours:.0f}/s",
                against=f"MCP, one at a time, not flushed {theirs:.0f}/s" if theirs else peer.NONE,
                ratio=f"{ratio:.2f}" if ratio else "",
                target=f"at least {LEAST_OF_PEER}" if judged else "",
                met=ratio >= LEAST_OF_PEER if ratio and judged else None,
            )
        )
    return found


def latency(loads: Sequence[Load]) -> Row:
    mean = statistics.median(load.mean for load in loads) * 1000
    return Row(
        claim=f"mean latency of a submit, {CLIENTS} clients",
        ours=f"{mean:.1f} ms",
        target=f"under {MOST_LATENCY_MS:.0f} ms",
        met=mean < MOST_LATENCY_MS,
    )


def load(product: Product, clients: int) -> Load:
    url = f"http://{product.connect().host}"
    done = subprocess.run(
        [PYTHON, "-m", "bench.load", url, str(clients), str(COUNT)],
        input=f"{product.token}\n{json.dumps(product.task_request('true'))}\n",
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return Load(**json.loads(done.stdout))


def peer_rate(session: peer.Session) -> float:
    def submit_all() -> None:
        for _ in range(COUNT):
            session.submit("true")

    return COUNT / seconds(submit_all)
