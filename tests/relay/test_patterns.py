"""Every pattern that we advertise is one for JavaScript too: its clients of MCP compile all of them at once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator

import anyio
import httpx2
import pytest
from tests.relay.peers import WAIT

from delegate.relay.mcp.schemas import schema_of
from delegate.relay.mcp.tools import FOR_AGENTS, FOR_OWNER

pytestmark = pytest.mark.anyio

COMPILED = """
const refused = JSON.parse(require("fs").readFileSync(0, "utf8")).flatMap((pattern) => {
  try { new RegExp(pattern, "u"); return [] } catch (error) { return [String(error)] }
})
console.log(JSON.stringify(refused))
"""
# With the flag `u` nothing else may be escaped; in Python anything may.
ESCAPES = re.compile(r"[\^$.*+?()\[\]{}|/\\dDwWsSbBnrtfv0-]|x[0-9a-f]{2}|u[0-9a-f]{4}")


@pytest.fixture
async def patterns(owner: httpx2.AsyncClient) -> list[str]:
    document = (await owner.get("/api/openapi.json")).json()
    tools = [*FOR_OWNER.values(), *FOR_AGENTS.values()]
    schemas = [schema_of(model) for tool in tools for model in (tool.parameters, tool.answer)]
    return sorted(set(patterns_in([document, *schemas])))


def patterns_in(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("pattern"), str):
            yield part["pattern"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from patterns_in(inner)


async def test_no_pattern_escapes_what_javascript_does_not(patterns: list[str]) -> None:
    escapes = [(found[1], pattern) for pattern in patterns for found in re.finditer(r"\\(x..|u....|.)", pattern)]

    assert len(patterns) > 10
    assert [pattern for escape, pattern in escapes if not ESCAPES.fullmatch(escape)] == []


@pytest.mark.real
@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
async def test_javascript_compiles_every_pattern(patterns: list[str]) -> None:
    node = ["node", "--eval", COMPILED]
    with anyio.fail_after(WAIT):
        done = await anyio.run_process(node, input=json.dumps(patterns).encode())

    assert json.loads(done.stdout) == []
