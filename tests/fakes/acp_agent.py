"""An agent program that speaks the Agent Client Protocol and does what its prompt says.

`install(directory)` puts it there under the name `acp-agent`. A prompt is a JSON object {"steps": [STEP, ...]},
other words may stand around it; without one it says "Done." and stops. A step is one of
    {"say": "text"}              a piece of the agent's message
    {"think": "text"}            a piece of its thoughts: what it said before is a whole message
    {"ask": "execute"}           ask for permission for a tool of that kind, wait, and say which option was chosen
    {"flood": 9}                 ask so many times for something that no client offers, and read no answer meanwhile
    {"read": 9}                  take so many answers
    {"touch": "path"}            make the file
    {"script": "path"}           the steps in that file, a JSON object as above
    {"update": {}}               any update of the session
    {"wait": "path"}             until the file exists
    {"error": {"code": -32603}}  answer the prompt with that
    {"stop": "refusal"}          answer the prompt with that reason; a script without it ends with `end_turn`
    {"exit": 3}                  with that code
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

POLL = 0.01
SESSION = "fake-session-1"
OPTIONS = [
    {"kind": "allow_always", "name": "Always", "optionId": "always"},
    {"kind": "allow_once", "name": "Once", "optionId": "once"},
    {"kind": "reject_once", "name": "No", "optionId": "no"},
]
ENTRY = """#!/bin/sh
exec '{python}' -I -S '{program}' "$@"
"""


def install(directory: Path, name: str = "acp-agent") -> Path:
    """Put the agent into a directory for PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    entry = directory / name
    entry.write_text(ENTRY.format(python=sys.executable, program=Path(__file__).resolve()), encoding="utf-8")
    entry.chmod(0o755)
    return entry


def send(message: Json) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def receive() -> Json:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: Json = json.loads(line)
    return message


class Prompted:
    """One prompt being played; `answer` is what it is answered with."""

    def __init__(self, steps: list[Json]) -> None:
        self.answer: Json = {"result": {"stopReason": "end_turn", "usage": {"inputTokens": 10, "outputTokens": 2}}}
        self.play(steps)

    def play(self, steps: list[Json]) -> None:
        for step in steps:
            verb = next(iter(step))
            getattr(self, f"do_{verb}")(step[verb])

    def do_say(self, text: str) -> None:
        self.update("agent_message_chunk", text)

    def do_think(self, text: str) -> None:
        self.update("agent_thought_chunk", text)

    def update(self, kind: str, text: str) -> None:
        update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
        send({"method": "session/update", "params": {"sessionId": SESSION, "update": update}})

    def do_ask(self, kind: str) -> None:
        call = {"toolCallId": "call-1", "title": f"a tool of kind {kind}", "kind": kind}
        params = {"sessionId": SESSION, "toolCall": call, "options": OPTIONS}
        send({"id": "ask-1", "method": "session/request_permission", "params": params})
        self.do_say(receive()["result"]["outcome"]["optionId"])

    def do_flood(self, times: int) -> None:
        for count in range(times):
            send({"id": f"flood-{count}", "method": "fs/read_text_file", "params": {"path": "x" * 200}})

    def do_read(self, times: int) -> None:
        self.do_say(f"{sum(receive()['error']['code'] == -32601 for _ in range(times))} refused")

    def do_script(self, path: str) -> None:
        self.play(json.loads(Path(path).read_text(encoding="utf-8"))["steps"])

    def do_update(self, update: Json) -> None:
        send({"method": "session/update", "params": {"sessionId": SESSION, "update": update}})

    def do_touch(self, path: str) -> None:
        Path(path).touch()

    def do_wait(self, path: str) -> None:
        while not Path(path).exists():
            time.sleep(POLL)

    def do_error(self, error: Json) -> None:
        self.answer = {"error": error}

    def do_stop(self, reason: str) -> None:
        self.answer = {"result": {"stopReason": reason}}

    def do_exit(self, code: int) -> None:
        os._exit(code)


def steps_of(prompt: str) -> list[Json]:
    try:
        return list(json.JSONDecoder().raw_decode(prompt[max(prompt.find('{"steps"'), 0) :])[0]["steps"])
    except (ValueError, KeyError, TypeError):
        return [{"say": "Done."}]


def main() -> None:
    while True:
        request = receive()
        number, params = request.get("id"), request.get("params", {})
        match request.get("method"):
            case "initialize":
                info = {"name": "acp-agent", "version": "1.2.3"}
                result = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}, "agentInfo": info}
                send({"id": number, "result": result})
            case "session/new":
                send({"id": number, "result": {"sessionId": SESSION}})
            case "session/load" if params["sessionId"] == SESSION:
                Prompted([{"say": "what was said before"}])
                send({"id": number, "result": {}})
            case "session/prompt":
                send({"id": number, **Prompted(steps_of(params["prompt"][0]["text"])).answer})
            case _:
                send({"id": number, "error": {"code": -32602, "message": "Invalid params"}})


if __name__ == "__main__":
    main()
