"""Submits the open sub-issues of a delegated issue as a graph of tasks, and reports its end on the parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from graphlib import CycleError, TopologicalSorter

from delegate.config.settings import Settings
from delegate.intake.issues import (
    IssuePlan,
    IssueStart,
    ask_person,
    find_open_task,
    leave_session,
    make_plan,
    new_session,
    open_blockers,
    queue_posts,
    submit_issue,
)
from delegate.linear.issues import TrackedIssue
from delegate.linear.posts import activity
from delegate.linear.records import IssueSession, PendingQuestion, Scope
from delegate.model import Blocker, Task, TaskId
from delegate.queue.limits import QueueRules
from delegate.store.database import Connection
from delegate.store.linear.sessions import (
    child_sessions,
    get_session,
    insert_session,
    save_session,
    sessions_of_issue,
)
from delegate.store.tasks import get_task


@dataclass(frozen=True, slots=True, kw_only=True)
class SubIssue:
    """An open sub-issue, and the session that reports its work."""

    session_id: str
    issue: TrackedIssue


def begin_graph(
    connection: Connection,
    session: IssueSession,
    start: IssueStart,
    children: Sequence[SubIssue],
    settings: Settings,
    rules: QueueRules,
    now: datetime,
) -> list[Task]:
    """Create a task for each sub-issue; those that others of them block wait for the tasks of these.

    If one of them is not clear, nothing is created, and the session of the parent asks.
    """
    plans, question = _plan_all(connection, start, children, settings, now)
    if question is not None:
        ask_person(connection, session, replace(question, scope=Scope.ALL), now)
        return []
    for old in sessions_of_issue(connection, start.issue.id):
        if old.id != session.id:
            leave_session(connection, old, now)
    tasks: dict[str, Task] = {}
    for child in sort_children(children):
        issue = child.issue
        waits = [tasks[one.id].id for one in open_blockers(issue) if one.id in tasks]
        others = {one.id: one for one in (*open_blockers(start.issue), *open_blockers(issue)) if one.id not in plans}
        placed = _placed(plans[issue.id], waits, others)
        task = _submit_child(connection, session, start_of_child(start, child), placed, rules, now)
        if task is not None:
            tasks[issue.id] = task
    lines = [f"- {task.issue.key if task.issue else ''}: {task.id}" for task in tasks.values()]
    known = replace(session, question=None, posted_at=now)
    save_session(connection, known)
    text = "\n".join(["Started the sub-issues. Each reports on its own issue.", "", *lines])
    queue_posts(connection, known, [activity(known, f"graph/{now.isoformat()}/start", "thought", text)], now)
    return list(tasks.values())


def _plan_all(
    connection: Connection, start: IssueStart, children: Sequence[SubIssue], settings: Settings, now: datetime
) -> tuple[dict[str, IssuePlan], PendingQuestion | None]:
    """Return the plans by issue, or the question that must be answered first."""
    own = make_plan(connection, start, settings, now)
    if own.question is not None or own.preferences is None:
        return {}, own.question
    plans: dict[str, IssuePlan] = {}
    for child in children:
        begun = replace(start_of_child(start, child), suggestion=own.preferences.repository)
        plan = make_plan(connection, begun, settings, now)
        if plan.question is not None:
            return {}, replace(plan.question, text=f"{child.issue.key}: {plan.question.text}")
        plans[child.issue.id] = plan
    try:
        sort_children(children)
    except CycleError as error:
        keys = {child.issue.id: child.issue.key for child in children}
        circle = " → ".join(keys[one] for one in reversed(error.args[1]))
        return {}, PendingQuestion(text=f"These issues block each other: {circle}. Fix this, then reply here.")
    return plans, None


def start_of_child(start: IssueStart, child: SubIssue) -> IssueStart:
    return replace(
        start,
        session_id=child.session_id,
        issue=child.issue,
        is_delegated=False,
        request=None,
        label=None,
        parent=start.issue.key,
    )


def sort_children(children: Sequence[SubIssue]) -> list[SubIssue]:
    """Pure: return them with each after those that block it; raises CycleError."""
    known = {child.issue.id: child for child in children}
    graph = {
        issue_id: [one.id for one in open_blockers(child.issue) if one.id in known] for issue_id, child in known.items()
    }
    return [known[issue_id] for issue_id in TopologicalSorter(graph).static_order()]


def _placed(plan: IssuePlan, depends_on: Sequence[TaskId], blockers: Mapping[str, Blocker]) -> IssuePlan:
    assert plan.task is not None
    return replace(plan, task=replace(plan.task, depends_on=tuple(depends_on)), blockers=tuple(blockers.values()))


def _submit_child(
    connection: Connection, parent: IssueSession, start: IssueStart, plan: IssuePlan, rules: QueueRules, now: datetime
) -> Task | None:
    """Create the task of a sub-issue. One that is in work already becomes part of the graph as it is."""
    earlier = sessions_of_issue(connection, start.issue.id)
    running = find_open_task(connection, earlier)
    if running is not None:
        for one in earlier:
            if one.task_id == running.id:
                save_session(connection, replace(one, parent_id=parent.id))
        return running
    session = replace(new_session(start, now), parent_id=parent.id)
    insert_session(connection, session)
    return submit_issue(connection, session, start, plan, rules, now).task


def end_parent(connection: Connection, parent_id: str, now: datetime) -> bool:
    """Answer in the session of the parent when the sessions of all sub-issues have ended."""
    parent = get_session(connection, parent_id)
    children = child_sessions(connection, parent_id)
    has_ended = bool(children) and all(one.ended_at is not None for one in children)
    if parent is None or parent.ended_at is not None or not has_ended:
        return False
    lines = [_describe_end(connection, one) for one in children]
    ended = replace(parent, ended_at=now)
    save_session(connection, ended)
    text = "\n".join(["The sub-issues have ended.", "", *lines])
    queue_posts(connection, ended, [activity(parent, f"graph/{now.isoformat()}/end", "response", text)], now)
    return True


def _describe_end(connection: Connection, session: IssueSession) -> str:
    task = None if session.task_id is None else get_task(connection, session.task_id)
    if task is None:
        return f"- {session.issue_key}"
    pull = task.result.pull_request if task.result else None
    return f"- {session.issue_key}: {task.state}" + (f" · {pull}" if pull else "")
