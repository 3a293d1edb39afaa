"""Pairs machines and registers their processes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delegate import __version__
from delegate.errors import (
    PairingTokenExpired,
    PairingTokenUsed,
    RunnerInUse,
    RunnerNameUsed,
    RunnerRevoked,
    Unauthenticated,
    VersionMismatch,
)
from delegate.model import (
    OWNER,
    Actor,
    PairingToken,
    PersonId,
    Runner,
    RunnerAgent,
    RunnerSlot,
    new_runner_id,
    slot_id,
)
from delegate.placement import Policy
from delegate.store.database import Connection, Database
from delegate.store.people import get_person, record_audit
from delegate.store.runners import (
    get_pairing_token,
    insert_pairing_token,
    insert_runner,
    is_name_used,
    lock_fleet,
    pool_of,
    put_slot,
    runner_of_token,
    slots_of,
    update_runner,
    use_pairing_token,
)

log = logging.getLogger(__name__)
PAIRING_TIME = timedelta(minutes=15)  # long enough to paste a command on another machine
VERSION = re.compile(r"(\d+)\.(\d+)(?:[.+a-z-].*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What a runner reports about itself and its machine."""

    machine: str
    version: str
    os: str | None = None
    architecture: str | None = None
    agents: tuple[RunnerAgent, ...] = ()
    policy: Policy | None = None
    tags: tuple[str, ...] = ()
    privacy: str | None = None
    slots: int = 1

    def apply_to(self, runner: Runner, now: datetime) -> Runner:
        return replace(
            runner,
            version=self.version,
            os=self.os,
            architecture=self.architecture,
            agents=self.agents,
            policy=self.policy,
            tags=self.tags,
            privacy=self.privacy,
            slots=self.slots,
            seen_at=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """A process that registers for a slot."""

    runner_name: str  # wanted by a pool that is not known yet
    slot: str
    pid: int
    agents: tuple[str, ...]
    instance: str | None
    facts: MachineFacts


async def create_pairing_token(
    database: Database, name: str, token_hash: str, *, by: Actor, now: datetime
) -> PairingToken:
    token = PairingToken(
        token_hash=token_hash, name=name, created_by=by.person_id, created_at=now, expires_at=now + PAIRING_TIME
    )

    def write(connection: Connection) -> PairingToken:
        if (earlier := get_pairing_token(connection, token_hash)) is not None:
            return earlier[0]  # the response to the same request was lost
        if is_name_used(connection, name):
            raise RunnerNameUsed(name=name)
        insert_pairing_token(connection, token)
        record_audit(connection, by, "invite", name, now=now)
        return token

    created = await database.write("pairing_token", write)
    log.info("pairing token created", extra={"runner": name})
    return created


async def pair(database: Database, pairing_hash: str, facts: MachineFacts, token_hash: str, now: datetime) -> Runner:
    """Make the machine that shows this pairing token a runner of the token's creator; the token is used up."""
    paired = await database.write("pair", lambda connection: _pair(connection, pairing_hash, facts, token_hash, now))
    log.info("runner paired", extra={"runner_id": paired.id, "runner": paired.name, "machine": paired.machine})
    return paired


def _pair(connection: Connection, pairing_hash: str, facts: MachineFacts, token_hash: str, now: datetime) -> Runner:
    found = get_pairing_token(connection, pairing_hash)
    if found is None:
        raise Unauthenticated
    token, used_at = found
    if used_at is not None:
        repeated = runner_of_token(connection, token_hash)
        if repeated is not None and repeated.revoked_at is None:
            return repeated  # the response to the same request was lost
        raise PairingTokenUsed(name=token.name)
    creator = None if token.created_by is None else get_person(connection, token.created_by)
    if creator is not None and creator.refusal is not None:
        raise Unauthenticated
    if now >= token.expires_at:
        raise PairingTokenExpired(name=token.name, minutes=PAIRING_TIME // timedelta(minutes=1))
    check_version(facts.version)  # before the token is used up
    runner = Runner(
        id=new_runner_id(),
        name=token.name,
        machine=facts.machine,
        version=facts.version,
        paired_at=now,
        seen_at=now,
        is_paired=True,
        paired_by=token.created_by,
    )
    runner = facts.apply_to(runner, now)
    if not use_pairing_token(connection, pairing_hash, runner.id, now):
        raise PairingTokenUsed(name=token.name)
    lock_fleet(connection)
    if is_name_used(connection, token.name):
        raise RunnerNameUsed(name=token.name)  # rolls back, so that the token can be used with the name free
    insert_runner(connection, runner, token_hash=token_hash)
    by = person_name(connection, runner.paired_by)
    record_audit(connection, Actor(name=by), "pair", runner.name, now=now, details={"machine": runner.machine})
    return runner


def person_name(connection: Connection, person_id: PersonId | None) -> str:
    """Return the name of the person, or of the relay's owner."""
    person = None if person_id is None else get_person(connection, person_id)
    return OWNER.name if person is None else person.name


def check_version(version: str) -> None:
    """Refuse a runner that is more than one minor version apart from this relay."""
    theirs, ours = VERSION.fullmatch(version), VERSION.fullmatch(__version__)
    if theirs is None or ours is None:
        raise VersionMismatch(runner=version, relay=__version__, side="runner", wanted=__version__)
    (major, minor), (own_major, own_minor) = map(int, theirs.groups()), map(int, ours.groups())
    if major == own_major and abs(minor - own_minor) <= 1:
        return
    if (major, minor) < (own_major, own_minor):
        raise VersionMismatch(runner=version, relay=__version__, side="runner", wanted=__version__)
    raise VersionMismatch(runner=version, relay=__version__, side="relay", wanted=version)


def is_older(version: str, than: str) -> bool:
    """Whether one version is older than the other; a version that cannot be read counts as older."""
    one, other = VERSION.fullmatch(version), VERSION.fullmatch(than)
    if one is None or other is None:
        return True
    return [int(part) for part in re.findall(r"\d+", version)] < [int(part) for part in re.findall(r"\d+", than)]


async def register_slot(
    database: Database,
    process: SlotFacts,
    *,
    runner_hash: str | None,
    token_hash: str,
    lease: timedelta,
    now: datetime,
) -> RunnerSlot:
    """Register a process of a runner, or its successor, which revokes the token of its predecessor.

    `runner_hash` is that of a paired runner's token; None for the pool of a keeper, which has the owner's.
    """

    def write(connection: Connection) -> RunnerSlot:
        lock_fleet(connection)
        if runner_hash is None:
            runner = _pool(connection, process, now)
        else:
            runner = _paired_runner(connection, process, runner_hash, _is_alive(now - lease))
        slot = RunnerSlot(
            id=slot_id(runner.id, process.slot),
            runner=runner,
            name=process.slot,
            pid=process.pid,
            version=process.facts.version,
            agents=process.agents,
            instance=process.instance,
            registered_at=now,
            seen_at=now,
        )
        put_slot(connection, slot, token_hash=token_hash)
        return slot

    slot = await database.write("register", write)
    log.info(
        "runner registered", extra={"runner_id": slot.id, "runner": slot.runner.name, "agents": ",".join(slot.agents)}
    )
    return slot


def _is_alive(seen_since: datetime) -> Callable[[RunnerSlot], bool]:
    return lambda slot: slot.seen_at > seen_since


def _pool(connection: Connection, process: SlotFacts, now: datetime) -> Runner:
    known = pool_of(connection, process.facts.machine)
    if known is not None:
        runner = replace(known, version=process.facts.version, seen_at=now)
        update_runner(connection, runner)
        return runner
    runner = Runner(
        id=new_runner_id(),
        name=_free_name(connection, process.runner_name, process.facts.machine),
        machine=process.facts.machine,
        version=process.facts.version,
        paired_at=now,
        seen_at=now,
    )
    insert_runner(connection, runner, token_hash=None)
    return runner


def _free_name(connection: Connection, wanted: str, machine: str) -> str:
    candidates = (wanted, machine, *(f"{machine}-{number}" for number in range(2, 1_000)))
    return next(name for name in candidates if not is_name_used(connection, name))


def _paired_runner(
    connection: Connection, process: SlotFacts, runner_hash: str, is_alive: Callable[[RunnerSlot], bool]
) -> Runner:
    runner = runner_of_token(connection, runner_hash)
    if runner is None:
        raise Unauthenticated
    if runner.revoked_at is not None:
        raise RunnerRevoked(name=runner.name)
    check_version(process.facts.version)
    if runner.machine != process.facts.machine:
        raise RunnerInUse(name=runner.name, why="is paired with another machine")
    others = [slot for slot in slots_of(connection, runner.id) if slot.instance != process.instance]
    if any(is_alive(slot) for slot in others):
        raise RunnerInUse(name=runner.name, why="is already running on another machine, or was until a moment ago")
    return runner
