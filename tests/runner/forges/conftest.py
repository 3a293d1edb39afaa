from __future__ import annotations

from collections.abc import Iterator

import pytest
import stamina
from tests.fakes.github import GitHub
from tests.fakes.github import github as github
from tests.runner.forges.scene import Scene, scene_of

from delegate.runner.forges.base import TRIES


@pytest.fixture
def scene(github: GitHub) -> Iterator[Scene]:
    stamina.set_testing(True, attempts=TRIES)  # the same tries, without the pauses
    yield scene_of(github)
    stamina.set_testing(False)
