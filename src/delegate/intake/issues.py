"""Turns an issue of Linear into a task, or into the question that must be answered first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delegate.config.settings import Settings
from delegate.errors import DelegateError, PreferenceConflict
from delegate.intake.dependencies import resolve_dependencies
from delegate.intake.retry import make_resumed
from delegate.intake.submit import Request, build_task, insert_new_task
from delegate.linear.issues import LinearUser, TrackedIssue
from delegate.linear.payloads import Guidance
from delegate.linear.posts import activity, ask_repository, ask_scope, elicitation, stable_id, to_comment
from delegate.linear.prompt import write_prompt
from delegate.linear.records import (
    IssueMap,
    IssueSession,
    LinearConnection,
    MapKind,
    NewPost,
    PendingQuestion,
    Scope,
)
from delegate.linear.tags import is_trigger, read_preferences
from delegate.model import (
    Actor,
    AgentName,
    Blocker,
    EventKind,
    Field,
    Issue,
    Mode,
    Person,
    PersonId,
    Source,
    Task,
    TaskId,
)
from delegate.preferences.models import short_model_name
from delegate.preferences.resolve import DEFAULTS, RANK, PreferenceLayer, Preferences, resolve
from delegate.queue.limits import QueueRules
from delegate.queue.waiting import QueueSnapshot, read_snapshot, why
from delegate.states import FINAL_TASK_STATES, TaskState
from delegate.store.database import Connection, Database
from delegate.store.events import NewEvent, append_events, last_event_id
from delegate.store.linear.connections import maps_of
from delegate.store.linear.inbox import settle_delivery
from delegate.store.linear.outbox import add_posts
from delegate.store.linear.sessions import (
    count_sessions,
    get_session,
    insert_session,
    save_session,
    sessions_of_issue,
)
from delegate.store.people import list_people, person_with_email
from delegate.store.tasks import get_task

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
TITLE_MAX = 1_000
PER_ISSUE_MAX = 5  # sessions of one issue in an hour; more is a loop
PER_HOUR_MAX = 200  # sessions of the workspace
CAP_WINDOW = timedelta(hours=1)
UNKNOWN_PERSON = PersonId("unknown")  # of a task from Linear: not the owner, who is not in the table of people
AGAIN = "The issue was delegated again. Read it again, and finish what is missing."
IMMEDIATE = "next in line for a free runner"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueStart:
    """A request to work on an issue."""

    session_id: str
    issue: TrackedIssue
    creator: str
    email: str  # of the creator
    is_delegated: bool
    is_comment: bool = False  # reported in a comment: there is no agent session
    request: str | None = None  # the comment that asks for the work
    guidance: tuple[Guidance, ...] = ()
    label: str | None = None  # the label that asked for it
    suggestion: str | None = None  # the repository that Linear suggests
    candidates: tuple[str, ...] = ()  # repositories to choose from
    scope: Scope | None = None  # what was answered about sub-issues
    parent: str | None = None  # the key of the parent issue that this is started for


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuePlan:
    """What to do about an issue: a task, or a question."""

    task: Task | None = None
    preferences: Preferences | None = None
    blockers: tuple[Blocker, ...] = ()
    question: PendingQuestion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedIssue:
    session: IssueSession
    task: Task | None


def find_refusal(user: LinearUser | None, connection: LinearConnection) -> str | None:
    """Pure: return why this person may not start work, or None."""
    if user is None or not user.is_member:
        return "Only members of the workspace can start work; guests and apps cannot."
    if connection.members and user.email.lower() not in {member.lower() for member in connection.members}:
        return f"{user.name} is not on the list of people who can start work; an admin can change it."
    return None


def plan_issue(start: IssueStart, maps: Mapping[MapKind, IssueMap], settings: Settings, now: datetime) -> IssuePlan:
    """Pure: resolve the preferences of the issue. A conflict or an unknown repository becomes a question."""
    try:
        preferences = resolve([*_default_layers(start, maps, settings), *read_preferences(start.issue, start.request)])
    except PreferenceConflict as conflict:
        problems = "\n".join(f"- {problem}" for problem in conflict.problems)
        text = f"I cannot start yet:\n\n{problems}\n\nFix this on the issue, then reply here."
        return IssuePlan(question=PendingQuestion(text=text))
    if preferences.repository is None:
        return IssuePlan(question=ask_repository(start.candidates))
    review = start.issue.review_state
    issue = Issue(
        key=start.issue.key,
        title=_one_line(start.issue.title),
        url=start.issue.url,
        review_state=_one_line(review.name) if review else None,
    )
    request = Request(prompt=write_prompt(start.issue, start.guidance, start.request), issue=issue)
    try:
        task = build_task(request, preferences, settings, now)
    except DelegateError as error:
        return IssuePlan(question=PendingQuestion(text=_cannot_start(error)))
    return IssuePlan(task=task, preferences=preferences, blockers=open_blockers(start.issue))


def _cannot_start(error: DelegateError) -> str:
    return f"I cannot start yet: {error.message}. Reply here when it is fixed."


def _default_layers(start: IssueStart, maps: Mapping[MapKind, IssueMap], settings: Settings) -> list[PreferenceLayer]:
    """A project overrides its team; what was answered for this issue overrides both."""
    layers = [PreferenceLayer(source=Source.RELAY, values={Field.MODE: Mode.PULL_REQUEST})]
    if settings.default_agent not in (DEFAULTS[Field.AGENT], AgentName.SHELL):
        layers.append(PreferenceLayer(source=Source.RELAY, values={Field.AGENT: settings.default_agent}))
    mapped: dict[Field, str] = {}
    if start.suggestion is not None:
        mapped[Field.REPOSITORY] = start.suggestion
    for kind in (MapKind.TEAM, MapKind.PROJECT):
        if (found := maps.get(kind)) is not None:
            mapped[Field.REPOSITORY] = found.repository
            mapped |= {Field.AGENT: found.agent} if found.agent else {}
    if (answered := maps.get(MapKind.ISSUE)) is not None:
        mapped[Field.REPOSITORY] = answered.repository
    return [*layers, PreferenceLayer(source=Source.PROJECT, values=mapped)]


def open_blockers(issue: TrackedIssue) -> tuple[Blocker, ...]:
    """Pure: return the open issues that block this one."""
    return tuple(Blocker(id=one.id, key=one.key) for one in issue.blockers if one.is_open)


async def start_issue(
    database: Database, start: IssueStart, settings: Settings, rules: QueueRules, *, entry_id: int | None, now: datetime
) -> StartedIssue | None:
    """Create the session, its task and its first posts in one transaction; None if the session is known.

    `entry_id` is the delivery that this settles.
    """

    def write(connection: Connection) -> StartedIssue | None:
        if get_session(connection, start.session_id) is not None:
            _settle(connection, entry_id, "known session", now)
            return None
        started = _start(connection, start, settings, rules, now)
        _settle(connection, entry_id, str(started.task.id if started.task else "question"), now)
        return started

    return await database.write("linear.start", write)


def _settle(connection: Connection, entry_id: int | None, outcome: str, now: datetime) -> None:
    if entry_id is not None:
        settle_delivery(connection, entry_id, outcome, now)


def _start(
    connection: Connection, start: IssueStart, settings: Settings, rules: QueueRules, now: datetime
) -> StartedIssue:
    session = new_session(start, now)
    earlier = sessions_of_issue(connection, start.issue.id)
    refusal = _refuse_person(connection, start.email) or _exceeded_cap(connection, start, now)
    if refusal is not None:
        ended = replace(session, ended_at=now)
        insert_session(connection, ended)
        queue_posts(connection, ended, [activity(session, "start", "error", refusal)], now)
        return StartedIssue(session=ended, task=None)
    insert_session(connection, session)
    running = find_open_task(connection, earlier)
    if running is not None:
        return _take_over(connection, session, running, earlier, now)
    return begin_task(connection, session, start, settings, rules, now)


def new_session(start: IssueStart, now: datetime) -> IssueSession:
    issue = start.issue
    started, review = issue.started_state, issue.review_state
    return IssueSession(
        id=start.session_id,
        issue_id=issue.id,
        issue_key=issue.key,
        created_at=now,
        creator=start.creator,
        email=start.email,
        is_comment=start.is_comment,
        is_delegated=start.is_delegated,
        team_id=issue.team_id,
        started_state_id=started.id if started else None,
        review_state_id=None if review is None or "review" in issue.git_events else review.id,
        posted_at=now,
        text_hash=issue.text_hash,
    )


def _refuse_person(connection: Connection, email: str) -> str | None:
    """A viewer, or a disabled person, cannot do in Linear what they cannot do in Delegate."""
    person = _find_person(connection, email)
    return f"{person.refusal} in Delegate; an admin can change it." if person and person.refusal else None


def _find_person(connection: Connection, email: str) -> Person | None:
    return person_with_email(connection, email.lower()) if email else None


def _exceeded_cap(connection: Connection, start: IssueStart, now: datetime) -> str | None:
    since = now - CAP_WINDOW
    if count_sessions(connection, since, start.issue.id) >= PER_ISSUE_MAX:
        return f"{start.issue.key} was started {PER_ISSUE_MAX} times within an hour. Try again later."
    if count_sessions(connection, since) >= PER_HOUR_MAX:
        return f"{PER_HOUR_MAX} issues were started within an hour. Try again later."
    return None


def find_open_task(connection: Connection, sessions: Sequence[IssueSession]) -> Task | None:
    for session in reversed(sessions):
        task = None if session.task_id is None else get_task(connection, session.task_id)
        if task is not None and task.state not in FINAL_TASK_STATES:
            return task
    return None


def _take_over(
    connection: Connection, session: IssueSession, task: Task, earlier: Sequence[IssueSession], now: datetime
) -> StartedIssue:
    """Report a task that already runs in the new session instead of starting a second one."""
    moved = replace(session, task_id=task.id, cursor=last_event_id(connection))
    for old in earlier:
        if old.task_id == task.id:
            if old.ended_at is None:
                moved = replace(moved, cursor=old.cursor)  # what was not reported there is reported here
            leave_session(connection, old, now)
            moved = replace(moved, parent_id=old.parent_id)
    save_session(connection, moved)
    queue_posts(connection, moved, [activity(moved, "start", "thought", f"Already working on it: {task.id}.")], now)
    return StartedIssue(session=moved, task=None)


def leave_session(connection: Connection, old: IssueSession, now: datetime) -> None:
    """End a session whose work another one reports."""
    if old.ended_at is None:
        ended = replace(old, question=None, ended_at=now)
        save_session(connection, ended)
        posts = [activity(old, "moved", "response", "This continues in a new session.")]
        queue_posts(connection, ended, posts, now)


def begin_task(
    connection: Connection,
    session: IssueSession,
    start: IssueStart,
    settings: Settings,
    rules: QueueRules,
    now: datetime,
) -> StartedIssue:
    """Create the task of a session that has none, or ask what is missing."""
    has_worked = any(one.task_id is not None for one in sessions_of_issue(connection, start.issue.id))
    if start.scope is None and start.is_delegated and not has_worked:
        question = ask_scope(start.issue)
        if question is not None:
            return ask_person(connection, session, question, now)
    plan = make_plan(connection, start, settings, now)
    if plan.question is not None:
        return ask_person(connection, session, replace(plan.question, scope=start.scope), now)
    return submit_issue(connection, session, start, plan, rules, now)


def make_plan(connection: Connection, start: IssueStart, settings: Settings, now: datetime) -> IssuePlan:
    issue = start.issue
    targets = {MapKind.TEAM: issue.team_id, MapKind.PROJECT: issue.project_id, MapKind.ISSUE: issue.id}
    return plan_issue(start, maps_of(connection, targets), settings, now)


def submit_issue(
    connection: Connection, session: IssueSession, start: IssueStart, plan: IssuePlan, rules: QueueRules, now: datetime
) -> StartedIssue:
    """Create the task of a session, which waits for the tasks of `plan` and for the issues that block this one."""
    assert plan.task is not None
    assert plan.preferences is not None
    earlier = _task_to_continue(connection, plan.task, start.issue.id)
    new, verb = plan.task, None
    if earlier is not None:
        verb = "resume"
        try:
            new = make_resumed(connection, earlier, start.request or AGAIN, now)
        except DelegateError as error:
            return ask_person(connection, session, PendingQuestion(text=_cannot_start(error)), now)
        new = replace(new, depends_on=plan.task.depends_on)
    new = resolve_dependencies(connection, new)
    if plan.blockers:
        new = replace(new, blockers=plan.blockers, state=TaskState.BLOCKED)
    by = find_actor(connection, start.creator, start.email)
    submitted = insert_new_task(
        connection,
        replace(new, created_by=by.person_id, is_from_linear=True),
        by=by,
        trigger_key=f"linear:{session.id}",
        notes=plan.preferences.notes,
        verb=verb,
    )
    task = submitted.task
    _record_origin(connection, task, start, now)
    known = replace(session, task_id=task.id, question=None, ended_at=None, posted_at=now)
    save_session(connection, known)
    waits = describe_wait(task, read_snapshot(connection, [task], rules, now))
    text = describe_preferences(plan.preferences) + (f", continuing {earlier}" if earlier else "")
    text += f"\n\n{waits}" if waits else ""
    queue_posts(connection, known, [activity(known, f"task/{task.id}", "thought", text)], now)
    return StartedIssue(session=known, task=task)


def _record_origin(connection: Connection, task: Task, start: IssueStart, now: datetime) -> None:
    asked = f"{start.issue.key} was delegated" if start.is_delegated else f"mentioned on {start.issue.key}"
    if start.parent is not None:
        asked = f"{start.issue.key} is a sub-issue of {start.parent}"
    labels = [start.label] if start.label else sorted(one.name for one in start.issue.labels if is_trigger(one))
    matched = f"label{'s' if len(labels) > 1 else ''} {', '.join(labels)} matched" if labels else ""
    because = "; ".join(filter(None, ("" if start.label else asked, matched)))
    data: dict[str, object] = {"from": "Linear", "issue": start.issue.key, "by": start.creator, "because": because}
    append_events(connection, [NewEvent(task_id=task.id, kind=EventKind.TRIGGERED, at=now, data=data)])


def ask_person(connection: Connection, session: IssueSession, question: PendingQuestion, now: datetime) -> StartedIssue:
    asking = replace(session, question=question, posted_at=now)
    save_session(connection, asking)
    queue_posts(connection, asking, [elicitation(asking, stable_id("question", now, question.text), question)], now)
    return StartedIssue(session=asking, task=None)


def queue_posts(connection: Connection, session: IssueSession, posts: Sequence[NewPost], now: datetime) -> None:
    """Queue posts of a session that is saved; without an agent session they become lines of its comment."""
    if session.is_comment:
        session, posts = to_comment(session, posts)
        save_session(connection, session)
    add_posts(connection, posts, now)


def find_actor(connection: Connection, name: str, email: str) -> Actor:
    """Return the person with this address; on a relay with one person or none, work from Linear counts as theirs."""
    person = _find_person(connection, email)
    active = [one for one in list_people(connection) if one.disabled_at is None]
    if person is None and len(active) == 1:
        person = active[0]
    if person is None:
        return Actor(name=f"{name} in Linear", person_id=UNKNOWN_PERSON if active else None)
    return Actor(name=person.name, person_id=person.id)


def describe_preferences(preferences: Preferences) -> str:
    """As in "claude · sonnet-4-5 · high (label) in zietek/delego-saas (project)"."""
    chosen = {choice.field: choice for choice in preferences.choices}
    parts = [preferences.agent, short_model_name(preferences.model or ""), preferences.effort or ""]
    sources = [chosen[one].source for one in (Field.AGENT, Field.MODEL, Field.EFFORT) if one in chosen]
    strongest = max(sources, key=RANK.__getitem__)
    why_agent = "" if strongest is Source.DEFAULT else f" ({strongest})"
    repository = chosen[Field.REPOSITORY]
    agent = " · ".join(part for part in parts if part)
    return f"{agent}{why_agent} in {repository.value} ({repository.source})"


def describe_wait(task: Task, snapshot: QueueSnapshot) -> str | None:
    """Say why the work does not begin at once, if it does not."""
    if task.state is not TaskState.BLOCKED and not any(snapshot.is_alive(slot) for slot in snapshot.slots):
        seen = max((slot.seen_at for slot in snapshot.slots), default=None)
        ago = "no runner was seen yet" if seen is None else f"last runner seen {format_age(snapshot.now - seen)} ago"
        return f"Queued; {ago}."
    reason = why(task, snapshot)
    hint = " Reply “start anyway” to start at once." if task.blockers else ""
    return None if reason is None or reason == IMMEDIATE else f"Queued: {reason}.{hint}"


def format_age(age: timedelta) -> str:
    minutes = int(age.total_seconds() // 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"


def _one_line(title: str) -> str:
    return CONTROL.sub(" ", title).strip()[:TITLE_MAX] or "(without a title)"


def _task_to_continue(connection: Connection, new: Task, issue_id: str) -> TaskId | None:
    """Return the ended task of this issue whose work the same agent can continue in the same repository."""
    ids = [session.task_id for session in sessions_of_issue(connection, issue_id) if session.task_id is not None]
    last = get_task(connection, ids[-1]) if ids else None
    if last is None or last.state not in FINAL_TASK_STATES or last.purged_at is not None:
        return None
    is_same = (last.agent, last.model, last.repository) == (new.agent, new.model, new.repository)
    return last.id if is_same and last.fence > 0 else None
