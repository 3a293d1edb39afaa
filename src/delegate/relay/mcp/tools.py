"""Every tool: its parameters, its answer, and who answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, Generic

from delegate.errors import DiskFull
from delegate.relay.disk import RETRY_AFTER, disk_of
from delegate.relay.mcp import logs, questions, schedules, tasks
from delegate.relay.mcp.calls import Call, P, Told
from delegate.relay.requests import Relay
from delegate.wire import tools as wire
from delegate.wire.basics import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[P]):
    name: str
    parameters: type[P]
    answer: type[Wire]
    call: Callable[[Call, P], Awaitable[Told]]
    reads_only: bool = False
    makes_work: bool = False

    @property
    def description(self) -> str:
        return cleandoc(self.parameters.__doc__ or "")

    async def run(self, call: Call, arguments: P) -> Told:
        if self.makes_work:
            check_room(call.relay)
        return await self.call(call, arguments)


def check_room(relay: Relay) -> None:
    """The other door refuses new work by its address; here there is one address for everything."""
    why = disk_of(relay.settings).lacks_floor()
    if why is not None:
        raise DiskFull(why=why, retry_after=RETRY_AFTER)


def _named(*tools: Tool[Any]) -> dict[str, Tool[Any]]:
    return {tool.name: tool for tool in tools}


def _reading(parameters: type[P], answer: type[Wire], call: Callable[[Call, P], Awaitable[Told]]) -> Tool[P]:
    return Tool(name=parameters.__name__, parameters=parameters, answer=answer, call=call, reads_only=True)


def _changing(parameters: type[P], answer: type[Wire], call: Callable[[Call, P], Awaitable[Told]]) -> Tool[P]:
    return Tool(name=parameters.__name__, parameters=parameters, answer=answer, call=call)


def _starting(parameters: type[P], answer: type[Wire], call: Callable[[Call, P], Awaitable[Told]]) -> Tool[P]:
    return Tool(name=parameters.__name__, parameters=parameters, answer=answer, call=call, makes_work=True)


FOR_OWNER = _named(
    _starting(wire.DelegateTask, wire.Delegated, tasks.delegate_task),
    _reading(wire.TaskStatus, wire.StatusAnswer, tasks.task_status),
    _reading(wire.TaskLogs, wire.LogsAnswer, logs.task_logs),
    _changing(wire.CancelTask, wire.Cancelled, tasks.cancel_task),
    _starting(wire.RetryTask, wire.Again, tasks.retry_task),
    _starting(wire.ResumeTask, wire.Again, tasks.resume_task),
    _changing(wire.AnswerTask, wire.Answered, questions.answer_task),
    _starting(wire.ScheduleTask, wire.Scheduled, schedules.schedule_task),
    _reading(wire.ListSchedules, wire.SchedulesAnswer, schedules.list_schedules),
    _reading(wire.GetSchedule, wire.ScheduleAnswer, schedules.get_schedule),
    _changing(wire.PauseSchedule, wire.Scheduled, schedules.pause_schedule),
    _changing(wire.ResumeSchedule, wire.Scheduled, schedules.resume_schedule),
    _changing(wire.CancelSchedule, wire.ScheduleCancelled, schedules.cancel_schedule),
    _starting(wire.CreatePipeline, wire.PipelineAnswer, schedules.create_pipeline),
)
FOR_AGENTS = _named(Tool(name="ask_user", parameters=wire.AskUser, answer=wire.Asked, call=questions.ask_user))
