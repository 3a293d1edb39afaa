"""The stand-in for Linear keeps to Linear's schema and to the published shape of its payloads."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from tests.fakes.linear_deliveries import ManualClock
from tests.fakes.linear_standin import LinearStandin
from tests.linear.conformity import SAMPLES, payload_misfits

ACTIVITY = "mutation A($input: AgentActivityCreateInput!) { agentActivityCreate(input: $input) { success } }"


class Receiver:
    """A consumer of webhooks that keeps every request."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.got.append((dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(raw) for _, raw in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.server.shutdown()
    started.server.server_close()


@pytest.fixture
def linear(receiver: Receiver) -> Iterator[LinearStandin]:
    url = f"http://127.0.0.1:{receiver.server.server_address[1]}/"
    with LinearStandin(webhook_url=url, clock=ManualClock(), seed=1) as started:
        yield started


def call(linear: LinearStandin, query: str, variables: dict[str, Any] | None = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {linear.app_token}"}
    answer = httpx2.post(linear.api_url, json={"query": query, "variables": variables or {}}, headers=headers)
    return answer.status_code, answer.json()


def test_an_operation_outside_the_schema_is_refused(linear: LinearStandin) -> None:
    status, answer = call(linear, "{ viewer { id nosuchfield } }")

    assert (status, answer["errors"][0]["extensions"]["code"]) == (400, "GRAPHQL_VALIDATION_FAILED")


def test_a_user_error_is_inside_http_200(linear: LinearStandin) -> None:
    content = {"type": "thought", "body": "hello"}
    status, answer = call(linear, ACTIVITY, {"input": {"agentSessionId": "gone", "content": content}})

    assert (status, answer["errors"][0]["extensions"]["userError"]) == (200, True)


def test_every_payload_fits_the_schema_and_the_samples(linear: LinearStandin, receiver: Receiver) -> None:
    project = linear.add_project("api")
    issue = linear.add_issue("Fix", projectId=project.id, labels=["bug"])
    linear.add_label(issue, "codex", group="agent")
    session = linear.delegate_issue(issue)
    linear.reply(session, "Again")
    linear.stop(session)
    comment = linear.comment(issue, "Customer reports failures")
    linear.mention(issue, "have a look", parent=comment)
    linear.close_issue(issue)
    linear.undelegate(issue)
    linear.uninstall()
    linear.settle()

    assert [misfit for body in receiver.bodies for misfit in payload_misfits(body)] == []
    for path in sorted(SAMPLES.glob("*.json")):
        sample = json.loads(path.read_text())
        mine = next(
            body
            for body in receiver.bodies
            if (body["type"], body["action"]) == (sample["type"], sample["action"])
            and set(sample.get("updatedFrom") or {}) <= set(body.get("updatedFrom") or {})
        )
        assert set(sample) - set(mine) == set(), path.name


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_every_sample_fits_the_schema(path: Any) -> None:
    assert payload_misfits(json.loads(path.read_text())) == []


def test_a_delivery_is_signed_over_its_bytes(linear: LinearStandin, receiver: Receiver) -> None:
    linear.delegate_issue(linear.add_issue("Fix", description="Text — ü"))
    linear.settle()
    headers, raw = receiver.got[-1]

    assert linear.webhook is not None
    assert headers["Linear-Signature"] == hmac.new(linear.webhook["secret"].encode(), raw, hashlib.sha256).hexdigest()
