"""How each agent gets the tool by which it asks a person, and that no prompt names a tool that is missing."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delegate.model import Stream
from delegate.runner.agents import AgentTurn, Roots
from delegate.runner.agents.acp import Acp
from delegate.runner.agents.ask_tool import AskEndpoint, ask_token
from delegate.runner.agents.claude import Claude
from delegate.runner.agents.codex import Codex
from delegate.runner.agents.shell import Shell
from delegate.tokens import hash_token

TOKEN = "dat_" + "5" * 64
URL = "http://127.0.0.1:4100/mcp"
NewTurn = Callable[..., AgentTurn]


@pytest.fixture
def turn(new_turn: NewTurn, tmp_path: Path) -> NewTurn:
    def make(**fields: Any) -> AgentTurn:
        asking = AskEndpoint(url=URL, token=TOKEN, file=tmp_path / "mcp.json")
        return replace(new_turn(**fields), ask_endpoint=asking)

    return make


def in_workspace(tmp_path: Path) -> Roots:
    return Roots(tree=tmp_path, git_dir=tmp_path / ".git")


def test_the_token_is_another_for_each_claim_and_does_not_show_the_runners_own() -> None:
    tokens = {ask_token(own, claim, "my-desk-12ab") for own in ("drs_a", "drs_b") for claim in ("claim-1", "claim-2")}

    assert len(tokens) == 4
    assert ask_token("drs_a", "claim-1", "my-desk-12ab") in tokens
    assert all(token.startswith("dat_12ab_") and len(token) == 73 for token in tokens)
    assert hash_token(TOKEN) == hashlib.sha256(TOKEN.encode()).hexdigest()


@pytest.mark.parametrize("agent", [Claude(command="claude", is_root=False), Codex(command="codex")])
def test_an_agent_reaches_a_relay_elsewhere_with_its_private_authority(
    turn: NewTurn, tmp_path: Path, agent: Claude | Codex
) -> None:
    here = turn()
    assert here.ask_endpoint is not None
    asking = replace(here.ask_endpoint, url="https://relay.example/team/mcp", ca_file=tmp_path / "ca.pem")
    (tmp_path / "ca.pem").write_text("the relay's\n")
    (tmp_path / "own.pem").write_text("the user's\n")
    environ = {"PATH": "/bin", "NODE_EXTRA_CA_CERTS": str(tmp_path / "own.pem")}

    made = agent.invocation(replace(here, ask_endpoint=asking), environ)
    local = agent.invocation(here, environ)

    assert made.env["DELEGATE_RELAY_URL"] == "https://relay.example/team"
    assert made.env["DELEGATE_CA_FILE"] == made.env["CODEX_CA_CERTIFICATE"] == str(tmp_path / "ca.pem")
    both = Path(made.env["NODE_EXTRA_CA_CERTS"]).read_text()  # what the user trusts already stays
    assert both.split("\n") == ["the user's", "", "the relay's", ""]
    assert local.env["NODE_EXTRA_CA_CERTS"] == str(tmp_path / "own.pem")
    assert "DELEGATE_RELAY_URL" not in local.env


def test_claude_reads_the_server_from_a_file_and_its_arguments_hold_no_secret(turn: NewTurn, tmp_path: Path) -> None:
    made = Claude(command="claude", is_root=False).invocation(turn(), {"PATH": "/bin"})

    ((file, text),) = made.files.items()
    server = json.loads(text)["mcpServers"]["delegate_ask"]
    assert server == {"type": "http", "url": URL, "headers": {"Authorization": f"Bearer {TOKEN}"}}
    assert made.argv[made.argv.index("--mcp-config") + 1] == str(file) == str(tmp_path / "mcp.json")
    assert "--strict-mcp-config" not in made.argv  # the user's own servers stay
    assert "--allowedTools" not in made.argv  # it may use every tool anyway
    assert TOKEN not in str(made.argv)
    assert [name for name, value in made.env.items() if value == TOKEN] == ["DELEGATE_TOKEN"]


@pytest.mark.parametrize("mode", ["default", "acceptEdits", "dontAsk", "plan"])
def test_claude_may_ask_in_every_permission_mode_and_gets_nothing_else_by_that(turn: NewTurn, mode: str) -> None:
    argv = Claude(command="claude", is_root=False).invocation(turn(permission_mode=mode), {"PATH": "/bin"}).argv

    place = argv.index("--allowedTools")
    assert argv[place + 1 : place + 4] == ("mcp__delegate_ask__ask_user", "--permission-mode", mode)


def test_codex_gets_the_token_through_its_environment_and_may_call_the_tool_in_its_sandbox(turn: NewTurn) -> None:
    made = Codex(command="codex").invocation(turn(agent="codex"), {"PATH": "/bin"})

    pairs = [word for before, word in zip(made.argv, made.argv[1:], strict=False) if before == "-c"]
    server = tomllib.loads("\n".join(pairs))["mcp_servers"]["delegate_ask"]
    assert made.env[server.pop("bearer_token_env_var")] == TOKEN
    assert server == {"url": URL, "enabled_tools": ["ask_user"], "default_tools_approval_mode": "approve"}
    assert TOKEN not in str(made.argv)


def test_a_command_gets_only_the_variable(turn: NewTurn) -> None:
    made = Shell().invocation(turn(agent="shell"), {"PATH": "/bin"})

    assert made.env["DELEGATE_TOKEN"] == TOKEN
    assert TOKEN not in str((made.argv, made.initial_input, made.files))


@pytest.mark.parametrize(
    "agent", [Claude(command="claude", is_root=False), Codex(command="codex")], ids=lambda a: a.name
)
def test_only_a_new_session_in_a_workspace_learns_of_the_tool(
    turn: NewTurn, new_turn: NewTurn, tmp_path: Path, agent: Claude | Codex
) -> None:
    workspace = in_workspace(tmp_path)

    def hears(said: AgentTurn) -> bool:
        return b"ask_user" in agent.invocation(said, {"PATH": "/bin"}).initial_input

    assert hears(turn(workspace=workspace))
    assert not hears(turn())  # the prompt of a user's own directory goes as it is
    assert not hears(turn(workspace=workspace, session="0b9f0cc4-7e6c-4b0e-8d0e-1a2b3c4d5e6f"))
    assert not hears(new_turn(workspace=workspace))


def spoken(turn: AgentTurn, *answers: dict[str, Any]) -> list[dict[str, Any]]:
    """What an agent that answers so hears from us."""
    reading = Acp(command="agent", is_root=False).reading(turn)
    sent: list[dict[str, Any]] = []
    for number, answer in enumerate(answers, 1):
        reading.feed(Stream.STDOUT, json.dumps({"jsonrpc": "2.0", "id": number, "result": answer}).encode() + b"\n")
        sent += [json.loads(line) for line in reading.replies().splitlines()]
    return sent


@pytest.mark.parametrize("can_http", [True, False])
@pytest.mark.parametrize(
    ("session", "offers"),
    [(None, {}), ("ses_1", {"loadSession": True}), ("ses_1", {"sessionCapabilities": {"resume": {}}})],
    ids=["new", "loaded", "resumed"],
)
def test_an_acp_agent_that_speaks_http_gets_the_server_with_its_session(
    turn: NewTurn, tmp_path: Path, session: str | None, offers: dict[str, Any], *, can_http: bool
) -> None:
    capabilities = {**offers, "mcpCapabilities": {"http": can_http}}
    opened, prompt = spoken(
        turn(session=session, workspace=in_workspace(tmp_path)),
        {"protocolVersion": 1, "agentCapabilities": capabilities},
        {"sessionId": "ses_1"},
    )

    headers = [{"name": "Authorization", "value": f"Bearer {TOKEN}"}]
    server = {"type": "http", "name": "delegate_ask", "url": URL, "headers": headers}
    assert opened["params"]["mcpServers"] == ([server] if can_http else [])
    assert ("ask_user" in str(prompt["params"]["prompt"])) == (can_http and session is None)


@pytest.mark.parametrize(
    ("title", "kind", "allowed"),
    [
        ("mcp__delegate_ask__ask_user", "other", True),
        ("mcp__delegate_ask__ask_user", None, True),
        ("mcp__delegate_ask__ask_user", "fetch", True),
        ("mcp__delegate_ask__ask_user", "execute", False),
        ("mcp__delegate_ask__ask_user", "edit", False),
        ("mcp__delegate_ask__ask_user", "delete", False),
        ("mcp__delegate_ask__ask_user", "move", False),
        ("rm -rf .", "other", False),
        ([], "other", False),
    ],
)
def test_an_acp_agent_is_permitted_to_ask_where_other_tools_are_not(
    turn: NewTurn, title: object, kind: str | None, *, allowed: bool
) -> None:
    reading = Acp(command="agent", is_root=False).reading(turn(permission_mode="plan"))
    greeting = {"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"http": True}}}
    options = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
    call = {"toolCall": {"title": title, "kind": kind}, "options": options}
    wanted = {"jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": call}

    reading.feed(Stream.STDOUT, json.dumps({"jsonrpc": "2.0", "id": 1, "result": greeting}).encode() + b"\n")
    reading.replies()
    reading.feed(Stream.STDOUT, json.dumps(wanted).encode() + b"\n")

    outcome = json.loads(reading.replies())["result"]["outcome"]
    assert outcome["optionId"] == ("yes" if allowed else "no")
