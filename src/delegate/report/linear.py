"""Turns the events of a task into what Linear shows: activities, the plan, links, states and the pull request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from delegate.intake.sub_issues import end_parent
from delegate.linear.posts import activity, elicitation, stable_id, to_comment
from delegate.linear.records import IssueSession, NewPost, PendingQuestion, PostKind, PostPriority
from delegate.model import IS_WAITING, Event, EventKind, Result, Task, Usage
from delegate.preferences.models import AGENT_TITLES, short_model_name
from delegate.states import ADVICE, FINAL_TASK_STATES, TaskState
from delegate.store.database import Connection, Database
from delegate.store.linear.outbox import add_posts, release_plan
from delegate.store.linear.sessions import get_session, lock_session, quiet_sessions, save_session, unreported_events
from delegate.store.tasks import get_task

EVENTS_PER_READ = 500
QUIET_AFTER = timedelta(minutes=25)  # Linear calls a session stale after 30 minutes without an activity
EPHEMERAL_EVERY = timedelta(seconds=10)  # at most, between two ephemeral activities of a session
PLAN_EVERY = timedelta(seconds=1)  # between two plans of a session, while few sessions are open
BUDGET_SHARE = 0.5  # of Linear's requests per hour, for ephemeral activities; the rest is for what must arrive
TEXT_MAX = 10_000  # characters of one activity
LINE_MAX = 300
PLAN_STATUS = {"pending": "pending", "in_progress": "inProgress", "completed": "completed"}
LINEAR_NOTE = "isFromLinear"  # in the data of a warning: about Linear itself, not to be reported there


def ephemeral_interval(open_sessions: int, hourly_limit: int) -> timedelta:
    """Pure: how often each session may post an ephemeral activity, so that all together stay within the limit."""
    share = max(1.0, hourly_limit * BUDGET_SHARE)
    return max(EPHEMERAL_EVERY, timedelta(hours=1) * open_sessions / share)


async def report_events(database: Database, interval: timedelta, now: datetime) -> int:
    """Queue posts for the events that sessions have not reported. Returns the number of events read."""
    found = await database.read(lambda connection: unreported_events(connection, EVENTS_PER_READ))
    by_session = sorted(found, key=lambda pair: pair[0])
    for session_id, pairs in groupby(by_session, key=lambda pair: pair[0]):
        events = [event for _, event in pairs]
        await database.write("linear.report", _make_report(session_id, events, interval, now))
    return len(found)


def _make_report(
    session_id: str, events: Sequence[Event], interval: timedelta, now: datetime
) -> Callable[[Connection], None]:
    def write(connection: Connection) -> None:
        session = lock_session(connection, session_id)
        if session is None or session.task_id is None or session.ended_at is not None:
            return
        task = get_task(connection, session.task_id)
        fresh = [event for event in events if event.id > session.cursor and event.task_id == session.task_id]
        if task is None or not fresh:
            return
        reported, posts = derive_posts(session, task, fresh, interval, now)
        add_posts(connection, posts, now)
        save_session(connection, reported)
        if reported.ended_at is not None:
            release_plan(connection, session_id)
        if reported.ended_at is not None and reported.parent_id is not None:
            end_parent(connection, reported.parent_id, now)

    return write


def derive_posts(
    session: IssueSession, task: Task, events: Sequence[Event], interval: timedelta, now: datetime
) -> tuple[IssueSession, list[NewPost]]:
    """Pure: return the session after these events, and what to post for them."""
    posts = [post for event in events for post in _posts_of(session, task, event)]
    plans = [post for post in posts if post.kind is PostKind.PLAN]
    passing = [post for post in posts if post.priority is PostPriority.EPHEMERAL]
    last_at = session.posted_at or now - interval
    # The newest one says most; it would replace the others anyway. None after the end.
    shown = passing[-1:] if now - last_at >= interval and task.state not in FINAL_TASK_STATES else []
    plan_at = _plan_time(last_at, interval, now)
    dropped = {post.key for post in (*passing, *plans)} - {post.key for post in (*shown, *plans[-1:])}
    kept = [post for post in posts if post.key not in dropped]
    chosen = [replace(post, not_before=plan_at) if post.kind is PostKind.PLAN else post for post in kept]
    is_posting = any(post.kind is PostKind.ACTIVITY or post.not_before == now for post in chosen)
    has_ended = any(event.kind is EventKind.FINISHED for event in events)
    reported = replace(
        session,
        cursor=events[-1].id,
        posted_at=now if is_posting else session.posted_at,
        ended_at=now if has_ended else None,
    )
    return to_comment(reported, chosen) if session.is_comment else (reported, chosen)


def _plan_time(last_at: datetime, interval: timedelta, now: datetime) -> datetime:
    """Pure: when a plan may be posted. Many sessions post it less often than ephemeral activities."""
    spacing = 2 * interval if interval > EPHEMERAL_EVERY else PLAN_EVERY
    return max(now, last_at + spacing)


def _posts_of(session: IssueSession, task: Task, event: Event) -> Iterator[NewPost]:
    reporter = REPORTERS.get(event.kind)
    if reporter is not None:
        yield from reporter(_Reported(session=session, task=task, event=event))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reported:
    """One event, and where it is reported."""

    session: IssueSession
    task: Task
    event: Event

    def text(self, name: str, limit: int = LINE_MAX) -> str:
        value = self.event.data.get(name)
        text = "" if value is None else str(value)
        return text if len(text) <= limit else f"{text[:limit]}…"

    def thought(self, body: str, priority: PostPriority = PostPriority.NORMAL) -> NewPost:
        return activity(self.session, self.key("thought"), "thought", body, priority)

    def action(self, name: str, parameter: str, result: str | None = None) -> NewPost:
        content = {"type": "action", "action": name, "parameter": parameter}
        is_passing = result is None
        return NewPost(
            session_id=self.session.id,
            key=f"{self.session.id}/{self.key('action')}",
            kind=PostKind.ACTIVITY,
            data={
                "id": stable_id(self.session.id, self.key("action")),
                "content": content if result is None else {**content, "result": result},
                "ephemeral": is_passing,
            },
            priority=PostPriority.EPHEMERAL if is_passing else PostPriority.NORMAL,
        )

    def post(self, kind: PostKind, **data: object) -> NewPost:
        return NewPost(
            session_id=self.session.id, key=f"{self.session.id}/{self.key(kind)}", kind=kind, data=dict(data)
        )

    def key(self, what: str) -> str:
        return f"event/{self.event.id}/{what}"


Reporter = Callable[[_Reported], Iterator[NewPost]]


def _report_claimed(one: _Reported) -> Iterator[NewPost]:
    if one.session.started_state_id is not None and one.event.data.get("attempt") == 1:
        yield one.post(PostKind.STATE, issueId=one.session.issue_id, stateId=one.session.started_state_id)
    yield one.thought(f"Runner {one.text('runner')} claimed {one.task.id}, attempt {one.text('attempt')}.")


def _report_ready(one: _Reported) -> Iterator[NewPost]:
    yield one.thought("Nothing blocks it any more. Queued.")


def _report_session(one: _Reported) -> Iterator[NewPost]:
    name = AGENT_TITLES.get(one.task.agent, one.task.agent)  # type: ignore[call-overload]  # an agent without a title
    model = short_model_name(one.text("model")) if one.text("model") else ""
    facts = [f"model {model}" if model else "", f"thinking {one.task.effort}" if one.task.effort else ""]
    yield one.thought(" · ".join([f"{name} session opened", *(fact for fact in facts if fact)]) + ".")


def _report_workspace(one: _Reported) -> Iterator[NewPost]:
    yield one.thought(f"Worktree created from {one.text('base')}: branch `{one.text('branch')}`.")


def _report_tool(one: _Reported) -> Iterator[NewPost]:
    yield one.action(one.text("name", 100) or "Tool", one.text("summary") or "…")


def _report_message(one: _Reported) -> Iterator[NewPost]:
    if text := one.text("text", 1_000).strip():
        yield one.thought(text, PostPriority.EPHEMERAL)


def _report_todo(one: _Reported) -> Iterator[NewPost]:
    items = one.event.data.get("items")
    known = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    plan = [
        {
            "content": str(item.get("title") or "…")[:LINE_MAX],
            "status": PLAN_STATUS.get(str(item.get("state")), "pending"),
        }
        for item in known
    ]
    if plan:
        yield one.post(PostKind.PLAN, plan=plan)


def _report_question(one: _Reported) -> Iterator[NewPost]:
    options = one.event.data.get("options")
    listed = tuple(str(option) for option in options) if isinstance(options, list) else ()
    question = PendingQuestion(text=one.text("text", TEXT_MAX), options=listed)
    yield elicitation(one.session, one.key("question"), question)


def _report_answer(one: _Reported) -> Iterator[NewPost]:
    if not one.text("requestKey").startswith("linear:"):
        yield one.thought(f"Answered outside Linear: {one.text('text', 1_000)}")


def _report_warning(one: _Reported) -> Iterator[NewPost]:
    if one.event.data.get(IS_WAITING) is not True and one.event.data.get(LINEAR_NOTE) is not True:
        yield one.thought(f"Warning: {one.text('text', 1_000)}")


def _report_check(one: _Reported) -> Iterator[NewPost]:
    verdict = "passed" if one.event.data.get("ok") is True else "failed"
    yield one.action("Check", one.text("command"), f"{verdict} · {one.text('line')}")


def _report_pull_request(one: _Reported) -> Iterator[NewPost]:
    url, number = one.text("url", 1_000), one.event.data.get("number")
    yield one.post(PostKind.PULL_REQUEST, issueId=one.session.issue_id, url=url, title=one.text("title"))
    label = f"Pull request #{number}" if number else "Pull request"  # without a forge it has no number
    yield one.post(PostKind.SESSION, addedExternalUrls=[{"label": label, "url": url}])


def _report_lost(one: _Reported) -> Iterator[NewPost]:
    yield one.thought("The runner was lost; another one continues.")


def _report_parked(one: _Reported) -> Iterator[NewPost]:
    yield one.thought(f"Waiting until {one.text('until')}: {one.text('message')}")


def _report_finished(one: _Reported) -> Iterator[NewPost]:
    task = one.task
    if task.state is TaskState.COMPLETED:
        if task.result is not None and task.result.pull_request and one.session.review_state_id is not None:
            yield one.post(PostKind.STATE, issueId=one.session.issue_id, stateId=one.session.review_state_id)
        yield activity(one.session, one.key("end"), "response", describe_success(task))
    elif task.state is TaskState.CANCELLED:
        yield activity(one.session, one.key("end"), "response", f"Stopped: {one.text('message', 1_000)}.")
    else:
        yield activity(one.session, one.key("end"), "error", describe_failure(task))


REPORTERS: dict[EventKind, Reporter] = {
    EventKind.READY: _report_ready,
    EventKind.CLAIMED: _report_claimed,
    EventKind.SESSION: _report_session,
    EventKind.WORKSPACE: _report_workspace,
    EventKind.TOOL: _report_tool,
    EventKind.MESSAGE: _report_message,
    EventKind.TODO: _report_todo,
    EventKind.QUESTION: _report_question,
    EventKind.ANSWER: _report_answer,
    EventKind.WARNING: _report_warning,
    EventKind.CHECK: _report_check,
    EventKind.PULL_REQUEST: _report_pull_request,
    EventKind.LOST: _report_lost,
    EventKind.PARKED: _report_parked,
    EventKind.FINISHED: _report_finished,
}


def describe_success(task: Task) -> str:
    """The final word: pull request, checks, size, tokens, cost and time, then the agent's own summary."""
    result = task.result or Result()
    lines = [
        f"Pull request: {result.pull_request}" if result.pull_request else "Done, without a pull request.",
        f"Checks: {result.checks_passed} of {result.checks_total} passed" if result.checks_total else "",
        f"Change: {result.files} files, +{result.additions} −{result.deletions}" if result.files else "",
        _describe_effort(task),
    ]
    facts = "\n".join(f"- {line}" for line in lines if line)
    summary = result.summary.strip()[:TEXT_MAX]
    return f"{facts}\n\n{summary}" if summary else facts


