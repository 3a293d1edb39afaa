"""Sends messages to the agent of a running task."""

from __future__ import annotations

from datetime import datetime

from delegate.errors import IllegalMove, KeyUsed, NoSuchTask
from delegate.model import OWNER, Actor, AgentName, Task, TaskId
from delegate.states import TaskState
from delegate.store.database import Connection, Database
from delegate.store.messages import insert_message, task_of_message
from delegate.store.people import record_audit
from delegate.store.tasks import lock_task


async def send_message(
    database: Database, task_id: TaskId, text: str, *, request_key: str | None, now: datetime, by: Actor = OWNER
) -> Task:
    """Store a message for the agent of the task. Repeating a request key does not send the message again."""

    def write(connection: Connection) -> Task:
        task = lock_task(connection, task_id)
        if task is None:
            raise NoSuchTask(task_id=task_id)
        if _was_sent(connection, task_id, request_key):
            return task
        if task.state is not TaskState.RUNNING or task.agent == AgentName.SHELL:
            raise IllegalMove(
                task_id=task_id,
                state=task.state,
                verb="sent a message",
                advice="only a running task with an agent accepts messages",
            )
        insert_message(connection, task_id, text, trigger_key=request_key, now=now)
        record_audit(connection, by, "message", task_id, now=now)
        return task

    return await database.write("message", write)


def _was_sent(connection: Connection, task_id: TaskId, request_key: str | None) -> bool:
    earlier = task_of_message(connection, request_key) if request_key else None
    if earlier not in (None, task_id):
        raise KeyUsed(key=request_key)
    return earlier is not None
