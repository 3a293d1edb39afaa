"""Questions: asked by the agent of a task, answered by who delegated it."""

from __future__ import annotations

from delegate.model import TaskId
from delegate.queue import questions
from delegate.queue.ending import Moved
from delegate.relay.mcp.calls import Call, Told
from delegate.relay.notify import tell
from delegate.relay.views import SHOWN
from delegate.wire import tools as wire

END_YOUR_TURN = "end your turn now; the answer will be your next message"


async def answer_task(call: Call, given: wire.AnswerTask) -> Told:
    relay = call.relay
    task = await questions.answer(
        relay.database, TaskId(given.task_id), given.answer, request_key=call.request_key, now=relay.now()
    )
    tell(relay.hub, Moved(task=task))
    status = SHOWN[task.state]
    return Told(answer=wire.Answered(task_id=task.id, status=status), text=f"{task.id} has its answer; it is {status}")


async def ask_user(call: Call, asked: wire.AskUser) -> Told:
    relay = call.relay
    assert call.attempt_id is not None  # only agents of attempts have this tool
    task = await questions.ask(relay.database, call.attempt_id, asked.question, asked.options, relay.now())
    relay.hub.alert(task.id)
    answer = wire.Asked(task_id=task.id, asked=len(questions.open_questions(task)), next=END_YOUR_TURN)
    return Told(answer=answer, text=f"your question was handed on: {END_YOUR_TURN}")
