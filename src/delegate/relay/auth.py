"""Authenticates callers by token: the relay's owner, a runner, or the agent of one attempt.

The owner's token is readable by every process of the owner. It is therefore refused to the processes of an attempt,
which have a token of their own: with it they can ask, and submit, read and cancel tasks below their own.
"""

from __future__ import annotations

import hmac
import secrets

from anyio import to_thread
from fastapi import Request

from delegate.errors import Forbidden, InsideAttempt, Stopping, Unauthenticated
from delegate.model import Attempt, Runner, Task, TaskId
from delegate.relay.caller_process import OUTSIDE, UNKNOWN, CallingProcess, Peer, find_caller
from delegate.relay.protocol import HttpProtocol
from delegate.relay.requests import Relay, relay_of
from delegate.store.children import is_descendant
from delegate.store.database import Connection
from delegate.store.questions import asking_attempt
from delegate.store.runners import get_runner, runner_of_token
from delegate.store.tasks import get_task
from delegate.tokens import AGENT_PREFIX, RUNNER_PREFIX, hash_token

TOKEN_MAX = 200
MCP_PATH = "/mcp"
AGENT_SUBMIT, AGENT_CANCEL = "POST /api/tasks", "POST /api/tasks/{task_id}/cancel"
AGENT_READS = frozenset(
    f"GET /api/tasks/{{task_id}}{rest}" for rest in ("", "/output", "/output/raw", "/diff", "/prompt", "/stream")
)


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
        await _refuse_inside_attempt(request, relay)
        mark_known(request)
        _refuse_without_keeper(request, relay)
        return
    is_runner = token.startswith(RUNNER_PREFIX) and await _find_runner(relay, token) is not None
    if is_runner or (token.startswith(AGENT_PREFIX) and await agent_attempt(relay, token) is not None):
        raise Forbidden(what="this path; it is for the relay's owner")
    raise Unauthenticated


async def require_owner_or_agent(request: Request) -> None:
    """Let the relay's owner through, and an agent to what is its own; an agent's task is then `request.state.task`."""
    token = bearer_token(request)
    relay = relay_of(request)
    request.state.task = None
    if not token.startswith(AGENT_PREFIX):
        await require_owner(request)
        return
    attempt = await require_agent(request, relay)
    _refuse_without_keeper(request, relay)
    request.state.task = await _task_of_agent(request, relay, attempt)


async def require_agent(request: Request, relay: Relay) -> Attempt:
    """Return the attempt of the token. A process of another attempt may have read it, and must not use it."""
    attempt = await agent_attempt(relay, bearer_token(request))
    if attempt is None:
        raise Unauthenticated
    mark_known(request)
    caller = await _caller_of(request, relay)
    is_asking = request.scope["path"] == MCP_PATH  # an agent may hide its open files, as Codex does
    if caller.is_in_attempt and not (is_asking and caller.runner is None):
        own = await relay.database.read(lambda connection: get_runner(connection, attempt.runner_id))
        if own is None or own.pid != caller.runner:
            raise Forbidden(what="this; it is for the processes of its own task")
    return attempt


async def _task_of_agent(request: Request, relay: Relay, attempt: Attempt) -> Task:
    """Return the agent's own task, if the request is one that an agent may make."""
    named = request.path_params.get("task_id")
    path = request.scope["path"] if named is None else request.scope["path"].replace(f"/{named}", "/{task_id}", 1)
    route = f"{request.method} {path}"

    def read(connection: Connection) -> tuple[Task | None, bool]:
        own = get_task(connection, attempt.task_id)
        is_below = own is not None and named is not None and is_descendant(connection, TaskId(named), own)
        return own, is_below

    own, is_below = await relay.database.read(read)
    if own is None:
        raise Unauthenticated
    is_readable = route in AGENT_READS and (is_below or named == own.id)
    if not (is_readable or route == AGENT_SUBMIT or (route == AGENT_CANCEL and is_below)):
        raise Forbidden(what="this; an agent can submit tasks, and read and cancel those")
    return own


def _refuse_without_keeper(request: Request, relay: Relay) -> None:
    if relay.hub.is_keeper_gone and request.method != "GET":
        raise Stopping(retry_after=1.0)  # new work would wait until the next keeper starts


async def _refuse_inside_attempt(request: Request, relay: Relay) -> None:
    if (await _caller_of(request, relay)).is_in_attempt:
        raise InsideAttempt


async def _caller_of(request: Request, relay: Relay) -> CallingProcess:
    """Return the process that sends the request; one that was identified stays the same for its connection."""
    connection = request.scope["state"].get("connection")
    if not isinstance(connection, HttpProtocol) or relay.keeper_pid is None or request.client is None:
        return OUTSIDE
    caller = connection.caller
    if caller is None or caller == UNKNOWN:
        host, port = request.client
        peer = Peer(address=host, port=port, relay_port=request.scope["server"][1])
        caller = await to_thread.run_sync(find_caller, peer, relay.keeper_pid, limiter=relay.caller_lookups)
        connection.caller = caller
    return caller


async def require_runner(request: Request) -> Runner:
    """Return the runner that owns the token. Read for every request, so that revoking a token takes effect at once."""
    token = bearer_token(request)
    relay = relay_of(request)
    if hmac.compare_digest(hash_token(token), relay.token_hash):
        raise Forbidden(what="this path; it is for runners")
    found = await _find_runner(relay, token)
    if found is None:
        raise Unauthenticated
    await _refuse_inside_attempt(request, relay)
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
    """Return the running attempt whose agent has this token."""
    return await relay.database.read(lambda connection: asking_attempt(connection, hash_token(token)))
