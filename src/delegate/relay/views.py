"""Converts the model to its wire format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import lru_cache, partial
from typing import TypeVar

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

W = TypeVar("W", bound=Wire)
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


def view_of(kind: type[W], source: object, /, **converted: object) -> W:
    """Build a view from what has the names of its fields; `converted` has the others. pydantic checks the types."""
    names = [name for name in kind.model_fields if name not in converted and hasattr(source, name)]
    return kind(**{name: getattr(source, name) for name in names}, **converted)


def task_view(task: Task, snapshot: QueueSnapshot | None = None) -> TaskView:
    return view_of(
        TaskView,
        task,
        task_id=task.id,
        status=STATUS_OF_STATE[task.state],
        priority=PRIORITIES[task.priority],
        timeout=task.limits.timeout // timedelta(milliseconds=1),
        max_output_buffer=task.limits.max_output,
        max_budget_usd=task.limits.max_budget_usd,
        max_turns=task.limits.max_turns,
        issue=issue_view(task.issue),
        choices=[choice_view(choice) for choice in task.choices],
        depends_on=list(task.depends_on),
        questions=[question_view(question) for question in task.questions],
        result=None if task.result is None else ResultView(**asdict(task.result)),
        advice=ADVICE[task.reason] if task.reason else None,
        why=None if snapshot is None else why(task, snapshot),
        attempt=task.attempts,
        tags=list(task.tags),
        usage=view_of(UsageView, task.usage),
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    return view_of(AttemptView, attempt, attempt_id=attempt.id, usage=view_of(UsageView, attempt.usage))


def event_view(event: Event) -> EventView:
    data = event.data
    if event.kind is EventKind.PROMPT:  # long, and nearly the same in every turn; it has its own endpoint
        data = {key: value for key, value in data.items() if key != "text"}
        data.setdefault("characters", len(str(event.data.get("text", ""))))
    return view_of(EventView, event, data=data)


def issue_view(issue: Issue | None) -> IssueView | None:
    return None if issue is None else view_of(IssueView, issue)


@lru_cache(maxsize=256)  # few distinct values, and every task has some
def choice_view(choice: Choice) -> ChoiceView:
    return view_of(ChoiceView, choice)


def question_view(question: Question) -> QuestionView:
    return view_of(QuestionView, question, options=list(question.options))


def checkpoint_view(checkpoint: Checkpoint | None) -> CheckpointView | None:
    return None if checkpoint is None else CheckpointView(**asdict(checkpoint))


def continued_task_view(continued_task: ContinuedTask | None, machine: str) -> ContinuedTaskView | None:
    if continued_task is None:
        return None
    task = continued_task.task
    pushed = task.result if task.state is TaskState.COMPLETED else None
    return view_of(
        ContinuedTaskView,
        task,
        task_id=task.id,
        status=STATUS_OF_STATE[task.state],
        checkpoint=checkpoint_view(continued_task.checkpoint),
        branch=pushed.branch if pushed else None,
        working_directory=task.working_directory if task.machine == machine else None,
    )


def effect_view(effect: Effect) -> EffectView:
    return EffectView(**asdict(effect))


def change_view(change: Change) -> ChangeView:
    return ChangeView(**asdict(change))


def process_view(slot: RunnerSlot, snapshot: QueueSnapshot, task_id: str | None) -> ProcessView:
    state: ProcessState = "silent" if not snapshot.is_alive(slot) else "idle" if task_id is None else "busy"
    return view_of(
        ProcessView,
        slot,
        name=f"{slot.runner.name}-{slot.name}",
        agents=list(slot.agents),
        state=state,
        task_id=task_id,
    )


def assignment(held: ClaimedTask, runner: Runner) -> AssignmentView:
    task, attempt = held.task, held.attempt
    return view_of(
        AssignmentView,
        task,
        attempt_id=attempt.id,
        task_id=task.id,
        fence=attempt.fence,
        number=attempt.number,
        timeout_ms=task.limits.timeout // timedelta(milliseconds=1),
        max_output=task.limits.max_output,
        budget_usd=attempt.budget_usd,
        max_turns=task.limits.max_turns,
        issue=issue_view(task.issue),
        choices=[choice_view(choice) for choice in task.choices],
        is_owners=task.created_by == runner.paired_by,
        checkpoint=checkpoint_view(held.continuation.checkpoint),
        continued_task=continued_task_view(held.continuation.continued_task, task.machine),
        questions=[question_view(question) for question in task.questions if question.answer is not None],
        effects=[effect_view(effect) for effect in held.continuation.effects],
        summaries=list(held.continuation.summaries),
        usage_before=view_of(UsageView, held.continuation.usage),
        resume_session=task.session_id,
        next_seq=attempt.next_seq,
        origin=task.origin,
    )


def control(signals: AttemptSignals) -> Control:
    return view_of(Control, signals, messages=[view_of(MessageView, message) for message in signals.messages])


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
