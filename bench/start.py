"""From a submit to the moment the agent's program runs: one task, and bursts of five."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Row, median_ms, spread_ms
from bench.product import PATIENCE, PYTHON, Product, running, wait_for_end, workplace
from delegate.runner.agents.shell import BOOTSTRAP, SHELL

REPEATS = 40
BURST = 5
BURSTS = 12
COLD_BURSTS = 5
ABOVE_DIRECT_MS = 12.0
IDLE_BURST_MS = 100.0
COLD_BURST_MS = 1000.0
PAUSE = 0.3  # seconds for a runner to get its next supervisor ready; nobody submits faster by hand
HOLD = 0.5  # seconds a task of a burst lasts, so that no runner takes two of them


class Bell:
    """A named pipe that a started program rings: the shell does it itself, without another program."""

    def __init__(self, place: Path) -> None:
        self.path = place / "bell"
        os.mkfifo(self.path)
        self._descriptor = os.open(self.path, os.O_RDWR)

    @property
    def ring(self) -> str:
        return f"echo >'{self.path}'"

    def wait(self, times: int = 1) -> float:
        """The moment of the last ring."""
        heard = 0
        while heard < times:
            if not select.select([self._descriptor], [], [], PATIENCE)[0]:
                raise TimeoutError("the program did not start")
            heard += len(os.read(self._descriptor, times - heard))
        return time.perf_counter()


def rows() -> list[Row]:
    return [*single(), idle_burst(), cold_burst(), cold_everything()]


def single() -> list[Row]:
    with running(1) as product:
        bell = Bell(product.work)
        connection = product.connect()
        ours, direct = [], []
        for _ in range(REPEATS):
            direct.append(spawn_directly(bell))
            time.sleep(PAUSE)
            began = time.perf_counter()
            connection.send("POST", "/api/tasks", product.task_request(bell.ring))
            ours.append(bell.wait() - began)
            wait_for_end(connection, connection.receive()["taskId"])
            time.sleep(PAUSE)
    above = median_ms(ours) - median_ms(direct)
    return [
        Row(
            claim="submit to start of the agent",
            ours=spread_ms(ours),
            against=f"the same program spawned directly {spread_ms(direct)}",
            ratio=f"+{above:.1f} ms",
            target=f"at most +{ABOVE_DIRECT_MS:.0f} ms",
            met=above <= ABOVE_DIRECT_MS,
        )
    ]


def spawn_directly(bell: Bell) -> float:
    """What the runner's supervisor starts for a shell task, without all that stands around it."""
    command = f"{bell.ring}#direct".encode()
    environment = {**os.environ, "DELEGATE_ATTEMPT_ID": "direct"}
    pipe = subprocess.PIPE
    began = time.perf_counter()
    with subprocess.Popen(
        [SHELL, "-c", BOOTSTRAP, "sh"], stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    ) as child:
        assert child.stdin is not None
        child.stdin.write(command)
        child.stdin.close()
        return bell.wait() - began


def idle_burst() -> Row:
    with running(BURST) as product:
        bell = Bell(product.work)
        samples = []
        for _ in range(BURSTS):
            time.sleep(PAUSE)
            samples.append(burst(product, bell))
            product.wait_for_idle(BURST)
    return judged_burst(f"burst of {BURST}, runners idle", samples, IDLE_BURST_MS)


def burst(product: Product, bell: Bell) -> float:
    connections = [product.connect() for _ in range(BURST)]
    began = time.perf_counter()
    for connection in connections:
        connection.send("POST", "/api/tasks", product.task_request(f"{bell.ring}; sleep {HOLD}"))
    took = bell.wait(BURST) - began
    for connection in connections:
        connection.receive()
    return took


def cold_burst() -> Row:
    """The relay is up, and the runners start as its keeper would start them, when the tasks are already there."""
    samples = []
    for _ in range(COLD_BURSTS):
        with running(0) as product:
            bell = Bell(product.work)
            connection = product.connect()
            for _ in range(BURST):
                connection.call("POST", "/api/tasks", product.task_request(f"{bell.ring}; sleep {HOLD}"))
            began = time.perf_counter()
            with runners(product):
                samples.append(bell.wait(BURST) - began)
                product.wait_for_idle(BURST)
    return judged_burst(f"burst of {BURST}, runners start first", samples, COLD_BURST_MS)


@contextmanager
def runners(product: Product) -> Iterator[None]:
    url = f"http://{product.connect().host}"
    started = [
        subprocess.Popen(
            [PYTHON, "-P", "-m", "delegate.runner", "--slot", str(slot), "--relay-url", url],
            env=product.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for slot in range(1, BURST + 1)
    ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.communicate(timeout=PATIENCE)


def cold_everything() -> Row:
    samples = []
    for _ in range(COLD_BURSTS):
        with workplace() as place:
            product = Product(place)
            bell = Bell(product.work)
            product.up(0)
            connection = product.connect()
            for _ in range(BURST):
                connection.call("POST", "/api/tasks", product.task_request(f"{bell.ring}; sleep {HOLD}"))
            product.down()
            began = time.perf_counter()
            try:
                product.command("up", "--runners", str(BURST))
                samples.append(bell.wait(BURST) - began)
                product.wait_for_idle(BURST)
            finally:
                product.down()
    return Row(claim=f"burst of {BURST}, `delegate up` and all", ours=spread_ms(samples))


def judged_burst(claim: str, samples: Sequence[float], most_ms: float) -> Row:
    return Row(
        claim=claim,
        ours=spread_ms(samples),
        target=f"within {most_ms:.0f} ms",
        met=median_ms(samples) <= most_ms,
    )
