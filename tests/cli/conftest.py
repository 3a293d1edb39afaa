"""A home of its own for every test; the home is short, because messages show it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.scripted_relay import Asked, Run, ScriptedRelay
from tests.fakes.world import World, living

from delegate.cli.main import main


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """A command, and a relay that gives one answer to it."""

    def run(reply: bytes, *words: str) -> tuple[int, list[Asked]]:
        with ScriptedRelay([reply]) as relay:
            monkeypatch.setenv("DELEGATE_RELAY_URL", relay.url)
            monkeypatch.setenv("DELEGATE_TOKEN", "secret")
            monkeypatch.setenv("DELEGATE_HOME", str(tmp_path / "home"))
            monkeypatch.chdir(tmp_path)
            return main(words), relay.asked

    return run


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
    root = Path(tempfile.mkdtemp(prefix="delegate-test-"))
    try:
        with living(root / "home", COLUMNS="100", TZ="UTC") as own:
            yield own
    finally:
        shutil.rmtree(root)
