"""Ids in addresses: what cannot be an id is not looked up."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends

from delegate.errors import NoSuchAttempt, NoSuchSchedule, NoSuchTask
from delegate.model import AttemptId, ScheduleId, TaskId

ID = re.compile(r"[A-Za-z0-9-]{1,64}")


async def task_in_path(task_id: str) -> TaskId:
    if ID.fullmatch(task_id) is None:
        raise NoSuchTask(task_id=task_id)
    return TaskId(task_id)


TaskInPath = Annotated[TaskId, Depends(task_in_path)]


async def attempt_in_path(attempt_id: str) -> AttemptId:
    if ID.fullmatch(attempt_id) is None:
        raise NoSuchAttempt(attempt_id=attempt_id)
    return AttemptId(attempt_id)


async def schedule_in_path(schedule_id: str) -> ScheduleId:
    if ID.fullmatch(schedule_id) is None:
        raise NoSuchSchedule(schedule_id=schedule_id)
    return ScheduleId(schedule_id)
