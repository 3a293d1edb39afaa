"""`python -m bench [NAME…]`: measure, then print one table. It judges, but never fails: noise is no defect."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from importlib import import_module

from bench import peer
from bench.measure import Row, progress, table

BENCHES = (
    "status",
    "start",
    "submits",
    "mcp",
    "claim",
    "memory",
    "output",
    "parser",
    "workspace",
    "publish",
    "delivery",
    "ending",
    "pages",
    "feeds",
    "firing",
    "graph",
    "pool",
    "linear",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(BENCHES)}; all if not said")
    names = parser.parse_args().names or BENCHES
    if unknown := set(names) - set(BENCHES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    load = os.getloadavg()[0]
    rows = [row for name in names for row in measured(name)]
    print(
        f"\nPython {platform.python_version()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        end="",
    )
    print(f", load {load:.1f} before it began; peer: autobeat {peer.version() or 'not installed'}.")
    print("Medians; all that a row compares ran in turn. With others at work on the machine only the ratios tell.\n")
    print(table(rows))
    return 0


def measured(name: str) -> list[Row]:
    progress(name)
    began = time.monotonic()
    try:
        rows: list[Row] = import_module(f"bench.{name}").rows()
    except Exception as error:  # the others are still worth having
        why = f"{type(error).__name__}: {error}".replace("|", "/").replace("\n", " ")[:160]
        return [Row(claim=name, ours="could not be measured", against=why, target="-")]
    progress(f"{name} took {time.monotonic() - began:.0f} s")
    return rows


if __name__ == "__main__":
    sys.exit(main())
