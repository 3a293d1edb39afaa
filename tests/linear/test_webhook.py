"""`POST /webhooks/linear`: what is stored, what is ignored, what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select
from tests.linear.desk import Desk, open_desk
from tests.relay.peers import problem_of

from delegate.linear.payloads import sign
from delegate.store.linear.tables import inbox

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P6")]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        yield opened


def secret_of(desk: Desk) -> str:
    assert desk.linear.webhook is not None
    return str(desk.linear.webhook["secret"])


def body_of(desk: Desk, **fields: Any) -> bytes:
    """An event that Delegate acts on."""
    payload = {
        "type": "AgentSessionEvent",
        "action": "created",
        "organizationId": desk.linear.organization.id,
        "webhookTimestamp": int(desk.clock() * 1000),
        "agentSession": {"id": "session-1", "issueId": "issue-1"},
    }
    return json.dumps(payload | fields).encode()


async def post(desk: Desk, body: bytes, *signatures: str, **headers: str) -> httpx2.Response:
    given = [("Content-Type", headers.pop("content_type", "application/json"))]
    given += [("Linear-Signature", signature) for signature in signatures]
    given += [(name.replace("_", "-"), value) for name, value in headers.items()]
    return await desk.http.post("/webhooks/linear", content=body, headers=given)


async def post_signed(desk: Desk, body: bytes, **headers: str) -> httpx2.Response:
    return await post(desk, body, sign(body, secret_of(desk)), **headers)


async def stored(desk: Desk) -> int:
    count = select(func.count()).select_from(inbox)
    return await desk.relay.database.read(lambda connection: int(connection.execute(count).scalar_one()))


async def test_only_the_right_signature_is_accepted(desk: Desk) -> None:
    body = body_of(desk)
    right = sign(body, secret_of(desk))
    reordered = sign(json.dumps(dict(reversed(json.loads(body).items()))).encode(), secret_of(desk))
    wrong: list[tuple[str, ...]] = [
        (),
        ("",),
        (sign(body, "another secret"),),
        (right.upper(),),
        (base64.b64encode(bytes.fromhex(right)).decode(),),
        (right[:63],),
        (f"{right}  x",),
        (reordered,),
        (right, right),
    ]
    for signatures in wrong:
        problem_of(await post(desk, body, *signatures), 401, "bad_signature")

    assert await stored(desk) == 0
    assert (await post(desk, body, right)).json() == {"status": "accepted"}
    assert await stored(desk) == 1


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"{}", b'{"a":1,"a":2}', "{}".encode("utf-16")])
async def test_a_signed_body_that_is_not_a_payload_is_refused(desk: Desk, body: bytes) -> None:
    problem_of(await post_signed(desk, body), 400, "bad_payload")


async def test_other_media_are_refused(desk: Desk) -> None:
    body = body_of(desk)

    problem_of(
        await post_signed(desk, b"a=b", content_type="application/x-www-form-urlencoded"), 415, "unsupported_media"
    )
    problem_of(await post_signed(desk, body, Content_Encoding="gzip"), 415, "unsupported_media")
    problem_of(await post_signed(desk, b"x" * 4_000_000), 413, "too_large")


async def test_a_repeat_is_ignored_by_its_delivery_id_and_by_its_content(desk: Desk) -> None:
    body = body_of(desk)
    later = body_of(desk, webhookTimestamp=int(desk.clock() * 1000) + 60_000)
    first = await post_signed(desk, body, Linear_Delivery="d-1")
    repeats = [
        await post_signed(desk, body, Linear_Delivery="d-1"),
        await post_signed(desk, body, Linear_Delivery="d-2"),
        await post_signed(desk, later, Linear_Delivery="d-3"),
    ]

    assert first.json()["status"] == "accepted"
    assert [repeat.json() for repeat in repeats] == [{"status": "ignored", "why": "it was received before"}] * 3
    assert await stored(desk) == 1


async def test_what_needs_no_action_is_not_stored(desk: Desk) -> None:
    own = {"id": desk.linear.oauth_client_id, "type": "oauthClient"}
    bodies = [
        body_of(desk, type="Cycle", action="update"),
        body_of(desk, organizationId="another"),
        body_of(desk, type="Issue", action="update", data={"id": "i"}, agentSession=None, actor=own),
    ]

    answers = [(await post_signed(desk, body)).json()["status"] for body in bodies]

    assert answers == ["ignored"] * 3
    assert await stored(desk) == 0


async def test_two_secrets_are_valid_while_one_is_replaced(desk: Desk) -> None:
    old = secret_of(desk)
    for secret in ("second-secret", "third-secret"):
        body = {"kind": "client_credentials", "clientId": desk.linear.oauth_client_id}
        body |= {"clientSecret": desk.linear.client_secret, "webhookSecret": secret}
        assert (await desk.http.post("/api/linear/connect", json=body)).status_code == 200
    signed = [sign(body_of(desk), secret) for secret in (old, "second-secret", "third-secret")]

    codes = [(await post(desk, body_of(desk), signature)).status_code for signature in signed]

    assert codes == [401, 200, 200]


async def test_without_a_connection_nothing_is_accepted(tmp_path: Path) -> None:
    async with open_desk(tmp_path, connects="") as desk:
        problem_of(await post_signed(desk, body_of(desk)), 401, "bad_signature")
