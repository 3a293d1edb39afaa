"""Scripted loopback stand-in for the Anthropic Messages API.

It lets tests run the real `claude` program with no network: the program is pointed here with ANTHROPIC_BASE_URL, and
the server plays a fixed script, the scenario, instead of a model. Standard library only.

    with AnthropicStandin({"default": scenario}) as model:
        env["ANTHROPIC_BASE_URL"] = model.base_url()          # scenario "default"
        env["ANTHROPIC_BASE_URL"] = model.base_url("other")   # scenario "other"
        ...
        model.requests            # every request received, in order

    python3 anthropic_standin.py --scenario scenario.json --port 0 --log requests.jsonl
    -> prints one line:  {"port": 40123, "base_url": "http://127.0.0.1:40123"}

Several scenarios can be served at once: the scenario is the URL prefix /s/<name>/, and the program keeps a path prefix
in ANTHROPIC_BASE_URL. Every scenario has its own cursor, so agents that run in parallel do not disturb each other when
each gets its own prefix.

Scenario:
    {
      "models":   ["claude-sonnet-4-5", ...],  # optional: other models get 404
      "api_keys": ["test-key"],                # optional: other keys get 401
      "vars":     {"branch": "x"},             # optional: {{branch}} in strings
      "finds":    {"task": "task-\\w+"},       # optional: {{task}} is the last match in the conversation
      "side_text": "ok",                       # answer for side requests, see below
      "after_end": {"text": "(script ended)"}, # step played when steps run out
      "obeys":    "npm test|make",             # optional, instead of steps: see below
      "steps": [ STEP, ... ]
    }

A request is a main request when it carries tools; those consume steps in order, one step per request (so a 429 step
followed by a text step is one failed attempt and one successful retry). Requests without tools (session title, quota
probe, ...) are side requests: they get "side_text" and consume nothing, unless the scenario says "side_steps": true.

With "obeys", a model that follows its prompt, for agents that run at the same time: the last match of that pattern in
the newest user message is run as a command, and a tool's result is answered with "Done.".

A step is one of
    {"text": "done"}                                       final answer
    {"tool": "Write", "input": {...}}                      one tool call
    {"content": [{"type": "thinking", "thinking": "..."},
                 {"type": "text", "text": "..."},
                 {"type": "tool_use", "name": "Bash", "input": {...}}]}
    {"error": {"status": 529, "type": "overloaded_error",
               "message": "Overloaded", "headers": {"retry-after": "1"}}}
    {"drop": "before" | "mid"}      close the connection with no / half an answer
    {"hang": true}                  send the start of the answer, then nothing
plus any of
    "delay_s": 0.5        sleep before the answer
    "gate": "name"        wait until POST /_ctl/gate/<name> (or open_gate)
    "pace_s": 0.01        sleep between SSE deltas
    "usage": {"input_tokens": 100, "output_tokens": 20, ...}
    "stop_reason": "end_turn" | "tool_use" | "max_tokens" | "refusal"
    "repeat": 3           play this step that many times (-1: for ever)
    "expect": "regex"     the newest user message must match, else a 400 that names the step (a test then fails loudly)
    "headers": {...}      extra response headers (rate-limit headers)

Strings in a step may hold {{cwd}} (the working directory the program named in its prompt), {{model}}, {{session_id}},
{{last_user}}, and the scenario's "vars".

Control (for tests in another process):
    PUT  /_ctl/scenarios/<name>   body: scenario     (re)define, cursor to 0
    GET  /_ctl/scenarios/<name>   {"cursor": n, "left": m}
    GET  /_ctl/requests           all requests so far
    POST /_ctl/gate/<name>        open a gate
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

Json = dict[str, Any]

GATE_BOUND = 600.0
DEFAULT_USAGE = {
    "input_tokens": 100,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 20,
    "service_tier": "standard",
}
CWD_PATTERNS = (
    re.compile(r"Primary working directory: ([^\n]+)"),
    re.compile(r"Working directory: ([^\n]+)"),
    re.compile(r"<cwd>([^<]+)</cwd>"),
)
UUID_AT_END = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\W*$")


class Scenario:
    """A script and the place reached in it."""

    def __init__(self, spec: Json) -> None:
        self.spec = spec
        self.steps: list[Json] = list(spec.get("steps", []))
        self.cursor = 0
        self._played = 0
        self._lock = threading.Lock()

    def next_step(self) -> tuple[int, Json]:
        with self._lock:
            if self.cursor >= len(self.steps):
                return self.cursor, self.spec.get("after_end", {"text": "(script ended)"})
            index, step = self.cursor, self.steps[self.cursor]
            self._played += 1
            repeat = step.get("repeat", 1)
            if repeat != -1 and self._played >= repeat:
                self.cursor, self._played = self.cursor + 1, 0
            return index, step


def texts(node: Any) -> Iterator[str]:
    """Every string anywhere in a JSON value."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for value in node.values():
            yield from texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from texts(value)


