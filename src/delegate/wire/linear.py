"""The HTTP bodies of the connection to Linear."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StrictBool, StringConstraints

from delegate.wire.basics import Count, Line, Name, RepositoryName, Timestamp, Wire
from delegate.wire.tasks import Agent

Secret = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[\x21-\x7e]+$")]
Email = Annotated[str, StringConstraints(min_length=3, max_length=200, pattern=r"^[^\s@]+@[^\s@]+$")]
LinearKind = Literal["oauth", "client_credentials", "api_key"]
LinearStateName = Literal["not connected", "ready", "connected", "needs attention"]


class LinearConnectRequest(Wire):
    kind: LinearKind
    api_key: Secret | None = None
    client_id: Secret | None = None
    client_secret: Secret | None = None
    code: Secret | None = None
    code_verifier: Secret | None = None
    redirect_uri: Secret | None = None
    webhook_secret: Secret | None = None
    members: list[Email] = []


class LinearActionRequest(Wire):
    """An action on the connection that needs no details."""


class LinearMapRequest(Wire):
    team: Name | None = None
    project: Name | None = None
    repository: RepositoryName | None = None
    agent: Agent | None = None


class LinearLabelsRequest(Wire):
    create: StrictBool = False


class LinearMapView(Wire):
    kind: Literal["team", "project"]
    name: str
    repository: str
    agent: str | None


class LinearView(Wire):
    state: LinearStateName
    reason: str | None = None
    kind: LinearKind | None = None
    workspace: str | None = None
    user: str | None = None
    scopes: list[str] = []
    members: list[str] = []
    webhooks: Line | None = None
    connected_at: Timestamp | None = None
    delivered_at: Timestamp | None = None
    polled_at: Timestamp | None = None
    inbox_waiting: Count = 0
    outbox_waiting: Count = 0
    outbox_dead: Count = 0
    last_error: str | None = None
    authorize_url: str
    maps: list[LinearMapView] = []


class LinearLabelView(Wire):
    group: str
    name: str
    exists: bool


class LinearLabelsView(Wire):
    labels: list[LinearLabelView]
    created: Count
