"""Serves the tools with the MCP SDK. Importing this module imports the SDK, so `endpoint` defers it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as McpTool
from pydantic import ValidationError
from starlette.requests import Request

from delegate import __version__
from delegate.errors import DelegateError, MemoryFull, excerpt
from delegate.model import Attempt
from delegate.relay.access import TOOLS, check_access
from delegate.relay.auth import caller_of, check_process
from delegate.relay.children import task_of_agent
from delegate.relay.mcp.calls import ToolCall, parse_arguments, request_key
from delegate.relay.mcp.hints import rewrite_for_agents
from delegate.relay.mcp.instructions import FOR_ASKING, FOR_CHILDREN, FOR_DELEGATING
from delegate.relay.mcp.schemas import schema_of
from delegate.relay.mcp.tools import ASK_USER, FOR_AGENTS, FOR_AGENTS_WITH_BRIDGE, FOR_OWNER, Tool
from delegate.relay.problems import Defect, describe_error
from delegate.relay.requests import Relay
from delegate.wire.basics import BODY_MAX, Wire

log = logging.getLogger(__name__)
Context = ServerRequestContext[Any, Any]  # Any: no lifespan state, and any kind of request


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    for_delegating: StreamableHTTPSessionManager
    for_asking: StreamableHTTPSessionManager
    for_children: StreamableHTTPSessionManager


def make_servers(relay: Relay) -> Servers:
    logging.getLogger("mcp").setLevel(logging.WARNING)  # it logs every session
    return Servers(
        for_delegating=_manager(Toolbox(relay, FOR_OWNER), FOR_DELEGATING),
        for_asking=_manager(Toolbox(relay, FOR_AGENTS), FOR_ASKING),
        for_children=_manager(Toolbox(relay, FOR_AGENTS_WITH_BRIDGE), FOR_CHILDREN),
    )


def _manager(toolbox: Toolbox, instructions: str) -> StreamableHTTPSessionManager:
    server: Server[Any] = Server(
        "delegate",
        version=__version__,
        title="Delegate",
        instructions=instructions,
        on_list_tools=toolbox.list,
        on_call_tool=toolbox.call,
        get_tool_input_schema=lambda _tool: None,  # no parameter is sent as a header: skip the SDK's check
    )
    server.middleware[:] = [name_invalid_parameters]  # the SDK's default middleware looks for a tracer at every message
    # The relay's Guard has already checked Host, Origin and size; the SDK's limit is never reached.
    return StreamableHTTPSessionManager(server, max_request_body_size=BODY_MAX + 1)


async def name_invalid_parameters(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Name the invalid parameter, which the SDK does not."""
    try:
        return await call_next(ctx)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = first["loc"][1:] if first["loc"][:1] == ("params",) else first["loc"]
        path = ".".join(excerpt(part) for part in ("params", *location))
        raise MCPError(INVALID_PARAMS, f"{path}: {describe_error(first)}") from None


class Toolbox:
    """The tools available to one kind of token."""

    def __init__(self, relay: Relay, tools: Mapping[str, Tool[Any]]) -> None:
        self._relay = relay
        self._tools = tools
        self._mcp_tools = [_to_mcp_tool(tool) for tool in tools.values()]

    async def list(self, _context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=self._mcp_tools)

    async def call(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(
                INVALID_PARAMS, f"there is no tool {excerpt(params.name)}; the tools are {', '.join(self._tools)}"
            )
        try:
            call = self._call(context)
            check_access(TOOLS, tool.name, call.caller.holder)
            arguments = parse_arguments(tool.parameters, params.arguments or {})
            if call.caller.attempt is not None and tool.name != ASK_USER:
                call = await self._limit_to_agent(call, call.caller.attempt, _request(context), tool, arguments)
            result = await tool.run(call, arguments)
        except DelegateError as error:
            return refusal(error)
        except MemoryError:
            return refusal(MemoryFull())
        except Exception:
            request_id = _request(context).state.request_id
            log.exception("tool failed", extra={"tool": tool.name, "request_id": request_id})
            return refusal(Defect(request_id=request_id))
        answer = result.answer.model_dump(mode="json", by_alias=True, exclude_none=True)
        return CallToolResult(content=[TextContent(text=result.text)], structured_content=answer)

    async def _limit_to_agent(
        self, call: ToolCall, attempt: Attempt, request: Request, tool: Tool[Any], arguments: Wire
    ) -> ToolCall:
        """Apply the rules that an agent's HTTP requests have."""
        await check_process(request, self._relay, attempt)
        named = getattr(arguments, "task_id", None)
        own = await task_of_agent(self._relay, attempt, named, reads_only=tool.reads_only)
        return replace(call, caller=replace(call.caller, task=own))

    def _call(self, context: Context) -> ToolCall:
        request = _request(context)
        wants_progress = "progress_token" in (context.meta or {})

        async def progress(count: int, message: str) -> None:
            await context.session.report_progress(count, message=message)

        return ToolCall(
            relay=self._relay,
            caller=caller_of(request),
            headers=request.headers,
            request_key=request_key(context.meta),
            progress=progress if wants_progress else None,
        )


def _request(context: Context) -> Request:
    assert isinstance(context.request, Request)  # the SDK does not fix the transport; here it is HTTP
    return context.request


def _to_mcp_tool(tool: Tool[Any]) -> McpTool:
    return McpTool(
        name=tool.name,
        description=tool.description,
        input_schema=schema_of(tool.parameters),
        output_schema=schema_of(tool.answer),
        annotations=ToolAnnotations(read_only_hint=tool.reads_only, open_world_hint=tool.is_open_world),
    )


def refusal(error: DelegateError) -> CallToolResult:
    """Return text only: clients validate structured content against the output schema, even for errors."""
    text = "\n".join([error.message, *([f"hint: {error.hint}"] if error.hint else []), f"code: {error.code}"])
    return CallToolResult(content=[TextContent(text=rewrite_for_agents(text))], is_error=True)
