from __future__ import annotations

import pytest
from tests.both_databases.clockwork import Clockwork
from tests.both_databases.scene import Scene

from delegate.store.database import Database


@pytest.fixture
def scene(database: Database) -> Scene:
    return Scene(database)


@pytest.fixture
def clock(scene: Scene) -> Clockwork:
    return Clockwork(scene)
