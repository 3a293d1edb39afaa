"""Turns for Codex, as an attempt would make them."""

from __future__ import annotations

from delegate.model import Usage
from delegate.runner.agents import AgentTurn, Roots
from delegate.runner.assignment import assignment_of
from delegate.wire.runners import AssignmentView

SESSION = "01a1de09-0500-7542-8d98-040d611df614"


def codex_turn(
    text: str = "Do the task.",
    *,
    session: str | None = None,
    workspace: Roots | None = None,
    spent: Usage | None = None,
    **fields: object,
) -> AgentTurn:
    basis = {
        "attempt_id": "att-0123456789abcdef",
        "task_id": "task-0123456789",
        "lineage": "task-0123456789",
        "fence": 1,
        "number": 1,
        "agent": "codex",
        "prompt": text,
        "timeout_ms": 1_800_000,
        "max_output": 1_048_576,
    }
    assignment = assignment_of(AssignmentView.model_validate({**basis, **fields}))
    return AgentTurn(assignment=assignment, text=text, session=session, workspace=workspace, spent=spent or Usage())
