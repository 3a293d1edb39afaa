"""Queries on runners, their slots and pairing tokens, and on the time when the relay was last alive."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, exists, func, insert, or_, select, tuple_, update

from delegate.model import PairingToken, PersonId, Runner, RunnerAgent, RunnerId, RunnerSlot, SlotId
from delegate.placement import policy_data, policy_of
from delegate.store.tables import from_row, pairing_token, relay, runner, runner_slot

RELAY = "relay"
FLEET_LOCK = 814252  # any number that no other advisory lock uses
SLOT_COLUMNS = [
    column.label(f"slot_{column.name}") for column in runner_slot.c if column.name not in ("runner_id", "token_hash")
]
# Built once: every claim needs them.
STOPS_AT = select(func.coalesce(runner.c.revoked_at, runner.c.draining_at)).where(
    runner.c.id == runner_slot.c.runner_id
)
TOUCH = (
    update(runner_slot)
    .where(runner_slot.c.id == bindparam("which"))
    .returning(STOPS_AT.scalar_subquery().label("stops_at"))
)
SEEN_AT = select(relay.c.seen_at).where(relay.c.name == RELAY)
SLOTS = select(runner, *SLOT_COLUMNS).join(runner_slot, runner_slot.c.runner_id == runner.c.id)
SLOT_OF_TOKEN = SLOTS.where(runner_slot.c.token_hash == bindparam("hash"))
SLOT_SEEN_AT = select(runner_slot.c.seen_at).where(runner_slot.c.id == bindparam("which"))


def insert_runner(connection: Connection, new: Runner, *, token_hash: str | None) -> None:
    connection.execute(
        insert(runner).values(id=new.id, token_hash=token_hash, paired_at=new.paired_at, **_report_columns(new))
    )


def update_runner(connection: Connection, known: Runner) -> None:
    """Write what a runner reports about itself. Its name is not: a person may be changing it at the same time."""
    reported = {name: value for name, value in _report_columns(known).items() if name not in ("name", "paired_by")}
    connection.execute(update(runner).where(runner.c.id == known.id).values(**reported))


def _report_columns(known: Runner) -> dict[str, Any]:
    return {
        "name": known.name,
        "machine": known.machine,
        "version": known.version,
        "os": known.os,
        "architecture": known.architecture,
        "agents": [asdict(agent) for agent in known.agents],
        "policy": None if known.policy is None else policy_data(known.policy),
        "tags": list(known.tags),
        "privacy": known.privacy,
        "paired_by": known.paired_by,
        "seen_at": known.seen_at,
        "slots": known.slots,
        "problem": known.problem,
    }


def get_runner(connection: Connection, runner_id: RunnerId) -> Runner | None:
    row = connection.execute(select(runner).where(runner.c.id == runner_id)).one_or_none()
    return None if row is None else to_runner(row)


def runner_of_token(connection: Connection, token_hash: str) -> Runner | None:
    row = connection.execute(select(runner).where(runner.c.token_hash == token_hash)).one_or_none()
    return None if row is None else to_runner(row)


def pool_of(connection: Connection, machine: str) -> Runner | None:
    """Return the runner of this machine's keeper."""
    mine = (runner.c.machine == machine, runner.c.token_hash.is_(None))
    row = connection.execute(select(runner).where(*mine)).one_or_none()
    return None if row is None else to_runner(row)


