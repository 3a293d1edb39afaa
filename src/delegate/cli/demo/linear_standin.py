"""A stand-in for Linear in `delegate demo --linear`: one workspace with one issue, on a loopback port.

It answers only the operations that Delegate sends, checks nothing, and keeps what a person would see in Linear.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

from delegate.linear.payloads import sign

CLIENT_ID, CLIENT_SECRET, WEBHOOK_SECRET = "demo", "demo-client-secret", "demo-webhook-secret"
SCOPES = "read write app:assignable app:mentionable"
OPERATION = re.compile(r"\s*(?:query|mutation) (\w+)")
STATES = (("todo", "Todo", "unstarted"), ("progress", "In Progress", "started"), ("review", "In Review", "started"))
MAREK = {"id": "marek", "name": "Marek", "email": "marek@example.com", "active": True, "app": False, "guest": False}
DELEGATE = {**MAREK, "id": "app", "name": "Delegate", "email": "app@example.com", "app": True}
MARKS = {"completed": "✓", "inProgress": "◐", "pending": "·"}
Json = dict[str, Any]  # Any: what Linear's API has in JSON


class LinearStandin:
    """`seen` gets an entry for everything that becomes visible: the time, what it is, and its text."""

    def __init__(self, *, key: str, title: str, description: str, project: str, labels: tuple[str, ...]) -> None:
        self.seen: SimpleQueue[Json] = SimpleQueue()
        self.state = "Todo"
        self.final: Json | None = None  # the response or error that ends the session
        self.session_id, self.webhook_url = str(uuid4()), ""
        self._issue: Json = {
            "id": "issue",
            "identifier": key,
            "title": title,
            "description": description,
            "url": f"https://linear.app/demo/issue/{key}",
            "delegate": None,
            "parent": None,
            "project": {"id": "project", "name": project},
            "labels": _nodes(*({"id": name, "name": name, "parent": None} for name in labels)),
            **{name: _nodes() for name in ("attachments", "children", "inverseRelations", "comments")},
        }
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_GraphqlHandler,), {"linear": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/graphql"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def show(self, level: str, message: str) -> None:
        self.seen.put({"at": datetime.now(UTC).isoformat(), "level": level, "message": message})

    def delegate_issue(self) -> None:
        """What happens when a person delegates the issue: a session, and a signed webhook about it."""
        for label in self._issue["labels"]["nodes"]:
            self.show("label", f"Marek added label {label['name']}")
        self._issue["delegate"] = {"id": DELEGATE["id"]}
        self.show("issue", f"Marek delegated {self._issue['identifier']} to Delegate · webhook fired")
        session = {"id": self.session_id, "issueId": self._issue["id"]}
        event = {"type": "AgentSessionEvent", "action": "created", "agentSession": session, "organizationId": "demo"}
        body = json.dumps({**event, "webhookTimestamp": int(datetime.now(UTC).timestamp() * 1000)}).encode()
        headers = {"Content-Type": "application/json", "Linear-Signature": sign(body, WEBHOOK_SECRET)}
        relay = HTTPConnection(urlsplit(self.webhook_url).netloc, timeout=10)
        relay.request("POST", urlsplit(self.webhook_url).path, body, {**headers, "Linear-Delivery": str(uuid4())})
        relay.getresponse().read()
        relay.close()

    def answer(self, query: str, given: Mapping[str, Any]) -> Json:  # Any: the variables of an operation
        """Answer one operation, by its name."""
        found = OPERATION.match(query)
        name = found[1] if found else ""
        session = {"id": self.session_id, "status": "active", "creator": MAREK, "sourceComment": None}
        answers: dict[str, Json] = {
            "Viewer": {"viewer": DELEGATE, "organization": {"id": "demo", "name": "Demo", "urlKey": "demo"}},
            "Places": {"teams": _nodes(_team()), "projects": _nodes(self._issue["project"])},
            "Person": {"user": MAREK},
            "Sessions": {"agentSessions": _nodes()},
            "Watched": {"issues": _nodes()},
            "NewLabels": {"issues": _nodes()},
            "Session": {"agentSession": {**session, "issue": self._issue_now()}},
            "Issue": {"issue": self._issue_now()},
        }
        self._apply(name, given)
        return answers.get(name, {})

    def _issue_now(self) -> Json:
        state = next(_state(*one) for one in STATES if one[1] == self.state)
        return {**self._issue, "state": state, "team": {**_team(), "states": _nodes(*(_state(*one) for one in STATES))}}

    def _apply(self, name: str, given: Mapping[str, Any]) -> None:
        data = given.get("input") or {}
        match name:
            case "UpdateIssue":
                self.state = next(title for key, title, _ in STATES if key == data["stateId"])
                self.show("issue", f"Delegate moved it to {self.state}")
            case "UpdateSession" if data.get("plan"):
                plan = "  ".join(f"{MARKS[one['status']]} {one['content']}" for one in data["plan"])
                self.show("plan", plan)
            case "UpdateSession":
                for link in data.get("addedExternalUrls", []):
                    self.show("link", f"{link['label']} {link['url']}")
            case "LinkPullRequest":
                self.show("link", f"attached to the issue: {given['url']}")
            case "CreateActivity":
                self._add_activity(data["content"])

    def _add_activity(self, content: Json) -> None:
        kind = content["type"]
        if kind in ("response", "error"):
            self.final = content
        parts = (content.get(name) for name in ("body", "action", "parameter", "result"))
        self.show("done" if kind == "response" else kind, " ".join(part for part in parts if part))


def _nodes(*nodes: Json) -> Json:
    return {"nodes": list(nodes), "pageInfo": {"hasNextPage": False, "endCursor": None}}


def _team() -> Json:
    return {"id": "team", "key": "PER", "name": "Platform", "gitAutomationStates": _nodes()}


def _state(key: str, name: str, kind: str) -> Json:
    return {"id": key, "name": name, "type": kind, "position": [one[0] for one in STATES].index(key)}


class _GraphqlHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    linear: LinearStandin

    def do_POST(self) -> None:  # the name that http.server looks for
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/oauth/token":
            answer: Json = {"access_token": "demo", "expires_in": 86_400, "scope": SCOPES}
        else:
            asked = json.loads(body)
            answer = {"data": self.linear.answer(asked["query"], asked["variables"])}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
