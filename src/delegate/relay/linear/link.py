"""The relay's link to Linear: the connection, its credential, and calls that renew it when it has expired."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import anyio
import httpx2

from delegate.config.encryption import SecretBox, open_secret_box
from delegate.config.paths import Home
from delegate.errors import LinearDenied, LinearNotConnected, LinearRateLimited
from delegate.linear.client import SCOPES, Grant, Json, LinearApi, RateBudget, new_http_client, request_grant
from delegate.linear.records import ConnectionKind, LinearConnection
from delegate.relay.requests import Relay
from delegate.store.linear.connections import get_connection, renew_secrets, set_problem

log = logging.getLogger(__name__)
CACHE_SECONDS = 2.0  # another relay on the same database may have changed the connection
RENEW_BEFORE = timedelta(minutes=5)
DEFAULT_LIMIT = 2_500  # requests per hour until Linear has said how many it allows
DEFAULT_PAUSE = 60.0  # seconds, if Linear does not say how long its rate limit lasts
INBOX_KEY, OUTBOX_KEY, CONNECTION_KEY = "linear/inbox", "linear/outbox", "linear/connection"
POSTED_KEY = "linear/posted"


class LinearLink:
    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.budget: RateBudget | None = None
        self.is_posting = False  # while `run_linear` runs
        self._limited_until: datetime | None = None  # by Linear's rate limit
        self._http: httpx2.AsyncClient | None = None
        self._box: SecretBox | None = None
        self._cached: tuple[float, LinearConnection | None] | None = None
        self._renewing = anyio.Lock()

    @property
    def box(self) -> SecretBox:
        if self._box is None:
            self._box = open_secret_box(Home(self.relay.settings.home), self.relay.secret_key)
        return self._box

    @property
    def http(self) -> httpx2.AsyncClient:
        if self._http is None:
            self._http = new_http_client()
        return self._http

    @property
    def hourly_limit(self) -> int:
        return DEFAULT_LIMIT if self.budget is None else self.budget.limit

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def connection(self) -> LinearConnection | None:
        """Return the connection, at most two seconds old: every webhook asks for it."""
        now = anyio.current_time()
        if self._cached is None or now - self._cached[0] > CACHE_SECONDS:
            await self.reload()
        assert self._cached is not None
        return self._cached[1]

    async def reload(self) -> LinearConnection | None:
        found = await self.relay.database.read(partial(get_connection, box=self.box))
        self._cached = (anyio.current_time(), found)
        return found

    async def require(self) -> LinearConnection:
        found = await self.connection()
        if found is None:
            raise LinearNotConnected
        return found

    async def call(self, operation: str, variables: Mapping[str, object] | None = None) -> Json:
        """Send an operation; renew the credential once if Linear does not accept it."""
        now = self.relay.now()
        if self._limited_until is not None and now < self._limited_until:
            raise LinearRateLimited(retry_after=(self._limited_until - now).total_seconds())
        connection = await self.require()
        if connection.expires_at is not None and connection.expires_at - now < RENEW_BEFORE:
            connection = await self._renew(connection)
        try:
            return await self._send(connection, operation, variables)
        except LinearDenied:
            renewed = await self._renew(connection)
            return await self._send(renewed, operation, variables)

    async def _send(self, connection: LinearConnection, operation: str, variables: Mapping[str, object] | None) -> Json:
        api = LinearApi(self.http, self.relay.settings.linear_api_url, connection.authorization)
        try:
            return await api.call(operation, variables)
        except LinearRateLimited as error:
            self._limited_until = self.relay.now() + timedelta(seconds=error.retry_after or DEFAULT_PAUSE)
            log.warning("Linear's rate limit is reached", extra={"until": self._limited_until.isoformat()})
            raise
        finally:
            self.budget = api.budget or self.budget

    async def _renew(self, used: LinearConnection) -> LinearConnection:
        """Get a new access token; callers that wait for the same renewal share it."""
        async with self._renewing:
            current = await self.reload()
            if current is None:
                raise LinearNotConnected
            if current.revision != used.revision:
                return current
            try:
                grant = await request_grant(
                    self.http, self.relay.settings.linear_api_url, renewal_form(current), self.relay.now()
                )
            except LinearDenied as error:
                await self.report_problem(error.message)
                raise
            return await self._store(with_grant(current, grant))

    async def _store(self, renewed: LinearConnection) -> LinearConnection:
        write = partial(renew_secrets, renewed=renewed, box=self.box)
        if await self.relay.database.write("linear.renew", write):
            log.info("credential for Linear renewed")
        found = await self.reload()
        if found is None:
            raise LinearNotConnected
        return found

    async def report_problem(self, problem: str) -> None:
        """Keep why the connection needs attention, once."""
        current = await self.connection()
        if current is None or current.problem == problem:
            return
        await self.relay.database.write("linear.problem", partial(set_problem, problem=problem))
        log.warning("Linear needs attention", extra={"why": problem})
        await self.reload()


def renewal_form(connection: LinearConnection) -> dict[str, str]:
    """Pure: what to send to the token endpoint for a new access token."""
    secrets = connection.secrets
    client = {"client_id": connection.client_id or ""}
    if secrets.client_secret is not None:
        client["client_secret"] = secrets.client_secret
    if connection.kind is ConnectionKind.CLIENT_CREDENTIALS:
        return {"grant_type": "client_credentials", "scope": ",".join(SCOPES), **client}
    if secrets.refresh_token is None:
        raise LinearDenied(why="the key was revoked, or has expired")
    return {"grant_type": "refresh_token", "refresh_token": secrets.refresh_token, **client}


def with_grant(connection: LinearConnection, grant: Grant) -> LinearConnection:
    secrets = replace(
        connection.secrets,
        access_token=grant.access_token,
        refresh_token=grant.refresh_token or connection.secrets.refresh_token,
    )
    return replace(connection, secrets=secrets, expires_at=grant.expires_at, revision=connection.revision + 1)
