"""The client of a relay: finds it, calls its API and follows streams. Standard library only, for a quick start."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from delegate import __version__
from delegate.client.http import HttpExchange, Target, Untrusted, request_bytes
from delegate.client.http_response import EventStreamParser, NotHttp, ServerSentEvent, describe_error
from delegate.client.proxies import ProxyRefused, proxy_for
from delegate.config import home_files
from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.config.values import mask_login
from delegate.errors import (
    DelegateError,
    NoSuchAccessToken,
    NoSuchRunner,
    NoSuchSchedule,
    NoSuchTask,
    RelayUnreachable,
    Reported,
    Unauthenticated,
)

if TYPE_CHECKING:
    from delegate.client.responses import (
        AccessTokenData,
        AccessTokensData,
        AuditData,
        BatchData,
        CancelledSchedule,
        ChangeData,
        DisabledPersonData,
        GraphData,
        LinearData,
        LinearLabelsData,
        MeData,
        NewAccessTokenData,
        NewPersonData,
        OutputData,
        PairingTokenData,
        PeopleData,
        PersonData,
        PipelineData,
        PromptData,
        PurgedTaskData,
        RelayData,
        RunnerData,
        RunnerListData,
        ScheduleData,
        ScheduleDetail,
        SchedulePage,
        TaskData,
        TaskDetail,
        TaskPage,
    )

PLAIN_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")
RETRY_TIMEOUT = 15.0  # seconds for which a call is retried
RESTART_TIMEOUT = 60.0  # the same, while a keeper of this home lives: it restarts its relay, slowly on a busy machine
NOTICE_AFTER = 1.5  # seconds of retrying after which the user gets a notice
RESPONSE_TIMEOUT = 30.0  # seconds of silence after which one try fails
RESPONSE_MAX = 256 * 1024 * 1024  # a response is read into memory; raw output is not
STREAM_IDLE_TIMEOUT = 60.0  # seconds; a stream sends a keep-alive every 15 seconds
HEALTH_MAX = 64 * 1024  # another server may answer with a page
BACKOFF_MIN, BACKOFF_MAX = 0.05, 1.0
SERVE_AGAIN = "start `delegate serve` again, or `delegate up` for a relay of this machine only"
ReturnValue = TypeVar("ReturnValue")


STREAM_MESSAGE_MAX = 8 * 1024 * 1024  # bytes of one event


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamItem:
    """One message of a task's stream: kind is `event`, `output` or `end`."""

    id: str
    kind: str
    data: Any  # EventData, a chunk of output, or TaskData, depending on the kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayHealth:
    body: Mapping[str, Any]  # Any: JSON of a server that may be another program
    date: str  # of the response


