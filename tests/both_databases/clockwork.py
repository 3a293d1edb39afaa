"""Schedules on a clock that tests move forward or back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from tests.both_databases.scene import DONE, Scene

from delegate.config.settings import Settings
from delegate.intake import schedules
from delegate.intake.firing import FiredRun, fire_due, recompute_next_runs
from delegate.intake.from_wire import parse_pipeline, parse_schedule
from delegate.model import OWNER, Actor, Outcome, Task
from delegate.schedule.model import Schedule, ScheduleRun, ScheduleState
from delegate.states import AttemptState, Reason, TaskState
from delegate.store.schedules import page_of_schedules
from delegate.wire.schedules import PipelineRequest, ScheduleRequest

SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))
HOURLY = "0 * * * *"
HERE = {"agent": "shell", "workingDirectory": "/", "machine": "desk"}
BAD = Outcome(state=AttemptState.FAILED, reason=Reason.COMMAND_FAILED, message="exit code 1", exit_code=1)


@dataclass(slots=True)
class Clockwork:
    scene: Scene
    by: Actor = OWNER  # who creates schedules

    async def create(self, **wanted: Any) -> Schedule:
        kind = "cron" if "cronExpression" in wanted else "one_time"
        body = {"prompt": "true", "scheduleType": kind, **HERE, **wanted}
        parsed = parse_schedule(ScheduleRequest.model_validate(body))
        return (await schedules.create(self.scene.database, parsed, Settings(), self.scene.now, self.by)).schedule

    async def pipeline(self, *delays: int, **wanted: Any) -> tuple[Schedule, ...]:
        steps = [{"prompt": f"step {i}", "delay": delay, **HERE} for i, delay in enumerate((0, *delays), 1)]
        parsed = parse_pipeline(PipelineRequest.model_validate({"steps": steps, **wanted}))
        return (await schedules.create_pipeline(self.scene.database, parsed, Settings(), self.scene.now)).steps

    async def tick(self) -> tuple[FiredRun, ...]:
        return (await fire_due(self.scene.database, Settings(), self.scene.now)).fired

    async def at(self, moment: datetime) -> tuple[FiredRun, ...]:
        """The clock is set, forwards or back, and the relay looks as it does then."""
        if moment < self.scene.now:
            await schedules.reopen_ended(self.scene.database, moment)
            await recompute_next_runs(self.scene.database, moment)
        self.scene.now = moment
        return await self.tick()

    async def after(self, span: timedelta) -> tuple[FiredRun, ...]:
        return await self.at(self.scene.now + span)

    async def starts(self) -> Task:
        """The one task that is due now."""
        (fired,) = await self.tick()
        assert fired.task is not None
        return fired.task

    async def ends(self, outcome: Outcome = DONE) -> Task:
        """A runner takes the task that waits and ends it."""
        held = await self.scene.claim()
        assert held is not None
        return await self.scene.finish(held, outcome)

    async def end_if_any(self) -> None:
        held = await self.scene.claim()
        if held is not None:
            await self.scene.finish(held)

    async def pause(self, schedule: Schedule, reason: str = "") -> Schedule:
        return await schedules.pause(self.scene.database, schedule.id, reason, self.scene.now)

    async def resume(self, schedule: Schedule, reason: str = "") -> Schedule:
        return await schedules.resume(self.scene.database, schedule.id, reason, self.scene.now)

    async def cancel(
        self, schedule: Schedule, reason: str = "", *, with_tasks: bool = False
    ) -> schedules.ScheduleCancellation:
        return await schedules.cancel(
            self.scene.database, schedule.id, reason, with_tasks=with_tasks, now=self.scene.now
        )

    async def look(self, schedule: Schedule) -> Schedule:
        return (await schedules.read_full_schedule(self.scene.database, schedule.id, 1)).schedule

    async def page(
        self, *, state: ScheduleState | None = None, before: int | None = None, limit: int = 10
    ) -> list[tuple[int, Schedule]]:
        """The newest first, each with its position."""
        return await self.scene.database.read(partial(page_of_schedules, state=state, before=before, limit=limit))

    async def history(self, schedule: Schedule) -> list[ScheduleRun]:
        """The oldest first."""
        return (await schedules.read_full_schedule(self.scene.database, schedule.id, 100)).history[::-1]

    async def outcomes(self, schedule: Schedule) -> list[str]:
        return [run.outcome.value for run in await self.history(schedule)]

    async def waiting(self) -> list[Task]:
        """The tasks that no runner has taken yet."""
        found: list[Task] = []
        while (held := await self.scene.claim()) is not None:
            found.append(held.task)
        assert all(task.state is TaskState.RUNNING for task in found)
        return found
