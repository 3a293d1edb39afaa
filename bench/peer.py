"""The peer: autobeat from npm, brought by `make bench` into .tools/peer, spoken to as its users' agents do."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.product import ROOT, clean_environment

PROGRAM = ROOT / ".tools" / "peer" / "node_modules" / "autobeat" / "dist" / "cli.js"
INSTALLED = ROOT / ".tools" / "peer" / "installed"  # written when all of it was built
STOP_PATIENCE = 10.0
NONE = "no peer on this machine"


def version() -> str | None:
    """None when there is no peer on this machine."""
    if not INSTALLED.exists():
        return None
    return str(json.loads((PROGRAM.parent.parent / "package.json").read_text())["version"])


class Peer:
    """A home of its own, with a stand-in for the agent that only waits."""

    def __init__(self, place: Path) -> None:
        self.home = place / "peer"
        programs = self.home / "bin"
        programs.mkdir(parents=True)
        agent = programs / "claude"
        agent.write_text("#!/bin/sh\nexec sleep 60\n")
        agent.chmod(0o755)
        own = {"HOME": str(self.home), "PATH": f"{programs}:{os.environ['PATH']}", "ANTHROPIC_API_KEY": "none"}
        self.environment = {**clean_environment(), **own}

    def command(self, *words: str) -> list[str]:
        return ["node", str(PROGRAM), *words]

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Its MCP server, initialised."""
        with mcp_server(self.command("mcp", "start"), self.environment, self.home) as process:
            yield Session(process, self.home)


@contextmanager
def mcp_server(command: list[str], environment: dict[str, str], work: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=work,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Session:
    """An MCP server of either side over standard input and output, initialised."""

    def __init__(self, process: subprocess.Popen[bytes], work: Path, agent: str = "claude") -> None:
        self._process = process
        self._work = work
        self._agent = agent
        self._last_id = 0
        self._call(
            "initialize",
            {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
        )
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    @property
    def pid(self) -> int:
        return self._process.pid

    def submit(self, prompt: str) -> None:
        accepted(self._call("tools/call", self._task(prompt)))

    def submit_all(self, prompt: str, count: int) -> None:
        """So many of them, none of which waits for the answer to another."""
        writer = threading.Thread(target=self._send_all, args=(prompt, count))
        writer.start()
        for _ in range(count):
            accepted(self._answer())
        writer.join()

    def _send_all(self, prompt: str, count: int) -> None:
        for _ in range(count):
            self._request("tools/call", self._task(prompt))

    def _task(self, prompt: str) -> dict[str, Any]:
        arguments = {"prompt": prompt, "workingDirectory": str(self._work), "agent": self._agent}
        return {"name": "DelegateTask", "arguments": arguments}

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _request(self, method: str, parameters: dict[str, Any]) -> None:
        self._last_id += 1
        self._send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": parameters})

    def _answer(self) -> dict[str, Any]:
        """To any request: who asks one at a time knows which."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "id" in answer and "method" not in answer:
                return dict(answer["result"])
        raise ConnectionError("the server ended")

    def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._request(method, parameters)
        return self._answer()


def accepted(result: dict[str, Any]) -> None:
    if result.get("isError"):
        raise RuntimeError(f"a task was refused: {result}")
