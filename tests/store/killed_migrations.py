"""A program that migrates databases and dies before each statement in turn.

`python killed_migrations.py DIRECTORY MIGRATIONS`: every home `DIRECTORY/N` is prepared by a child that is killed when
it has sent N statements. The last home is the first whose child came to the end.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Engine, event

from delegate.config.paths import Home
from delegate.store import schema

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


def die_before(number: int) -> None:
    left = itertools.count(number, -1)

    @event.listens_for(Engine, "before_cursor_execute")
    def count(*_details: object) -> None:
        if next(left) <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def prepare_until(home: Path, number: int) -> bool:
    child = os.fork()
    if child == 0:
        die_before(number)
        schema.prepare(Home(home), url="", now=NOW)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def main(directory: Path, migrations: Path) -> None:
    schema.MIGRATIONS = migrations
    sample = directory / "sample.db"
    for number in itertools.count():
        home = directory / str(number)
        home.mkdir()
        if sample.exists():
            shutil.copyfile(sample, home / "delegate.db")
        if prepare_until(home, number):
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
