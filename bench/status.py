"""`delegate status` in a fresh process, beside the peer's and a bare interpreter."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from bench import peer
from bench.measure import Row, median_ms, seconds, spread_ms
from bench.product import DELEGATE, PYTHON, Product, running, wait_for_end, workplace

TASKS = 20
REPEATS = 31
MOST_OF_PEER = 1 / 3
MOST_OF_FLOOR = 8.0
CLAIM = "`delegate status`, cold"


def rows() -> list[Row]:
    with running(1) as product, workplace() as place:
        fill(product)
        commands = {
            "ours": partial(run, [DELEGATE, "status"], product.environment),
            "floor": partial(run, [PYTHON, "-I", "-c", "pass"], product.environment),
        }
        if peer.version():
            other = peer.Peer(place)
            fill_peer(other)
            commands["peer"] = partial(run, other.command("status"), other.environment)
        samples: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(REPEATS):  # in turn, so that all of them see the same noise
            for name, command in commands.items():
                samples[name].append(seconds(command))
    return [beside_floor(samples), beside_peer(samples)]


def beside_floor(samples: Mapping[str, list[float]]) -> Row:
    ratio = median_ms(samples["ours"]) / median_ms(samples["floor"])
    return Row(
        claim=CLAIM,
        ours=spread_ms(samples["ours"]),
        against=f"python -I -c pass {spread_ms(samples['floor'])}",
        ratio=f"{ratio:.2f}",
        target=f"under {MOST_OF_FLOOR:.0f}",
        met=ratio < MOST_OF_FLOOR,
    )


def beside_peer(samples: Mapping[str, list[float]]) -> Row:
    target = f"at most {MOST_OF_PEER:.2f}"
    if "peer" not in samples:
        return Row(claim=CLAIM, ours=spread_ms(samples["ours"]), against=peer.NONE, target=target)
    ratio = median_ms(samples["ours"]) / median_ms(samples["peer"])
    return Row(
        claim=CLAIM,
        ours=spread_ms(samples["ours"]),
        against=f"beat status {spread_ms(samples['peer'])}",
        ratio=f"{ratio:.2f}",
        target=target,
        met=ratio <= MOST_OF_PEER,
    )


def fill(product: Product) -> None:
    connection = product.connect()
    for _ in range(TASKS):
        wait_for_end(connection, connection.call("POST", "/api/tasks", product.task_request("true"))["taskId"])


def fill_peer(other: peer.Peer) -> None:
    with other.session() as session:
        for _ in range(TASKS):
            session.submit("true")


def run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    quiet = subprocess.DEVNULL
    subprocess.run(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, check=True)
