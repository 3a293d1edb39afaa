"""Limits failed authentications per address, before any token is looked at."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from ipaddress import IPv6Address

from delegate.errors import RateLimited
from delegate.relay.http.exposure import CallerAddress

WINDOW = 60.0  # seconds, from the first failure of an address
ADDRESSES_MAX = 10_000  # addresses that are remembered; beyond that the oldest is forgotten
TOKEN_FAILURES = 100
WEBHOOK_FAILURES = 100  # wrong signatures
PAIRING_FAILURES = 10
IPV6_BITS = 64  # whoever has one IPv6 address has all of its /64
PAIRING_PATH = "/api/runners/pair"
WEBHOOK_PATH = "/webhooks/linear"
PUBLIC_PATHS = frozenset({"/api/openapi.json"})  # below /api, but without a token


class FailureCounter:
    """Failures by key, each in a window that begins with the first one. Pure: the caller passes the time."""

    def __init__(self, limit: int, *, window: float = WINDOW, keys_max: int = ADDRESSES_MAX) -> None:
        self._limit, self._window, self._keys_max = limit, window, keys_max
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()  # the oldest window first

    def __len__(self) -> int:
        return len(self._failures)

    def retry_after(self, key: str, now: float) -> float | None:
        """Return the seconds until the key may try again; None: it may now."""
        began, count = self._failures.get(key, (now, 0))
        remaining = began + self._window - now
        return remaining if count >= self._limit and remaining > 0 else None

    def record(self, key: str, now: float) -> None:
        began, count = self._failures.get(key, (now, 0))
        if now - began >= self._window:
            del self._failures[key]
            began, count = now, 0
        self._failures[key] = (began, count + 1)
        if len(self._failures) > self._keys_max:
            self._failures.popitem(last=False)


@dataclass(frozen=True, slots=True)
class RateLimits:
    tokens: FailureCounter = field(default_factory=lambda: FailureCounter(TOKEN_FAILURES))
    pairing: FailureCounter = field(default_factory=lambda: FailureCounter(PAIRING_FAILURES))
    webhooks: FailureCounter = field(default_factory=lambda: FailureCounter(WEBHOOK_FAILURES))

    def counter_of(self, path: str) -> FailureCounter | None:
        """Return the counter of a path that takes a token or a signature."""
        if path in (PAIRING_PATH, WEBHOOK_PATH):
            return self.pairing if path == PAIRING_PATH else self.webhooks
        is_guarded = path.startswith("/api/") or path == "/mcp"
        return self.tokens if is_guarded and path not in PUBLIC_PATHS else None


def check_limit(counter: FailureCounter, caller: CallerAddress | None, now: float) -> None:
    if caller is None or caller.is_this_machine:
        return
    seconds = counter.retry_after(limit_key(caller), now)
    if seconds is not None:
        raise RateLimited(seconds=f"{seconds:.0f}", retry_after=seconds)


def record_failure(counter: FailureCounter, caller: CallerAddress | None, now: float) -> None:
    """Count a failed authentication. An agent on the relay's own machine must not lock its owner out."""
    if caller is not None and not caller.is_this_machine:
        counter.record(limit_key(caller), now)


def limit_key(caller: CallerAddress) -> str:
    address = caller.address
    if isinstance(address, IPv6Address):
        return f"{int(address) >> (128 - IPV6_BITS):x}::/{IPV6_BITS}"
    return str(address)
