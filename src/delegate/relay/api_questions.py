"""The door for the answers that agents wait for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from delegate.queue import questions
from delegate.queue.ending import Moved
from delegate.relay.auth import owner
from delegate.relay.bodies import JsonBody
from delegate.relay.news import tell
from delegate.relay.paths import TaskInPath
from delegate.relay.problems import PROBLEMS
from delegate.relay.state import relay_of
from delegate.relay.views import answer, task_view
from delegate.report import follow
from delegate.wire.tasks import AnswerRequest, TaskView

router = APIRouter(prefix="/api", dependencies=[Depends(owner)], responses=PROBLEMS)
AnswerBody = Annotated[AnswerRequest, Depends(JsonBody(AnswerRequest))]


@router.post("/tasks/{task_id}/answer", response_model=TaskView)
async def answer_task(request: Request, task_id: TaskInPath, body: AnswerBody) -> Response:
    """Answers all that the task's agent has asked; its session goes on with the answer."""
    relay = relay_of(request)
    now = relay.now()
    task = await questions.answer(relay.database, task_id, body.text, request_key=body.request_key, now=now)
    tell(relay, Moved(task=task))
    return answer(task_view(task, await follow.surroundings(relay.database, relay.rules, now)))
