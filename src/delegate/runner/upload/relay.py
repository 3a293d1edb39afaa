"""The runner's HTTP client for the relay: repeats every call until the relay has answered it."""

from __future__ import annotations

import logging
import random
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import anyio
import httpx2
import stamina
from pydantic import ValidationError

from delegate.client.proxies import ProxyRefused, explain_certificate, proxy_for
from delegate.errors import (
    DelegateError,
    Forbidden,
    InsideAttempt,
    NoSuchAttempt,
    NoSuchRunner,
    NoSuchTask,
    NotAllowed,
    Refused,
    RelayUnreachable,
    RunnerInUse,
    RunnerRevoked,
    SequenceGap,
    StaleFence,
    Unauthenticated,
    Unavailable,
    VersionMismatch,
)
from delegate.model import Privacy
from delegate.runner.agents.ask_tool import AskEndpoint, ask_token
from delegate.runner.assignment import Assignment, assignment_of
from delegate.runner.upload import privacy
from delegate.runner.upload.spool import Batch
from delegate.wire.basics import Problem, Wire
from delegate.wire.fleet import HeartbeatRequest, HeartbeatResponse
from delegate.wire.runners import (
    AttemptsResponse,
    ClaimRequest,
    ClaimResponse,
    Control,
    EffectRequest,
    EffectsResponse,
    FinishRequest,
    RegisterRequest,
    RegisterResponse,
    ReleaseRequest,
    RenewRequest,
    Timings,
)

log = logging.getLogger(__name__)

BACKOFF_FIRST, BACKOFF_MAX = 0.1, 5.0
RETRY_AFTER_MAX = 60.0  # the longest pause a relay may request
CONNECT_TIMEOUT = 5.0
RESPONSE_TIMEOUT = 15.0  # longer than a busy disk takes to flush; after that the connection is dead
WRITE_TIMEOUT = 60.0  # 4 MiB over a slow connection
LEAVE_TIMEOUT = 2.0  # seconds; leaving is best effort
JITTER = 1.25

# Error codes for an unknown runner, and for an attempt that this runner does not hold (any more).
UNKNOWN_RUNNER_CODES = frozenset({Unauthenticated.code, NoSuchRunner.code})
LEASE_LOST_CODES = frozenset({StaleFence.code, NoSuchAttempt.code, Forbidden.code})
# After these no process of this machine's runner can work until a person does something.
FINAL_ERRORS: dict[str, type[DelegateError]] = {
    kind.code: kind for kind in (RunnerRevoked, RunnerInUse, VersionMismatch)
}
RETRYABLE_STATUSES = frozenset({408, 425, 429})
RETRYABLE_CODES = frozenset({InsideAttempt.code})  # the relay could not tell who called

ResponseModel = TypeVar("ResponseModel", bound=Wire)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayCall:
    method: str
    path: str
    body: bytes = b""
    timeout: float = RESPONSE_TIMEOUT
    attempt: Assignment | None = None
    is_renewal: bool = False
    accepts_refusal: bool = False  # a refusal is an expected answer
    is_owners: bool = False  # needs the owner's token


