"""Connecting a workspace in three ways, and what is kept of it."""

from __future__ import annotations

import re
import sqlite3
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.fakes.linear_standin import LinearStandin
from tests.fakes.world import World, living
from tests.linear.desk import REPOSITORY, Desk, connect, open_desk
from tests.relay.peers import problem_of

from delegate.config.encryption import SecretBox, open_secret_box
from delegate.config.paths import Home
from delegate.errors import BadSetting, WrongSecretKey

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path, connects="") as opened:
        yield opened


@pytest.mark.parametrize(("kind", "user"), [("client_credentials", "Delego"), ("api_key", "Marek")])
async def test_the_workspace_and_the_user_are_named_back(desk: Desk, kind: str, user: str) -> None:
    before = (await desk.http.get("/api/linear")).json()
    view = await connect(desk.http, desk.linear, kind)

    assert before["state"] == "not connected"
    assert (view["state"], view["workspace"], view["user"], view["kind"]) == ("ready", "Acme", user, kind)
    assert view["webhooks"] == "none received yet"


async def test_a_wrong_secret_and_a_missing_field_are_refused(desk: Desk) -> None:
    wrong = {"kind": "client_credentials", "clientId": desk.linear.oauth_client_id, "clientSecret": "wrong"}
    problem_of(await desk.http.post("/api/linear/connect", json=wrong), 409, "linear_denied")
    problem_of(await desk.http.post("/api/linear/connect", json={"kind": "api_key"}), 422, "invalid_field")
    problem_of(await desk.http.post("/api/linear/test", json={}), 409, "linear_not_connected")

    assert (await desk.http.get("/api/linear")).json()["state"] == "not connected"


async def test_connecting_again_does_not_let_more_people_start_work(desk: Desk) -> None:
    narrow = {"kind": "api_key", "apiKey": desk.linear.api_key, "members": ["marek@acme.test"]}
    await desk.http.post("/api/linear/connect", json=narrow)
    again = await connect(desk.http, desk.linear, "api_key")
    await desk.http.post("/api/linear/disconnect", json={})
    anew = await connect(desk.http, desk.linear, "api_key")

    assert (again["members"], anew["members"]) == (["marek@acme.test"], [])


def database_bytes(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.glob("delegate.db*"))


async def test_secrets_are_encrypted_at_rest_and_gone_after_disconnecting(desk: Desk, tmp_path: Path) -> None:
    await connect(desk.http, desk.linear, "client_credentials")
    connection = await desk.link.reload()
    assert connection is not None
    stored = database_bytes(tmp_path)
    with closing(sqlite3.connect(tmp_path / "delegate.db")) as database:
        (secrets,) = database.execute("SELECT secrets FROM linear_connection").fetchone()
    await desk.http.post("/api/linear/disconnect", json={})

    for secret in (connection.secrets.access_token, desk.linear.client_secret, *connection.secrets.webhook_secrets):
        assert secret.encode() not in stored
    assert len(secrets) > 100
    assert (tmp_path / "secret-key").stat().st_mode & 0o777 == 0o600
    assert (await desk.http.get("/api/linear")).json()["state"] == "not connected"


def test_another_key_or_purpose_does_not_decrypt(tmp_path: Path) -> None:
    box = open_secret_box(Home(tmp_path), "")
    data = box.encrypt("secret", "a")

    assert open_secret_box(Home(tmp_path), "").decrypt(data, "a") == "secret"
    for other, purpose in ((box, "b"), (SecretBox(bytes(32)), "a"), (open_secret_box(Home(tmp_path), "k" * 32), "a")):
        with pytest.raises(WrongSecretKey):
            other.decrypt(data, purpose)
    with pytest.raises(BadSetting):
        open_secret_box(Home(tmp_path), "short")


async def test_maps_are_set_by_name_and_removed(desk: Desk) -> None:
    await connect(desk.http, desk.linear, "client_credentials")
    await desk.map_project()
    team = {"team": "per", "repository": "acme/platform", "agent": "codex"}
    view = (await desk.http.post("/api/linear/map", json=team)).json()
    removed = (await desk.http.post("/api/linear/map", json={"team": "PER"})).json()
    unknown = await desk.http.post("/api/linear/map", json={"team": "NONE", "repository": "a/b"})

    maps = [(one["kind"], one["name"], one["repository"], one["agent"]) for one in view["maps"]]
    assert maps == [("project", "delego-saas", REPOSITORY, None), ("team", "Platform", "acme/platform", "codex")]
    assert [one["kind"] for one in removed["maps"]] == ["project"]
    problem_of(unknown, 404, "no_such_place")


