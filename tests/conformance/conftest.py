from __future__ import annotations

import pytest
from tests.conformance.clockwork import Clockwork
from tests.conformance.scene import Scene

from delegate.store.database import Database


@pytest.fixture
def scene(database: Database) -> Scene:
    return Scene(database)


@pytest.fixture
def clock(scene: Scene) -> Clockwork:
    return Clockwork(scene)
