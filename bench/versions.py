"""`python -m bench.versions OTHER`: compares this checkout with another one, run by run in alternation.

OTHER is the root of a checkout whose `make install` has run. Prints the median ratio of each pair of runs, and how many
modules each program imports.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import peer
from bench.measure import Row, beside, progress, seconds, table
from bench.product import PATIENCE, Product, wait_for_end, wait_until, workplace
from bench.start import PAUSE, Bell

PAIRS = 100
MOST = 1.05
Measurement = Callable[["Version"], float]


class Version(Product):
    """One checkout with a home of its own."""

    def __init__(self, root: Path, place: Path) -> None:
        super().__init__(place)
        self.python = str(root / ".venv" / "bin" / "python")
        self.delegate = str(root / ".venv" / "bin" / "delegate")
        self.supervisor = next((root / "src" / "delegate" / "runner").rglob("supervisor.py"))
        self.bell = Bell(self.work)
        self.environment["PYTHONPATH"] = ""

    def command(self, *words: str) -> str:
        return self.run(self.delegate, *words)

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env=self.environment, cwd=self.work, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        return done.stdout


def status(version: Version) -> float:
    return seconds(lambda: version.command("status"))


def initialize(version: Version) -> float:
    began = time.perf_counter()
    with peer.mcp_server([version.delegate, "mcp", "start"], version.environment, version.work) as process:
        peer.Session(process, version.work, agent="shell")
        return time.perf_counter() - began


def supervisor(version: Version) -> float:
    """From its start to its exit, which follows at once because its control socket is not open."""
    argv = [version.python, "-I", "-S", str(version.supervisor)]
    quiet = subprocess.DEVNULL
    return seconds(lambda: subprocess.run(argv, stdin=quiet, stdout=quiet, stderr=quiet, check=False))


def runner(version: Version) -> float:
    """From the start of a runner to the start of the task that waits for it."""
    wait_until(lambda: not version.info()["runners"])  # another runner would take the task
    connection = version.connect()
    task_id = connection.call("POST", "/api/tasks", version.task_request(version.bell.ring))["taskId"]
    argv = [version.python, "-P", "-m", "delegate.runner", "--slot", "9", "--relay-url", f"http://{connection.host}"]
    quiet = subprocess.DEVNULL
    began = time.perf_counter()
    with subprocess.Popen(argv, env=version.environment, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as process:
        took = version.bell.wait() - began
        wait_for_end(connection, task_id)
        process.terminate()
        process.communicate(timeout=PATIENCE)
    return took


def submit(version: Version) -> float:
    connection = version.connect()
    time.sleep(PAUSE)
    began = time.perf_counter()
    connection.send("POST", "/api/tasks", version.task_request(version.bell.ring))
    took = version.bell.wait() - began
    wait_for_end(connection, connection.receive()["taskId"])
    return took


IDLE: dict[str, Measurement] = {
    "runner, start to its first task": runner,
    "`delegate status`, cold": status,
    "bridge, spawn to `initialize` answered": initialize,
    "supervisor, start to end": supervisor,
}
BUSY: dict[str, Measurement] = {"submit to start of the agent": submit}
IMPORTS = {
    "delegate status": ("-m", "delegate", "status"),
    "bridge": ("-c", "import delegate.entry, delegate.mcp_bridge.run"),
    "runner": ("-c", "import delegate.runner.__main__"),
    "relay": ("-c", "import delegate.relay.__main__"),
}


def compare(claim: str, measure: Measurement, versions: Sequence[Version], pairs: int) -> Row:
    progress(claim)
    samples: list[list[float]] = [[], []]
    for turn in range(pairs):
        for index in ((0, 1), (1, 0))[turn % 2]:
            samples[index].append(measure(versions[index]))
    return beside(claim, samples[0], samples[1], "other", MOST)


def imported_modules(version: Version, arguments: Sequence[str]) -> int:
    done = subprocess.run(
        [version.python, "-X", "importtime", *arguments],
        env=version.environment,
        cwd=version.work,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return sum(line.startswith("import time:") for line in done.stderr.splitlines())


def supervisor_modules(version: Version) -> int:
    return imported_modules(version, ("-I", "-S", str(version.supervisor)))


def modules_row(name: str, ours: int, others: int) -> Row:
    return Row(
        claim=f"modules imported: {name}",
        ours=str(ours),
        against=f"other {others}",
        ratio=f"{ours / others:.2f}",
        target="not more",
        met=ours <= others,
    )


def rows(other: Path, pairs: int) -> list[Row]:
    found: list[Row] = []
    with workplace() as place, ExitStack() as stack:
        versions = [Version(Path.cwd(), place / "this"), Version(other, place / "other")]
        for version in versions:
            stack.callback(version.down)
            version.up(0)  # before the first command: that would start a relay with a pool of runners
        for name, arguments in IMPORTS.items():
            found.append(modules_row(name, *(imported_modules(one, arguments) for one in versions)))
        found.append(modules_row("supervisor", *(supervisor_modules(one) for one in versions)))
        found += [compare(claim, measure, versions, pairs) for claim, measure in IDLE.items()]
        for version in versions:
            version.down()
            version.up(1)
        found += [compare(claim, measure, versions, pairs) for claim, measure in BUSY.items()]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.versions", description=__doc__)
    parser.add_argument("other", type=Path, metavar="OTHER")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(table(rows(arguments.other.resolve(), arguments.pairs)))
    print(f"\n{arguments.pairs} pairs, load {load:.1f} before they began")
    return 0


if __name__ == "__main__":
    sys.exit(main())