async def test_label_groups_are_shown_first_and_created_once(desk: Desk) -> None:
    await connect(desk.http, desk.linear, "client_credentials")
    shown = (await desk.http.post("/api/linear/labels", json={})).json()
    created = (await desk.http.post("/api/linear/labels", json={"create": True})).json()
    again = (await desk.http.post("/api/linear/labels", json={"create": True})).json()

    assert (shown["created"], again["created"]) == (0, 0)
    assert created["created"] == len(shown["labels"]) == len(created["labels"])
    assert not any(label["exists"] for label in shown["labels"])
    assert all(label["exists"] for label in again["labels"])


async def test_with_an_api_key_a_label_starts_and_one_comment_reports(tmp_path: Path) -> None:
    async with open_desk(tmp_path, connects="api_key") as desk:
        await desk.map_project()
        other = desk.linear.add_user("Ada")
        issue = desk.per_44()
        await desk.settle()
        desk.linear.add_label(issue, "delego:claude-sonnet-4-5", by=other)
        await desk.settle()
        attempt = await desk.claim()
        desk.linear.comment(issue, "Mind the headers", by=other)
        await desk.settle()
        messages = (await attempt.renew())["messages"]
        await desk.complete(attempt)
        await desk.settle()

        own = [row for row in desk.linear.tables["Comment"].values() if row["userId"] == desk.linear.admin.id]
        assert [message["text"] for message in messages] == ["Mind the headers"]
        assert len(own) == 1
        assert f"claude · sonnet-4-5 (label) in {REPOSITORY} (project)" in own[0]["body"]
        assert f"Pull request: https://github.com/{REPOSITORY}/pull/324" in own[0]["body"]
        assert desk.state_of(issue) == "In Review"
        assert desk.linear.sessions == []


@contextmanager
def world_beside(linear: LinearStandin, place: Path) -> Iterator[World]:
    with living(place / "home", DELEGATE_LINEAR_API_URL=linear.api_url) as world:
        world.ok("up", "--runners", "0")
        yield world


@pytest.mark.slow
async def test_an_admin_approves_the_app_in_the_browser(tmp_path: Path) -> None:
    with LinearStandin() as linear, world_beside(linear, tmp_path) as world:
        running = world.popen("linear", "connect", "--client-id", linear.oauth_client_id, "--oauth")
        assert running.stderr is not None
        line = await anyio.to_thread.run_sync(running.stderr.readline)
        found = re.search(r"open (\S+)", line)
        assert found is not None, line
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(found[1]).query))
        linear.redirect_uris.append(query["redirect_uri"])
        async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as browser:
            page = await browser.get(found[1])
        shown, error = await anyio.to_thread.run_sync(running.communicate)

        assert (query["actor"], query["code_challenge_method"]) == ("app", "S256")
        assert "Connected" in page.text
        assert "acts as:   Delego (oauth)" in shown, error


@pytest.mark.slow
def test_the_command_line_connects_maps_labels_and_disconnects(tmp_path: Path) -> None:
    with LinearStandin() as linear, world_beside(linear, tmp_path) as world:
        linear.add_project("delego-saas")
        world.environment |= {"LINEAR_CLIENT_SECRET": linear.client_secret, "LINEAR_WEBHOOK_SECRET": "whsec"}
        ways = world.ok("linear", "connect")
        connected = world.ok("linear", "connect", "--client-id", linear.oauth_client_id, "--webhook-secret")
        mapped = world.ok("linear", "map", "--project", "delego-saas", REPOSITORY)
        labels = world.ok("linear", "labels", "--create")
        tested = world.ok("linear", "test")
        gone = world.ok("linear", "disconnect")

    assert ways.count("delegate linear connect --") == 3
    assert connected.startswith("Linear: ready (no webhook has arrived yet)\nworkspace: Acme\n")
    assert f"project    delego-saas → {REPOSITORY}" in mapped
    assert f"exists   repo / {REPOSITORY}" in labels
    assert "scopes:    read, write, app:assignable, app:mentionable" in tested
    assert gone.startswith("Linear: not connected")
