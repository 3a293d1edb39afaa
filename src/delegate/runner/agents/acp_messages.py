"""Builds the messages of the Agent Client Protocol: JSON-RPC, one message a line.

Importing the protocol's schema takes a third of a second: import this module only where it is needed.
"""

from __future__ import annotations

import json

from acp.meta import AGENT_METHODS, PROTOCOL_VERSION
from acp.schema import (
    AcpMcpServer,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    FileSystemCapabilities,
    HttpHeader,
    HttpMcpServer,
    Implementation,
    InitializeRequest,
    LoadSessionRequest,
    McpServerStdio,
    NewSessionRequest,
    PromptRequest,
    RequestPermissionResponse,
    ResumeSessionRequest,
    SetSessionConfigOptionSelectRequest,
    SetSessionModeRequest,
    SseMcpServer,
    TextContentBlock,
)
from pydantic import BaseModel

from delegate import __version__
from delegate.runner.agents.ask_tool import SERVER, AskEndpoint

METHOD_NOT_FOUND = -32601


def initialize(number: int) -> bytes:
    """Files and terminals are not offered: the agent uses its own, under the runner's supervisor."""
    request = InitializeRequest(
        protocol_version=PROTOCOL_VERSION,
        client_capabilities=ClientCapabilities(
            fs=FileSystemCapabilities(read_text_file=False, write_text_file=False), terminal=False
        ),
        client_info=Implementation(name="delegate", title="Delegate", version=__version__),
    )
    return _request(number, "initialize", request)


def new_session(number: int, cwd: str, ask_endpoint: AskEndpoint | None) -> bytes:
    return _request(number, "session_new", NewSessionRequest(cwd=cwd, mcp_servers=_servers(ask_endpoint)))


def load_session(number: int, session: str, cwd: str, ask_endpoint: AskEndpoint | None) -> bytes:
    """Continues a session; the agent first replays all of it."""
    request = LoadSessionRequest(session_id=session, cwd=cwd, mcp_servers=_servers(ask_endpoint))
    return _request(number, "session_load", request)


def resume_session(number: int, session: str, cwd: str, ask_endpoint: AskEndpoint | None) -> bytes:
    """Continues a session without a replay; not every agent supports this."""
    request = ResumeSessionRequest(session_id=session, cwd=cwd, mcp_servers=_servers(ask_endpoint))
    return _request(number, "session_resume", request)


def _servers(ask_endpoint: AskEndpoint | None) -> list[HttpMcpServer | SseMcpServer | AcpMcpServer | McpServerStdio]:
    if ask_endpoint is None:
        return []
    headers = [HttpHeader(name="Authorization", value=f"Bearer {ask_endpoint.token}")]
    return [HttpMcpServer(type="http", name=SERVER, url=ask_endpoint.url, headers=headers)]


def set_mode(number: int, session: str, mode: str) -> bytes:
    return _request(number, "session_set_mode", SetSessionModeRequest(session_id=session, mode_id=mode))


def set_option(number: int, session: str, option: str, value: str) -> bytes:
    request = SetSessionConfigOptionSelectRequest(session_id=session, config_id=option, value=value)
    return _request(number, "session_set_config_option", request)


def prompt(number: int, session: str, text: str) -> bytes:
    whole = text.encode("utf-8", "replace").decode("utf-8")  # replaces lone surrogates, which cannot be sent
    request = PromptRequest(session_id=session, prompt=[TextContentBlock(type="text", text=whole)])
    return _request(number, "session_prompt", request)


def permission(request_id: object, option: str | None) -> bytes:
    """The response to a permission request: the chosen option, or None when there is no suitable one."""
    outcome = AllowedOutcome(outcome="selected", option_id=option) if option else DeniedOutcome(outcome="cancelled")
    return _line({"id": request_id, "result": _dump(RequestPermissionResponse(outcome=outcome))})


def method_not_found_error(request_id: object, method: str) -> bytes:
    error = {"code": METHOD_NOT_FOUND, "message": f"Delegate does not offer {method}"}
    return _line({"id": request_id, "error": error})


def _request(number: int, method: str, params: BaseModel) -> bytes:
    return _line({"id": number, "method": AGENT_METHODS[method], "params": _dump(params)})


def _dump(message: BaseModel) -> object:
    return message.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _line(message: dict[str, object]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
