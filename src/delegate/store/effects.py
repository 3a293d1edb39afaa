"""Queries on effects: what attempts announced to do outside Delegate, and the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from delegate.model import Effect, EffectKind, EffectState, TaskId
from delegate.store.tables import effect, from_row

KEY = ("task_id", "kind", "target", "fence")
# Built once: a pull request is four reports.
UPDATE = update(effect).where(*(effect.c[name] == bindparam(f"the_{name}") for name in KEY))
INSERT = insert(effect)


def put_effect(connection: Connection, reported: Effect) -> None:
    """Write the state of one try; a report without an external id keeps the stored one."""
    key = {name: getattr(reported, name) for name in KEY}
    values = {"state": reported.state, "expected": reported.expected}
    if reported.external_id is not None:
        values["external_id"] = reported.external_id
    changed = connection.execute(UPDATE, {**{f"the_{name}": value for name, value in key.items()}, **values})
    if changed.rowcount == 0:
        connection.execute(INSERT, {**key, **values})


def effects_of(connection: Connection, tasks: Sequence[TaskId]) -> list[Effect]:
    """Return the effects in the order in which they were announced."""
    query = select(effect).where(effect.c.task_id.in_(tasks)).order_by(effect.c.id)
    return [to_effect(row) for row in connection.execute(query)]


def to_effect(row: Row[Any]) -> Effect:
    return from_row(Effect, row, kind=EffectKind(row.kind), state=EffectState(row.state))
