"""The tables of Linear: one connection, deliveries once, posts in order, reports from events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import pytest

from delegate.config.encryption import SecretBox
from delegate.config.settings import Settings
from delegate.intake.issues import UNKNOWN_PERSON, find_actor
from delegate.intake.submit import Request, submit
from delegate.linear.records import (
    ConnectionKind,
    IssueMap,
    IssueSession,
    LinearConnection,
    LinearSecrets,
    MapKind,
    NewPost,
    PendingQuestion,
    PostKind,
    PostPriority,
)
from delegate.model import Person, PersonId, Role
from delegate.report.linear import report_events
from delegate.store.database import Connection, Database
from delegate.store.linear import connections, inbox, outbox, sessions
from delegate.store.people import insert_person

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 7, 23, 12, tzinfo=UTC)
BOX = SecretBox(bytes(range(32)))
SESSION = IssueSession(id="s-1", issue_id="i-1", issue_key="PER-44", creator="Marek", created_at=NOW)


def connected() -> LinearConnection:
    return LinearConnection(
        kind=ConnectionKind.CLIENT_CREDENTIALS,
        organization_id="org",
        organization_name="Acme",
        url_key="acme",
        user_id="app",
        user_name="Delego",
        client_id="client",
        scopes=("read", "write"),
        members=("marek@example.com",),
        connected_at=NOW,
        secrets=LinearSecrets(access_token="token", webhook_secrets=("one", "two")),
    )


def keep(key: str, delivery_id: str | None) -> Callable[[Connection], bool]:
    return partial(inbox.keep_delivery, delivery_id=delivery_id, key=key, name="Issue.update", body=b"{}", now=NOW)


def post(key: str, session_id: str = "s-1", priority: PostPriority = PostPriority.NORMAL) -> NewPost:
    return NewPost(session_id=session_id, key=key, kind=PostKind.ACTIVITY, data={"n": key}, priority=priority)


async def test_the_connection_is_kept_and_renewed_by_one_of_two_relays(database: Database) -> None:
    known = connected()
    await database.write("test", partial(connections.save_connection, new=known, box=BOX))
    renewed = replace(known, secrets=replace(known.secrets, access_token="new"), revision=1)
    first = await database.write("test", partial(connections.renew_secrets, renewed=renewed, box=BOX))
    second = await database.write("test", partial(connections.renew_secrets, renewed=renewed, box=BOX))

    assert (first, second) == (True, False)
    assert await database.read(partial(connections.get_connection, box=BOX)) == renewed


@pytest.mark.promise("P6")
async def test_a_delivery_that_comes_many_times_at_once_is_kept_once(database: Database) -> None:
    kept: list[bool] = []

    async def deliver(number: int) -> None:
        kept.append(await database.write("test", keep("key", f"delivery-{number % 3}")))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(deliver, number)

    assert sorted(kept) == [False] * 19 + [True]
    polled = [await database.write("test", keep(key, None)) for key in ("other", "another", "other")]
    assert polled == [True, True, False]


async def test_deliveries_are_processed_in_order_once_and_their_text_is_dropped(database: Database) -> None:
    for key in ("a", "b", "c"):
        await database.write("test", keep(key, key))
    first, second, _ = await database.read(partial(inbox.due_deliveries, now=NOW, limit=10))
    settle = partial(inbox.settle_delivery, entry_id=first.id, outcome="done", now=NOW)
    settled = [await database.write("test", settle) for _ in range(2)]
    later = NOW + timedelta(minutes=1)
    await database.write("test", partial(inbox.postpone_delivery, entry=second, not_before=later, why="Linear is down"))

    due = await database.read(partial(inbox.due_deliveries, now=NOW, limit=10))
    after = await database.read(partial(inbox.due_deliveries, now=later, limit=10))
    dropped = await database.write("test", partial(inbox.drop_bodies, before=NOW + timedelta(days=8)))

    assert settled == [True, False]
    assert [entry.key for entry in due] == ["c"]
    assert [(entry.key, entry.tries) for entry in after] == [("b", 1), ("c", 0)]
    assert dropped == 3


async def test_posts_of_a_session_wait_for_each_other_and_the_urgent_session_goes_first(database: Database) -> None:
    posts = [post("a"), post("b"), post("c", "s-2"), post("d", "s-3", PostPriority.URGENT), post("a")]
    await database.write("test", partial(outbox.add_posts, posts=posts[:4], now=NOW))
    await database.write("test", partial(outbox.add_posts, posts=posts[4:], now=NOW))
    heads = await database.read(partial(outbox.due_posts, now=NOW, limit=10))
    await database.write("test", partial(outbox.settle_post, post_id=heads[1].id, state="sent", now=NOW))
    after = await database.read(partial(outbox.due_posts, now=NOW, limit=10))

    assert [head.data["n"] for head in heads] == ["d", "a", "c"]
    assert [head.data["n"] for head in after] == ["d", "b", "c"]
    assert (await database.read(outbox.count_posts)).waiting == 3


async def test_an_ephemeral_post_that_is_late_gives_way(database: Database) -> None:
    posts = [post("old", priority=PostPriority.EPHEMERAL), post("end", priority=PostPriority.URGENT)]
    await database.write("test", partial(outbox.add_posts, posts=posts, now=NOW))
    dropped = await database.write("test", partial(outbox.drop_replaced, now=NOW))
    (head,) = await database.read(partial(outbox.due_posts, now=NOW, limit=10))

    assert (dropped, head.data["n"]) == (1, "end")


async def test_a_session_reports_the_events_of_its_task_once(database: Database) -> None:
    wanted = Request(prompt="Fix it", agent="claude", repository="acme/shop")
    task = (await submit(database, wanted, Settings(), NOW)).task
    asking = replace(SESSION, task_id=task.id, question=PendingQuestion(text="Which?", options=("a",)))
    await database.write("test", partial(sessions.insert_session, new=asking))
    first = await report_events(database, timedelta(), NOW)
    again = await report_events(database, timedelta(), NOW)
    known = await database.read(partial(sessions.get_session, session_id="s-1"))

    assert (first, again) == (1, 0)
    assert known is not None
    assert (known.task_id, known.question, known.cursor > 0) == (task.id, asking.question, True)
    since = NOW - timedelta(hours=1)
    assert await database.read(partial(sessions.count_sessions, since=since, issue_id="i-1")) == 1
    assert await database.read(partial(sessions.count_sessions, since=NOW + timedelta(seconds=1))) == 0


async def test_a_map_is_replaced_and_found_by_its_target(database: Database) -> None:
    team = IssueMap(kind=MapKind.TEAM, target_id="t", name="Platform", repository="acme/a")
    for new in (team, replace(team, repository="acme/b", agent="codex")):
        await database.write("test", partial(connections.put_map, new=new))
    found = await database.read(partial(connections.maps_of, targets={MapKind.TEAM: "t", MapKind.PROJECT: None}))

    assert {kind: one.repository for kind, one in found.items()} == {MapKind.TEAM: "acme/b"}
    assert len(await database.read(connections.all_maps)) == 1


async def test_work_from_linear_is_of_the_person_with_the_address_and_never_of_the_owner_of_a_team(
    database: Database,
) -> None:
    people = [
        Person(id=PersonId(f"user-{name}"), name=name, email=f"{name}@example.com", role=Role.MEMBER, created_at=NOW)
        for name in ("marek", "ana")
    ]
    found: list[str | None] = []

    def look(connection: Connection) -> None:
        found.append(find_actor(connection, "Zoe", "zoe@example.com").person_id)

    await database.write("people", look)
    for person in people:
        await database.write("people", partial(insert_person, new=person))
        await database.write("people", look)
    known = await database.read(lambda connection: find_actor(connection, "Ana", "ana@example.com"))

    assert found == [None, "user-marek", UNKNOWN_PERSON]
    assert (known.name, known.person_id) == ("ana", "user-ana")
