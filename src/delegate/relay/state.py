"""What the doors of one relay share."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from fastapi import Request

from delegate.config import Settings
from delegate.queue.rules import Rules, rules_of
from delegate.relay.live import Hub
from delegate.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    settings: Settings
    database: Database
    token_hash: str
    started_at: datetime
    hub: Hub = field(default_factory=Hub)

    @property
    def rules(self) -> Rules:
        return rules_of(self.settings)

    def now(self) -> datetime:
        return datetime.now(UTC)


def relay_of(request: Request) -> Relay:
    return cast(Relay, request.app.state.relay)  # FastAPI's state is untyped
