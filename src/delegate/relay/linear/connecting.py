"""Connects a workspace, describes the connection, and keeps its maps and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial

from delegate.errors import InvalidField, LinearDenied, NoSuchPlace
from delegate.linear.client import SCOPES, Grant, Json, LinearApi, authorize_url, request_grant
from delegate.linear.operations import CREATE_LABEL, LABELS, PLACES, VIEWER
from delegate.linear.records import (
    ConnectionKind,
    IssueMap,
    LinearConnection,
    LinearSecrets,
    LinearState,
    MapKind,
)
from delegate.model import Actor
from delegate.preferences.names import repository_url
from delegate.relay.linear.link import CONNECTION_KEY, LinearLink
from delegate.store.database import Connection
from delegate.store.linear.connections import (
    all_maps,
    delete_connection,
    delete_map,
    get_connection,
    put_map,
    save_connection,
    set_problem,
)
from delegate.store.linear.inbox import count_unprocessed
from delegate.store.linear.outbox import count_posts
from delegate.store.people import record_audit
from delegate.wire.linear import (
    LinearConnectRequest,
    LinearLabelsView,
    LinearLabelView,
    LinearMapRequest,
    LinearMapView,
    LinearView,
)

SECRETS_KEPT = 2  # webhook secrets that are valid at once, while one is being replaced
SILENT_AFTER = timedelta(days=1)
LABEL_GROUPS: Mapping[str, tuple[str, ...]] = {
    "executor": ("claude", "codex"),
    "model": ("opus", "sonnet", "haiku"),
    "thinking": ("low", "medium", "high", "max"),
    "repo": (),
}
REQUIRED = {
    ConnectionKind.API_KEY: ("api_key",),
    ConnectionKind.CLIENT_CREDENTIALS: ("client_id", "client_secret"),
    ConnectionKind.OAUTH: ("client_id", "code", "code_verifier", "redirect_uri"),
}


async def connect(link: LinearLink, wanted: LinearConnectRequest, by: Actor) -> LinearConnection:
    """Check the credential, and store it with the names of the workspace and of the user that it acts as."""
    kind = ConnectionKind(wanted.kind)
    for name in REQUIRED[kind]:
        if getattr(wanted, name) is None:
            raise InvalidField(field=name, why=f"is missing; {kind} needs it")
    grant = await _obtain_grant(link, kind, wanted)
    token = grant.access_token if grant else wanted.api_key or ""
    new = LinearConnection(
        kind=kind,
        organization_id="",
        organization_name="",
        url_key="",
        user_id="",
        user_name="",
        client_id=wanted.client_id,
        scopes=grant.scopes if grant else (),
        members=tuple(wanted.members),
        connected_at=link.relay.now(),
        expires_at=grant.expires_at if grant else None,
        secrets=LinearSecrets(
            access_token=token,
            refresh_token=grant.refresh_token if grant else None,
            client_secret=wanted.client_secret,
            webhook_secrets=(wanted.webhook_secret,) if wanted.webhook_secret else (),
        ),
    )
    known = await _with_names(link, new)
    await link.relay.database.write("linear.connect", partial(_save, known=known, link=link, by=by))
    saved = await link.reload()
    link.relay.hub.notify_key(CONNECTION_KEY)  # after the reload: who is woken reads the cached connection
    assert saved is not None
    return saved


async def _obtain_grant(link: LinearLink, kind: ConnectionKind, wanted: LinearConnectRequest) -> Grant | None:
    if kind is ConnectionKind.API_KEY:
        return None
    form = {"client_id": wanted.client_id or ""}
    if wanted.client_secret is not None:
        form["client_secret"] = wanted.client_secret
    if kind is ConnectionKind.CLIENT_CREDENTIALS:
        form |= {"grant_type": "client_credentials", "scope": ",".join(SCOPES)}
    else:
        form |= {
            "grant_type": "authorization_code",
            "code": wanted.code or "",
            "code_verifier": wanted.code_verifier or "",
            "redirect_uri": wanted.redirect_uri or "",
        }
    grant = await request_grant(link.http, link.relay.settings.linear_api_url, form, link.relay.now())
    missing = [scope for scope in SCOPES if scope not in grant.scopes]
    if missing:
        raise LinearDenied(why=f"it lacks the scopes {', '.join(missing)}")
    return grant


async def _with_names(link: LinearLink, connection: LinearConnection) -> LinearConnection:
    api = LinearApi(link.http, link.relay.settings.linear_api_url, connection.authorization)
    answer = await api.call(VIEWER)
    viewer, organization = answer["viewer"], answer["organization"]
    if connection.has_sessions and not viewer["app"]:
        raise LinearDenied(why="it acts as a person; authorize the app with actor=app")
    return replace(
        connection,
        organization_id=organization["id"],
        organization_name=organization["name"],
        url_key=organization["urlKey"],
        user_id=viewer["id"],
        user_name=viewer["name"],
    )


def _save(connection: Connection, known: LinearConnection, link: LinearLink, by: Actor) -> None:
    """A new webhook secret is valid beside the previous one, until the next replaces that. Without a list of members
    the previous one stays: replacing a secret must not let more people start work."""
    earlier = get_connection(connection, link.box)
    secrets = known.secrets.webhook_secrets
    if earlier is not None and earlier.organization_id == known.organization_id:
        secrets = tuple(dict.fromkeys([*secrets, *earlier.secrets.webhook_secrets]))[:SECRETS_KEPT]
        known = replace(known, revision=earlier.revision + 1, members=known.members or earlier.members)
    save_connection(connection, replace(known, secrets=replace(known.secrets, webhook_secrets=secrets)), link.box)
    record_audit(connection, by, "linear.connect", known.url_key, now=known.connected_at, details={"kind": known.kind})


async def disconnect(link: LinearLink, by: Actor) -> bool:
    def write(connection: Connection) -> bool:
        was_connected = delete_connection(connection)
        if was_connected:
            record_audit(connection, by, "linear.disconnect", "linear", now=link.relay.now())
        return was_connected

    was_connected = await link.relay.database.write("linear.disconnect", write)
    await link.reload()
    return was_connected


async def check_connection(link: LinearLink) -> None:
    """Ask Linear who we are: raises what is wrong, or clears an earlier problem."""
    connection = await link.require()
    await link.call(VIEWER)
    if connection.problem is not None:
        await link.relay.database.write("linear.problem", partial(set_problem, problem=None))
    await link.reload()


async def describe_connection(link: LinearLink) -> LinearView:
    def read(connection: Connection) -> LinearState:
        return LinearState(
            connection=get_connection(connection, link.box),
            maps=all_maps(connection),
            outbox=count_posts(connection),
            inbox_waiting=count_unprocessed(connection),
        )

    return to_view(await link.relay.database.read(read), link)


def to_view(state: LinearState, link: LinearLink) -> LinearView:
    known, url = state.connection, authorize_url(link.relay.settings.linear_api_url)
    maps = [
        LinearMapView(
            kind="team" if one.kind is MapKind.TEAM else "project",
            name=one.name,
            repository=one.repository,
            agent=one.agent,
        )
        for one in state.maps
    ]
    if known is None:
        return LinearView(state="not connected", authorize_url=url, maps=maps)
    is_in_use = known.delivered_at is not None or known.polled_at is not None
    return LinearView(
        state="needs attention" if known.problem else "connected" if is_in_use else "ready",
        reason=known.problem or (None if is_in_use else "no webhook has arrived yet"),
        kind=known.kind.value,
        workspace=known.organization_name,
        user=known.user_name,
        scopes=list(known.scopes),
        members=list(known.members),
        webhooks=_describe_webhooks(known, link),
        connected_at=known.connected_at,
        delivered_at=known.delivered_at,
        polled_at=known.polled_at,
        inbox_waiting=state.inbox_waiting,
        outbox_waiting=state.outbox.waiting,
        outbox_dead=state.outbox.dead,
        last_error=state.outbox.last_error,
        authorize_url=url,
        maps=maps,
    )


def _describe_webhooks(known: LinearConnection, link: LinearLink) -> str:
    """Judge by deliveries that arrived with a valid signature."""
    if not known.secrets.webhook_secrets:
        return "not used: no webhook secret is set"
    if known.delivered_at is None:
        return "none received yet"
    is_silent = link.relay.now() - known.delivered_at > SILENT_AFTER
    return "silent for more than a day" if is_silent else "healthy"


async def change_map(link: LinearLink, wanted: LinearMapRequest, by: Actor) -> None:
    """Set or, without a repository, remove the map of a team or project."""
    if (wanted.team is None) == (wanted.project is None):
        raise InvalidField(field="team", why="give either a team or a project")
    kind = MapKind.TEAM if wanted.team is not None else MapKind.PROJECT
    name = wanted.team or wanted.project or ""
    place = await _find_place(link, kind, name)
    new: IssueMap | None = None
    if wanted.repository is not None:
        repository_url(wanted.repository)  # raises an error that names the field
        new = IssueMap(
            kind=kind, target_id=place["id"], name=place["name"], repository=wanted.repository, agent=wanted.agent
        )

    def write(connection: Connection) -> None:
        if new is None:
            delete_map(connection, kind, place["id"])
        else:
            put_map(connection, new)
        details = {"repository": wanted.repository or "none"}
        record_audit(connection, by, "linear.map", place["name"], now=link.relay.now(), details=details)

    await link.relay.database.write("linear.map", write)


async def _find_place(link: LinearLink, kind: MapKind, name: str) -> Json:
    answer = await link.call(PLACES)
    nodes = answer["teams" if kind is MapKind.TEAM else "projects"]["nodes"]
    wanted = name.lower()
    for node in nodes:
        if wanted in (str(node["name"]).lower(), str(node.get("key", "")).lower(), node["id"]):
            return dict(node)
    raise NoSuchPlace(kind=kind, name=name)


async def arrange_labels(link: LinearLink, *, create: bool) -> LinearLabelsView:
    """List the label groups that Delegate reads, and create what is missing if asked to."""
    nodes = (await link.call(LABELS))["issueLabels"]["nodes"]
    groups = {str(node["name"]).lower(): node["id"] for node in nodes if node["isGroup"]}
    names = {(node["parent"]["id"], str(node["name"]).lower()) for node in nodes if node["parent"]}
    maps = await link.relay.database.read(all_maps)
    wanted = {**LABEL_GROUPS, "repo": tuple(dict.fromkeys(one.repository for one in maps))}
    labels: list[LinearLabelView] = []
    created = 0
    for group, members in wanted.items():
        for name in members:
            exists = (groups.get(group), name.lower()) in names
            if create and not exists:
                if group not in groups:
                    groups[group] = await _create_label(link, {"name": group, "isGroup": True})
                await _create_label(link, {"name": name, "parentId": groups[group]})
                created, exists = created + 1, True
            labels.append(LinearLabelView(group=group, name=name, exists=exists))
    return LinearLabelsView(labels=labels, created=created)


async def _create_label(link: LinearLink, fields: dict[str, object]) -> str:
    answer = await link.call(CREATE_LABEL, {"input": fields})
    return str(answer["issueLabelCreate"]["issueLabel"]["id"])
