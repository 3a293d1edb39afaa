"""A client that speaks to a bridge line by line, as rudely as a test wants."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 20.0
Json = dict[str, Any]
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


class Spoken:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest = b""
        self._last_id = 0

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, message: Json) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def ask(self, method: str, params: Json | None = None) -> int:
        self._last_id += 1
        self.send({"id": self._last_id, "method": method, **({} if params is None else {"params": params})})
        return self._last_id

    def call(self, method: str, params: Json | None = None) -> Json:
        asked = self.ask(method, params)
        answer = self.read()
        assert answer.get("id") == asked, answer
        return answer

    def tool(self, name: str, **arguments: Any) -> Json:
        return self.call("tools/call", {"name": name, "arguments": arguments})

    def handshake(self) -> Json:
        about = {"clientInfo": {"name": "test", "version": "1"}}
        answer = self.call("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, **about})
        assert "result" in answer, answer
        self.send({"method": "notifications/initialized"})
        return answer

    def read(self) -> Json:
        line = self.read_line()
        assert line, "the bridge has closed its output"
        return dict(json.loads(line))

    def read_line(self) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            assert select.select([self.process.stdout], [], [], PATIENCE)[0], "the bridge said nothing"
            piece = os.read(self.process.stdout.fileno(), 65_536)
            if not piece:
                return self._rest
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close(self) -> int:
        """As a client ends its server; the answer is the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    @property
    def peak_memory(self) -> int:
        """Bytes it has ever had resident."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024


@contextmanager
def bridge(home: Path, *words: str, cwd: Path | None = None, **environment: str) -> Iterator[Spoken]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DELEGATE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "delegate", "mcp", "start", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**inherited, "DELEGATE_HOME": str(home), **environment},
        cwd=cwd,
        bufsize=0,
    )
    try:
        with process:
            yield Spoken(process)
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
    finally:
        process.kill()
