from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from delegate.model import Usage
from delegate.runner.agents import AgentTurn, Roots
from delegate.runner.assignment import Assignment, assignment_of
from delegate.wire.runners import AssignmentView


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
            "lineage": "task-0123456789",
        }
        return assignment_of(AssignmentView.model_validate({**basis, **fields}))

    return make


@pytest.fixture
def new_turn(new_assignment: Callable[..., Assignment]) -> Callable[..., AgentTurn]:
    """The first turn of an attempt, unless its parts are given; all other fields are the assignment's."""

    def make(
        *,
        text: str | None = None,
        session: str | None = None,
        workspace: Roots | None = None,
        spent: Usage | None = None,
        **fields: object,
    ) -> AgentTurn:
        assignment = new_assignment(**fields)
        words = assignment.prompt if text is None else text
        return AgentTurn(
            assignment=assignment, text=words, session=session, workspace=workspace, spent=spent or Usage()
        )

    return make


@pytest.fixture(scope="session")
def captures() -> Path:
    return Path(__file__).parents[2] / "fixtures" / "claude"


@pytest.fixture
def now() -> datetime:
    """Shortly before the limits in the captures reset."""
    return datetime(2026, 11, 15, 8, 0, tzinfo=UTC)
