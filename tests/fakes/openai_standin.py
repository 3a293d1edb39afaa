"""Scripted loopback stand-in for the OpenAI Responses API.

It lets tests run the real `codex` program with no network: a model provider in the program's configuration points here,
and the server plays a fixed script, the scenario, instead of a model.

    with OpenAIStandin({"default": scenario}) as model:
        (codex_home / "config.toml").write_text(model.codex_config())          # scenario "default"
        (codex_home / "config.toml").write_text(model.codex_config("other"))   # scenario "other"
        env["CODEX_HOME"], env["STANDIN_API_KEY"] = str(codex_home), "test-key"
        ...
        model.requests            # every request received, in order

Scenarios, gates and controls are those of anthropic_standin.py. Each request that carries tools consumes one step; one
without is a side request and gets "side_text". A step is one of
    {"text": "done"}                              final answer
    {"shell": "pytest -q"}                        a call of whichever shell tool the program offered in this request
    {"patch": "*** Begin Patch\\n..."}             a call of apply_patch, in the form the program offered
    {"tool": "view_image", "input": {...}}        any function tool, with "namespace" if it is in one
    {"custom_tool": "apply_patch", "input": "…"}  any free-form tool
    {"content": [STEP, ...]}                      several of the above in one answer, and {"reasoning": "…"}
    {"error": {"status": 429, "type": "...", "code": "rate_limit_exceeded", "message": "...", "headers": {...}}}
                                                  HTTP error; further fields are passed on
    {"failed": {"code": "rate_limit_exceeded", "message": "..."}}    200, then response.failed
    {"incomplete": "max_output_tokens"}           200, then response.incomplete
    {"drop": "before" | "mid"}, {"hang": true}    broken or silent connection
plus "delay_s", "gate", "pace_s", "repeat", "expect", "headers" as there, and
    "usage": {"input_tokens": 100, "cached": 10, "output_tokens": 20, "reasoning": 5}

Strings may hold {{cwd}}, {{model}}, {{last_user}} and the scenario's "vars".
"""

from __future__ import annotations

import itertools
import json
import re
import time
import uuid
from pathlib import Path
from typing import Any

from tests.fakes.anthropic_standin import GATE_BOUND, Answers, AnthropicStandin, Json, Scenario, fill, pieces, texts

CWD = re.compile(r"<cwd>([^<]+)</cwd>")
# Where an HTTP error's fields go by themselves; all others become fields of the error in the body.
PLACED = frozenset({"status", "headers"})
# Without these codex looks for its vendor's hosts at every start: usage figures, updates, plug-ins, connectors. And a
# login shell would lose the PATH that a test prepares.
QUIET = """
check_for_update_on_startup = false
allow_login_shell = false
analytics.enabled = false
features.plugins = false
features.apps = false
otel.metrics_exporter = "none"
"""


def newest_input_text(body: Json) -> str:
    for item in reversed(body.get("input") or []):
        if item.get("role") == "user" or item.get("type", "").endswith("_output"):
            return "\n".join(texts(item))
    return ""


def find_cwd(body: Json) -> str:
    named = [match for text in texts(body.get("input")) for match in CWD.findall(text)]
    return named[-1].strip() if named else "/nonexistent-cwd"


def offered(body: Json) -> dict[str, Json]:
    """The tools of a request by name, those in namespaces too."""
    tools: dict[str, Json] = {}
    for tool in body.get("tools") or []:
        for inner in tool.get("tools", []) if tool.get("type") == "namespace" else [tool]:
            tools.setdefault(inner.get("name") or inner.get("type", ""), inner)
    return tools


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:20]}"


def function_call(name: str, arguments: Json) -> Json:
    call = {"type": "function_call", "id": new_id("fc"), "call_id": new_id("call"), "status": "completed"}
    return {**call, "name": name, "arguments": json.dumps(arguments)}


def custom_call(name: str, text: str) -> Json:
    call = {"type": "custom_tool_call", "id": new_id("ctc"), "call_id": new_id("call"), "status": "completed"}
    return {**call, "name": name, "input": text}


def shell_call(command: str, body: Json) -> Json:
    tools = offered(body)
    if "exec_command" in tools:
        return function_call("exec_command", {"cmd": command})
    if "shell_command" in tools:
        return function_call("shell_command", {"command": command})
    if "shell" in tools:
        return function_call("shell", {"command": ["bash", "-lc", command]})
    raise ValueError(f"no shell tool was offered: {', '.join(tools)}")


