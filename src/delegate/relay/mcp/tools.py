"""The table of tools: parameters, result and implementation of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from inspect import cleandoc
from typing import Any, Generic

from delegate.errors import DiskFull
from delegate.relay.disk import RETRY_AFTER, disk_of
from delegate.relay.mcp import logs, questions, schedules, tasks
from delegate.relay.mcp.calls import P, ToolCall, ToolResult
from delegate.relay.requests import Relay
from delegate.wire import tools as wire
from delegate.wire.basics import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[P]):
    name: str
    parameters: type[P]
    answer: type[Wire]
    call: Callable[[ToolCall, P], Awaitable[ToolResult]]
    reads_only: bool = False
    makes_work: bool = False
    is_open_world: bool = False  # starts or continues an agent, which may reach anything

    @property
    def description(self) -> str:
        return cleandoc(self.parameters.__doc__ or "")

    async def run(self, call: ToolCall, arguments: P) -> ToolResult:
        if self.makes_work:
            check_disk_space(call.relay)
        return await self.call(call, arguments)


def check_disk_space(relay: Relay) -> None:
    """Refuse new work when disk space is low; over HTTP, DiskSpaceGuard does this by path, but MCP has one path."""
    why = disk_of(relay.settings).explain_shortage()
    if why is not None:
        raise DiskFull(why=why, retry_after=RETRY_AFTER)


def _by_name(*tools: Tool[Any]) -> dict[str, Tool[Any]]:
    return {tool.name: tool for tool in tools}


def _read_tool(
    parameters: type[P], answer: type[Wire], call: Callable[[ToolCall, P], Awaitable[ToolResult]]
) -> Tool[P]:
    return Tool(name=parameters.__name__, parameters=parameters, answer=answer, call=call, reads_only=True)


def _write_tool(
    parameters: type[P], answer: type[Wire], call: Callable[[ToolCall, P], Awaitable[ToolResult]]
) -> Tool[P]:
    return Tool(name=parameters.__name__, parameters=parameters, answer=answer, call=call)


def _work_tool(
    parameters: type[P], answer: type[Wire], call: Callable[[ToolCall, P], Awaitable[ToolResult]]
) -> Tool[P]:
    name = parameters.__name__
    return Tool(name=name, parameters=parameters, answer=answer, call=call, makes_work=True, is_open_world=True)


FOR_OWNER = _by_name(
    _work_tool(wire.DelegateTask, wire.DelegateTaskResult, tasks.delegate_task),
    _read_tool(wire.TaskStatus, wire.TaskStatusResult, tasks.task_status),
    _read_tool(wire.TaskLogs, wire.TaskLogsResult, logs.task_logs),
    _write_tool(wire.CancelTask, wire.CancelTaskResult, tasks.cancel_task),
    _work_tool(wire.RetryTask, wire.RetryTaskResult, tasks.retry_task),
    _work_tool(wire.ResumeTask, wire.RetryTaskResult, tasks.resume_task),
    replace(_write_tool(wire.AnswerTask, wire.AnswerTaskResult, questions.answer_task), is_open_world=True),
    _work_tool(wire.ScheduleTask, wire.ScheduleResult, schedules.schedule_task),
    _read_tool(wire.ListSchedules, wire.ListSchedulesResult, schedules.list_schedules),
    _read_tool(wire.GetSchedule, wire.GetScheduleResult, schedules.get_schedule),
    _write_tool(wire.PauseSchedule, wire.ScheduleResult, schedules.pause_schedule),
    replace(_write_tool(wire.ResumeSchedule, wire.ScheduleResult, schedules.resume_schedule), is_open_world=True),
    _write_tool(wire.CancelSchedule, wire.CancelScheduleResult, schedules.cancel_schedule),
    _work_tool(wire.CreatePipeline, wire.CreatePipelineResult, schedules.create_pipeline),
)
ASK_USER = "ask_user"
FOR_AGENTS = _by_name(Tool(name=ASK_USER, parameters=wire.AskUser, answer=wire.AskUserResult, call=questions.ask_user))
# Through `delegate mcp start`, which an agent starts only if the user or the agent has configured it.
FOR_AGENTS_WITH_BRIDGE = FOR_AGENTS | {
    name: FOR_OWNER[name] for name in ("DelegateTask", "TaskStatus", "TaskLogs", "CancelTask")
}
