"""What the Linear stand-in is made of: rows, refusals, faults on demand and signed deliveries."""

from __future__ import annotations

import hashlib
import heapq
import hmac
import http.client
import json
import re
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCHEMA_PATH = Path(__file__).resolve().parent.parent / "fixtures" / "linear" / "schema.graphql"
FIRST_ACTIVITY_SECONDS = 10.0  # DOC: a new session without activity or link is unresponsive
SILENCE_SECONDS = 30 * 60.0  # DOC: a working session without activity goes stale
MAX_QUERY_COMPLEXITY = 10_000  # DOC
DEFAULT_PAGE, MAX_PAGE = 50, 250  # DOC, SEEN
ACCESS_TOKEN_SECONDS, CLIENT_TOKEN_SECONDS = 86_399, 2_591_999  # DOC: 24 hours, 30 days
CODE_SECONDS = 600.0  # ASSUMED life of an authorization code
LIMITS = {"oauth": (5_000, 2_000_000), "key": (2_500, 3_000_000)}  # requests, points per hour
AGENT_SCOPES = ("read", "write", "app:assignable", "app:mentionable")
KNOWN_SCOPES = {*AGENT_SCOPES, "issues:create", "comments:create", "timeSchedule:write", "admin"}
APP_EVENTS = ("AgentSessionEvent", "AppUserNotification", "OAuthApp")  # sent to the app only
DATA_EVENTS = ("Issue", "Comment", "IssueLabel", "Reaction", "Attachment")
WEBHOOK_FAULTS = {"duplicate", "delay", "reorder", "withhold", "corrupt_signature", "old_timestamp"}
API_FAULTS = {"errors", "status", "timeout", "reset", "slow", "rate_limit", "revoke_token"}
PRIORITIES = ("No priority", "Urgent", "High", "Medium", "Low")
DEFAULT_STATES = (
    ("Triage", "triage"),
    ("Backlog", "backlog"),
    ("Todo", "unstarted"),
    ("In Progress", "started"),
    ("In Review", "started"),
    ("Done", "completed"),
    ("Canceled", "canceled"),
    ("Duplicate", "duplicate"),
)
# DOC: the required and optional fields of each kind of activity, and the session's state after it.
CONTENT_FIELDS = {
    "thought": ({"body"}, set[str]()),
    "action": ({"action", "parameter"}, {"result"}),
    "elicitation": ({"body"}, set()),
    "response": ({"body"}, set()),
    "error": ({"body"}, set()),
}
STATE_AFTER = {
    "thought": "active",
    "action": "active",
    "elicitation": "awaitingInput",
    "response": "complete",
    "error": "error",
    "prompt": "active",
}
PLAN_MARKS = {"pending": " ", "inProgress": "~", "completed": "x", "canceled": "-"}
MISSING = object()
Json = dict[str, Any]
Clock = Callable[[], float]


class Entity(dict[str, Any]):
    """One row of the workspace. Keys are the schema's field names, references end in `Id`, and a
    key that starts with an underscore is the stand-in's own."""

    def __init__(self, kind: str, **fields: Any):
        super().__init__(fields)
        self.kind = kind

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    __hash__ = object.__hash__  # type: ignore[assignment]


class ManualClock:
    """A clock that moves only when a test says so."""

    def __init__(self, start: float = 1_784_800_000.0):
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Refused(Exception):
    """A request that Linear refuses, with the fields of Linear's error shape (SEEN)."""

    def __init__(
        self,
        message: str,
        shown: str = "",
        *,
        code: str = "INPUT_ERROR",
        kind: str = "invalid input",
        status: int = 400,
    ):
        super().__init__(message)
        self.extensions: Json = {
            "type": kind,
            "code": code,
            "statusCode": status,
            "userError": True,
            "userPresentableMessage": shown or message,
        }

    def shape(self) -> Json:
        return {"message": str(self), "extensions": self.extensions}


def not_found(kind: str) -> Refused:
    return Refused(f"Entity not found: {kind}", f"Could not find referenced {kind}.")


