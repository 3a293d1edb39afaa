"""Ends a PostgreSQL whose tests were killed before they could: `python postgres_watch.py DIRECTORY`.

The tests hold the other end of its stdin, so that their end, whatever it is, ends the wait. When they have cleaned up
themselves, the directory is gone and nothing is left to do.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 10.0


def stop(directory: Path) -> None:
    """An immediate shutdown: the data is thrown away anyway."""
    server = int((directory / "postmaster.pid").read_text().splitlines()[0])
    deadline = time.monotonic() + PATIENCE
    os.kill(server, signal.SIGQUIT)
    while time.monotonic() < deadline:
        os.kill(server, 0)
        time.sleep(0.05)
    os.kill(server, signal.SIGKILL)


def main(directory: Path) -> None:
    sys.stdin.read()
    with suppress(OSError, ValueError, IndexError):
        stop(directory)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
