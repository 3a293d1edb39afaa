"""What all endpoints share: the relay's context, path parameters and JSON bodies."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar, cast

from fastapi import Depends, Request
from pydantic import ValidationError
from anyio import CapacityLimiter
from starlette.requests import ClientDisconnect

from delegate.config.settings import Settings
from delegate.errors import MalformedBody, NoSuchAttempt, NoSuchSchedule, NoSuchTask, UnsupportedMedia
from delegate.model import AttemptId, ScheduleId, TaskId
from delegate.queue.limits import QueueRules, rules_of
from delegate.relay.notify import Hub
from delegate.relay.problems import fault
from delegate.store.database import Database
from delegate.wire.basics import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    settings: Settings
    database: Database
    token_hash: str
    started_at: datetime
    hub: Hub = field(default_factory=Hub)
    redact: Callable[[str], str] = str  # removes secrets from what agents send to the relay themselves

    @property
    def rules(self) -> QueueRules:
        return rules_of(self.settings)

    def now(self) -> datetime:
        return datetime.now(UTC)


def relay_of(request: Request) -> Relay:
    machine: str | None = None  # the machine of the relay and its keeper's runners; None: it has no keeper
    return cast(Relay, request.app.state.relay)  # FastAPI's state is untyped
    # Its own limit: checks that hang on a network disk must not use up the threads of the database.
    location_checks: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(4))


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


M = TypeVar("M", bound=Wire)


class JsonBody(Generic[M]):
    """A dependency that parses the body as `model`.

    FastAPI would convert it to Python objects first, which takes twice as long and loses the JSON types ("1" would be
    accepted for 1, and 1 for a time in 1970). `describe` adds the model to the OpenAPI document.
    """

    def __init__(self, model: type[M]) -> None:
        self.model = model

    async def __call__(self, request: Request) -> M:
        check_content_type(request)
        try:
            return self.model.model_validate_json(await request.body(), strict=True)
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
