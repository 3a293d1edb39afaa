"""Converts the model to its wire format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import lru_cache, partial

from fastapi.responses import Response

from delegate.model import (
    Attempt,
    Change,
    Checkpoint,
    Choice,
    Effect,
    Event,
    EventKind,
    Issue,
    Priority,
    Question,
    Runner,
    RunnerSlot,
    Task,
    TaskId,
    Usage,
)
from delegate.queue.checkpoints import ContinuedTask
from delegate.queue.claim import ClaimedTask
from delegate.queue.waiting import QueueSnapshot, read_snapshot, why
from delegate.relay.requests import Relay
from delegate.report import follow
from delegate.report.record import AttemptSignals
from delegate.states import ADVICE, TaskState
from delegate.store.tasks import page_of_tasks
from delegate.wire.basics import PriorityName, ProcessState, TaskStatus, Wire
from delegate.wire.runners import AssignmentView, Control, MessageView
from delegate.wire.shared_models import (
    ChangeView,
    CheckpointView,
    ChoiceView,
    ContinuedTaskView,
    EffectView,
    IssueView,
    QuestionView,
    ResultView,
    UsageView,
)
from delegate.wire.tasks import AttemptView, EventView, ProcessView, TaskDetail, TaskPage, TaskView

STATUS_OF_STATE: dict[TaskState, TaskStatus] = {
    TaskState.BLOCKED: "queued",
    TaskState.QUEUED: "queued",
    TaskState.RUNNING: "running",
    TaskState.WAITING: "waiting",
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "failed",
    TaskState.CANCELLED: "cancelled",
}
PRIORITIES: dict[Priority, PriorityName] = {Priority.P0: "P0", Priority.P1: "P1", Priority.P2: "P2"}


def respond(view: Wire, status: int = 200) -> Response:
    return Response(view.model_dump_json(by_alias=True), status, media_type="application/json")


def usage_view(usage: Usage) -> UsageView:
    return UsageView(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_usd=usage.cost_usd,
        turns=usage.turns,
    )


def task_view(task: Task, snapshot: QueueSnapshot | None = None) -> TaskView:
    return TaskView(
        task_id=task.id,
        status=STATUS_OF_STATE[task.state],
        priority=PRIORITIES[task.priority],
        agent=task.agent,
        model=task.model,
        effort=task.effort,
        permission_mode=task.permission_mode,
        prompt=task.prompt,
        working_directory=task.working_directory,
        machine=task.machine,
        timeout=task.limits.timeout // timedelta(milliseconds=1),
        max_output_buffer=task.limits.max_output,
        max_budget_usd=task.limits.max_budget_usd,
        max_turns=task.limits.max_turns,
        rerun=task.rerun,
        mode=task.mode,
        repository=task.repository,
        base=task.base,
        title=task.title,
        issue=issue_view(task.issue),
        context=task.context,
        choices=[choice_view(choice) for choice in task.choices],
        depends_on=list(task.depends_on),
        continue_from=task.continue_from,
        on_dependency_failure=task.on_dependency_failure,
        schedule_id=task.schedule_id,
        questions=[question_view(question) for question in task.questions],
        lineage=task.lineage,
        result=None if task.result is None else ResultView(**asdict(task.result)),
        exit_code=task.exit_code,
        reason=task.reason,
        message=task.message,
        advice=ADVICE[task.reason] if task.reason else None,
        why=None if snapshot is None else why(task, snapshot),
        created_at=task.created_at,
        started_at=task.started_at,
        finished_at=task.finished_at,
        not_before=task.not_before,
        retry_of=task.retry_of,
        parent_task_id=task.parent_task_id,
        retry_count=task.retry_count,
        attempt=task.attempts,
        session_id=task.session_id,
        submitted_by=task.submitted_by,
        runner=task.runner,
        tags=list(task.tags),
        usage=usage_view(task.usage),
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        attempt_id=attempt.id,
        number=attempt.number,
        runner_id=attempt.runner_id,
        slot_id=attempt.slot_id,
        state=attempt.state,
        reason=attempt.reason,
        message=attempt.message,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        exit_code=attempt.exit_code,
        session_id=attempt.session_id,
        output_bytes=attempt.output_bytes,
        truncated_bytes=attempt.truncated_bytes,
        usage=usage_view(attempt.usage),
    )


def event_view(event: Event) -> EventView:
    data = event.data
    if event.kind is EventKind.PROMPT:  # long, and nearly the same in every turn; it has its own endpoint
        data = {key: value for key, value in data.items() if key != "text"}
        data.setdefault("characters", len(str(event.data.get("text", ""))))
    return EventView(
        id=event.id, task_id=event.task_id, attempt_id=event.attempt_id, kind=event.kind, at=event.at, data=data
    )


def issue_view(issue: Issue | None) -> IssueView | None:
    if issue is None:
        return None
    return IssueView(key=issue.key, title=issue.title, url=issue.url, review_state=issue.review_state)


@lru_cache(maxsize=256)  # few distinct values, and every task has some
def choice_view(choice: Choice) -> ChoiceView:
    return ChoiceView(field=choice.field, value=choice.value, source=choice.source)


def question_view(question: Question) -> QuestionView:
    return QuestionView(
        text=question.text, options=list(question.options), asked_at=question.asked_at, answer=question.answer
    )


def checkpoint_view(checkpoint: Checkpoint | None) -> CheckpointView | None:
    return None if checkpoint is None else CheckpointView(**asdict(checkpoint))


def continued_task_view(continued_task: ContinuedTask | None, machine: str) -> ContinuedTaskView | None:
    if continued_task is None:
        return None
    task = continued_task.task
    pushed = task.result if task.state is TaskState.COMPLETED else None
    return ContinuedTaskView(
        task_id=task.id,
        status=STATUS_OF_STATE[task.state],
        prompt=task.prompt,
        message=task.message,
        checkpoint=checkpoint_view(continued_task.checkpoint),
        branch=pushed.branch if pushed else None,
        repository=task.repository,
        working_directory=task.working_directory if task.machine == machine else None,
    )


def effect_view(effect: Effect) -> EffectView:
    return EffectView(**asdict(effect))


def change_view(change: Change) -> ChangeView:
    return ChangeView(**asdict(change))


def process_view(slot: RunnerSlot, snapshot: QueueSnapshot, task_id: str | None) -> ProcessView:
    state: ProcessState = "silent" if not snapshot.is_alive(slot) else "idle" if task_id is None else "busy"
    return ProcessView(
        id=slot.id,
        name=f"{slot.runner.name}-{slot.name}",
        pid=slot.pid,
        version=slot.version,
        agents=list(slot.agents),
        state=state,
        task_id=task_id,
        seen_at=slot.seen_at,
    )


def assignment(held: ClaimedTask, runner: Runner) -> AssignmentView:
    task, attempt = held.task, held.attempt
    return AssignmentView(
        attempt_id=attempt.id,
        task_id=task.id,
        fence=attempt.fence,
        number=attempt.number,
        agent=task.agent,
        model=task.model,
        effort=task.effort,
        permission_mode=task.permission_mode,
        prompt=task.prompt,
        working_directory=task.working_directory,
        timeout_ms=task.limits.timeout // timedelta(milliseconds=1),
        max_output=task.limits.max_output,
        budget_usd=attempt.budget_usd,
        max_turns=task.limits.max_turns,
        mode=task.mode,
        repository=task.repository,
        base=task.base,
        title=task.title,
        rerun=task.rerun,
        issue=issue_view(task.issue),
        context=task.context,
        choices=[choice_view(choice) for choice in task.choices],
        lineage=task.lineage,
        submitted_by=task.submitted_by,
        is_owners=task.created_by == runner.paired_by,
        checkpoint=checkpoint_view(held.continuation.checkpoint),
        continued_task=continued_task_view(held.continuation.continued_task, task.machine),
        questions=[question_view(question) for question in task.questions if question.answer is not None],
        effects=[effect_view(effect) for effect in held.continuation.effects],
        summaries=list(held.continuation.summaries),
        usage_before=usage_view(held.continuation.usage),
        resume_session=task.session_id,
        next_seq=attempt.next_seq,
        origin=task.origin,
        created_at=task.created_at,
    )


def control(signals: AttemptSignals) -> Control:
    return Control(
        next_seq=signals.next_seq,
        cancel=signals.cancel,
        messages=[MessageView(id=message.id, text=message.text) for message in signals.messages],
        asked=signals.asked,
        has_children=signals.has_children,
    )


async def task_page(relay: Relay, status: TaskStatus | None, limit: int, cursor: str | None) -> TaskPage:
    """Return a page, newest first; `cursor` is `next` of the previous page."""
    states, before = _states(status), parse_page_cursor(cursor)
    rows = await relay.database.read(partial(page_of_tasks, states=states, before=before, limit=limit))
    shown = [task for _, task in rows]
    snapshot = await relay.database.read(partial(read_snapshot, tasks=shown, rules=relay.rules, now=relay.now()))
    return TaskPage(tasks=[task_view(task, snapshot) for task in shown], next=next_cursor("t", rows, limit))


def parse_page_cursor(cursor: str | None) -> int | None:
    """Return the position where the previous page ended."""
    return None if cursor is None else int(cursor[1:])


def next_cursor(kind: str, rows: Sequence[tuple[int, object]], limit: int) -> str | None:
    """Return the cursor after these rows, each with its position; a letter distinguishes the cursors of two lists."""
    return f"{kind}{rows[-1][0]}" if len(rows) == limit else None


async def task_detail(relay: Relay, task_id: TaskId) -> TaskDetail:
    full = await follow.read_full_task(relay.database, task_id, relay.rules, relay.now())
    return TaskDetail(
        task=task_view(full.task, full.snapshot),
        checkpoint=checkpoint_view(full.checkpoint),
        attempts=[attempt_view(attempt) for attempt in full.attempts],
        events=[event_view(event) for event in full.events],
    )


def _states(status: TaskStatus | None) -> list[TaskState]:
    if status is None:
        return []
    return [TaskState.QUEUED, TaskState.BLOCKED] if status == "queued" else [TaskState(status)]
