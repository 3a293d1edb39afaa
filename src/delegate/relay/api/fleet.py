"""The endpoints about runners as a whole: their list, their heartbeat, and orders for them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from delegate import __version__
from delegate.errors import Forbidden, NoSuchRunner
from delegate.model import Attempt, Runner
from delegate.placement import policy_data
from delegate.queue import fleet_orders
from delegate.queue.fleet import is_older
from delegate.queue.fleet_orders import RunnerReport
from delegate.queue.runner_states import RunnerCondition
from delegate.relay.access import ADMINS
from delegate.relay.api.pairing import machine_facts
from delegate.relay.auth import caller_of, require_access
from delegate.relay.notify import notify
from delegate.relay.problems import PROBLEMS
from delegate.relay.requests import ID, JsonBody, check_query, relay_of
from delegate.relay.views import respond, view_of
from delegate.wire.basics import RunnerCursor
from delegate.wire.fleet import (
    HeartbeatRequest,
    HeartbeatResponse,
    LastResultView,
    OrderRequest,
    RenameRequest,
    RunnerCountsView,
    RunnerListView,
    RunnerStateName,
    RunnerTaskView,
    RunnerView,
    SlotCountsView,
)
from delegate.wire.runners import PolicyView, RunnerAgentView

router = APIRouter(
    prefix="/api/runners", dependencies=[Depends(require_access), Depends(check_query)], responses=PROBLEMS
)
HeartbeatBody = Annotated[HeartbeatRequest, Depends(JsonBody(HeartbeatRequest))]
OrderBody = Annotated[OrderRequest, Depends(JsonBody(OrderRequest))]
RenameBody = Annotated[RenameRequest, Depends(JsonBody(RenameRequest))]
STATE_NAMES: dict[RunnerCondition, RunnerStateName] = {
    RunnerCondition.CLAIMING: "claiming",
    RunnerCondition.RUNNING: "running",
    RunnerCondition.ONLINE: "online",
    RunnerCondition.SILENT: "silent",
    RunnerCondition.IDLE: "idle",
    RunnerCondition.OFFLINE: "offline",
    RunnerCondition.DRAINING: "draining",
    RunnerCondition.REVOKED: "revoked",
}


async def runner_in_path(runner_id: str) -> str:
    """Return the id or the name of a runner."""
    if ID.fullmatch(runner_id.replace(".", "-").replace("_", "-")) is None:
        raise NoSuchRunner(runner_id=runner_id)
    return runner_id


RunnerInPath = Annotated[str, Depends(runner_in_path)]


@router.get("", response_model=RunnerListView)
async def list_runners(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[RunnerCursor | None, Query()] = None,
) -> Response:
    relay = relay_of(request)
    after: tuple[str, str] | None = None
    if cursor is not None:
        runner_id, _, name = cursor[1:].partition("~")
        after = (name, runner_id)
    found = await fleet_orders.read_runners(relay.database, relay.rules, after=after, limit=limit, now=relay.now())
    last = found.reports[-1].runner if len(found.reports) == limit else None
    return respond(
        RunnerListView(
            runners=[runner_view(report) for report in found.reports],
            next=None if last is None else f"r{last.id}~{last.name}",
            counts=RunnerCountsView(**asdict(found.counts)),
        )
    )


@router.post("/heartbeat", response_model=HeartbeatResponse)
async def record_heartbeat(request: Request, body: HeartbeatBody) -> Response:
    relay, runner = relay_of(request), caller_of(request).runner
    if runner is None or runner.machine != body.machine:
        raise Forbidden(what="this; it is for the machine that the runner is paired with")
    seen = await fleet_orders.heartbeat(relay.database, runner, machine_facts(body), body.problem, relay.now())
    is_draining = seen.draining_at is not None
    return respond(
        HeartbeatResponse(
            state="draining" if is_draining else "online",
            drain=is_draining,
            name=seen.name,
            relay_version=__version__,
        )
    )


@router.post("/unpair", response_model=RunnerView)
async def unpair_runner(request: Request, _body: OrderBody) -> Response:
    """Ends the pairing for the machine itself: as if it were revoked."""
    relay, caller = relay_of(request), caller_of(request)
    if caller.runner is None:
        raise Forbidden(what="this; it is for a paired runner")
    ordered, lost = await fleet_orders.revoke(
        relay.database, caller.runner.id, caller.actor, is_admin=True, now=relay.now()
    )
    for transition in lost:
        notify(relay.hub, transition)
    return await _respond_with(request, ordered)


@router.post("/{runner_id}/drain", response_model=RunnerView)
async def drain_runner(request: Request, runner_id: RunnerInPath, _body: OrderBody) -> Response:
    """Lets the runner finish what it holds; it gets nothing new."""
    relay = relay_of(request)
    ordered = await fleet_orders.drain(
        relay.database, runner_id, caller_of(request).actor, is_admin=_is_admin(request), now=relay.now()
    )
    return await _respond_with(request, ordered)


@router.post("/{runner_id}/resume", response_model=RunnerView)
async def resume_runner(request: Request, runner_id: RunnerInPath, _body: OrderBody) -> Response:
    """Ends a drain."""
    relay = relay_of(request)
    ordered = await fleet_orders.resume_runner(
        relay.database, runner_id, caller_of(request).actor, is_admin=_is_admin(request), now=relay.now()
    )
    return await _respond_with(request, ordered)


@router.post("/{runner_id}/rename", response_model=RunnerView)
async def rename_runner(request: Request, runner_id: RunnerInPath, body: RenameBody) -> Response:
    relay = relay_of(request)
    ordered = await fleet_orders.rename(
        relay.database, runner_id, body.name, caller_of(request).actor, is_admin=_is_admin(request), now=relay.now()
    )
    return await _respond_with(request, ordered)


@router.post("/{runner_id}/revoke", response_model=RunnerView)
async def revoke_runner(request: Request, runner_id: RunnerInPath, _body: OrderBody) -> Response:
    """Refuses the runner from now on; what it holds ends or is queued again."""
    relay = relay_of(request)
    ordered, lost = await fleet_orders.revoke(
        relay.database, runner_id, caller_of(request).actor, is_admin=_is_admin(request), now=relay.now()
    )
    for transition in lost:
        notify(relay.hub, transition)
    return await _respond_with(request, ordered)


def _is_admin(request: Request) -> bool:
    return caller_of(request).holder in ADMINS


async def _respond_with(request: Request, runner: Runner) -> Response:
    relay = relay_of(request)
    return respond(runner_view(await fleet_orders.read_runner(relay.database, relay.rules, runner.id, relay.now())))


def runner_view(report: RunnerReport) -> RunnerView:
    runner = report.runner
    tasks = [
        RunnerTaskView(
            task_id=task.id,
            agent=task.agent,
            title=(task.title or task.prompt).strip().partition("\n")[0][:200],
            started_at=attempt.started_at,
        )
        for attempt, task in report.held
    ]
    return view_of(
        RunnerView,
        runner,
        runner_id=runner.id,
        state=STATE_NAMES[report.condition],
        seen_at=report.seen_at,
        upgrade_available=is_older(runner.version, __version__),
        agents=[RunnerAgentView(**asdict(agent)) for agent in report.agents],
        slots=SlotCountsView(busy=len(tasks), total=max(report.slots, len(tasks))),
        tasks=tasks,
        last_result=_last_result(report.last),
        policy=None if runner.policy is None else PolicyView.model_validate(policy_data(runner.policy)),
        tags=list(runner.tags),
        paired_by=report.paired_by,
    )


def _last_result(last: Attempt | None) -> LastResultView | None:
    if last is None or last.finished_at is None:
        return None
    return view_of(LastResultView, last)
