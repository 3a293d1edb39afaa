"""The AnswerTask and ask_user tools: an agent asks, and the caller who delegated the task answers."""

from __future__ import annotations

from delegate.model import TaskId
from delegate.queue import questions
from delegate.queue.cascade import Transition
from delegate.relay.mcp.calls import ToolCall, ToolResult
from delegate.relay.notify import notify
from delegate.relay.views import STATUS_OF_STATE
from delegate.wire import tools as wire

END_YOUR_TURN = "end your turn now; the answer will be your next message"


async def answer_task(call: ToolCall, given: wire.AnswerTask) -> ToolResult:
    relay = call.relay
    task = await questions.answer(
        relay.database,
        TaskId(given.task_id),
        given.answer,
        request_key=call.request_key,
        now=relay.now(),
        by=call.caller.actor,
    )
    notify(relay.hub, Transition(task=task))
    status = STATUS_OF_STATE[task.state]
    return ToolResult(
        answer=wire.AnswerTaskResult(task_id=task.id, status=status), text=f"{task.id} was answered; it is {status}"
    )


async def ask_user(call: ToolCall, asked: wire.AskUser) -> ToolResult:
    relay = call.relay
    attempt = call.caller.attempt
    assert attempt is not None  # only the agents of attempts have this tool
    text, options = relay.redact(asked.question), [relay.redact(option) for option in asked.options]
    task = await questions.ask(relay.database, attempt.id, text, options, relay.now())
    relay.hub.notify_with_holder(task.id)
    answer = wire.AskUserResult(task_id=task.id, asked=len(questions.open_questions(task)), next=END_YOUR_TURN)
    return ToolResult(answer=answer, text=f"your question was sent; {END_YOUR_TURN}")