def lock_fleet(connection: Connection) -> None:
    """Let one change of the list of runners at a time see the result of the other. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(FLEET_LOCK)))


def runner_by_name(connection: Connection, name: str) -> Runner | None:
    """Return the runner with this id, or else the one with this name: the last one, if all are revoked."""
    known = get_runner(connection, RunnerId(name))
    if known is not None:
        return known
    named = select(runner).where(runner.c.name == name)
    row = connection.execute(named.order_by(runner.c.revoked_at.isnot(None), runner.c.revoked_at.desc())).first()
    return None if row is None else to_runner(row)


def paired_by(connection: Connection, person_id: PersonId) -> list[Runner]:
    """Return the runners that this person paired and that are not revoked, by name."""
    mine = select(runner).where(runner.c.paired_by == person_id, runner.c.revoked_at.is_(None))
    return [to_runner(row) for row in connection.execute(mine.order_by(runner.c.name))]


def set_orders(connection: Connection, ordered: Runner) -> None:
    """Write what people decide about a runner: its name, and whether it drains or is revoked."""
    values = {"name": ordered.name, "draining_at": ordered.draining_at, "revoked_at": ordered.revoked_at}
    connection.execute(update(runner).where(runner.c.id == ordered.id).values(**values))


def page_of_runners(connection: Connection, *, after: tuple[str, str] | None, limit: int) -> list[Runner]:
    """Return runners by name and id, from the one after this name and id."""
    query = select(runner).order_by(runner.c.name, runner.c.id).limit(limit)
    if after is not None:
        query = query.where(tuple_(runner.c.name, runner.c.id) > after)
    return [to_runner(row) for row in connection.execute(query)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRunner:
    """A runner as far as its state depends on it."""

    id: RunnerId
    seen_at: datetime
    draining_at: datetime | None
    revoked_at: datetime | None


def seen_runners(connection: Connection) -> list[SeenRunner]:
    """Return when each runner, or one of its slots, was last seen."""
    slots = select(runner_slot.c.runner_id, func.max(runner_slot.c.seen_at).label("slot_seen_at"))
    slots = slots.group_by(runner_slot.c.runner_id)
    latest = slots.subquery()
    columns = (runner.c.id, runner.c.seen_at, runner.c.draining_at, runner.c.revoked_at, latest.c.slot_seen_at)
    rows = connection.execute(select(*columns).outerjoin(latest, latest.c.runner_id == runner.c.id))
    return [
        SeenRunner(
            id=RunnerId(row.id),
            seen_at=max(row.seen_at, row.slot_seen_at or row.seen_at),
            draining_at=row.draining_at,
            revoked_at=row.revoked_at,
        )
        for row in rows
    ]


def runner_names(connection: Connection) -> frozenset[str]:
    return frozenset(connection.execute(select(runner.c.name).where(runner.c.revoked_at.is_(None))).scalars())


def is_name_used(connection: Connection, name: str) -> bool:
    used = select(runner.c.id).where(runner.c.name == name, runner.c.revoked_at.is_(None))
    return connection.execute(used).first() is not None


def put_slot(connection: Connection, new: RunnerSlot, *, token_hash: str) -> None:
    """Register a process, or its successor, which revokes the previous token."""
    values: dict[str, Any] = {
        "runner_id": new.runner.id,
        "token_hash": token_hash,
        "name": new.name,
        "pid": new.pid,
        "version": new.version,
        "agents": list(new.agents),
        "parked": {},
        "problem": None,
        "instance": new.instance,
        "registered_at": new.registered_at,
        "seen_at": new.seen_at,
    }
    changed = connection.execute(update(runner_slot).where(runner_slot.c.id == new.id).values(**values))
    if changed.rowcount == 0:
        connection.execute(insert(runner_slot).values(id=new.id, **values))


def slot_of_token(connection: Connection, token_hash: str) -> RunnerSlot | None:
    row = connection.execute(SLOT_OF_TOKEN, {"hash": token_hash}).one_or_none()
    return None if row is None else to_slot(row)


def get_slot(connection: Connection, slot_id: SlotId) -> RunnerSlot | None:
    row = connection.execute(SLOTS.where(runner_slot.c.id == slot_id)).one_or_none()
    return None if row is None else to_slot(row)


def slot_seen_at(connection: Connection, slot_id: SlotId) -> datetime | None:
    return connection.execute(SLOT_SEEN_AT, {"which": slot_id}).scalar_one_or_none()


def all_slots(connection: Connection) -> list[RunnerSlot]:
    """Return the slots of all runners that are not revoked."""
    query = SLOTS.where(runner.c.revoked_at.is_(None)).order_by(runner.c.name, runner_slot.c.id)
    return [to_slot(row) for row in connection.execute(query)]


def slots_of(connection: Connection, runner_id: RunnerId) -> list[RunnerSlot]:
    query = SLOTS.where(runner_slot.c.runner_id == runner_id).order_by(runner_slot.c.id)
    return [to_slot(row) for row in connection.execute(query)]


def touch_slot(
    connection: Connection,
    slot_id: SlotId,
    *,
    agents: tuple[str, ...],
    parked: dict[str, datetime],
    problem: str | None,
    now: datetime,
) -> bool:
    """Record that the process asks for work; returns whether its runner may still get some."""
    until = {name: moment.isoformat() for name, moment in parked.items()}
    seen = {"agents": list(agents), "parked": until, "problem": problem, "seen_at": now}
    return connection.execute(TOUCH, {"which": slot_id, **seen}).scalar_one_or_none() is None


def delete_slot(connection: Connection, slot_id: SlotId) -> None:
    connection.execute(delete(runner_slot).where(runner_slot.c.id == slot_id))


def delete_silent_runners(connection: Connection, *, silent_since: datetime) -> int:
    """Delete slots not seen since then, pools without slots, and runners that were revoked before that."""
    gone = connection.execute(delete(runner_slot).where(runner_slot.c.seen_at < silent_since)).rowcount
    has_slots = exists().where(runner_slot.c.runner_id == runner.c.id)
    is_old_pool = and_(runner.c.token_hash.is_(None), runner.c.seen_at < silent_since, ~has_slots)
    connection.execute(delete(runner).where(or_(is_old_pool, runner.c.revoked_at < silent_since)))
    connection.execute(delete(pairing_token).where(pairing_token.c.expires_at < silent_since))
    return gone


def insert_pairing_token(connection: Connection, new: PairingToken) -> None:
    connection.execute(insert(pairing_token).values(**asdict(new)))


def get_pairing_token(connection: Connection, token_hash: str) -> tuple[PairingToken, datetime | None] | None:
    """Return the token, and when it was used."""
    row = connection.execute(select(pairing_token).where(pairing_token.c.token_hash == token_hash)).one_or_none()
    return None if row is None else (from_row(PairingToken, row), row.used_at)


def use_pairing_token(connection: Connection, token_hash: str, runner_id: RunnerId, now: datetime) -> bool:
    """Use the token if it is unused and valid: of several that try at once, one succeeds."""
    unused = (
        pairing_token.c.token_hash == token_hash,
        pairing_token.c.used_at.is_(None),
        pairing_token.c.expires_at > now,
    )
    changed = connection.execute(update(pairing_token).where(*unused).values(used_at=now, runner_id=runner_id))
    return changed.rowcount == 1


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
    return from_row(
        Runner,
        row,
        is_paired=row.token_hash is not None,
        agents=tuple(RunnerAgent(**agent) for agent in row.agents),
        policy=None if row.policy is None else policy_of(row.policy),
        tags=tuple(row.tags),
    )


def to_slot(row: Row[Any]) -> RunnerSlot:
    return RunnerSlot(
        id=SlotId(row.slot_id),
        runner=to_runner(row),
        name=row.slot_name,
        pid=row.slot_pid,
        version=row.slot_version,
        agents=tuple(row.slot_agents),
        registered_at=row.slot_registered_at,
        seen_at=row.slot_seen_at,
        instance=row.slot_instance,
        parked={name: datetime.fromisoformat(until) for name, until in row.slot_parked.items()},
        problem=row.slot_problem,
    )
