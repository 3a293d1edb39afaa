"""The door for runners: register, claim, renew, record, effect, finish, release. docs/protocol.md describes it."""

from __future__ import annotations

from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from delegate.model import AgentName, AttemptId, Runner, RunnerId, new_runner_id
from delegate.queue import claim as claims
from delegate.queue import finish as ends
from delegate.queue.ending import Moved
from delegate.queue.lease_guard import Holder
from delegate.queue.runners import leave as leave_runner
from delegate.queue.runners import register as register_runner
from delegate.relay.auth import new_runner_token, owner, runner
from delegate.relay.notify import AGENTS, holder_of, tell
from delegate.relay.problems import PROBLEMS
from delegate.relay.reports import item_of, outcome_of, release_of
from delegate.relay.requests import JsonBody, Relay, TaskInPath, attempt_in_path, relay_of
from delegate.relay.views import SHOWN, answer, assignment, control, effect_view
from delegate.report import record as reports
from delegate.report.effects import Told, announce, outside
from delegate.report.record import Standing
from delegate.tokens import hash_of
from delegate.wire.runners import (
    AttemptsAnswer,
    ClaimAnswer,
    ClaimRequest,
    Control,
    EffectRequest,
    EffectsAnswer,
    FinishRequest,
    LeaveAnswer,
    LeaveRequest,
    RecordRequest,
    RegisterAnswer,
    RegisterRequest,
    ReleaseRequest,
    RenewRequest,
    Timings,
)

router = APIRouter(prefix="/api/runners", responses=PROBLEMS)
CurrentRunner = Annotated[Runner, Depends(runner)]
AttemptInPath = Annotated[AttemptId, Depends(attempt_in_path)]
RegisterBody = Annotated[RegisterRequest, Depends(JsonBody(RegisterRequest))]
LeaveBody = Annotated[LeaveRequest, Depends(JsonBody(LeaveRequest))]
ClaimBody = Annotated[ClaimRequest, Depends(JsonBody(ClaimRequest))]
RenewBody = Annotated[RenewRequest, Depends(JsonBody(RenewRequest))]
RecordBody = Annotated[RecordRequest, Depends(JsonBody(RecordRequest))]
FinishBody = Annotated[FinishRequest, Depends(JsonBody(FinishRequest))]
EffectBody = Annotated[EffectRequest, Depends(JsonBody(EffectRequest))]
ReleaseBody = Annotated[ReleaseRequest, Depends(JsonBody(ReleaseRequest))]
# A parked claim looks again this often: leases run out and parked tasks come due without anybody ringing.
LOOK_AGAIN = 5.0


@router.post("/register", dependencies=[Depends(owner)], response_model=RegisterAnswer)
async def register(request: Request, body: RegisterBody) -> Response:
    relay = relay_of(request)
    now = relay.now()
    known = Runner(
        id=RunnerId(body.runner_id) if body.runner_id else new_runner_id(),
        name=body.name,
        machine=body.machine,
        pid=body.pid,
        version=body.version,
        agents=tuple(body.agents),
        registered_at=now,
        seen_at=now,
    )
    token = new_runner_token()
    await register_runner(relay.database, known, token_hash=hash_of(token))
    settings = relay.settings
    timings = Timings(
        heartbeat=settings.heartbeat.total_seconds(),
        lease=settings.lease.total_seconds(),
        reclaim_after=settings.reclaim_after.total_seconds(),
    )
    return answer(RegisterAnswer(runner_id=known.id, token=token, timings=timings))


@router.post("/leave", response_model=LeaveAnswer)
async def leave(request: Request, current: CurrentRunner, _body: LeaveBody) -> Response:
    await leave_runner(relay_of(request).database, current)
    return answer(LeaveAnswer(runner_id=current.id))


@router.post("/claim", response_model=ClaimAnswer)
async def claim(request: Request, current: CurrentRunner, body: ClaimBody) -> Response:
    relay = relay_of(request)
    wish = claims.ClaimWish(
        claim_id=body.claim_id,
        runner=current,
        agents=tuple(body.agents),
        parked=body.parked,
        problem=body.problem,
        ask_hash=body.ask_hash,
    )
    held = await _claim_or_wait(request, relay, wish, body.wait)
    if held is not None and held.task.agent != AgentName.SHELL:
        relay.hub.call(AGENTS)
    return answer(ClaimAnswer(assignment=assignment(held) if held else None))


