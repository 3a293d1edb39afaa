"""`delegate mcp config` and `install`: other programs learn of the bridge, and keep everything else they know."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.world import World

PROGRAM = str(Path(sys.executable).with_name("delegate"))
REAL = pytest.mark.skipif(not (shutil.which("claude") and shutil.which("codex")), reason="needs claude and codex")


def entry(world: World) -> dict[str, Any]:
    return {"command": PROGRAM, "args": ["mcp", "start"], "env": {"DELEGATE_HOME": str(world.home)}}


def test_the_entry_names_this_program_and_the_home_of_the_shell(world: World) -> None:
    printed = json.loads(world.ok("mcp", "config"))
    on_one_line = world.ok("mcp", "config", "--json")
    del world.environment["DELEGATE_HOME"]

    assert printed == {"mcpServers": {"delegate": entry(world)}}
    assert (json.loads(on_one_line), on_one_line.count("\n")) == (printed, 1)
    assert json.loads(world.ok("mcp", "config")) == {
        "mcpServers": {"delegate": {"command": PROGRAM, "args": ["mcp", "start"]}}
    }


def test_the_entry_is_merged_into_the_file_and_the_rest_of_it_stays(world: World) -> None:
    file = world.work / ".mcp.json"
    file.write_text(
        '{"other": [1, "ü"], "mcpServers": {"github": {"url": "https://x"}, "delegate": {"command": "old"}}}'
    )
    file.chmod(0o640)

    first = world.ok("mcp", "config", "--write")
    second = world.ok("mcp", "config", "--write", "--json")

    merged = json.loads(file.read_text())
    assert merged == {"other": [1, "ü"], "mcpServers": {"github": {"url": "https://x"}, "delegate": entry(world)}}
    assert list(merged) == ["other", "mcpServers"]
    assert first == f"{file}: updated\n"
    assert json.loads(second) == {"path": str(file), "done": "unchanged"}
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in world.work.iterdir()] == [".mcp.json"]


def test_a_missing_file_is_made_and_a_link_is_followed(world: World) -> None:
    target = world.work / "shared.json"
    (world.work / ".mcp.json").symlink_to(target)

    assert world.ok("mcp", "config", "--write").endswith(": added\n")

    assert (world.work / ".mcp.json").is_symlink()
    assert json.loads(target.read_text()) == {"mcpServers": {"delegate": entry(world)}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"mcpServers": {\n  "a": 1,,\n}}', "line 2, column 10"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"mcpServers": []}', '"mcpServers" is not a JSON object'),
    ],
)
def test_a_broken_file_is_refused_with_its_place_and_left_alone(world: World, text: bytes, said: str) -> None:
    file = world.work / ".mcp.json"
    file.write_bytes(text)

    done = world.run("mcp", "config", "--write")

    assert done.returncode == 2
    assert str(file) in done.stderr
    assert said in done.stderr
    assert file.read_bytes() == text


def test_without_any_agent_nothing_is_installed(world: World) -> None:
    world.environment["PATH"] = "/nonexistent"

    done = world.run("mcp", "install")

    assert done.returncode == 2
    assert "not found on PATH: claude, codex; " in done.stderr


def test_an_agent_that_does_not_take_the_entry_is_quoted(world: World, tmp_path: Path) -> None:
    (tmp_path / "codex").write_text("#!/bin/sh\necho 'config.toml is broken' >&2; exit 3\n")
    (tmp_path / "codex").chmod(0o755)
    world.environment["PATH"] = f"{tmp_path}:/usr/bin:/bin"

    done = world.run("mcp", "install", "--agent", "codex")

    assert done.returncode == 2
    assert "did not accept the entry: config.toml is broken" in done.stderr


CLAUDE = """#!/usr/bin/env python3
import json, pathlib, sys
file = pathlib.Path.home() / ".claude.json"
known = json.loads(file.read_text())
match sys.argv[2:]:
    case ["add-json", "--scope", "user", name, entry]:
        if name in known["mcpServers"]:
            sys.exit(f"MCP server {name} already exists in user config")
        if json.loads(entry)["command"] != "old":
            sys.exit("no such transport")
        known["mcpServers"][name] = json.loads(entry)
    case ["remove", "--scope", "user", name]:
        del known["mcpServers"][name]
file.write_text(json.dumps(known))
"""


@pytest.mark.parametrize("place", [".claude.json", "elsewhere.json"])
def test_what_claude_knew_is_there_again_when_it_does_not_take_the_new_entry(
    world: World, tmp_path: Path, place: str
) -> None:
    (tmp_path / "claude").write_text(CLAUDE.replace(".claude.json", place))
    (tmp_path / "claude").chmod(0o755)
    world.environment |= {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    world.environment.pop("CLAUDE_CONFIG_DIR", None)
    before = {"mcpServers": {"delegate": {"type": "stdio", "command": "old", "args": [], "env": {"A": "b"}}}}
    (tmp_path / place).write_text(json.dumps(before))

    done = world.run("mcp", "install", "--agent", "claude")

    assert done.returncode == 2
    assert ("no such transport" if place == ".claude.json" else "mcp remove --scope user delegate") in done.stderr
    assert json.loads((tmp_path / place).read_text()) == before


@REAL
@pytest.mark.real
def test_the_real_programs_take_the_entry_and_take_it_again(world: World, tmp_path: Path) -> None:
    world.environment |= {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    world.environment.pop("CODEX_HOME", None)

    first = world.ok("mcp", "install")
    again = world.ok("mcp", "install", "--json")

    claude = json.loads((tmp_path / ".claude.json").read_text())["mcpServers"]["delegate"]
    codex = tomllib.loads((tmp_path / ".codex" / "config.toml").read_text())["mcp_servers"]["delegate"]
    assert claude == {"type": "stdio", **entry(world)}
    assert codex == entry(world)
    assert first == "claude: added\ncodex: added\n"
    assert [json.loads(line) for line in again.splitlines()] == [
        {"agent": "claude", "done": "unchanged"},
        {"agent": "codex", "done": "unchanged"},
    ]
    world.environment["DELEGATE_HOME"] = str(tmp_path / "another home")
    assert world.ok("mcp", "install") == "claude: updated\ncodex: updated\n"
