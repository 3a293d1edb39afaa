"""What people say in a session of Linear: replies, follow-ups, stops, and taking the issue back."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

from delegate.errors import DelegateError, LinearUnreachable
from delegate.intake.issues import find_actor, queue_posts
from delegate.intake.retry import make_resumed
from delegate.intake.submit import insert_new_task
from delegate.linear.issues import LinearUser, TrackedIssue
from delegate.linear.payloads import PromptActivity
from delegate.linear.posts import activity
from delegate.linear.records import IssueMap, IssueSession, MapKind, NewPost, PendingQuestion
from delegate.linear.tags import normalize_tags
from delegate.model import Actor, AgentName, EventKind, Task
from delegate.preferences.names import SHORT_NAME
from delegate.queue.cascade import Transition, drop_blockers
from delegate.queue.finish import cancel_in
from delegate.queue.questions import answer_in, open_questions
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.database import Connection, Database
from delegate.store.events import NewEvent, append_events
from delegate.store.linear.connections import put_map
from delegate.store.linear.inbox import settle_delivery
from delegate.store.linear.sessions import child_sessions, lock_session, save_session, sessions_of_issue
from delegate.store.messages import insert_message, task_of_message
from delegate.store.tasks import get_task, lock_task

START_ANYWAY = re.compile(r"\bstart (anyway|now|at once)\b", re.I)
TEXT_MAX = 100_000  # characters of one reply
SOMEONE = Actor(name="someone in Linear")  # in the audit log: who cancels or closes an issue


async def reply(
    database: Database,
    session_id: str,
    said: PromptActivity,
    speaker: LinearUser | None,
    *,
    entry_id: int | None,
    now: datetime,
) -> Transition | None:
    """Pass on what a person wrote: an answer, a message to the running agent, or a follow-up task."""

    def write(connection: Connection) -> Transition | None:
        session = lock_session(connection, session_id)
        task = None if session is None or session.task_id is None else lock_task(connection, session.task_id)
        outcome, transition = "no task", None
        if session is not None and task is not None:
            outcome, transition = _reply(connection, session, task, said, speaker, now)
        elif session is not None and (children := child_sessions(connection, session_id)):
            text = f"Reply on one of its sub-issues: {', '.join(one.issue_key for one in children)}."
            queue_posts(connection, session, [_answer(session, said, text)], now)
        _settle(connection, entry_id, outcome, now)
        return transition

    return await database.write("linear.reply", write)


def _reply(
    connection: Connection,
    session: IssueSession,
    task: Task,
    said: PromptActivity,
    speaker: LinearUser | None,
    now: datetime,
) -> tuple[str, Transition | None]:
    key, text = f"linear:{said.id}", said.body.replace("\x00", "")[:TEXT_MAX]
    if not text.strip():
        return "empty reply", None
    if open_questions(task) and task.state not in FINAL_TASK_STATES:
        answered, _ = answer_in(connection, task.id, {"text": text, "requestKey": key}, now)
        return "answered", Transition(task=answered)
    _require_reported(session, task)
    if task.state in FINAL_TASK_STATES:
        name, email = (speaker.name, speaker.email) if speaker else (session.creator, session.email)
        by = find_actor(connection, name, email)
        return _follow_up(connection, session, task, said, by, now)
    if task.blockers and START_ANYWAY.search(text):
        released = drop_blockers(connection, lambda task_id, _: task_id == task.id, now)
        return "started anyway", Transition(task=task, others=tuple(released))
    if task.agent == AgentName.SHELL or task_of_message(connection, key) is not None:
        return "known message", None
    insert_message(connection, task.id, text, trigger_key=key, now=now)
    body = "Sent to the agent." if task.state is TaskState.RUNNING else "The agent gets this when it starts."
    queue_posts(connection, session, [activity(session, f"message/{said.id}", "thought", body)], now)
    return "sent to the agent", Transition(task=task)


def _follow_up(
    connection: Connection, session: IssueSession, ended: Task, said: PromptActivity, by: Actor, now: datetime
) -> tuple[str, Transition | None]:
    """Continue an ended task on its branch and pull request, as a task of the person who asks for it."""
    text = said.body.replace("\x00", "")[:TEXT_MAX]
    try:
        task = replace(make_resumed(connection, ended.id, text, now), created_by=by.person_id)
    except DelegateError as error:
        queue_posts(connection, session, [activity(session, f"message/{said.id}", "error", error.message)], now)
        return "not continued", None
    submitted = insert_new_task(connection, task, by=by, trigger_key=f"linear:{said.id}", verb="resume")
    data: dict[str, object] = {
        "from": "Linear",
        "issue": session.issue_key,
        "by": by.name,
        "because": f"a follow-up on {session.issue_key}",
    }
    append_events(connection, [NewEvent(task_id=task.id, kind=EventKind.TRIGGERED, at=now, data=data)])
    known = replace(session, task_id=task.id, ended_at=None, posted_at=now)
    save_session(connection, known)
    queue_posts(connection, known, [activity(known, f"task/{task.id}", "thought", f"Continuing {ended.id}.")], now)
    return str(task.id), Transition(task=submitted.task)


def _cancel_all(connection: Connection, session: IssueSession, reason: str, now: datetime) -> list[Transition]:
    """Cancel the open tasks of a session and of the sessions about its sub-issues."""
    ids = [one.task_id for one in (session, *child_sessions(connection, session.id)) if one.task_id is not None]
    transitions = []
    for task_id in ids:
        task = lock_task(connection, task_id)  # read again: the end of another one may have cancelled it
        if task is not None and task.state not in FINAL_TASK_STATES:
            transitions.append(cancel_in(connection, task_id, reason, now, SOMEONE))
    return transitions


async def stop(
    database: Database, session_id: str, said: PromptActivity, *, entry_id: int | None, now: datetime
) -> list[Transition]:
    """Cancel the tasks of a session. Their end answers; without a task, this does."""

    def write(connection: Connection) -> list[Transition]:
        session = lock_session(connection, session_id)
        _settle(connection, entry_id, "stop", now)
        if session is None:
            return []
        stopped = _cancel_all(connection, session, "stopped in Linear", now)
        if not stopped:
            _require_reported(session, None if session.task_id is None else lock_task(connection, session.task_id))
            ended = replace(session, question=None, ended_at=session.ended_at or now)
            save_session(connection, ended)
            text = "Stopped: nothing is running."
            queue_posts(connection, ended, [activity(session, f"stop/{said.id}", "response", text)], now)
        return stopped

    return await database.write("linear.stop", write)


async def refuse_reply(
    database: Database, session_id: str, said: PromptActivity, why: str, *, entry_id: int | None, now: datetime
) -> None:
    """Say that what this person wrote is not obeyed. The session keeps its state."""

    def write(connection: Connection) -> None:
        session = lock_session(connection, session_id)
        _settle(connection, entry_id, f"refused: {why}", now)
        if session is not None:
            queue_posts(connection, session, [_answer(session, said, why, _task_of(connection, session))], now)

    await database.write("linear.refuse", write)


def _task_of(connection: Connection, session: IssueSession) -> Task | None:
    return None if session.task_id is None else get_task(connection, session.task_id)


def _answer(session: IssueSession, said: PromptActivity, text: str, task: Task | None = None) -> NewPost:
    """Answer a person without a change: the kind of the last activity is the state that Linear shows."""
    asks = session.question is not None or (task is not None and task.state is TaskState.WAITING)
    kind = "response" if session.ended_at is not None else "elicitation" if asks else "thought"
    return activity(session, f"answer/{said.id}", kind, text)


async def withdraw(
    database: Database, issue_id: str, reason: str, *, delegated_only: bool, entry_id: int | None, now: datetime
) -> list[Transition]:
    """Cancel the open tasks of an issue that was taken back or closed."""

    def write(connection: Connection) -> list[Transition]:
        transitions: list[Transition] = []
        for session in sessions_of_issue(connection, issue_id):
            if session.ended_at is not None or (delegated_only and not session.is_delegated):
                continue
            cancelled = _cancel_all(connection, session, reason, now)
            transitions += cancelled
            if session.task_id is None and not cancelled:
                ended = replace(session, question=None, ended_at=now)
                save_session(connection, ended)
                text = f"Cancelled: {reason}."
                queue_posts(connection, ended, [activity(session, "withdrawn", "response", text)], now)
        _settle(connection, entry_id, "withdrawn", now)
        return transitions

    return await database.write("linear.withdraw", write)


async def tell_edit(
    database: Database, issue: TrackedIssue, *, entry_id: int | None, now: datetime
) -> Transition | None:
    """Tell the agent that its issue was edited, once. Ended tasks stay as they are."""
    text = f"The issue was edited.\n\n{issue.title}\n\n{issue.description}".replace("\x00", "")

    def write(connection: Connection) -> Transition | None:
        told = None
        for session in sessions_of_issue(connection, issue.id):
            task = None if session.ended_at or session.task_id is None else lock_task(connection, session.task_id)
            is_known = session.text_hash == issue.text_hash
            if task is None or is_known or task.state in FINAL_TASK_STATES:
                continue
            insert_message(connection, task.id, text, trigger_key=None, now=now)
            save_session(connection, replace(session, text_hash=issue.text_hash))
            told = Transition(task=task)
        _settle(connection, entry_id, "edit" if told else "edit ignored", now)
        return told

    return await database.write("linear.edit", write)


def _require_reported(session: IssueSession, task: Task | None) -> None:
    """What follows the end of a task must not overtake the report of the end."""
    if task is not None and task.state in FINAL_TASK_STATES and session.ended_at is None:
        raise LinearUnreachable(why="the end of the task is not reported yet")


def remember_repository(connection: Connection, session: IssueSession, text: str) -> bool:
    """Keep the repository that answers the question; False if the text names none."""
    found = [word for word in normalize_tags(text).replace("delegate:repo=", " ").split() if SHORT_NAME.fullmatch(word)]
    options = session.question.options if session.question else ()
    chosen = next((option for option in options if option.lower() == text.strip().lower()), None)
    repository = chosen or (found[0] if len(found) == 1 else None)
    if repository is None:
        return False
    new = IssueMap(kind=MapKind.ISSUE, target_id=session.issue_id, name=session.issue_key, repository=repository)
    put_map(connection, new)
    return True


def is_about_repository(question: PendingQuestion | None) -> bool:
    return question is not None and question.text.startswith("Which repository")


def _settle(connection: Connection, entry_id: int | None, outcome: str, now: datetime) -> None:
    if entry_id is not None:
        settle_delivery(connection, entry_id, outcome, now)
