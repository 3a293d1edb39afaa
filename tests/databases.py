"""Both databases as tests meet them: a file in a home, or an address in a PostgreSQL of the test session."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from delegate.config.paths import Home
from delegate.store.linear import tables as linear_tables
from delegate.store.tables import metadata


@dataclass(slots=True)
class Postgres:
    """A server of this test session; databases in it are cheap."""

    uri: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def url_of(self, name: str) -> str:
        return self.uri.replace("/postgres?", f"/{name}?")

    def run(self, statement: str) -> None:
        run(self.uri, statement)

    def new_database(self) -> str:
        name = f"delegate_{next(self.numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return name


@dataclass(frozen=True, slots=True)
class Place:
    """Where a prepared and empty database is."""

    home: Home
    url: str

    def empty_again(self, sample: Path) -> None:
        """Without any row; `sample` is a copy of the file as it was when it was new."""
        if self.url:
            empty(self.url)
            return
        for suffix in ("-wal", "-shm"):
            self.home.database.with_name(self.home.database.name + suffix).unlink(missing_ok=True)
        shutil.copyfile(sample, self.home.database)


assert linear_tables.inbox.name in metadata.tables  # all tables are defined once both modules are imported


def empty(url: str) -> None:
    run(url, f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY")


def run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())
