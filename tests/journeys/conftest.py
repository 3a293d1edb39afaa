from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.github import github as github
from tests.fakes.world import World, living


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A home without anything running: the first command starts the relay."""
    with living(tmp_path / "home") as made:
        yield made
