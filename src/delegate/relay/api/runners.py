"""The endpoints for runners: register, claim, renew, record, effect, finish, release. See docs/protocol.md."""

from __future__ import annotations

import logging
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from delegate.model import AgentName, AttemptId, RunnerSlot
from delegate.queue import claim as claims
from delegate.queue import finish as ends
from delegate.queue.fleet import MachineFacts, SlotFacts, register_slot
from delegate.queue.lease_guard import LeaseRef
from delegate.relay.auth import bearer_token, caller_of, require_access, require_runner
from delegate.relay.linear.outbox import wait_until_end_posted
from delegate.relay.notify import holder_key, notify
from delegate.relay.problems import PROBLEMS
from delegate.relay.reports import item_of, outcome_of, release_of
from delegate.relay.requests import JsonBody, Relay, TaskInPath, attempt_in_path, check_query, relay_of
from delegate.relay.views import STATUS_OF_STATE, assignment, control, effect_view, respond
from delegate.report import record as reports
from delegate.report.effects import EffectReport, read_chain_effects, record_effect
from delegate.report.record import AttemptSignals
from delegate.store.database import Database
from delegate.store.runners import delete_slot
from delegate.tokens import SLOT_PREFIX, hash_token, new_token
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

log = logging.getLogger(__name__)

router = APIRouter(prefix="/api/runners", dependencies=[Depends(check_query)], responses=PROBLEMS)
CurrentRunner = Annotated[RunnerSlot, Depends(require_runner)]
AttemptInPath = Annotated[AttemptId, Depends(attempt_in_path)]
RegisterBody = Annotated[RegisterRequest, Depends(JsonBody(RegisterRequest))]
LeaveBody = Annotated[LeaveRequest, Depends(JsonBody(LeaveRequest))]
ClaimBody = Annotated[ClaimRequest, Depends(JsonBody(ClaimRequest))]
RenewBody = Annotated[RenewRequest, Depends(JsonBody(RenewRequest))]
# Not checked for repeated keys: with megabytes of output, parsing twice would be felt.
RecordBody = Annotated[RecordRequest, Depends(JsonBody(RecordRequest, checks_keys=False))]
FinishBody = Annotated[FinishRequest, Depends(JsonBody(FinishRequest))]
EffectBody = Annotated[EffectRequest, Depends(JsonBody(EffectRequest))]
ReleaseBody = Annotated[ReleaseRequest, Depends(JsonBody(ReleaseRequest))]
# A waiting claim checks again this often: leases expire and parked tasks become due without a notification.
CLAIM_POLL_SECONDS = 5.0


@router.post("/register", dependencies=[Depends(require_access)], response_model=RegisterResponse)
async def register_runner(request: Request, body: RegisterBody) -> Response:
    relay = relay_of(request)
    settings, token = relay.settings, new_token(SLOT_PREFIX)
    process = SlotFacts(
        runner_name=body.name,
        slot=body.slot,
        pid=body.pid,
        agents=tuple(body.agents),
        instance=body.instance,
        facts=MachineFacts(machine=body.machine, version=body.version),
    )
    slot = await register_slot(
        relay.database,
        process,
        runner_hash=None if caller_of(request).runner is None else hash_token(bearer_token(request)),
        token_hash=hash_token(token),
        lease=settings.lease,
        now=relay.now(),
    )
    timings = Timings(
        heartbeat=settings.heartbeat.total_seconds(),
        lease=settings.lease.total_seconds(),
        reclaim_after=settings.reclaim_after.total_seconds(),
    )
    return respond(RegisterResponse(slot_id=slot.id, runner_id=slot.runner.id, token=token, timings=timings))


@router.post("/leave", response_model=LeaveResponse)
async def unregister_runner(request: Request, current: CurrentRunner, _body: LeaveBody) -> Response:
    await _leave(relay_of(request).database, current)
    return respond(LeaveResponse(slot_id=current.id))


@router.post("/claim", response_model=ClaimResponse)
async def claim_task(request: Request, current: CurrentRunner, body: ClaimBody) -> Response:
    relay = relay_of(request)
    query = claims.ClaimQuery(
        claim_id=body.claim_id,
        slot=current,
        agents=tuple(body.agents),
        parked=body.parked,
        problem=body.problem,
        ask_hash=body.ask_hash,
        privacy=body.privacy,
    )
    held = await _claim_or_wait(request, relay, query, body.wait)
    if held is not None and held.task.agent != AgentName.SHELL and body.ask_hash is not None:
        await request.app.state.mcp.load_for_agent()
    return respond(ClaimResponse(assignment=assignment(held, current.runner) if held else None))