class RelayLink:
    """Registers whenever the relay does not know the runner; each time calls `build_registration` and `admin_token`.

    Whatever is said about a task passes `privacy` here, as the last step before it leaves.

    The calls raise StaleFence when another runner holds the attempt, SequenceGap and Refused when a retry would not
    help, and nothing else: while the relay is away they wait.
    """

    def __init__(
        self,
        url: str,
        build_registration: Callable[[], RegisterRequest],
        admin_token: Callable[[], str],
        trust: RelayTrust | None = None,
        *,
        level: Privacy = Privacy.FULL,
        on_away: Callable[[str], None] | None = None,
    ) -> None:
        self._on_away = on_away  # called with why the relay does not answer, and with "" when it does again
        self._url = url.rstrip("/")
        self.level = level
        self._build_registration = build_registration
        self._admin_token = admin_token
        self._ca_file = None if trust is None else trust.ca_file
        self._client = _client(self._url, trust)
        self._renewal_client = _client(self._url, trust)  # renewals do not share connections with calls that may block
        self._registering = anyio.Lock()
        self._token = ""
        self._is_away = False
        self.slot_id = ""
        self.timings = Timings(heartbeat=30, lease=120, reclaim_after=600)

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._renewal_client.aclose()

    async def register(self) -> RegisterResponse:
        async for trial in stamina.retry_context(on=retry_backoff(BACKOFF_MAX), attempts=None, timeout=None):
            with trial:
                call = RelayCall(method="POST", path="/api/runners/register", body=_json(self._build_registration()))
                response = _parse(RegisterResponse, await self._exchange(call, self._admin_token()), self._url)
        self._token, self.slot_id, self.timings = response.token, response.slot_id, response.timings
        log.info("runner registered", extra={"runner_id": response.slot_id, "url": self._url})
        return response

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Report on the whole runner, with its own token. Not retried: the next one follows soon."""
        call = RelayCall(method="POST", path="/api/runners/heartbeat", body=_json(request))
        return _parse(HeartbeatResponse, await self._exchange(call, self._admin_token()), self._url)

    async def leave(self) -> None:
        """Tell the relay, without retry, that this runner leaves; otherwise the relay notices its silence."""
        if self._token:
            with suppress(DelegateError):
                call = RelayCall(method="POST", path="/api/runners/leave", body=b"{}", timeout=LEAVE_TIMEOUT)
                await self._exchange(call, self._token)

    async def claim(self, request: ClaimRequest) -> Assignment | None:
        timeout = request.wait + RESPONSE_TIMEOUT
        body = _json(privacy.claim_request(self.level, request))
        call = RelayCall(method="POST", path="/api/runners/claim", body=body, timeout=timeout)
        response = await self._call_with_retry(call, ClaimResponse)
        return None if response.assignment is None else assignment_of(response.assignment)

    def ask_token(self, claim_id: str) -> str:
        """The token of this claim's agent; it is valid while its attempt runs."""
        return ask_token(self._token, claim_id, self._build_registration().machine)

    def asking(self, token: str, file: Path) -> AskEndpoint:
        return AskEndpoint(url=f"{self._url}/mcp", token=token, file=file, ca_file=self._ca_file)

    async def attempts(self) -> list[Assignment]:
        response = await self._call_with_retry(RelayCall(method="GET", path="/api/runners/attempts"), AttemptsResponse)
        return [assignment_of(view) for view in response.assignments]

    async def renew(self, attempt: Assignment, request: RenewRequest) -> Control:
        path = f"/api/runners/attempts/{attempt.attempt_id}/renew"
        timeout = request.wait + min(RESPONSE_TIMEOUT, self.timings.lease / 2)
        call = RelayCall(
            method="POST", path=path, body=_json(request), timeout=timeout, attempt=attempt, is_renewal=True
        )
        return await self._call_with_retry(call, Control)

    async def record(self, attempt: Assignment, batch: Batch) -> Control:
        lines = [privacy.item(self.level, line) for line in batch.lines]
        body = b"".join((b'{"fence":%d,"items":[' % attempt.fence, b",".join(lines), b"]}"))
        return await self._post_for_attempt(attempt, "record", body)

    async def end(self, attempt: Assignment, request: FinishRequest | ReleaseRequest) -> Control:
        verb = "finish" if isinstance(request, FinishRequest) else "release"
        return await self._post_for_attempt(attempt, verb, _json(privacy.end_request(self.level, request)))

    async def effect(self, attempt: Assignment, request: EffectRequest) -> Control:
        return await self._post_for_attempt(attempt, "effect", _json(privacy.effect_request(self.level, request)))

    async def effects(self, task_id: str) -> EffectsResponse:
        """A task's status and effects; raises Refused when it belongs to another runner, NoSuchTask when unknown."""
        call = RelayCall(method="GET", path=f"/api/runners/tasks/{task_id}/effects", accepts_refusal=True)
        return await self._call_with_retry(call, EffectsResponse)

    async def task_status(self, task_id: str) -> str:
        """The status of any task; raises NoSuchTask when it is unknown."""
        from delegate.wire.tasks import TaskDetail  # noqa: PLC0415  rarely needed, and slow to import

        call = RelayCall(method="GET", path=f"/api/tasks/{task_id}", accepts_refusal=True, is_owners=True)
        return (await self._call_with_retry(call, TaskDetail)).task.status

    async def _post_for_attempt(self, attempt: Assignment, verb: str, body: bytes) -> Control:
        path = f"/api/runners/attempts/{attempt.attempt_id}/{verb}"
        return await self._call_with_retry(RelayCall(method="POST", path=path, body=body, attempt=attempt), Control)

    async def _call_with_retry(self, call: RelayCall, kind: type[ResponseModel]) -> ResponseModel:
        pause_max = min(BACKOFF_MAX, self.timings.heartbeat)
        async for trial in stamina.retry_context(on=retry_backoff(pause_max), attempts=None, timeout=None):
            with trial:
                token = self._admin_token() if call.is_owners else self._token
                try:
                    return _parse(kind, await self._exchange(call, token), self._url)
                except Unauthenticated:
                    await self._register_unless_done(token)
                    raise
        raise AssertionError("unreachable")

    async def _register_unless_done(self, refused: str) -> None:
        async with self._registering:
            if self._token == refused:  # registering twice would invalidate the first new token
                await self.register()

    async def _exchange(self, call: RelayCall, token: str) -> bytes:
        timeout = httpx2.Timeout(call.timeout, connect=CONNECT_TIMEOUT, write=WRITE_TIMEOUT)
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        client = self._renewal_client if call.is_renewal else self._client
        try:
            response = await client.request(call.method, call.path, content=call.body, headers=headers, timeout=timeout)
        except (httpx2.TransportError, OSError) as error:
            why = _explain(error, self._url)
            self._note_away(why)
            raise RelayUnreachable(url=self._url, why=why, advice="retrying") from error
        if not response.is_success:
            refusal = _refusal(call, response, self._url)
            if isinstance(refusal, Unavailable | NotAllowed):
                self._note_away(refusal.message)
            raise refusal
        self._note_back()
        return response.content

    def _note_away(self, why: str) -> None:
        if not self._is_away:
            log.warning("relay is unreachable", extra={"runner_id": self.slot_id, "url": self._url, "why": why})
            self._tell_away(why)
        self._is_away = True

    def _tell_away(self, why: str) -> None:
        if self._on_away is not None:
            self._on_away(why)

    def _note_back(self) -> None:
        if self._is_away:
            log.info("relay is reachable again", extra={"runner_id": self.slot_id, "url": self._url})
            self._tell_away("")
        self._is_away = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTrust:
    """How to reach a relay that is not on this machine."""

    ca_file: Path | None = None  # the certificates to trust; None: those of the system
    environ: Mapping[str, str] = field(default_factory=dict)  # may name a proxy


