"""Calls Linear's GraphQL API and token endpoint, and translates their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx2

from delegate.errors import LinearDenied, LinearRateLimited, LinearRefused, LinearUnreachable
from delegate.linear.payloads import clean_pairs

CONNECT_TIMEOUT, RESPONSE_TIMEOUT = 5.0, 15.0  # seconds
RATE_LIMIT_PAUSE = 60.0  # seconds to wait if Linear does not say how long
RATE_LIMIT_PAUSE_MAX = 3600.0
ALREADY_EXISTS = "already exists"
SCOPES = ("read", "write", "app:assignable", "app:mentionable")
Json = dict[str, Any]  # Any: an answer of Linear, read by the caller


def new_http_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(timeout=httpx2.Timeout(RESPONSE_TIMEOUT, connect=CONNECT_TIMEOUT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The answer of the token endpoint."""

    access_token: str
    refresh_token: str | None
    expires_at: datetime
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateBudget:
    """What Linear still allows, as its last answer said."""

    limit: int
    remaining: int


class LinearApi:
    """One credential for one workspace."""

    def __init__(self, http: httpx2.AsyncClient, api_url: str, authorization: str) -> None:
        self._http, self._url, self._authorization = http, api_url, authorization
        self.budget: RateBudget | None = None

    async def call(self, operation: str, variables: Mapping[str, object] | None = None) -> Json:
        """Send one operation and return its data. An error inside a response of HTTP 200 is an error, too."""
        body = {"query": operation, "variables": dict(variables or {})}
        try:
            response = await self._http.post(self._url, json=body, headers={"Authorization": self._authorization})
        except httpx2.HTTPError as error:
            raise LinearUnreachable(why=type(error).__name__) from error
        self.budget = _budget(response) or self.budget
        answer = _json(response)
        errors = answer.get("errors")
        if isinstance(errors, list) and errors:
            raise explain_error(errors[0], response)
        if response.status_code == 401:
            raise LinearDenied(why="Linear does not accept the credential")
        if response.status_code != 200 or not isinstance(answer.get("data"), dict):
            raise _explain_status(response)
        return check_success(answer["data"])


def check_success(data: Json) -> Json:
    """A mutation says whether it was applied."""
    if any(isinstance(part, dict) and part.get("success") is False for part in data.values()):
        raise LinearUnreachable(why="Linear did not apply the change")
    return data


def explain_error(error: object, response: httpx2.Response) -> Exception:
    """Classify an error of GraphQL: wait, log in again, give up, or try again."""
    details = error if isinstance(error, dict) else {}
    extensions = details.get("extensions")
    facts = extensions if isinstance(extensions, dict) else {}
    code, why = str(facts.get("code", "")), str(facts.get("userPresentableMessage") or details.get("message") or "")
    if code == "RATELIMITED" or response.status_code == 429:
        return LinearRateLimited(retry_after=_pause(response))
    if code == "AUTHENTICATION_ERROR" or response.status_code == 401:
        return LinearDenied(why=why or "Linear does not accept the credential")
    if facts.get("userError") is True and code != "INTERNAL_SERVER_ERROR":
        return LinearRefused(why=why, code=code)
    return LinearUnreachable(why=why or code or "an error without a message")


def _explain_status(response: httpx2.Response) -> Exception:
    if response.status_code == 429:
        return LinearRateLimited(retry_after=_pause(response))
    return LinearUnreachable(why=f"HTTP {response.status_code}", retry_after=_retry_after(response))


def _pause(response: httpx2.Response) -> float:
    """Return the seconds until Linear accepts requests again."""
    told = _retry_after(response)
    reset = response.headers.get("x-ratelimit-requests-reset", "")
    if told is None and reset.isdecimal():
        told = int(reset) / 1000 - datetime.now(UTC).timestamp()
    return min(max(told if told is not None else RATE_LIMIT_PAUSE, 1.0), RATE_LIMIT_PAUSE_MAX)


def _retry_after(response: httpx2.Response) -> float | None:
    given = response.headers.get("retry-after", "")
    return float(given) if given.replace(".", "", 1).isdecimal() else None


def _budget(response: httpx2.Response) -> RateBudget | None:
    limit = response.headers.get("x-ratelimit-requests-limit", "")
    remaining = response.headers.get("x-ratelimit-requests-remaining", "")
    if limit.isdecimal() and remaining.isdecimal():
        return RateBudget(limit=int(limit), remaining=int(remaining))
    return None


def _json(response: httpx2.Response) -> Json:
    try:
        answer = response.json(object_pairs_hook=clean_pairs)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


async def request_grant(http: httpx2.AsyncClient, api_url: str, form: Mapping[str, str], now: datetime) -> Grant:
    """Ask the token endpoint; raises LinearDenied if it refuses."""
    try:
        response = await http.post(token_url(api_url), data=dict(form))
    except httpx2.HTTPError as error:
        raise LinearUnreachable(why=type(error).__name__) from error
    answer = _json(response)
    if response.status_code in (400, 401, 403):
        raise LinearDenied(why=str(answer.get("error_description") or answer.get("error") or "it gives no reason"))
    token = answer.get("access_token")
    if response.status_code != 200 or not isinstance(token, str):
        raise LinearUnreachable(why=f"HTTP {response.status_code} from the token endpoint")
    expires_in, refresh = answer.get("expires_in"), answer.get("refresh_token")
    return Grant(
        access_token=token,
        refresh_token=refresh if isinstance(refresh, str) else None,
        expires_at=now + timedelta(seconds=expires_in if isinstance(expires_in, int) else 3600),
        scopes=_scopes(answer.get("scope")),
    )


def _scopes(given: object) -> tuple[str, ...]:
    """Linear sends them as one text, or as a list."""
    words = given if isinstance(given, list) else str(given or "").replace(",", " ").split()
    return tuple(str(word) for word in words)


def token_url(api_url: str) -> str:
    """The token endpoint is on the host of the API."""
    parts = urlsplit(api_url)
    return f"{parts.scheme}://{parts.netloc}/oauth/token"


def authorize_url(api_url: str) -> str:
    """People approve the app on Linear's own pages, not on the host of the API."""
    parts = urlsplit(api_url)
    host = "linear.app" if parts.netloc == "api.linear.app" else parts.netloc
    return f"{parts.scheme}://{host}/oauth/authorize"
