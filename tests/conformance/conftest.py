from __future__ import annotations

import pytest
from tests.conformance.scene import Scene

from delegate.store.database import Database


@pytest.fixture
def scene(database: Database) -> Scene:
    return Scene(database)
