from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from tests.relay.peers import RelayProcess, Runner, client, end, runner_of, running_relay, start_relay


@pytest.fixture(scope="session")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """One relay for all tests that leave each other alone; each runner has a machine of its own."""
    with running_relay(tmp_path_factory.mktemp("relay")) as started:
        yield started


@pytest.fixture
def own_relay(tmp_path: Path) -> Iterator[RelayProcess]:
    """A relay for tests that stop it, count in it, or compare what it has on disk."""
    started = start_relay(tmp_path)
    yield started
    end(started)


@pytest.fixture(scope="session")
def postgres_relay(postgres: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    url = postgres.url_of(postgres.new_database())  # type: ignore[attr-defined]
    with running_relay(tmp_path_factory.mktemp("relay"), DELEGATE_DATABASE_URL=url) as started:
        yield started


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real)])
def either_relay(request: pytest.FixtureRequest) -> RelayProcess:
    """The same behaviour is expected on both databases."""
    found: RelayProcess = request.getfixturevalue("relay" if request.param == "sqlite" else "postgres_relay")
    return found


@pytest.fixture
async def owner(relay: RelayProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with client(relay.url) as http:
        yield http


@pytest.fixture
async def runner(owner: httpx2.AsyncClient) -> AsyncIterator[Runner]:
    async with runner_of(owner) as registered:
        yield registered