def newest_user_text(body: Json) -> str:
    for message in reversed(body.get("messages", [])):
        if message.get("role") == "user":
            return "\n".join(texts(message.get("content")))
    return ""


def last_match(pattern: str, body: Json) -> str:
    return (re.findall(pattern, "\n".join(texts(body.get("messages")))) or [""])[-1]


def obeyed(commands: str, body: Json) -> tuple[int, Json]:
    newest = body["messages"][-1]["content"]
    if isinstance(newest, list) and any(block.get("type") == "tool_result" for block in newest):
        return 1, {"text": "Done."}
    found = re.findall(commands, newest_user_text(body)) or ["true"]
    return 0, {"tool": "Bash", "input": {"command": found[-1], "description": "as asked"}}


def find_cwd(body: Json) -> str:
    for text in [*texts(body.get("system")), *texts(body.get("messages"))]:
        for pattern in CWD_PATTERNS:
            if match := pattern.search(text):
                return match.group(1).strip()
    return "/nonexistent-cwd"


def session_of(body: Json, headers: dict[str, str]) -> str:
    if headers.get("x-claude-code-session-id"):
        return headers["x-claude-code-session-id"]
    match = UUID_AT_END.search(str(body.get("metadata", {}).get("user_id", "")))
    return match.group(1) if match else ""


def fill(node: Any, variables: dict[str, str]) -> Any:
    if isinstance(node, str):
        return re.sub(r"\{\{(\w+)\}\}", lambda m: variables.get(m.group(1), m.group(0)), node)
    if isinstance(node, dict):
        return {key: fill(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [fill(value, variables) for value in node]
    return node


def blocks_of(step: Json) -> list[Json]:
    """The three ways to write a step, as a list of content blocks."""
    if "content" in step:
        blocks = [dict(block) for block in step["content"]]
    elif "tool" in step:
        blocks = [{"type": "tool_use", "name": step["tool"], "input": step.get("input", {})}]
    else:
        blocks = [{"type": "text", "text": step.get("text", "")}]
    for block in blocks:
        if block["type"] == "tool_use":
            block.setdefault("id", f"toolu_{uuid.uuid4().hex[:24]}")
            block.setdefault("input", {})
        if block["type"] == "thinking":
            block.setdefault("signature", "c3RhbmRpbi1zaWduYXR1cmU=")
    return blocks


def message_of(step: Json, model: str) -> Json:
    blocks = blocks_of(step)
    calls_tool = any(block["type"] == "tool_use" for block in blocks)
    return {
        "id": f"msg_{uuid.uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": step.get("stop_reason") or ("tool_use" if calls_tool else "end_turn"),
        "stop_sequence": None,
        "usage": {**DEFAULT_USAGE, **step.get("usage", {})},
    }


def pieces(text: str, size: int = 24) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)] or [""]


def opening_and_deltas(block: Json) -> tuple[Json, list[Json]]:
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            return {"type": "text", "text": ""}, deltas
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "tool_use":
            parts = pieces(json.dumps(block["input"]))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in parts]
            return {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}, deltas
        case unknown:
            raise ValueError(f"unknown block type {unknown!r}")


