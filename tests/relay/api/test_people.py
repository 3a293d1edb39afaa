"""People, their tokens, and who did what."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from typing import Any

import httpx2
import pytest
from tests.relay.peers import WAIT, RelayProcess, Runner, client, problem_of, task

pytestmark = pytest.mark.anyio


async def add(owner: httpx2.AsyncClient, role: str = "member", **fields: Any) -> dict[str, Any]:
    body = {"name": f"p-{secrets.token_hex(4)}", "role": role, **fields}
    response = await owner.post("/api/people", json=body)
    assert response.status_code == 201, response.text
    return dict(response.json())


def speaking_as(relay: RelayProcess, person: dict[str, Any]) -> httpx2.AsyncClient:
    return client(relay.url, person["token"]["token"])


async def audit_of(owner: httpx2.AsyncClient, subject: str) -> list[tuple[str, str]]:
    entries = (await owner.get("/api/audit?limit=100")).json()["entries"]
    return [(entry["actor"], entry["action"]) for entry in reversed(entries) if entry["subject"] == subject]


@pytest.mark.promise("P18")
async def test_a_token_is_shown_once_and_stored_as_a_hash(relay: RelayProcess, owner: httpx2.AsyncClient) -> None:
    added = await add(owner, email="Marek@Example.com", expiresInDays=30)

    async with speaking_as(relay, added) as marek:
        me = (await marek.get("/api/me")).json()
        listed = (await marek.get("/api/tokens")).json()["tokens"]
    token = added["token"]["token"]
    assert token.startswith("dlg_")
    assert (me["kind"], me["name"], me["role"]) == ("person", added["person"]["name"], "member")
    assert me["expiresAt"] == added["token"]["expiresAt"]
    assert added["person"]["email"] == "marek@example.com"
    assert [(one["prefix"], one["status"], one.get("token")) for one in listed] == [(token[:10], "valid", None)]
    assert listed[0]["lastUsedAt"] is not None
    with closing(sqlite3.connect(relay.database, timeout=WAIT)) as connection:
        assert token not in "".join(connection.iterdump())
    assert token not in relay.log


@pytest.mark.promise("P18")
async def test_a_disabled_person_is_refused_at_once_and_an_enabled_one_is_not(
    relay: RelayProcess, owner: httpx2.AsyncClient
) -> None:
    added = await add(owner, "admin")
    path = f"/api/people/{added['person']['name']}"

    async with speaking_as(relay, added) as person:
        assert (await person.get("/api/tasks")).status_code == 200
        await owner.post(f"{path}/disable", json={})
        problem_of(await person.get("/api/tasks"), 401, "unauthenticated")
        await owner.post(f"{path}/enable", json={})
        assert (await person.get("/api/tasks")).status_code == 200
        await owner.post(f"{path}/role", json={"role": "viewer"})
        problem_of(await person.post("/api/tasks", json=task()), 403, "forbidden")
    assert await audit_of(owner, added["person"]["name"]) == [
        ("owner", action) for action in ("user.add", "user.disable", "user.enable", "user.role")
    ]


@pytest.mark.promise("P18")
@pytest.mark.parametrize("path", ["/api/events", "/api/tasks/{task}/stream"])
async def test_an_open_stream_ends_when_its_person_is_disabled(
    relay: RelayProcess, owner: httpx2.AsyncClient, path: str
) -> None:
    added = await add(owner, "viewer")
    submitted = (await owner.post("/api/tasks", json=task())).json()["taskId"]

    async with (
        speaking_as(relay, added) as viewer,
        viewer.stream("GET", path.format(task=submitted), params={"from": "now"}) as feed,
    ):
        await owner.post(f"/api/people/{added['person']['name']}/disable", json={})
        async for _ in feed.aiter_bytes():
            pass
        assert (await viewer.get("/api/me")).status_code == 401


async def test_people_manage_their_own_tokens_and_admins_those_of_all(
    relay: RelayProcess, owner: httpx2.AsyncClient
) -> None:
    member, other = await add(owner), await add(owner)

    async with speaking_as(relay, member) as http:
        made = (await http.post("/api/tokens", json={"name": "laptop"})).json()
        problem_of(await http.post("/api/tokens", json={"name": "x", "expiresInDays": 91}), 422, "invalid_field")
        problem_of(await http.post("/api/tokens", json={"name": "x", "expiresInDays": None}), 422, "invalid_field")
        problem_of(
            await http.post("/api/tokens", json={"name": "x", "person": other["person"]["name"]}), 403, "forbidden"
        )
        problem_of(await http.get(f"/api/tokens?person={other['person']['name']}"), 403, "forbidden")
        problem_of(await http.post(f"/api/tokens/{other['token']['tokenId']}/revoke", json={}), 404, "no_such_token")
        revoked = (await http.post(f"/api/tokens/{made['tokenId']}/revoke", json={})).json()
    assert revoked["status"] == "revoked"
    async with client(relay.url, made["token"]) as http:
        problem_of(await http.get("/api/me"), 401, "unauthenticated")
    name = other["person"]["name"]
    long = await owner.post("/api/tokens", json={"name": "ci", "person": name, "expiresInDays": None})
    assert long.json()["expiresAt"] is None
    listed = (await owner.get(f"/api/tokens?person={name}")).json()["tokens"]
    assert {one["name"] for one in listed} == {other["token"]["name"], "ci"}
    problem_of(await owner.post("/api/tokens", json={"name": "whose"}), 422, "invalid_field")


async def test_a_name_and_an_address_are_given_once(owner: httpx2.AsyncClient) -> None:
    added = await add(owner, email=f"{secrets.token_hex(4)}@example.com")
    name, email = added["person"]["name"], added["person"]["email"]

    taken = problem_of(await owner.post("/api/people", json={"name": name.upper()}), 409, "person_exists")
    assert name.upper() in taken["detail"]
    problem_of(await owner.post("/api/people", json={"name": "x" + name, "email": email}), 409, "person_exists")
    problem_of(await owner.post("/api/people", json={"name": "Owner"}), 422, "invalid_field")
    problem_of(await owner.post("/api/people", json={"name": "a b"}), 422, "invalid_field")
    problem_of(await owner.post("/api/people/nobody/disable", json={}), 404, "no_such_person")


async def test_the_timeline_and_the_audit_log_name_the_person(
    relay: RelayProcess, owner: httpx2.AsyncClient, runner: Runner
) -> None:
    added = await add(owner)
    name = added["person"]["name"]

    async with speaking_as(relay, added) as person:
        submitted = (await person.post("/api/tasks", json=task(machine=runner.machine))).json()["taskId"]
        assert await runner.ask() is not None
        await person.post(f"/api/tasks/{submitted}/cancel", json={"reason": "wrong branch"})
        waiting = (await person.post("/api/tasks", json=task())).json()["taskId"]
        await person.post(f"/api/tasks/{waiting}/cancel", json={})
        again = (await person.post(f"/api/tasks/{waiting}/retry", json={})).json()["taskId"]
        made = (await person.post("/api/schedules", json=task(scheduleType="cron", cronExpression="0 0 * * *"))).json()
        schedule = made["schedule"]["scheduleId"]
        await person.post(f"/api/schedules/{schedule}/pause", json={})
        await person.post(f"/api/schedules/{schedule}/cancel", json={})
    for task_id in (submitted, waiting):
        events = (await owner.get(f"/api/tasks/{task_id}")).json()["events"]
        said = {event["kind"]: event["data"].get("by") for event in events}
        assert (said["submitted"], said["cancel_requested"]) == (name, name)
        assert await audit_of(owner, task_id) == [(name, "submit"), (name, "cancel")]
    assert await audit_of(owner, again) == [(name, "retry")]
    actions = ["schedule.create", "schedule.pause", "schedule.cancel"]
    assert await audit_of(owner, schedule) == [(name, action) for action in actions]


async def test_the_audit_log_is_paged(owner: httpx2.AsyncClient) -> None:
    names = [(await add(owner))["person"]["name"] for _ in range(3)]

    first = (await owner.get("/api/audit?limit=4")).json()
    second = (await owner.get(f"/api/audit?limit=4&cursor={first['next']}")).json()

    # Each person comes with a token.
    assert [entry["action"] for entry in first["entries"]] == ["token.create", "user.add"] * 2
    assert second["entries"][1]["subject"] == names[0]