def _describe_effort(task: Task) -> str:
    used: Usage = task.usage
    taken = used.input_tokens + used.cache_read_tokens + used.cache_write_tokens
    began, ended = task.started_at, task.finished_at
    parts = [
        f"{taken:,} tokens in, {used.output_tokens:,} out" if taken or used.output_tokens else "",
        f"${used.cost_usd:.2f}" if used.cost_usd >= 0.005 else "",
        f"{(ended - began).total_seconds():.0f} s" if began and ended else "",
    ]
    return " · ".join(part for part in parts if part)


def describe_failure(task: Task) -> str:
    advice = ADVICE[task.reason] if task.reason else ""
    kept = "\n\nThe work so far is kept." if task.result is not None and task.result.is_kept else ""
    message = (task.message or "failed")[:TEXT_MAX]
    return f"{task.id} failed: {message}.{kept}" + (f"\n\nWhat to do: {advice}." if advice else "")


async def keep_alive(database: Database, now: datetime) -> int:
    """Post in sessions that would look stale, although their task is open."""
    quiet = await database.read(lambda connection: quiet_sessions(connection, now - QUIET_AFTER))
    for session in quiet:
        await database.write("linear.keep_alive", _make_keep_alive(session.id, now))
    return len(quiet)


def _make_keep_alive(session_id: str, now: datetime) -> Callable[[Connection], None]:
    def write(connection: Connection) -> None:
        session = get_session(connection, session_id)
        if session is None or session.ended_at is not None:
            return
        task = None if session.task_id is None else get_task(connection, session.task_id)
        if task is None and (session.task_id is not None or end_parent(connection, session.id, now)):
            return
        state = TaskState.RUNNING if task is None else task.state
        if state not in (TaskState.RUNNING, TaskState.QUEUED, TaskState.BLOCKED):
            return
        verb = "Still working" if state is TaskState.RUNNING else "Still queued"
        post = activity(session, f"alive/{now.isoformat()}", "thought", f"{verb} on {session.issue_key}.")
        known, posts = replace(session, posted_at=now), [replace(post, priority=PostPriority.NORMAL)]
        if session.is_comment:
            posts = []
        add_posts(connection, posts, now)
        save_session(connection, known)

    return write
