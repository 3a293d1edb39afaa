"""The door for runners: register, claim, renew, record, effect, finish, release. docs/protocol.md describes it."""

from __future__ import annotations

from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from delegate.model import AgentName, AttemptId, Runner, RunnerId, new_runner_id
from delegate.queue import claim as claims
from delegate.queue import finish as ends
from delegate.queue.ending import Transition
from delegate.queue.lease_guard import LeaseRef
from delegate.queue.runners import leave as leave_runner
from delegate.queue.runners import register as register_runner
from delegate.relay.auth import new_runner_token, require_owner, require_runner
from delegate.relay.notify import AGENTS_KEY, holder_key, notify
from delegate.relay.problems import PROBLEMS
from delegate.relay.reports import item_of, outcome_of, release_of
from delegate.relay.requests import JsonBody, Relay, TaskInPath, attempt_in_path, relay_of
from delegate.relay.views import STATUS_OF_STATE, assignment, control, effect_view, respond
from delegate.report import record as reports
from delegate.report.effects import EffectReport, read_chain_effects, record_effect
from delegate.report.record import AttemptSignals
from delegate.tokens import hash_token
from delegate.wire.runners import (
    AttemptsResponse,
    ClaimRequest,
    ClaimResponse,
    Control,
    EffectRequest,
    EffectsResponse,
    FinishRequest,
    LeaveRequest,
    LeaveResponse,
    RecordRequest,
    RegisterRequest,
    RegisterResponse,
    ReleaseRequest,
    RenewRequest,
    Timings,
)

router = APIRouter(prefix="/api/runners", responses=PROBLEMS)
CurrentRunner = Annotated[Runner, Depends(require_runner)]
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
CLAIM_POLL_SECONDS = 5.0


@router.post("/register", dependencies=[Depends(require_owner)], response_model=RegisterResponse)
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
    await register_runner(relay.database, known, token_hash=hash_token(token))
    settings = relay.settings
    timings = Timings(
        heartbeat=settings.heartbeat.total_seconds(),
        lease=settings.lease.total_seconds(),
        reclaim_after=settings.reclaim_after.total_seconds(),
    )
    return respond(RegisterResponse(runner_id=known.id, token=token, timings=timings))


@router.post("/leave", response_model=LeaveResponse)
async def leave(request: Request, current: CurrentRunner, _body: LeaveBody) -> Response:
    await leave_runner(relay_of(request).database, current)
    return respond(LeaveResponse(runner_id=current.id))


@router.post("/claim", response_model=ClaimResponse)
async def claim(request: Request, current: CurrentRunner, body: ClaimBody) -> Response:
    relay = relay_of(request)
    query = claims.ClaimQuery(
        claim_id=body.claim_id,
        runner=current,
        agents=tuple(body.agents),
        parked=body.parked,
        problem=body.problem,
        ask_hash=body.ask_hash,
    )
    held = await _claim_or_wait(request, relay, query, body.wait)
    if held is not None and held.task.agent != AgentName.SHELL:
        relay.hub.notify_key(AGENTS_KEY)
    return respond(ClaimResponse(assignment=assignment(held) if held else None))


async def _claim_or_wait(
    request: Request, relay: Relay, query: claims.ClaimQuery, wait: float
) -> claims.ClaimedTask | None:
    deadline = anyio.current_time() + wait
    is_first = True
    with relay.hub.add_waiter(query.lanes) as waiter:
        while not await request.is_disconnected():
            woken_for = waiter.consume_wakeup()
            has_reason, is_first = is_first or woken_for is not None, False
            claim_now = claims.claim if has_reason else claims.claim_if_any
            claimed = await claim_now(relay.database, query, relay.rules, relay.now())
            for transition in claimed.rescued:
                notify(relay.hub, transition)
            held = claimed.held
            if held is not None and woken_for not in (None, held.task.lane):
                relay.hub.wake(woken_for)  # what it was woken for still waits
            remaining = deadline - anyio.current_time()
            if held is not None:
                relay.hub.notify(held.task.id)
            if held is not None or remaining <= 0 or relay.hub.closing.is_set():
                return held
            with anyio.move_on_after(min(remaining, CLAIM_POLL_SECONDS, relay.settings.heartbeat.total_seconds())):
                await waiter.woken.wait()
    return None


