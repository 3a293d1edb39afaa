"""Webhooks as Linear sends them, with fields missing, null or unknown, and as nobody should send them."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.linear.conformity import SAMPLES

from delegate.errors import BadPayload
from delegate.linear.payloads import parse_webhook

FILES = sorted(SAMPLES.glob("*.json"))
DELEGATED = SAMPLES / "agent_session_event.created.delegated.json"


def sample(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sample_is_understood_also_without_its_null_fields_and_with_unknown_ones(path: Path) -> None:
    whole = sample(path)
    lean = {**without_nulls(whole), "invented": {"by": ["Linear"]}}

    assert parse_webhook(json.dumps(lean).encode()) == parse_webhook(path.read_bytes())
    assert parse_webhook(path.read_bytes()).name == f"{whole['type']}.{whole['action']}"


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: part if name == "updatedFrom" else without_nulls(part)  # there a null is the old value
            for name, part in value.items()
            if part is not None
        }
    return value


def test_a_delegation_names_its_session_its_issue_and_the_guidance() -> None:
    webhook = parse_webhook(DELEGATED.read_bytes())

    assert webhook.session_id == sample(DELEGATED)["agentSession"]["id"]
    assert webhook.issue_id == sample(DELEGATED)["agentSession"]["issueId"]
    assert [rule.origin for rule in webhook.guidance] == ["workspace", "Engineering"]


def test_a_repeat_with_another_time_has_the_same_key() -> None:
    again = {**sample(DELEGATED), "webhookTimestamp": 1_784_999_999_999, "webhookId": "another"}

    assert parse_webhook(json.dumps(again).encode()).key == parse_webhook(DELEGATED.read_bytes()).key
    assert len({parse_webhook(path.read_bytes()).key for path in FILES}) == len(FILES)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b'{"action":"create","action":"remove"}',
        DELEGATED.read_text().encode("utf-16"),
        b"\xef\xbb\xbf" + DELEGATED.read_bytes(),
        b"[" * 100_000,
    ],
    ids=["empty", "null", "list", "text", "repeated key", "utf-16", "bom", "deep"],
)
def test_a_body_that_is_not_a_payload_is_refused(body: bytes) -> None:
    with pytest.raises(BadPayload):
        parse_webhook(body)


@pytest.mark.parametrize("value", [None, "1784798171301", -1, 10**20, float("nan"), True, 1.5])
def test_a_time_that_is_not_one_is_refused(value: object) -> None:
    with pytest.raises(BadPayload):
        parse_webhook(json.dumps({**sample(DELEGATED), "webhookTimestamp": value}).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(path=st.sampled_from(FILES), name=st.sampled_from([*sorted(sample(DELEGATED)), "data"]), value=JSON)
def test_any_value_in_any_field_is_understood_or_refused(path: Path, name: str, value: object) -> None:
    body = json.dumps({**sample(path), name: value}).encode()
    with suppress(BadPayload) if name in ("type", "action", "webhookTimestamp") else nullcontext():
        assert parse_webhook(body).key