async def _claim_or_wait(
    request: Request, relay: Relay, query: claims.ClaimQuery, wait: float
) -> claims.ClaimedTask | None:
    deadline = anyio.current_time() + wait
    is_first = True
    with relay.hub.add_waiter(query.scope) as waiter:
        while not await request.is_disconnected():
            woken_for = waiter.consume_wakeup()
            has_reason, is_first = is_first or woken_for is not None, False
            claim_now = claims.claim if has_reason else claims.claim_if_any
            claimed = await claim_now(relay.database, query, relay.rules, relay.now())
            for transition in claimed.rescued:
                notify(relay.hub, transition)
            held = claimed.held
            if held is not None and woken_for not in (None, held.task.lane):
                relay.hub.wake(woken_for)  # the task it was woken for is still waiting
            remaining = deadline - anyio.current_time()
            if held is not None:
                relay.hub.notify(held.task.id)
            if held is not None or remaining <= 0 or relay.hub.closing.is_set():
                return held
            with anyio.move_on_after(min(remaining, CLAIM_POLL_SECONDS, relay.settings.heartbeat.total_seconds())):
                await waiter.woken.wait()
    return None


@router.get("/attempts", response_model=AttemptsResponse)
async def list_attempts(request: Request, current: CurrentRunner) -> Response:
    held = await claims.read_claimed_tasks(relay_of(request).database, current)
    return respond(AttemptsResponse(assignments=[assignment(one, current.runner) for one in held]))


@router.post("/attempts/{attempt_id}/renew", response_model=Control)
async def renew_attempt(
    request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: RenewBody
) -> Response:
    """Renews the lease at once; responds when there is a signal for the attempt, or after `wait` seconds."""
    relay = relay_of(request)
    lease = _lease_ref(current, attempt_id, body.fence)
    deadline = anyio.current_time() + body.wait
    task, signals = await reports.renew(relay.database, lease, body.messages_seen, relay.now())
    with relay.hub.subscribe(holder_key(task.id)) as subscription:
        while not (signals.is_urgent or relay.hub.closing.is_set()):
            remaining = deadline - anyio.current_time()
            if remaining <= 0:
                break
            # Read before the first wait, too: a signal may have arrived between the renewal and the subscription.
            signals = await reports.signals(relay.database, lease, body.messages_seen)
            if not signals.is_urgent:
                await subscription.wait(remaining)
    return respond(control(signals))


@router.post("/attempts/{attempt_id}/record", response_model=Control)
async def record_items(
    request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: RecordBody
) -> Response:
    relay = relay_of(request)
    items = [item_of(item) for item in body.items]
    task, signals = await reports.record(
        relay.database, _lease_ref(current, attempt_id, body.fence), items, relay.now()
    )
    relay.hub.notify(task.id)
    return respond(control(signals))


@router.post("/attempts/{attempt_id}/finish", response_model=Control)
async def finish_attempt(
    request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: FinishBody
) -> Response:
    relay = relay_of(request)
    transition = await ends.finish(
        relay.database,
        _lease_ref(current, attempt_id, body.fence),
        outcome_of(body),
        next_seq=None if body.output_incomplete else body.next_seq,
        now=relay.now(),
    )
    notify(relay.hub, transition)
    is_posted = await wait_until_end_posted(request.app.state.linear, transition.task)
    ended = control(AttemptSignals(next_seq=body.next_seq, cancel=None, messages=()))
    return respond(ended.model_copy(update={"is_posted": is_posted}))


@router.post("/attempts/{attempt_id}/release", response_model=Control)
async def release_attempt(
    request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: ReleaseBody
) -> Response:
    relay = relay_of(request)
    transition = await ends.release(
        relay.database, _lease_ref(current, attempt_id, body.fence), release_of(body), relay.now()
    )
    notify(relay.hub, transition)
    return respond(control(AttemptSignals(next_seq=0, cancel=None, messages=())))


@router.post("/attempts/{attempt_id}/effect", response_model=Control)
async def report_effect(
    request: Request, attempt_id: AttemptInPath, current: CurrentRunner, body: EffectBody
) -> Response:
    """Announces an effect or reports its outcome; also renews the lease."""
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
async def list_effects(request: Request, task_id: TaskInPath, current: CurrentRunner) -> Response:
    """Lists the effects of a task for a runner that held an attempt of it and must settle an effect it began."""
    found = await read_chain_effects(relay_of(request).database, task_id, current)
    return respond(
        EffectsResponse(status=STATUS_OF_STATE[found.state], effects=[effect_view(one) for one in found.effects])
    )


def _lease_ref(current: RunnerSlot, attempt_id: AttemptId, fence: int) -> LeaseRef:
    return LeaseRef(slot_id=current.id, attempt_id=attempt_id, fence=fence)


async def _leave(database: Database, slot: RunnerSlot) -> None:
    """Remove a stopped process, so that the status of waiting tasks does not count on it."""
    await database.write("leave", lambda connection: delete_slot(connection, slot.id))
    log.info("runner left", extra={"runner_id": slot.id, "runner": slot.runner.name})
