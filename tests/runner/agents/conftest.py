from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from delegate.wire import Assignment


@pytest.fixture
def new_assignment() -> Callable[..., Assignment]:
    def make(**fields: object) -> Assignment:
        basis = {
            "attempt_id": "att-0123456789abcdef",
            "task_id": "task-0123456789",
            "fence": 1,
            "number": 1,
            "agent": "claude",
            "prompt": "Do the task.",
            "timeout_ms": 1_800_000,
            "max_output": 1_048_576,
        }
        return Assignment.model_validate({**basis, **fields})

    return make


@pytest.fixture(scope="session")
def captures() -> Path:
    return Path(__file__).parents[2] / "fixtures" / "claude"


@pytest.fixture
def now() -> datetime:
    """Shortly before the limits in the captures reset."""
    return datetime(2026, 11, 15, 8, 0, tzinfo=UTC)
