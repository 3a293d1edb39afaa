"""Queries on runners, and on the time when the relay was last alive."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from delegate.model import Runner, RunnerId
from delegate.store.tables import relay, runner

RELAY = "relay"
# Built once: every request of a runner needs them.
OF_ID = select(runner).where(runner.c.id == bindparam("which"))
OF_TOKEN = select(runner).where(runner.c.token_hash == bindparam("hash"))
TOUCH = update(runner).where(runner.c.id == bindparam("which"))
SEEN_AT = select(relay.c.seen_at).where(relay.c.name == RELAY)
ALL = select(runner).order_by(runner.c.name, runner.c.id)


def put_runner(connection: Connection, new: Runner, *, token_hash: str) -> None:
    """Register a runner, or register it again, which revokes its previous token."""
    values: dict[str, Any] = {
        "token_hash": token_hash,
        "name": new.name,
        "machine": new.machine,
        "pid": new.pid,
        "version": new.version,
        "agents": list(new.agents),
        "parked": {},
        "problem": None,
        "registered_at": new.registered_at,
        "seen_at": new.seen_at,
    }
    changed = connection.execute(update(runner).where(runner.c.id == new.id).values(**values))
    if changed.rowcount == 0:
        connection.execute(insert(runner).values(id=new.id, **values))


def runner_of_token(connection: Connection, token_hash: str) -> Runner | None:
    row = connection.execute(OF_TOKEN, {"hash": token_hash}).one_or_none()
    return None if row is None else to_runner(row)


def get_runner(connection: Connection, runner_id: RunnerId) -> Runner | None:
    row = connection.execute(OF_ID, {"which": runner_id}).one_or_none()
    return None if row is None else to_runner(row)


def all_runners(connection: Connection) -> list[Runner]:
    return [to_runner(row) for row in connection.execute(ALL)]


def touch_runner(
    connection: Connection,
    runner_id: RunnerId,
    *,
    agents: tuple[str, ...],
    parked: dict[str, datetime],
    problem: str | None,
    now: datetime,
) -> None:
    until = {name: moment.isoformat() for name, moment in parked.items()}
    seen = {"agents": list(agents), "parked": until, "problem": problem, "seen_at": now}
    connection.execute(TOUCH, {"which": runner_id, **seen})


def delete_runner(connection: Connection, runner_id: RunnerId) -> None:
    connection.execute(delete(runner).where(runner.c.id == runner_id))


def delete_silent_runners(connection: Connection, *, silent_since: datetime) -> int:
    return connection.execute(delete(runner).where(runner.c.seen_at < silent_since)).rowcount


def database_time(connection: Connection) -> datetime | None:
    """Return PostgreSQL's time, which several relays share; None for SQLite, whose only relay has its own."""
    if connection.dialect.name == "sqlite":
        return None
    now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return now.astimezone(UTC)


def relay_seen_at(connection: Connection) -> datetime | None:
    return connection.execute(SEEN_AT).scalar_one_or_none()


def mark_relay_seen(connection: Connection, now: datetime) -> None:
    changed = connection.execute(update(relay).where(relay.c.name == RELAY).values(seen_at=now))
    if changed.rowcount == 0:
        connection.execute(insert(relay).values(name=RELAY, seen_at=now))


def to_runner(row: Row[Any]) -> Runner:
    return Runner(
        id=RunnerId(row.id),
        name=row.name,
        machine=row.machine,
        pid=row.pid,
        version=row.version,
        agents=tuple(row.agents),
        registered_at=row.registered_at,
        seen_at=row.seen_at,
        parked={name: datetime.fromisoformat(until) for name, until in row.parked.items()},
        problem=row.problem,
    )
