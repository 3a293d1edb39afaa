"""The endpoints for schedules and pipelines."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from delegate.intake import schedules as intake
from delegate.model import ScheduleId
from delegate.relay import schedules
from delegate.relay.auth import caller_of, require_access
from delegate.relay.problems import PROBLEMS
from delegate.relay.requests import JsonBody, check_query, relay_of, schedule_in_path
from delegate.relay.schedules import detail_view, schedule_view
from delegate.relay.views import respond, task_view
from delegate.schedule.model import ScheduleState
from delegate.wire.basics import ScheduleCursor
from delegate.wire.schedules import (
    CancelledSchedule,
    CancelScheduleRequest,
    PipelineRequest,
    PipelineView,
    ScheduleDetail,
    SchedulePage,
    ScheduleReason,
    ScheduleRequest,
    ScheduleView,
)

SEEN = "The request key was used before"
SCHEDULE_SEEN: dict[int | str, dict[str, Any]] = {200: {"model": ScheduleDetail, "description": SEEN}}
PIPELINE_SEEN: dict[int | str, dict[str, Any]] = {200: {"model": PipelineView, "description": SEEN}}
router = APIRouter(prefix="/api", dependencies=[Depends(require_access), Depends(check_query)], responses=PROBLEMS)
ScheduleInPath = Annotated[ScheduleId, Depends(schedule_in_path)]
ScheduleBody = Annotated[ScheduleRequest, Depends(JsonBody(ScheduleRequest))]
PipelineBody = Annotated[PipelineRequest, Depends(JsonBody(PipelineRequest))]
ReasonBody = Annotated[ScheduleReason, Depends(JsonBody(ScheduleReason))]
CancelBody = Annotated[CancelScheduleRequest, Depends(JsonBody(CancelScheduleRequest))]


@router.post("/schedules", status_code=201, response_model=ScheduleDetail, responses=SCHEDULE_SEEN)
async def create_schedule(request: Request, body: ScheduleBody) -> Response:
    created = await schedules.create(relay_of(request), body, caller_of(request).actor)
    view = ScheduleDetail(schedule=schedule_view(created.schedule), history=[])
    return respond(view, 201 if created.is_new else 200)


@router.post("/pipelines", status_code=201, response_model=PipelineView, responses=PIPELINE_SEEN)
async def create_pipeline(request: Request, body: PipelineBody) -> Response:
    """Creates steps that run in order, each continuing the previous one; a failed step stops the rest."""
    created = await schedules.create_pipeline(relay_of(request), body, caller_of(request).actor)
    view = PipelineView(pipeline_id=created.steps[0].id, steps=[schedule_view(step) for step in created.steps])
    return respond(view, 201 if created.is_new else 200)


@router.get("/schedules", response_model=SchedulePage)
async def list_schedules(
    request: Request,
    status: Annotated[ScheduleState | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[ScheduleCursor | None, Query()] = None,
) -> Response:
    return respond(await schedules.schedule_page(relay_of(request), status, limit, cursor))


@router.get("/schedules/{schedule_id}", response_model=ScheduleDetail)
async def show_schedule(
    request: Request,
    schedule_id: ScheduleInPath,
    history_limit: Annotated[int, Query(alias="historyLimit", ge=1, le=100)] = 10,
) -> Response:
    full = await intake.read_full_schedule(relay_of(request).database, schedule_id, history_limit)
    return respond(detail_view(full))


@router.post("/schedules/{schedule_id}/pause", response_model=ScheduleView)
async def pause_schedule(request: Request, schedule_id: ScheduleInPath, body: ReasonBody) -> Response:
    relay, by = relay_of(request), caller_of(request).actor
    return respond(schedule_view(await intake.pause(relay.database, schedule_id, body.reason, relay.now(), by)))


@router.post("/schedules/{schedule_id}/resume", response_model=ScheduleView)
async def resume_schedule(request: Request, schedule_id: ScheduleInPath, body: ReasonBody) -> Response:
    by = caller_of(request).actor
    return respond(schedule_view(await schedules.resume(relay_of(request), schedule_id, body.reason, by)))


@router.post("/schedules/{schedule_id}/cancel", response_model=CancelledSchedule)
async def cancel_schedule(request: Request, schedule_id: ScheduleInPath, body: CancelBody) -> Response:
    by = caller_of(request).actor
    done = await schedules.cancel(relay_of(request), schedule_id, body.reason, with_tasks=body.cancel_tasks, by=by)
    tasks = [task_view(task) for task in done.tasks]
    return respond(CancelledSchedule(schedule=schedule_view(done.schedule), tasks=tasks))