async def _claim_or_wait(request: Request, relay: Relay, wish: claims.ClaimWish, wait: float) -> claims.Held | None:
    deadline = anyio.current_time() + wait
    is_first = True
    with relay.hub.waiting(wish.lanes) as waiter:
        while not await request.is_disconnected():
            woken_for = waiter.look()
            has_reason, is_first = is_first or woken_for is not None, False
            claim_now = claims.claim if has_reason else claims.claim_if_any
            claimed = await claim_now(relay.database, wish, relay.rules, relay.now())
            for moved in claimed.rescued:
                tell(relay.hub, moved)
            held = claimed.held
            if held is not None and woken_for not in (None, held.task.lane):
                relay.hub.wake(woken_for)  # what it was woken for still waits
            remaining = deadline - anyio.current_time()
            if held is not None:
                relay.hub.ring(held.task.id)
            if held is not None or remaining <= 0 or relay.hub.closing.is_set():
                return held
            with anyio.move_on_after(min(remaining, LOOK_AGAIN, relay.settings.heartbeat.total_seconds())):
                await waiter.woken.wait()
    return None


@router.get("/attempts", response_model=AttemptsAnswer)
async def attempts(request: Request, current: CurrentRunner) -> Response:
    held = await claims.held_by(relay_of(request).database, current)
    return answer(AttemptsAnswer(assignments=[assignment(one) for one in held]))


@router.post("/attempts/{attempt_id}/renew", response_model=Control)
async def renew(request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: RenewBody) -> Response:
    """Renews at once; the answer comes when there is news for the agent, or when `wait` is over."""
    relay = relay_of(request)
    holder = _holder(current, attempt_id, body.fence)
    deadline = anyio.current_time() + body.wait
    task, standing = await reports.renew(relay.database, holder, body.messages_seen, relay.now())
    with relay.hub.listening(holder_of(task.id)) as bell:
        while not (standing.is_news or relay.hub.closing.is_set()):
            remaining = deadline - anyio.current_time()
            if remaining <= 0:
                break
            # Looked up before the first wait, too: news may have come between the renewal and the bell.
            standing = await reports.standing(relay.database, holder, body.messages_seen)
            if not standing.is_news:
                await bell.heard(remaining)
    return answer(control(standing))


@router.post("/attempts/{attempt_id}/record", response_model=Control)
async def record(request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: RecordBody) -> Response:
    relay = relay_of(request)
    items = [item_of(item) for item in body.items]
    task, standing = await reports.record(relay.database, _holder(current, attempt_id, body.fence), items, relay.now())
    relay.hub.ring(task.id)
    return answer(control(standing))


@router.post("/attempts/{attempt_id}/finish", response_model=Control)
async def finish(request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: FinishBody) -> Response:
    relay = relay_of(request)
    moved = await ends.finish(
        relay.database,
        _holder(current, attempt_id, body.fence),
        outcome_of(body),
        next_seq=None if body.output_incomplete else body.next_seq,
        now=relay.now(),
    )
    return _ended(relay, moved, body.next_seq)


@router.post("/attempts/{attempt_id}/release", response_model=Control)
async def release(request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: ReleaseBody) -> Response:
    relay = relay_of(request)
    moved = await ends.release(relay.database, _holder(current, attempt_id, body.fence), release_of(body), relay.now())
    return _ended(relay, moved, 0)


@router.post("/attempts/{attempt_id}/effect", response_model=Control)
async def effect(request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: EffectBody) -> Response:
    """Announces an effect, or tells what came of it; the lease is renewed, too."""
    relay = relay_of(request)
    told = Told(
        kind=body.kind,
        state=body.state,
        target=body.target,
        expected=body.expected,
        external_id=body.external_id,
    )
    _, standing = await announce(relay.database, _holder(current, attempt_id, body.fence), told, relay.now())
    return answer(control(standing))


@router.get("/tasks/{task_id}/effects", response_model=EffectsAnswer)
async def effects(request: Request, task_id: TaskInPath, current: CurrentRunner) -> Response:
    """For a runner that had an attempt of the task and must know what became of an effect it had begun."""
    found = await outside(relay_of(request).database, task_id, current)
    return answer(EffectsAnswer(status=SHOWN[found.state], effects=[effect_view(one) for one in found.effects]))


def _ended(relay: Relay, moved: Moved, next_seq: int) -> Response:
    tell(relay.hub, moved)
    return answer(control(Standing(next_seq=next_seq, cancel=None, messages=())))


def _holder(current: Runner, attempt_id: AttemptId, fence: int) -> Holder:
    return Holder(runner_id=current.id, attempt_id=attempt_id, fence=fence)
