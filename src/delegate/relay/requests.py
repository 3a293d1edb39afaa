"""What all endpoints share: the relay's context, path parameters and JSON bodies."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Generic, TypeVar, cast

from anyio import CapacityLimiter
from fastapi import Depends, Request
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from delegate.config.observed_time import sleep_counting_clock
from delegate.config.settings import Settings
from delegate.errors import (
    InvalidField,
    MalformedBody,
    NoSuchAttempt,
    NoSuchSchedule,
    NoSuchTask,
    UnsupportedMedia,
    excerpt,
)
from delegate.model import AttemptId, ScheduleId, TaskId
from delegate.queue.limits import QueueRules, rules_of
from delegate.relay.http.exposure import Exposure
from delegate.relay.http.rate_limit import RateLimits
from delegate.relay.notify import Hub
from delegate.relay.problems import fault
from delegate.store.database import Database
from delegate.store.runners import database_time
from delegate.wire.basics import Wire


@dataclass(slots=True)
class SharedClock:
    """The time of this machine or, with PostgreSQL, of the database: relays whose clocks differ must agree on it."""

    machine_time: Callable[[], datetime] = partial(datetime.now, UTC)
    _synced: tuple[datetime, float] | None = None  # the database's time, and that of the clock that counts sleep

    async def sync(self, database: Database) -> None:
        asked_at = sleep_counting_clock()
        shared = await database.read(database_time)
        self._synced = None if shared is None else (shared, (asked_at + sleep_counting_clock()) / 2)

    def now(self) -> datetime:
        if self._synced is None:
            return self.machine_time()
        shared, synced_at = self._synced
        return shared + timedelta(seconds=sleep_counting_clock() - synced_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    settings: Settings
    database: Database
    token_hash: str
    started_at: datetime
    machine: str | None = None  # the machine of the relay and its keeper's runners; None: it has no keeper
    hub: Hub = field(default_factory=Hub)
    exposure: Exposure = field(default_factory=Exposure)
    limits: RateLimits = field(default_factory=RateLimits)
    redact: Callable[[str], str] = str  # removes secrets from what agents send to the relay themselves
    # Its own limit: checks that hang on a network disk must not use up the threads of the database.
    location_checks: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(4))
    good_locations: dict[tuple[object, ...], float] = field(default_factory=dict)  # and when they were checked
    caller_lookups: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(2))  # each reads all of /proc
    clock: SharedClock = field(default_factory=SharedClock)
    max_runners: int | None = None  # of its keeper; None: the machine decides, or there is no keeper
    keeper_pid: int | None = None  # None: the relay has no keeper, so no runner is its relative
    secret_key: str = ""  # encrypts secrets in the database; empty: the key of the home

    @property
    def rules(self) -> QueueRules:
        return rules_of(self.settings)

    def now(self) -> datetime:
        return self.clock.now()


def relay_of(request: Request) -> Relay:
    return cast(Relay, request.app.state.relay)  # FastAPI's state is untyped


ID = re.compile(r"[A-Za-z0-9-]{1,64}")


async def task_in_path(task_id: str) -> TaskId:
    if ID.fullmatch(task_id) is None:
        raise NoSuchTask(task_id=task_id)
    return TaskId(task_id)


TaskInPath = Annotated[TaskId, Depends(task_in_path)]


async def attempt_in_path(attempt_id: str) -> AttemptId:
    if ID.fullmatch(attempt_id) is None:
        raise NoSuchAttempt(attempt_id=attempt_id)
    return AttemptId(attempt_id)


async def schedule_in_path(schedule_id: str) -> ScheduleId:
    if ID.fullmatch(schedule_id) is None:
        raise NoSuchSchedule(schedule_id=schedule_id)
    return ScheduleId(schedule_id)


async def check_query(request: Request) -> None:
    """Refuse unknown and repeated parameters, which would be ignored otherwise."""
    if not request.scope["query_string"]:
        return
    route = request.scope.get("route")
    known = [parameter.alias for parameter in route.dependant.query_params] if isinstance(route, APIRoute) else []
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            advice = f"known parameters: {', '.join(known)}" if known else "this route takes none"
            raise InvalidField(field=name, why=f"is not a known query parameter; {advice}")
        if names.count(name) > 1:
            raise InvalidField(field=name, why="is given more than once")


M = TypeVar("M", bound=Wire)


def find_repeated_key(body: bytes) -> str | None:
    """Return a key that an object of this JSON has twice: parsers silently take the last value."""
    try:
        REPEATED_KEYS.decode(body.decode())
    except KeyError as error:
        return str(error.args[0])
    except (ValueError, RecursionError):  # reported by the parser that follows
        return None
    return None


def _refuse_repeated(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise KeyError(next(name for name, count in counts.items() if count > 1))


REPEATED_KEYS = json.JSONDecoder(object_pairs_hook=_refuse_repeated)  # built once: every body passes it


class JsonBody(Generic[M]):
    """A dependency that parses the body as `model`.

    FastAPI would convert it to Python objects first, which takes twice as long and loses the JSON types ("1" would be
    accepted for 1, and 1 for a time in 1970). `describe` adds the model to the OpenAPI document.
    """

    def __init__(self, model: type[M], *, checks_keys: bool = True) -> None:
        self.model = model
        self.checks_keys = checks_keys

    async def __call__(self, request: Request) -> M:
        check_content_type(request)
        try:
            body = await request.body()
            if self.checks_keys and (key := find_repeated_key(body)) is not None:
                raise MalformedBody(why=f"an object has the key {excerpt(key)} more than once")
            return self.model.model_validate_json(body, strict=True)
        except ValidationError as error:
            # Report only the first error, without its input: a body can have a hundred thousand.
            raise fault(error.errors(include_url=False, include_input=False)[0], self.model) from None
        except ClientDisconnect as error:
            raise MalformedBody(why="it ended too early") from error


def check_content_type(request: Request) -> None:
    """Require JSON: a form on a web page cannot send it without a preflight request."""
    given = ",".join(request.headers.getlist("content-type")).partition(";")[0].strip().lower()
    if given != "application/json":
        raise UnsupportedMedia(given=given or "nothing")