def invalid(shown: str) -> Refused:
    return Refused("Argument Validation Error", shown)


def forbidden(message: str, shown: str = "") -> Refused:
    return Refused(message, shown, code="FORBIDDEN", kind="forbidden", status=403)


def unauthenticated(shown: str = "You need to authenticate to access this operation.") -> Refused:
    refused = Refused(
        "Authentication required, not authenticated",
        shown,
        code="AUTHENTICATION_ERROR",
        kind="authentication error",
        status=401,
    )
    refused.extensions |= {"meta": {}, "http": {"status": 401}}
    return refused


@dataclass(slots=True)
class Fault:
    kind: str
    times: int
    match: str  # regular expression on "Type.action" of a delivery or on the text of a request
    options: Json


class Faults:
    """The faults that `chaos` has ordered and that have not struck yet."""

    def __init__(self) -> None:
        self.pending: list[Fault] = []
        self.struck: list[tuple[str, str]] = []
        self.lock = threading.Lock()

    def take(self, kinds: set[str], text: str) -> Fault | None:
        with self.lock:
            for fault in self.pending:
                if fault.kind in kinds and fault.times > 0 and re.search(fault.match, text):
                    fault.times -= 1
                    self.struck.append((fault.kind, text))
                    return fault
        return None


@dataclass(slots=True)
class Delivery:
    id: str
    webhook: Entity
    event: str  # "Type.action"
    payload: Json
    state: str = "queued"  # queued, delivered, failed, withheld
    outcomes: list[str] = field(default_factory=list)  # one per attempt: HTTP status or exception
    body: bytes = b""
    corrupt: bool = False
    age_seconds: float = 0.0


