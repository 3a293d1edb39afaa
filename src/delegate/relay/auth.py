"""Authenticates callers by token: the relay's owner, a person, a runner, or the agent of one attempt.

The token of the owner, or of a person on the same machine, is readable by every process of that user. It is therefore
refused to the processes of an attempt, which have a token of their own: with it they can ask, and submit, read and
cancel tasks below their own.
"""

from __future__ import annotations

import hmac
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import cast

from anyio import to_thread
from fastapi import Request
from fastapi.routing import APIRoute

from delegate.errors import Forbidden, InsideAttempt, RunnerRevoked, Stopping, Unauthenticated, Unavailable
from delegate.model import OWNER, AccessToken, Actor, Attempt, Person, Runner, RunnerSlot, Task
from delegate.relay.access import ROUTES, Holder, check_access
from delegate.relay.children import task_of_agent
from delegate.relay.http.caller_process import OUTSIDE, UNKNOWN, CallingProcess, Peer, find_caller
from delegate.relay.http.protocol import HttpProtocol
from delegate.relay.requests import Relay, relay_of
from delegate.store.people import token_holder, touch_access_token
from delegate.store.questions import asking_attempt
from delegate.store.runners import get_pairing_token, get_slot, runner_of_token, slot_of_token
from delegate.tokens import AGENT_PREFIX, PAIRING_PREFIX, PERSON_PREFIX, RUNNER_PREFIX, SLOT_PREFIX, hash_token

TOKEN_MAX = 200
MCP_PATH = "/mcp"
USE_RECORDED_EVERY = timedelta(minutes=1)  # of a person's token: not every request may write