def patch_call(patch: str, body: Json) -> Json:
    tool = offered(body).get("apply_patch")
    if tool is None:  # codex also understands it as a shell command
        return shell_call(f"apply_patch <<'EOF_PATCH'\n{patch}\nEOF_PATCH", body)
    if tool.get("type") == "custom":
        return custom_call("apply_patch", patch)
    return function_call("apply_patch", {"input": patch})


def item_of(part: Json, body: Json) -> Json:
    match part:
        case {"shell": command}:
            return shell_call(command, body)
        case {"patch": patch}:
            return patch_call(patch, body)
        case {"tool": name}:
            space = {"namespace": part["namespace"]} if "namespace" in part else {}
            return {**function_call(name, part.get("input", {})), **space}
        case {"custom_tool": name}:
            return custom_call(name, part.get("input", ""))
        case {"reasoning": text}:
            summary = [{"type": "summary_text", "text": text}]
            return {"type": "reasoning", "id": new_id("rs"), "summary": summary, "encrypted_content": "c3RhbmRpbg=="}
    content = [{"type": "output_text", "text": part.get("text", ""), "annotations": []}]
    return {
        "type": "message",
        "id": new_id("msg"),
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def usage_of(step: Json) -> Json:
    given = step.get("usage", {})
    read, written = given.get("input_tokens", 100), given.get("output_tokens", 20)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": given.get("cached", 0)},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": given.get("reasoning", 0)},
        "total_tokens": read + written,
    }


def events_of(item: Json, index: int) -> list[tuple[str, Json]]:
    """How an item comes in, before it is done."""
    where: Json = {"item_id": item["id"], "output_index": index}
    match item["type"]:
        case "message":
            opening, deltas = {"content": [], "status": "in_progress"}, text_events(item, where)
        case "function_call":
            opening = {"arguments": "", "status": "in_progress"}
            deltas = [("response.function_call_arguments.delta", {**where, "delta": item["arguments"]})]
        case "custom_tool_call":
            opening = {"input": "", "status": "in_progress"}
            deltas = [("response.custom_tool_call_input.delta", {**where, "delta": item["input"]})]
        case "reasoning":
            opening, deltas = {"summary": []}, reasoning_events(item, where)
        case unknown:
            raise ValueError(f"unknown item type {unknown!r}")
    return [("response.output_item.added", {"output_index": index, "item": {**item, **opening}}), *deltas]