class WebhookSender:
    """Sends deliveries when they fall due and repeats those that fail.

    DOC: an answer other than 200, none within 5 seconds, or no connection is a failure; three more
    attempts follow after 1 minute, 1 hour and 6 hours. ASSUMED: a repeat keeps `Linear-Delivery`
    and, with renew_timestamp, is signed anew with the time at which it is sent."""

    def __init__(
        self,
        clock: Clock,
        new_id: Callable[[], str],
        faults: Faults,
        *,
        timeout: float = 5.0,
        retry_after: Sequence[float] = (60, 3600, 21600),
        renew_timestamp: bool = True,
        disable_after: int | None = None,
        workers: int = 1,
    ):
        self.clock, self.new_id, self.faults = clock, new_id, faults
        self.timeout, self.retry_after = timeout, tuple(retry_after)
        self.renew_timestamp, self.disable_after, self.workers = renew_timestamp, disable_after, workers
        self.log: list[Delivery] = []
        self.withheld: list[Delivery] = []
        self.held: list[Delivery] = []  # waiting for the next delivery to overtake them
        self.queue: list[tuple[float, int, Delivery]] = []
        self.sequence = self.in_flight = 0
        self.changed = threading.Condition()
        self.closing = False
        self.tls: ssl.SSLContext | None = None  # for webhooks over HTTPS

    def start(self) -> None:
        for _ in range(self.workers):
            threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()

    def post(self, webhook: Entity, event: str, payload: Json) -> None:
        delivery = Delivery(self.new_id(), webhook, event, payload)
        self.log.append(delivery)
        fault = self.faults.take(WEBHOOK_FAULTS, event)
        kind, options = (fault.kind, fault.options) if fault else ("", {})
        if kind == "withhold":
            delivery.state = "withheld"
            self.withheld.append(delivery)
            return
        if kind == "reorder":
            self.held.append(delivery)
            return
        delivery.corrupt = kind == "corrupt_signature"
        delivery.age_seconds = options.get("seconds", 3600.0) if kind == "old_timestamp" else 0.0
        due = self.clock() + (options.get("seconds", 1.0) if kind == "delay" else 0.0)
        self._push(delivery, due)
        if kind == "duplicate":
            for _ in range(options.get("copies", 1)):
                again = self.new_id() if options.get("new_id") else delivery.id
                self.log.append(copy := Delivery(again, webhook, event, payload))
                self._push(copy, due)
        while self.held:
            self._push(self.held.pop(0), due)

    def release(self) -> None:
        """Send what `withhold` and `reorder` kept back, oldest first."""
        waiting, self.withheld, self.held = self.withheld + self.held, [], []
        for delivery in waiting:
            delivery.state = "queued"
            self._push(delivery, self.clock())

    def settle(self, timeout: float = 10.0) -> None:
        """Return when no delivery is due or in flight; later retries may still be queued."""
        end = time.monotonic() + timeout
        with self.changed:
            while self.in_flight or (self.queue and self.queue[0][0] <= self.clock()):
                if not self.changed.wait(max(0.0, min(0.02, end - time.monotonic()))) and time.monotonic() > end:
                    raise TimeoutError("deliveries are still due")

    def _push(self, delivery: Delivery, due: float) -> None:
        with self.changed:
            self.sequence += 1
            heapq.heappush(self.queue, (due, self.sequence, delivery))
            self.changed.notify_all()

    def _run(self) -> None:
        while True:
            with self.changed:
                while not self.closing and not (self.queue and self.queue[0][0] <= self.clock()):
                    self.changed.wait(0.02 if self.queue else None)  # a clock gives no notice
                if self.closing:
                    return
                delivery = heapq.heappop(self.queue)[2]
                self.in_flight += 1
            outcome = self._send(delivery)
            with self.changed:
                self.record(delivery, outcome)
                self.in_flight -= 1
                self.changed.notify_all()

    def prepare(self, delivery: Delivery) -> dict[str, str]:
        """Stamp and sign the next attempt; return its headers. The body is then in the delivery."""
        now_ms = int((self.clock() - delivery.age_seconds) * 1000)
        if self.renew_timestamp or not delivery.body:
            stamped = {**delivery.payload, "webhookTimestamp": now_ms, "webhookId": delivery.webhook.id}
            delivery.body = json.dumps(stamped, ensure_ascii=False).encode("utf-8", "backslashreplace")
        signature = hmac.new(delivery.webhook["secret"].encode(), delivery.body, hashlib.sha256).hexdigest()
        if delivery.corrupt:
            signature = signature[::-1]
        delivery.corrupt, delivery.age_seconds = False, 0.0
        return {
            "Accept-Charset": "utf-8",
            "Content-Type": "application/json; charset=utf-8",
            "Linear-Delivery": delivery.id,
            "Linear-Event": delivery.event.split(".")[0],
            "Linear-Signature": signature,
            "Linear-Timestamp": str(now_ms),
            "User-Agent": "Linear-Webhook",
        }

    def take_due(self) -> Delivery | None:
        """Take the next due delivery, for a test that sends it itself."""
        with self.changed:
            if not self.queue or self.queue[0][0] > self.clock():
                return None
            return heapq.heappop(self.queue)[2]

    def _send(self, delivery: Delivery) -> str:
        headers = self.prepare(delivery)
        url = urllib.parse.urlsplit(delivery.webhook["url"])
        place = (url.hostname or "", url.port)
        if self.tls is None:
            connection = http.client.HTTPConnection(*place, timeout=self.timeout)
        else:
            connection = http.client.HTTPSConnection(*place, timeout=self.timeout, context=self.tls)
        try:
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request("POST", target, delivery.body, headers)
            return str(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()

    def record(self, delivery: Delivery, outcome: str) -> None:
        delivery.outcomes.append(outcome)
        if outcome == "200":
            delivery.state = "delivered"
        elif len(delivery.outcomes) <= len(self.retry_after) and delivery.webhook["enabled"]:
            due = self.clock() + self.retry_after[len(delivery.outcomes) - 1]
            self.sequence += 1
            heapq.heappush(self.queue, (due, self.sequence, delivery))
        else:
            delivery.state = "failed"
            failed = sum(d.state == "failed" and d.webhook is delivery.webhook for d in self.log)
            if self.disable_after and failed >= self.disable_after:
                delivery.webhook["enabled"] = False  # DOC: it "might be disabled"


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
