"""Authenticates callers by token: the relay's owner, a runner, or the agent of one attempt."""

from __future__ import annotations

import hmac
import secrets

from fastapi import Request

from delegate.errors import Forbidden, Stopping, Unauthenticated
from delegate.model import Attempt, Runner
from delegate.relay.protocol import HttpProtocol
from delegate.relay.requests import Relay, relay_of
from delegate.store.questions import asking_attempt
from delegate.store.runners import runner_of_token
from delegate.tokens import RUNNER_PREFIX, hash_token

TOKEN_MAX = 200


def new_runner_token() -> str:
    return RUNNER_PREFIX + secrets.token_urlsafe(32)


def bearer_token(request: Request) -> str:
    headers = request.headers.getlist("authorization")
    if len(headers) != 1 or len(headers[0]) > TOKEN_MAX:
        raise Unauthenticated
    scheme, _, token = headers[0].partition(" ")
    if scheme.lower() != "bearer" or not token or token != token.strip() or not token.isascii():
        raise Unauthenticated
    return token


async def require_owner(request: Request) -> None:
    token = bearer_token(request)
    relay = relay_of(request)
    if hmac.compare_digest(hash_token(token), relay.token_hash):
        mark_known(request)
        if relay.hub.is_keeper_gone and request.method != "GET":
            raise Stopping(retry_after=1.0)  # new work would wait until the next keeper starts
        return
    if token.startswith(RUNNER_PREFIX) and await _find_runner(relay, token) is not None:
        raise Forbidden(what="this path; it is for the relay's owner")
    raise Unauthenticated


async def require_runner(request: Request) -> Runner:
    """Return the runner that owns the token. Read for every request, so that revoking a token takes effect at once."""
    token = bearer_token(request)
    relay = relay_of(request)
    if hmac.compare_digest(hash_token(token), relay.token_hash):
        raise Forbidden(what="this path; it is for runners")
    found = await _find_runner(relay, token)
    if found is None:
        raise Unauthenticated
    mark_known(request)
    return found


def mark_known(request: Request) -> None:
    """Tell the connection that its peer has a valid token."""
    connection = request.scope["state"].get("connection")
    if isinstance(connection, HttpProtocol):
        connection.mark_known()


async def _find_runner(relay: Relay, token: str) -> Runner | None:
    return await relay.database.read(lambda connection: runner_of_token(connection, hash_token(token)))


async def agent_attempt(relay: Relay, token: str) -> Attempt | None:
    """Return the running attempt whose agent has this token; the token is valid for /mcp only."""
    return await relay.database.read(lambda connection: asking_attempt(connection, hash_token(token)))