def text_events(item: Json, where: Json) -> list[tuple[str, Json]]:
    text = item["content"][0]["text"]
    place = {**where, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    return [
        ("response.content_part.added", {**place, "part": part}),
        *(("response.output_text.delta", {**place, "delta": piece}) for piece in pieces(text)),
        ("response.output_text.done", {**place, "text": text}),
        ("response.content_part.done", {**place, "part": {**part, "text": text}}),
    ]


def reasoning_events(item: Json, where: Json) -> list[tuple[str, Json]]:
    place = {**where, "summary_index": 0}
    return [
        ("response.reasoning_summary_part.added", {**place, "part": {"type": "summary_text", "text": ""}}),
        ("response.reasoning_summary_text.delta", {**place, "delta": item["summary"][0]["text"]}),
    ]


class OpenAIStandin(AnthropicStandin):
    """The same server, scenarios and gates, with the answers of another service."""

    def __init__(
        self, scenarios: dict[str, Json] | None = None, *, port: int = 0, log_path: Path | None = None
    ) -> None:
        super().__init__(scenarios, port=port, log_path=log_path)
        self._server.RequestHandlerClass = type("BoundAnswers", (ResponsesAnswers,), {"standin": self})

    def base_url(self, scenario: str | None = None) -> str:
        return f"{super().base_url(scenario)}/v1"

    def codex_config(self, scenario: str | None = None) -> str:
        """A config.toml with which codex speaks to this server only. The model is one whose requests
        name the tools they offer; newer ones get them in other ways."""
        return f"""model = "gpt-5.5"
model_provider = "standin"
{QUIET}
[model_providers.standin]
name = "standin"
base_url = "{self.base_url(scenario)}"
wire_api = "responses"
env_key = "STANDIN_API_KEY"
supports_websockets = false
"""


class ResponsesAnswers(Answers):
    server_version = "openai-standin"

    def _route(self, entry: Json, size: int) -> None:
        if self.command == "POST" and entry["path"].endswith("/responses"):
            self._responses(entry)
        else:
            entry["kind"] = "unknown"
            self._refuse(404, f"stand-in has no {self.command} {entry['path']}")

    def _head(self, status: int, headers: dict[str, str]) -> None:
        super()._head(status, {"x-request-id": new_id("req_standin"), **headers})

    def _refuse(self, status: int, message: str, headers: dict[str, str] | None = None, **fields: Any) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None, **fields}
        self._json(status, {"error": error}, headers)

    def _responses(self, entry: Json) -> None:
        scenario = self.standin.scenarios.get(entry["scenario"])
        if scenario is None:
            self._refuse(404, f"no scenario {entry['scenario']!r}")
            return
        spec, body = scenario.spec, entry["body"]
        key, model = entry["headers"].get("authorization", "").removeprefix("Bearer "), body.get("model", "")
        if key not in spec.get("api_keys", [key]):
            entry["kind"] = "auth"
            self._refuse(401, "Incorrect API key provided", code="invalid_api_key")
        elif model not in spec.get("models", [model]):
            entry["kind"] = "model"
            why = f"The model `{model}` does not exist or you do not have access to it."
            self._refuse(404, why, code="model_not_found")
        else:
            self._play(entry, self._next(entry, scenario))

    def _next(self, entry: Json, scenario: Scenario) -> Json:
        spec, body = scenario.spec, entry["body"]
        step: Json = {"text": spec.get("side_text", "ok")}
        entry["kind"] = "main" if body.get("tools") else "side"
        if body.get("tools"):
            entry["step"], step = scenario.next_step()
        known = {"cwd": find_cwd(body), "model": body.get("model", ""), "last_user": newest_input_text(body)}
        filled: Json = fill(step, {**known, **{name: str(value) for name, value in spec.get("vars", {}).items()}})
        return filled

    def _play(self, entry: Json, step: Json) -> None:
        body = entry["body"]
        if not re.search(step.get("expect", ""), newest_input_text(body), re.DOTALL):
            self._refuse(400, f"stand-in: step {entry['step']} expected /{step['expect']}/")
            return
        time.sleep(step.get("delay_s", 0))
        if step.get("gate"):
            self.standin.gate(step["gate"]).wait(GATE_BOUND)
        if step.get("drop") == "before":
            self._hang_up()
        elif "error" in step:
            error = {"type": "server_error", "message": "error", **step["error"]}
            headers = {**step.get("headers", {}), **error.get("headers", {})}
            fields = {name: value for name, value in error.items() if name not in PLACED}
            self._refuse(error.get("status", 500), fields.pop("message"), headers, **fields)
        else:
            self._stream_items(entry, [item_of(part, body) for part in step.get("content", [step])], step)

    def _stream_items(self, entry: Json, items: list[Json], step: Json) -> None:
        own = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        self._head(200, {**own, **step.get("headers", {})})
        numbers = itertools.count()

        def send(kind: str, **data: object) -> None:
            self._send(kind, sequence_number=next(numbers), **data)
            time.sleep(step.get("pace_s", 0))

        model = entry["body"].get("model", "")
        response = {"id": new_id("resp"), "object": "response", "created_at": int(time.time()), "model": model}
        send("response.created", response={**response, "status": "in_progress", "output": []})
        while step.get("hang"):
            if self.standin.stopping.wait(0.5):
                return
            send("response.in_progress", response={**response, "status": "in_progress", "output": []})
        for index, item in enumerate([] if "failed" in step else items):
            for kind, data in events_of(item, index):
                send(kind, **data)
            if step.get("drop") == "mid":
                self._hang_up()
                return
            send("response.output_item.done", output_index=index, item=item)
        status, more = ending_of(step)
        whole = {**response, "status": status, "output": items, "usage": usage_of(step), **more}
        send(f"response.{status}", response=whole)
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


def ending_of(step: Json) -> tuple[str, Json]:
    if "failed" in step:
        return "failed", {"error": step["failed"], "usage": None}
    if "incomplete" in step:
        return "incomplete", {"incomplete_details": {"reason": step["incomplete"]}}
    return "completed", {}