def _client(url: str, trust: RelayTrust | None) -> httpx2.AsyncClient:
    if not url.startswith("https:"):
        # Certificates are megabytes in memory that a relay on this machine does not need.
        return httpx2.AsyncClient(base_url=url, trust_env=False, verify=False)
    trust = trust or RelayTrust()
    parts = urlsplit(url)
    try:
        context = ssl.create_default_context(cafile=trust.ca_file)
        found = proxy_for(parts.hostname or "", parts.port or 443, trust.environ)
    except OSError as error:
        why = str(error) if isinstance(error, ProxyRefused) else f"DELEGATE_CA_FILE: {trust.ca_file}: {error}"
        raise RelayUnreachable(url=url, why=why, advice="fix it, and start the runner again") from error
    headers = {"Proxy-Authorization": found.authorization} if found is not None and found.authorization else None
    proxy = None if found is None else httpx2.Proxy(f"http://{found.name}", headers=headers)
    return httpx2.AsyncClient(base_url=url, trust_env=False, verify=context, proxy=proxy)


def _explain(error: Exception, url: str) -> str:
    """Return why no connection was possible; a certificate that is not trusted is the cause of another error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return explain_certificate(urlsplit(url).hostname or "", cause.verify_code, cause.verify_message)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx2.ProxyError):
        return f"the proxy refused the connection ({error}); allow the relay there, or add its host to NO_PROXY"
    return str(error) or type(error).__name__


def _json(message: Wire) -> bytes:
    return message.model_dump_json(by_alias=True).encode()


def _parse(kind: type[ResponseModel], body: bytes, url: str) -> ResponseModel:
    """A relay of the next minor version may send fields that this runner does not know."""
    try:
        return kind.model_validate_json(body, extra="ignore")
    except ValidationError as error:
        raise RelayUnreachable(url=url, why="the response is not from a Delegate relay", advice="retrying") from error


def _refusal(call: RelayCall, response: httpx2.Response, url: str) -> DelegateError:  # noqa: PLR0911  a table
    problem = _problem(response)
    code = "" if problem is None else problem.type
    if code in UNKNOWN_RUNNER_CODES:
        return Unauthenticated()
    if problem is not None and code in FINAL_ERRORS:
        return FINAL_ERRORS[code].rebuild(problem.detail, problem.hint or "")
    if call.attempt is not None and code in LEASE_LOST_CODES:
        return StaleFence(attempt_id=call.attempt.attempt_id, fence=call.attempt.fence)
    if call.attempt is not None and code == SequenceGap.code:
        return SequenceGap(attempt_id=call.attempt.attempt_id, expected="another one", given="this one")
    if call.accepts_refusal and code in (Forbidden.code, NoSuchTask.code):
        return NoSuchTask(task_id="") if code == NoSuchTask.code else Refused(why="the task belongs to another runner")
    is_retryable = code in RETRYABLE_CODES or response.status_code in RETRYABLE_STATUSES
    if problem is not None and response.is_client_error and not is_retryable:
        return Refused(why=f"{problem.detail} ({code})")
    return RelayUnreachable(
        url=url,
        why=f"HTTP {response.status_code} {code}".rstrip(),
        advice="retrying",
        retry_after=_retry_after(response),
    )


def _problem(response: httpx2.Response) -> Problem | None:
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        return None


def _retry_after(response: httpx2.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def retry_backoff(pause_max: float) -> Callable[[Exception], bool | float]:
    """Decides whether a failed call is retried, and after how many seconds."""
    pause = min(BACKOFF_FIRST, pause_max)

    def seconds(error: Exception) -> bool | float:
        nonlocal pause
        if not isinstance(error, Unavailable | NotAllowed) or isinstance(error, RunnerRevoked):
            return False
        wanted = pause if error.retry_after is None else min(error.retry_after, RETRY_AFTER_MAX)
        pause = min(2 * pause, pause_max)
        return wanted * random.uniform(1, JITTER)  # noqa: S311  spreads retries, not security

    return seconds