def parse_json(data: bytes | str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise NotHttp("its response is not JSON") from None


def parse_stream_item(event: ServerSentEvent) -> StreamItem:
    return StreamItem(id=event.id, kind=event.kind, data=parse_json(event.data.decode("utf-8", "replace")))


class Busy(Exception):
    """The relay responds, but is temporarily unavailable."""

    def __init__(self, problem: DelegateError) -> None:
        super().__init__(problem.message)
        self.problem = problem


def require_running_relay(settings: Settings) -> None:
    """Raise RelayUnreachable unless a relay is running; for a client that must not start one."""
    if home_files.wait_for_address(Home(settings.home), home_files.ADDRESS_REPAIR_TIMEOUT) is not None:
        return
    advice = SERVE_AGAIN if Home(settings.home).served.exists() else "`delegate up` starts it"
    raise RelayUnreachable(url=settings.home, why="none is running for this DELEGATE_HOME", advice=advice)


def ignore_notice(_: str) -> None:
    """Discard the notice."""


class Client:
    """Calls to one relay. A call may be sent twice, so every POST that creates something carries a request key."""

    def __init__(
        self,
        settings: Settings,
        *,
        start: Callable[[Settings], None] = require_running_relay,
        notice: Callable[[str], None] = ignore_notice,
        patience: float = float("inf"),
    ) -> None:
        self._settings = settings
        self._patience = patience  # seconds; limits how long a call is retried
        self._home = Home(settings.home)
        self._start = start
        self._notice = notice
        self.url = mask_login(settings.relay_url)

    def submit(self, request: Mapping[str, object]) -> TaskData:
        response: TaskData = self._call("POST", "/api/tasks", {**request, "requestKey": new_request_key()})
        return response

    def submit_together(self, requests: Sequence[Mapping[str, object]]) -> list[TaskData]:
        """Submit all tasks or none; they may depend on each other by name."""
        entries = [{**request, "requestKey": new_request_key()} for request in requests]
        response: BatchData = self._call("POST", "/api/tasks/batch", {"tasks": entries})
        return response["tasks"]

    def tasks(self, *, limit: int, cursor: str | None = None) -> TaskPage:
        query = urlencode({"limit": limit} | ({"cursor": cursor} if cursor else {}))
        response: TaskPage = self._call("GET", f"/api/tasks?{query}")
        return response

    def task(self, task_id: str) -> TaskDetail:
        response: TaskDetail = self._call("GET", _task_path(task_id))
        return response

    def graph(self, task_id: str) -> GraphData:
        response: GraphData = self._call("GET", _task_path(task_id, "/graph"))
        return response

    def answer(self, task_id: str, text: str) -> TaskData:
        body = {"text": text, "requestKey": new_request_key()}
        answer: TaskData = self._call("POST", _task_path(task_id, "/answer"), body)
        return answer

    def cancel(self, task_id: str, reason: str) -> TaskData:
        response: TaskData = self._call("POST", _task_path(task_id, "/cancel"), {"reason": reason})
        return response

    def retry(self, task_id: str) -> TaskData:
        response: TaskData = self._call("POST", _task_path(task_id, "/retry"), {"requestKey": new_request_key()})
        return response

    def resume(self, task_id: str, context: str | None) -> TaskData:
        added = {} if context is None else {"context": context}
        body = {**added, "requestKey": new_request_key()}
        response: TaskData = self._call("POST", _task_path(task_id, "/resume"), body)
        return response

    def change(self, task_id: str) -> ChangeData:
        response: ChangeData = self._call("GET", _task_path(task_id, "/diff"))
        return response

    def prompt(self, task_id: str) -> PromptData:
        response: PromptData = self._call("GET", _task_path(task_id, "/prompt"))
        return response

    def output(self, task_id: str, tail: int | None) -> OutputData:
        query = f"?tail={tail}" if tail else ""
        response: OutputData = self._call("GET", _task_path(task_id, f"/output{query}"))
        return response

    def raw_output(self, task_id: str) -> Iterator[bytes]:
        """Yield the exact bytes of the last attempt."""
        with self._open(_task_path(task_id, "/output/raw?stream=all")) as response:
            try:
                while piece := response.read():
                    yield piece
            except (OSError, NotHttp) as error:
                raise self._unreachable(error) from error

    def linear_status(self) -> LinearData:
        response: LinearData = self._call("GET", "/api/linear")
        return response

    def linear(self, verb: str, body: Mapping[str, object]) -> LinearData:
        """Connect, disconnect, test or map."""
        response: LinearData = self._call("POST", f"/api/linear/{verb}", body)
        return response

    def linear_labels(self, *, create: bool) -> LinearLabelsData:
        response: LinearLabelsData = self._call("POST", "/api/linear/labels", {"create": create})
        return response

    def schedule(self, request: Mapping[str, object]) -> ScheduleDetail:
        body = {**request, "requestKey": new_request_key()}
        response: ScheduleDetail = self._call("POST", "/api/schedules", body)
        return response

    def pipeline(self, steps: Sequence[Mapping[str, object]]) -> PipelineData:
        body = {"steps": steps, "requestKey": new_request_key()}
        response: PipelineData = self._call("POST", "/api/pipelines", body)
        return response

    def schedules(self, *, limit: int, status: str | None = None, cursor: str | None = None) -> SchedulePage:
        wanted = {"limit": limit, "status": status, "cursor": cursor}
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        response: SchedulePage = self._call("GET", f"/api/schedules?{query}")
        return response

    def schedule_in_full(self, schedule_id: str, history_limit: int) -> ScheduleDetail:
        path = _schedule_path(schedule_id, f"?historyLimit={history_limit}")
        response: ScheduleDetail = self._call("GET", path)
        return response

    def pause_schedule(self, schedule_id: str, reason: str) -> ScheduleData:
        response: ScheduleData = self._call("POST", _schedule_path(schedule_id, "/pause"), {"reason": reason})
        return response

    def resume_schedule(self, schedule_id: str, reason: str) -> ScheduleData:
        response: ScheduleData = self._call("POST", _schedule_path(schedule_id, "/resume"), {"reason": reason})
        return response

    def cancel_schedule(self, schedule_id: str, reason: str, *, cancel_tasks: bool) -> CancelledSchedule:
        body = {"reason": reason, "cancelTasks": cancel_tasks}
        response: CancelledSchedule = self._call("POST", _schedule_path(schedule_id, "/cancel"), body)
        return response

    def me(self) -> MeData:
        response: MeData = self._call("GET", "/api/me")
        return response

    def people(self) -> list[PersonData]:
        response: PeopleData = self._call("GET", "/api/people")
        return response["people"]

    def add_person(self, request: Mapping[str, object]) -> NewPersonData:
        response: NewPersonData = self._call("POST", "/api/people", {**request, "requestKey": new_request_key()})
        return response

    def change_person(self, name: str, verb: str, **fields: str) -> PersonData:
        """Change a user: `verb` is enable or role."""
        response: PersonData = self._call("POST", f"/api/people/{quote(name, safe='')}/{verb}", fields)
        return response

    def disable_person(self, name: str) -> DisabledPersonData:
        response: DisabledPersonData = self._call("POST", f"/api/people/{quote(name, safe='')}/disable", {})
        return response

    def tokens(self, person: str | None) -> list[AccessTokenData]:
        query = "" if person is None else "?" + urlencode({"person": person})
        response: AccessTokensData = self._call("GET", f"/api/tokens{query}")
        return response["tokens"]

    def create_token(self, request: Mapping[str, object]) -> NewAccessTokenData:
        body = {**request, "requestKey": new_request_key()}
        response: NewAccessTokenData = self._call("POST", "/api/tokens", body)
        return response

    def revoke_token(self, token_id: str) -> AccessTokenData:
        if not PLAIN_ID.fullmatch(token_id):
            raise NoSuchAccessToken(token_id=token_id)
        response: AccessTokenData = self._call("POST", f"/api/tokens/{token_id}/revoke", {})
        return response

    def audit(self, *, limit: int, cursor: str | None = None) -> AuditData:
        query = urlencode({"limit": limit} | ({"cursor": cursor} if cursor else {}))
        response: AuditData = self._call("GET", f"/api/audit?{query}")
        return response

    def purge(self, task_id: str) -> PurgedTaskData:
        response: PurgedTaskData = self._call("POST", _task_path(task_id, "/purge"), {})
        return response

    def health(self) -> RelayHealth:
        """Return what a relay tells everybody, and its time."""
        with self._open("/healthz") as response:
            found = parse_json(response.read_all(HEALTH_MAX))
            return RelayHealth(body=found if isinstance(found, dict) else {}, date=response.headers.get("date", ""))

    def pair_runner(self, description: Mapping[str, object]) -> dict[str, str]:
        """Exchange the pairing token, which is the client's token, for a runner's."""
        body = {**description, "requestKey": new_request_key()}
        response: dict[str, str] = self._call("POST", "/api/runners/pair", body)
        return response

    def unpair_runner(self) -> None:
        """Tell the relay that the runner, whose token is the client's, is no more."""
        self._call("POST", "/api/runners/unpair", {})

    def relay(self) -> RelayData:
        response: RelayData = self._call("GET", "/api/relay")
        return response

    def runners(self, *, limit: int, cursor: str | None = None) -> RunnerListData:
        query = urlencode({"limit": limit} | ({"cursor": cursor} if cursor else {}))
        response: RunnerListData = self._call("GET", f"/api/runners?{query}")
        return response

    def pairing_token(self, name: str) -> PairingTokenData:
        response: PairingTokenData = self._call(
            "POST", "/api/pairing-tokens", {"name": name, "requestKey": new_request_key()}
        )
        return response

    def order_runner(self, name: str, order: str, /, **body: str) -> RunnerData:
        """Give a runner an order: `drain`, `resume`, `revoke` or `rename`."""
        if not PLAIN_ID.fullmatch(name):
            raise NoSuchRunner(runner_id=name)
        response: RunnerData = self._call("POST", f"/api/runners/{name}/{order}", body)
        return response

    def stream(self, task_id: str, *, idle_after: float = STREAM_IDLE_TIMEOUT) -> Iterator[StreamItem | None]:
        """Yield everything a task does from start to end, across relay restarts.

        Yields None whenever nothing arrived for `idle_after` seconds.
        """
        last_id, failing_since = "", 0.0
        while True:
            try:
                for item in self._stream_once(task_id, last_id, idle_after):
                    failing_since = 0.0
                    yield item
                    if item is not None:
                        last_id = item.id or last_id
                        if item.kind == "end":
                            return
            except (NotHttp, ProxyRefused) as error:
                raise self._unreachable(error) from error
            except OSError as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > self._restart_timeout():
                    raise self._unreachable(error) from error
            time.sleep(BACKOFF_MIN)

    def _stream_once(self, task_id: str, last_id: str, idle_after: float) -> Iterator[StreamItem | None]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        with self._open(_task_path(task_id, "/stream"), headers) as response:
            response.set_timeout(idle_after)
            events, quiet = EventStreamParser(STREAM_MESSAGE_MAX), 0.0
            while quiet < STREAM_IDLE_TIMEOUT:
                try:
                    piece = response.read()
                except TimeoutError:
                    quiet += idle_after
                    yield None
                    continue
                if not piece:
                    return
                quiet = 0.0
                yield from map(parse_stream_item, events.feed(piece))

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:  # Any: each route's own
        def once() -> Any:
            with self._send(method, path, body) as response:
                return parse_json(response.read_all(RESPONSE_MAX))

        return self._call_with_retries(once)

    def _open(self, path: str, headers: Mapping[str, str] | None = None) -> HttpExchange:
        return self._call_with_retries(lambda: self._send("GET", path, headers=headers))

    def _call_with_retries(self, once: Callable[[], ReturnValue]) -> ReturnValue:
        """Retry until the relay responds: it may be restarting."""
        began, pause, is_notified = time.monotonic(), BACKOFF_MIN, False
        while True:
            try:
                return once()
            except (NotHttp, ProxyRefused) as error:
                raise self._unreachable(error) from error
            except OSError as error:
                failure, limit = self._unreachable(error), self._restart_timeout()
            except Busy as busy:
                failure, limit = busy.problem, RETRY_TIMEOUT
            waited, limit = time.monotonic() - began, min(limit, self._patience)
            if waited > limit:
                raise failure
            if waited > NOTICE_AFTER and not is_notified:
                is_notified = True
                self._notice(f"{failure.message}; retrying for up to {limit:.0f} s")
            time.sleep(pause)
            pause = min(pause * 2, BACKOFF_MAX)

    def _restart_timeout(self) -> float:
        is_kept = self._settings.is_local and home_files.is_held(self._home.keeper_lock)
        return RESTART_TIMEOUT if is_kept else RETRY_TIMEOUT

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpExchange:
        """Send once; raise an error response as the error it describes."""
        target, prefix, token = self._locate()
        fields = {"Authorization": f"Bearer {token}", "Accept": "application/json", **(headers or {})}
        payload = b""
        if body is not None:
            fields["Content-Type"] = "application/json"
            payload = json.dumps(body).encode()
        request = request_bytes(target, method, prefix + path, fields, payload)
        response = HttpExchange(
            target, request, RESPONSE_TIMEOUT, lambda: self._notice(f"waiting for the relay at {self.url} to respond")
        )
        if response.status >= 300:
            raise self._problem(response)
        return response

    def _locate(self) -> tuple[Target, str, str]:
        """Return the relay's host, its base path, and the token for it."""
        if not self._settings.is_local:
            return remote_target(self._settings)
        address = home_files.live_address(self._home)
        if address is None:
            self._start(self._settings)
            address = home_files.live_address(self._home)
            if address is None:
                raise ConnectionRefusedError("it exited right after it started")
        if address.version != __version__:
            self._notice(
                f"the relay runs version {address.version}, this is {__version__}; restart the relay when idle"
            )
        self.url = address.url
        return Target(host="127.0.0.1", port=address.port), "", home_files.token_for(self._settings, host=None)

    def _problem(self, response: HttpExchange) -> Exception:
        with response:
            body = response.read_all(RESPONSE_MAX)
        try:
            found = json.loads(body)
            code, message = str(found["type"]), str(found["detail"])
            hint = str(found.get("hint") or "")
        except (ValueError, KeyError, TypeError, AttributeError):
            return NotHttp(f"it returned HTTP status {response.status} and is probably not a relay")
        problem = Reported(code=code, message=message, hint=hint, exit_code=exit_code_of(code, response.status))
        return Busy(problem) if response.status == 503 else problem

    def _unreachable(self, error: Exception) -> DelegateError:
        return unreachable(self._settings, self.url or str(self._settings.home), error)


def unreachable(settings: Settings, url: str, error: Exception) -> RelayUnreachable:
    """Return the error for a relay with which no exchange was possible."""
    why = "it did not respond in time" if isinstance(error, TimeoutError) else describe_error(error)
    advice = "check the relay's URL (DELEGATE_RELAY_URL) and the network"
    if isinstance(error, ProxyRefused | Untrusted):
        why, _, advice = why.partition("; ")
    elif settings.is_local and Home(settings.home).served.exists():
        advice = SERVE_AGAIN
    elif settings.is_local:
        advice = f"see {Home(settings.home).logs / 'relay.log'}"
    return RelayUnreachable(url=url, why=why, advice=advice)


def remote_target(settings: Settings) -> tuple[Target, str, str]:
    """Return the host, base path and token of a remote relay. The settings have validated its URL."""
    parts = urlsplit(settings.relay_url)
    host = parts.hostname or ""
    token = home_files.token_for(settings, host)
    if not token.isascii() or not token.isprintable() or not token:
        raise Unauthenticated()
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    ca_file = None if settings.ca_file is None else str(settings.ca_file)
    proxy = proxy_for(host, port, os.environ) if secure else None
    target = Target(host=host, port=port, secure=secure, ca_file=ca_file, proxy=proxy)
    return target, parts.path.rstrip("/"), token


def new_request_key() -> str:
    return os.urandom(12).hex()


def exit_code_of(code: str, status: int) -> int:
    """Return the exit code for an error received over HTTP."""
    kinds = [DelegateError]
    for kind in kinds:
        if kind.code == code:
            return kind.exit_code
        kinds.extend(kind.__subclasses__())
    return {401: 4, 403: 4, 404: 5, 409: 5, 429: 6}.get(status, 2 if status < 500 else 6)


def _task_path(task_id: str, rest: str = "") -> str:
    if not PLAIN_ID.fullmatch(task_id):
        raise NoSuchTask(task_id=task_id)  # an empty id, or one with a slash, would change the path
    return f"/api/tasks/{task_id}{rest}"


def _schedule_path(schedule_id: str, rest: str) -> str:
    if not PLAIN_ID.fullmatch(schedule_id):
        raise NoSuchSchedule(schedule_id=schedule_id)
    return f"/api/schedules/{schedule_id}{rest}"