def bearer_token(request: Request) -> str:
    headers = request.headers.getlist("authorization")
    if len(headers) != 1 or len(headers[0]) > TOKEN_MAX:
        raise Unauthenticated
    scheme, _, token = headers[0].partition(" ")
    if scheme.lower() != "bearer" or not token or token != token.strip() or not token.isascii():
        raise Unauthenticated
    return token


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request, by its token."""

    holder: Holder
    actor: Actor
    person: Person | None = None
    token: AccessToken | None = None  # of the person
    runner: Runner | None = None
    slot: RunnerSlot | None = None
    attempt: Attempt | None = None  # whose agent calls
    task: Task | None = None  # of that attempt


OWNER_CALLING = Caller(holder=Holder.OWNER, actor=OWNER)


async def require_access(request: Request) -> Caller:
    """Let the caller through if the table of routes allows it; it is then `request.state.caller`."""
    relay = relay_of(request)
    caller = await authenticate(request)
    check_access(ROUTES, route_of(request), caller.holder)
    if caller.runner is None:
        _refuse_without_keeper(request, relay)
    if caller.attempt is not None and request.scope["path"] != MCP_PATH:
        named, reads_only = request.path_params.get("task_id"), request.method == "GET"
        caller = replace(caller, task=await task_of_agent(relay, caller.attempt, named, reads_only=reads_only))
    request.state.caller = caller
    return caller


def caller_of(request: Request) -> Caller:
    return cast(Caller, request.state.caller)  # set by require_access; Starlette's state is untyped


def route_of(request: Request) -> str:
    """Return the name of the route in the table, for example `GET /api/tasks/{task_id}`."""
    route = request.scope.get("route")
    path = route.path if isinstance(route, APIRoute) else request.scope["path"]
    return f"{request.method} {path}"


async def authenticate(request: Request) -> Caller:
    token = bearer_token(request)
    relay = relay_of(request)
    if hmac.compare_digest(hash_token(token), relay.token_hash):
        caller = OWNER_CALLING
    elif token.startswith(AGENT_PREFIX):
        attempt = await require_agent(request, relay)
        return Caller(holder=Holder.AGENT, actor=Actor(name=f"agent of {attempt.task_id}"), attempt=attempt)
    elif token.startswith(PERSON_PREFIX):
        caller = await _find_person(relay, token)
    elif token.startswith(PAIRING_PREFIX):
        caller = await _find_pairing_token(relay, token)
    elif token.startswith(SLOT_PREFIX):
        caller = await _find_slot(relay, token)
    elif token.startswith(RUNNER_PREFIX):
        caller = await _find_runner(relay, token)
    else:
        raise Unauthenticated
    await _refuse_inside_attempt(request, relay)
    mark_known(request)
    return caller


async def _find_person(relay: Relay, token: str) -> Caller:
    """Read for every request, so that revoking a token or disabling its person takes effect at once."""
    now = relay.now()
    found = await relay.database.read(lambda connection: token_holder(connection, hash_token(token)))
    if found is None or not is_valid(*found, now):
        raise Unauthenticated
    known, person = found
    if known.last_used_at is None or now - known.last_used_at >= USE_RECORDED_EVERY:
        with suppress(Unavailable):  # a full disk must not keep people out
            await relay.database.write("token.used", lambda connection: touch_access_token(connection, known.id, now))
    actor = Actor(name=person.name, person_id=person.id)
    return Caller(holder=Holder(person.role), actor=actor, person=person, token=known)


def is_valid(token: AccessToken, person: Person, now: datetime) -> bool:
    is_over = token.expires_at is not None and token.expires_at <= now
    return not is_over and token.revoked_at is None and person.disabled_at is None


async def require_agent(request: Request, relay: Relay) -> Attempt:
    """Return the attempt of the token. A process of another attempt may have read it, and must not use it."""
    attempt = await agent_attempt(relay, bearer_token(request))
    if attempt is None:
        raise Unauthenticated
    mark_known(request)
    # To ask, an agent may hide its open files, as Codex does; its tools for tasks check again.
    await check_process(request, relay, attempt, may_hide=request.scope["path"] == MCP_PATH)
    return attempt


async def check_process(request: Request, relay: Relay, attempt: Attempt, *, may_hide: bool = False) -> None:
    """Refuse the processes of other attempts."""
    caller = await _caller_of(request, relay)
    if caller.is_in_attempt and not (may_hide and caller.runner is None):
        own = await relay.database.read(lambda connection: get_slot(connection, attempt.slot_id))
        if own is None or own.pid != caller.runner:
            raise Forbidden(what="this; it is for the processes of its own task")


def _refuse_without_keeper(request: Request, relay: Relay) -> None:
    if relay.hub.is_keeper_gone and request.method != "GET":
        raise Stopping(retry_after=1.0)  # new work would wait until the next keeper starts


async def _refuse_inside_attempt(request: Request, relay: Relay) -> None:
    if (await _caller_of(request, relay)).is_in_attempt:
        raise InsideAttempt


async def _caller_of(request: Request, relay: Relay) -> CallingProcess:
    """Return the process that sends the request; one that was identified stays the same for its connection."""
    connection = request.scope["state"].get("connection")
    if not isinstance(connection, HttpProtocol) or relay.keeper_pid is None:
        return OUTSIDE
    caller = connection.caller
    if caller is None or caller == UNKNOWN:
        if request.client is None:
            return OUTSIDE
        host, port = request.client
        peer = Peer(address=host, port=port, relay_port=request.scope["server"][1])
        caller = await to_thread.run_sync(find_caller, peer, relay.keeper_pid, limiter=relay.caller_lookups)
        connection.caller = caller
    return caller


async def require_runner(request: Request) -> RunnerSlot:
    """Return the slot that owns the token. Read for every request, so that revoking a runner takes effect at once."""
    slot = (await require_access(request)).slot
    assert slot is not None  # the table has these routes for slots only
    return slot


def mark_known(request: Request) -> None:
    """Tell the connection that its peer has a valid token."""
    connection = request.scope["state"].get("connection")
    if isinstance(connection, HttpProtocol):
        connection.mark_known()


async def _find_pairing_token(relay: Relay, token: str) -> Caller:
    """A used or expired token is known; only its exchange says so."""
    if await relay.database.read(lambda connection: get_pairing_token(connection, hash_token(token))) is None:
        raise Unauthenticated
    return Caller(holder=Holder.PAIRING, actor=Actor(name="pairing token"))


async def _find_slot(relay: Relay, token: str) -> Caller:
    slot = await relay.database.read(lambda connection: slot_of_token(connection, hash_token(token)))
    if slot is None:
        raise Unauthenticated
    return Caller(holder=Holder.SLOT, actor=_actor_of(slot.runner), runner=slot.runner, slot=slot)


async def _find_runner(relay: Relay, token: str) -> Caller:
    runner = await relay.database.read(lambda connection: runner_of_token(connection, hash_token(token)))
    if runner is None:
        raise Unauthenticated
    return Caller(holder=Holder.RUNNER, actor=_actor_of(runner), runner=runner)


def _actor_of(runner: Runner) -> Actor:
    if runner.revoked_at is not None:
        raise RunnerRevoked(name=runner.name)
    return Actor(name=runner.name)


async def agent_attempt(relay: Relay, token: str) -> Attempt | None:
    """Return the running attempt whose agent has this token."""
    return await relay.database.read(lambda connection: asking_attempt(connection, hash_token(token)))
