"""The peer: autobeat from npm, brought by `make bench` into .tools/peer, spoken to as its users' agents do."""

from __future__ import annotations

import json
import os
import subprocess
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
        process = subprocess.Popen(
            self.command("mcp", "start"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment,
            cwd=self.home,
        )
        try:
            yield Session(process, self.home)
        finally:
            process.terminate()
            try:
                process.wait(STOP_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Session:
    def __init__(self, process: subprocess.Popen[bytes], work: Path) -> None:
        self._process = process
        self._work = work
        self._last_id = 0
        self._call(
            "initialize",
            {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
        )
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def submit(self, prompt: str) -> None:
        arguments = {"prompt": prompt, "workingDirectory": str(self._work), "agent": "claude"}
        result = self._call("tools/call", {"name": "DelegateTask", "arguments": arguments})
        if result.get("isError"):
            raise RuntimeError(f"the peer refused a task: {result}")

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdout is not None
        self._last_id += 1
        self._send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": parameters})
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._last_id:
                return dict(answer["result"])
        raise ConnectionError("the peer ended")