class AnthropicStandin:
    def __init__(
        self, scenarios: dict[str, Json] | None = None, *, port: int = 0, log_path: Path | None = None
    ) -> None:
        self.scenarios = {name: Scenario(spec) for name, spec in (scenarios or {}).items()}
        self.requests: list[Json] = []
        self.stopping = threading.Event()
        self._gates: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._log_path = log_path
        handler = type("BoundAnswers", (Answers,), {"standin": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self.stopping.set()
        for gate in list(self._gates.values()):
            gate.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def base_url(self, scenario: str | None = None) -> str:
        root = f"http://127.0.0.1:{self.port}"
        return root if scenario is None else f"{root}/s/{scenario}"

    def environment(self, home: Path) -> dict[str, str]:
        """What makes a Claude Code with this home directory use the stand-in, and nothing else on the network."""
        return {
            "HOME": str(home),
            "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "ANTHROPIC_BASE_URL": self.base_url(),
            "ANTHROPIC_API_KEY": "test-key-of-anthropic",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "CLAUDE_CODE_MAX_RETRIES": "2",
        }

    def define(self, name: str, spec: Json) -> None:
        with self._lock:
            self.scenarios[name] = Scenario(spec)

    def gate(self, name: str) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(name, threading.Event())

    def open_gate(self, name: str) -> None:
        self.gate(name).set()

    def record(self, entry: Json) -> None:
        with self._lock:
            self.requests.append(entry)
            if self._log_path:
                with self._log_path.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(entry) + "\n")


class Answers(BaseHTTPRequestHandler):
    """One connection from a program."""

    protocol_version = "HTTP/1.1"
    server_version = "anthropic-standin"
    standin: AnthropicStandin

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client was killed; nothing to report
            super().handle()

    def log_message(self, *_: object) -> None:
        """Quiet: a test prints only what it asserts."""

    def answer(self) -> None:
        raw = self._read_body()
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            body = {"_raw": raw.decode("utf-8", "replace")}
        path, _, query = self.path.partition("?")
        scenario = "default"
        if match := re.match(r"^/s/([^/]+)(/.*)?$", path):
            scenario, path = match.group(1), match.group(2) or "/"
        if path.startswith("/_ctl/"):
            self._control(path, body)
            return
        entry = {
            "t": time.time(),
            "method": self.command,
            "path": path,
            "query": query,
            "scenario": scenario,
            "headers": {key.lower(): value for key, value in self.headers.items()},
            "body": body,
        }
        try:
            self._route(entry, len(raw))
        except (BrokenPipeError, ConnectionResetError):
            entry["client_gone"] = True
        finally:
            self.standin.record(entry)

    do_GET = do_POST = do_PUT = do_HEAD = do_PATCH = do_DELETE = do_OPTIONS = answer  # noqa: N815 - named by http.server

    def _route(self, entry: Json, size: int) -> None:
        match self.command, entry["path"]:
            case "POST", "/v1/messages":
                self._messages(entry)
            case "POST", "/v1/messages/count_tokens":
                entry["kind"] = "count_tokens"
                self._json(200, {"input_tokens": max(1, size // 4)})
            case "GET", "/v1/models":
                entry["kind"] = "models"
                self._models(entry["scenario"])
            case (("GET" | "HEAD"), "/"):
                entry["kind"] = "probe"
                self._json(200, {})
            case method, path:
                entry["kind"] = "unknown"
                self._error(404, "not_found_error", f"stand-in has no {method} {path}")

    def _read_body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        chunks: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("request-id", f"req_standin_{uuid.uuid4().hex[:12]}")
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def _json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        payload = json.dumps(value).encode()
        own = {"content-type": "application/json", "content-length": str(len(payload))}
        self._head(status, {**own, **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(payload)

    def _error(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> None:
        error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_standin"}
        self._json(status, error, headers)

    def _control(self, path: str, body: Json) -> None:
        match self.command, path.split("/")[2:]:
            case "PUT", ["scenarios", name]:
                self.standin.define(name, body)
                self._json(200, {"ok": True})
            case "GET", ["scenarios", name] if name in self.standin.scenarios:
                scenario = self.standin.scenarios[name]
                self._json(200, {"cursor": scenario.cursor, "left": len(scenario.steps) - scenario.cursor})
            case "GET", ["requests"]:
                self._json(200, self.standin.requests)
            case "POST", ["gate", name]:
                self.standin.open_gate(name)
                self._json(200, {"ok": True})
            case _:
                self._json(404, {"error": "no such control"})

    def _models(self, scenario_name: str) -> None:
        scenario = self.standin.scenarios.get(scenario_name)
        names = (scenario.spec.get("models") if scenario else None) or []
        known = [
            {"type": "model", "id": name, "display_name": name, "created_at": "2025-01-01T00:00:00Z"} for name in names
        ]
        self._json(200, {"data": known, "has_more": False, "first_id": None, "last_id": None})

    def _messages(self, entry: Json) -> None:
        scenario = self.standin.scenarios.get(entry["scenario"])
        if scenario is None:
            self._error(404, "not_found_error", f"no scenario {entry['scenario']!r}")
            return
        spec, body, headers = scenario.spec, entry["body"], entry["headers"]
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if key not in spec.get("api_keys", [key]):
            entry["kind"] = "auth"
            self._error(401, "authentication_error", "invalid x-api-key")
            return
        model = body.get("model", "")
        if model not in spec.get("models", [model]):
            entry["kind"] = "model"
            self._error(404, "not_found_error", f"model: {model}")
            return
        is_main = bool(body.get("tools")) or bool(spec.get("side_steps"))
        entry["kind"] = "main" if is_main else "side"
        step: Json = {"text": spec.get("side_text", "ok")}
        if is_main:
            entry["step"], step = obeyed(spec["obeys"], body) if "obeys" in spec else scenario.next_step()
        self._play(entry, fill(step, self._variables(spec, body, headers)))

    def _variables(self, spec: Json, body: Json, headers: dict[str, str]) -> dict[str, str]:
        return {
            "cwd": find_cwd(body),
            "model": body.get("model", ""),
            "session_id": session_of(body, headers),
            "last_user": newest_user_text(body),
            **{name: last_match(pattern, body) for name, pattern in spec.get("finds", {}).items()},
            **{name: str(value) for name, value in spec.get("vars", {}).items()},
        }

    def _play(self, entry: Json, step: Json) -> None:
        body = entry["body"]
        if not re.search(step.get("expect", ""), newest_user_text(body), re.DOTALL):
            why = f"stand-in: step {entry['step']} expected /{step['expect']}/"
            self._error(400, "invalid_request_error", why)
            return
        time.sleep(step.get("delay_s", 0))
        if step.get("gate"):
            self.standin.gate(step["gate"]).wait(GATE_BOUND)
        if step.get("drop") == "before":
            self._hang_up()
        elif "error" in step:
            error = step["error"]
            headers = {**step.get("headers", {}), **error.get("headers", {})}
            kind, words = error.get("type", "api_error"), error.get("message", "error")
            self._error(error.get("status", 500), kind, words, headers)
        elif body.get("stream"):
            self._stream(message_of(step, body.get("model", "")), step)
        else:
            self._json(200, message_of(step, body.get("model", "")), step.get("headers"))

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, event: str, **data: object) -> None:
        payload = f"event: {event}\ndata: {json.dumps({'type': event, **data})}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(payload), payload))
        self.wfile.flush()

    def _stream(self, message: Json, step: Json) -> None:
        own = {"content-type": "text/event-stream", "cache-control": "no-cache", "transfer-encoding": "chunked"}
        self._head(200, {**own, **step.get("headers", {})})
        usage = {**message["usage"], "output_tokens": 1}
        self._send("message_start", message={**message, "content": [], "stop_reason": None, "usage": usage})
        self._send("ping")
        while step.get("hang"):
            if self.standin.stopping.wait(0.5):
                return
            self._send("ping")
        for index, block in enumerate(message["content"]):
            opening, deltas = opening_and_deltas(block)
            self._send("content_block_start", index=index, content_block=opening)
            for delta in deltas:
                self._send("content_block_delta", index=index, delta=delta)
                time.sleep(step.get("pace_s", 0))
            if step.get("drop") == "mid":
                self._hang_up()
                return
            self._send("content_block_stop", index=index)
        ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        self._send("message_delta", delta=ending, usage=message["usage"])
        self._send("message_stop")
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Scripted loopback stand-in for the Anthropic Messages API.")
    parser.add_argument("--scenario", action="append", default=[], metavar="[NAME=]FILE")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, help="append every request to this JSONL file")
    options = parser.parse_args()
    scenarios = {}
    for item in options.scenario:
        name, _, path = item.rpartition("=")
        scenarios[name or "default"] = json.loads(Path(path).read_text(encoding="utf-8"))
    with AnthropicStandin(scenarios, port=options.port, log_path=options.log) as standin:
        print(json.dumps({"port": standin.port, "base_url": standin.base_url()}), flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