@router.get("/attempts", response_model=AttemptsResponse)
async def attempts(request: Request, current: CurrentRunner) -> Response:
    held = await claims.read_claimed_tasks(relay_of(request).database, current)
    return respond(AttemptsResponse(assignments=[assignment(one) for one in held]))


@router.post("/attempts/{attempt_id}/renew", response_model=Control)
async def renew(request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: RenewBody) -> Response:
    """Renews at once; the answer comes when there is news for the agent, or when `wait` is over."""
    relay = relay_of(request)
    lease = _lease_ref(current, attempt_id, body.fence)
    deadline = anyio.current_time() + body.wait
    task, signals = await reports.renew(relay.database, lease, body.messages_seen, relay.now())
    with relay.hub.subscribe(holder_key(task.id)) as subscription:
        while not (signals.is_urgent or relay.hub.closing.is_set()):
            remaining = deadline - anyio.current_time()
            if remaining <= 0:
                break
            # Looked up before the first wait, too: news may have come between the renewal and the bell.
            signals = await reports.signals(relay.database, lease, body.messages_seen)
            if not signals.is_urgent:
                await subscription.wait(remaining)
    return respond(control(signals))


@router.post("/attempts/{attempt_id}/record", response_model=Control)
async def record(request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: RecordBody) -> Response:
    relay = relay_of(request)
    items = [item_of(item) for item in body.items]
    task, signals = await reports.record(
        relay.database, _lease_ref(current, attempt_id, body.fence), items, relay.now()
    )
    relay.hub.notify(task.id)
    return respond(control(signals))


@router.post("/attempts/{attempt_id}/finish", response_model=Control)
async def finish(request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: FinishBody) -> Response:
    relay = relay_of(request)
    transition = await ends.finish(
        relay.database,
        _lease_ref(current, attempt_id, body.fence),
        outcome_of(body),
        next_seq=None if body.output_incomplete else body.next_seq,
        now=relay.now(),
    )
    return _notify_and_respond(relay, transition, body.next_seq)


@router.post("/attempts/{attempt_id}/release", response_model=Control)
async def release(request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: ReleaseBody) -> Response:
    relay = relay_of(request)
    transition = await ends.release(
        relay.database, _lease_ref(current, attempt_id, body.fence), release_of(body), relay.now()
    )
    return _notify_and_respond(relay, transition, 0)


@router.post("/attempts/{attempt_id}/effect", response_model=Control)
async def effect(request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: EffectBody) -> Response:
    """Announces an effect, or tells what came of it; the lease is renewed, too."""
    relay = relay_of(request)
    effect_report = EffectReport(
        kind=body.kind,
        state=body.state,
        target=body.target,
        expected=body.expected,
        external_id=body.external_id,
    )
    _, signals = await record_effect(
        relay.database, _lease_ref(current, attempt_id, body.fence), effect_report, relay.now()
    )
    return respond(control(signals))


@router.get("/tasks/{task_id}/effects", response_model=EffectsResponse)
async def effects(request: Request, task_id: TaskInPath, current: CurrentRunner) -> Response:
    """For a runner that had an attempt of the task and must know what became of an effect it had begun."""
    found = await read_chain_effects(relay_of(request).database, task_id, current)
    return respond(
        EffectsResponse(status=STATUS_OF_STATE[found.state], effects=[effect_view(one) for one in found.effects])
    )


def _notify_and_respond(relay: Relay, transition: Transition, next_seq: int) -> Response:
    notify(relay.hub, transition)
    return respond(control(AttemptSignals(next_seq=next_seq, cancel=None, messages=())))


def _lease_ref(current: Runner, attempt_id: AttemptId, fence: int) -> LeaseRef:
    return LeaseRef(runner_id=current.id, attempt_id=attempt_id, fence=fence)
