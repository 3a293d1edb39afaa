"""Queries on the connection to Linear and the maps of its teams and projects."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from delegate.config.encryption import SecretBox
from delegate.linear.records import ConnectionKind, IssueMap, LinearConnection, LinearSecrets, MapKind
from delegate.store.linear.tables import linear_connection, linear_map
from delegate.store.tables import from_row


def save_connection(connection: Connection, new: LinearConnection, box: SecretBox) -> None:
    """Replace the connection: one relay serves one organisation."""
    connection.execute(delete(linear_connection))
    connection.execute(
        insert(linear_connection).values(
            organization_id=new.organization_id,
            kind=new.kind,
            organization_name=new.organization_name,
            url_key=new.url_key,
            user_id=new.user_id,
            user_name=new.user_name,
            client_id=new.client_id,
            scopes=list(new.scopes),
            members=list(new.members),
            secrets=_encrypt(new.secrets, new.organization_id, box),
            revision=new.revision,
            expires_at=new.expires_at,
            connected_at=new.connected_at,
        )
    )


def get_connection(connection: Connection, box: SecretBox) -> LinearConnection | None:
    row = connection.execute(select(linear_connection)).one_or_none()
    return None if row is None else _to_connection(row, box)


def renew_secrets(connection: Connection, renewed: LinearConnection, box: SecretBox) -> bool:
    """Store new secrets, unless another relay was first."""
    changed = connection.execute(
        update(linear_connection)
        .where(
            linear_connection.c.organization_id == renewed.organization_id,
            linear_connection.c.revision == renewed.revision - 1,
        )
        .values(
            secrets=_encrypt(renewed.secrets, renewed.organization_id, box),
            revision=renewed.revision,
            expires_at=renewed.expires_at,
            problem=None,
        )
    )
    return changed.rowcount == 1


def set_problem(connection: Connection, problem: str | None) -> None:
    connection.execute(update(linear_connection).values(problem=problem))


def note_delivery(connection: Connection, now: datetime) -> None:
    connection.execute(update(linear_connection).values(delivered_at=now))


def note_poll(connection: Connection, now: datetime) -> None:
    connection.execute(update(linear_connection).values(polled_at=now))


def delete_connection(connection: Connection) -> bool:
    return connection.execute(delete(linear_connection)).rowcount > 0


def put_map(connection: Connection, new: IssueMap) -> None:
    delete_map(connection, new.kind, new.target_id)
    connection.execute(insert(linear_map).values(**asdict(new)))


def delete_map(connection: Connection, kind: MapKind, target_id: str) -> bool:
    gone = delete(linear_map).where(linear_map.c.kind == kind, linear_map.c.target_id == target_id)
    return connection.execute(gone).rowcount > 0


def all_maps(connection: Connection) -> tuple[IssueMap, ...]:
    """Return the maps of teams and projects, by name."""
    query = select(linear_map).where(linear_map.c.kind != MapKind.ISSUE).order_by(func.lower(linear_map.c.name))
    return tuple(_to_map(row) for row in connection.execute(query))


def maps_of(connection: Connection, targets: dict[MapKind, str | None]) -> dict[MapKind, IssueMap]:
    """Return the maps of these targets, by kind."""
    wanted = [target for target in targets.values() if target is not None]
    rows = connection.execute(select(linear_map).where(linear_map.c.target_id.in_(wanted)))
    found = [_to_map(row) for row in rows]
    return {one.kind: one for one in found if targets.get(one.kind) == one.target_id}


def _encrypt(secrets: LinearSecrets, organization_id: str, box: SecretBox) -> bytes:
    return box.encrypt(json.dumps(asdict(secrets)), _purpose(organization_id))


def _purpose(organization_id: str) -> str:
    return f"linear_connection/{organization_id}"


def _to_connection(row: Row[Any], box: SecretBox) -> LinearConnection:
    secrets = json.loads(box.decrypt(bytes(row.secrets), _purpose(row.organization_id)))
    return from_row(
        LinearConnection,
        row,
        kind=ConnectionKind(row.kind),
        scopes=tuple(row.scopes),
        members=tuple(row.members),
        secrets=LinearSecrets(**{**secrets, "webhook_secrets": tuple(secrets["webhook_secrets"])}),
    )


def _to_map(row: Row[Any]) -> IssueMap:
    return from_row(IssueMap, row, kind=MapKind(row.kind))
