"""Submits a task: checks the request, writes the task with its first event, then acknowledges it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from delegate.config.settings import Settings
from delegate.errors import InvalidField, KeyUsed, PreferenceConflict, Refused, UnknownAgent
from delegate.intake.children import admit_child
from delegate.intake.dependencies import all_dependencies, resolve_dependencies
from delegate.model import (
    ANY_MACHINE,
    OWNER,
    PROMPT_MAX,
    Actor,
    AgentName,
    EventKind,
    Field,
    Issue,
    Limits,
    Mode,
    OnDependencyFailure,
    Priority,
    Source,
    Task,
    TaskId,
    is_agent,
    new_task_id,
)
from delegate.preferences.labels import parse_labels
from delegate.preferences.names import branch_problem, repository_url
from delegate.preferences.resolve import DEFAULTS, PreferenceLayer, Preferences, resolve
from delegate.queue.limits import QueueRules
from delegate.queue.waiting import QueueSnapshot, read_snapshot
from delegate.states import TaskState
from delegate.store.database import Connection, Database
from delegate.store.events import NewEvent, append_events
from delegate.store.graph import insert_dependencies
from delegate.store.people import record_audit
from delegate.store.tasks import insert_task, task_of_trigger

log = logging.getLogger(__name__)
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
AGENTS_KNOWN = ", ".join([*AgentName, "acp:<command>"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for one task; None means that the settings or the preferences decide."""

    prompt: str
    agent: str | None = None
    default_agent: str | None = None  # from the caller's settings
    working_directory: str | None = None
    machine: str | None = None
    repository: str | None = None
    base: str | None = None
    mode: Mode | None = None
    title: str | None = None
    issue: Issue | None = None
    labels: tuple[str, ...] = ()
    priority: Priority = Priority.P2
    model: str | None = None
    effort: str | None = None
    permission_mode: str | None = None
    timeout: timedelta | None = None
    max_output: int | None = None
    max_budget_usd: float | None = None
    max_turns: int | None = None
    rerun: bool = False
    depends_on: tuple[TaskId, ...] = ()
    continue_from: TaskId | None = None
    on_dependency_failure: OnDependencyFailure = OnDependencyFailure.CANCEL
    request_key: str | None = None
    runner: str | None = None
    tags: tuple[str, ...] = ()
    submitted_by: TaskId | None = None  # the task whose agent submits it
    by: Actor = OWNER


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedTask:
    task: Task
    is_new: bool


async def submit(database: Database, request: Request, settings: Settings, now: datetime) -> SubmittedTask:
    """Write the task; when this returns, it is on disk. Repeating a request key returns the same task."""
    submitted = await database.write("submit", _make_writer(request, settings, now))
    log_submitted(submitted)
    return submitted


async def submit_and_read_snapshot(
    database: Database, request: Request, settings: Settings, rules: QueueRules, now: datetime
) -> tuple[SubmittedTask, QueueSnapshot]:
    """Submit the task and read why it has not started yet, in one transaction."""
    writing = _make_writer(request, settings, now)

    def write(connection: Connection) -> tuple[SubmittedTask, QueueSnapshot]:
        submitted = writing(connection)
        return submitted, read_snapshot(connection, [submitted.task], rules, now)

    submitted, snapshot = await database.write("submit", write)
    log_submitted(submitted)
    return submitted, snapshot


def _make_writer(request: Request, settings: Settings, now: datetime) -> Callable[[Connection], SubmittedTask]:
    """Check everything that does not need the database, and return the function that writes the task."""
    preferences = resolve_preferences(request, settings)
    task = build_task(request, preferences, settings, now)

    def write(connection: Connection) -> SubmittedTask:
        earlier = find_submitted(connection, request.request_key)
        if earlier is not None:
            if request.submitted_by is not None and earlier.task.submitted_by != request.submitted_by:
                raise KeyUsed(key=request.request_key)
            return earlier
        new = task
        if request.submitted_by is not None:
            new = admit_child(connection, task, request.submitted_by, settings, now)
        return insert_new_task(
            connection,
            resolve_dependencies(connection, new),
            by=request.by,
            trigger_key=request.request_key,
            notes=preferences.notes,
        )

    return write


def find_submitted(connection: Connection, request_key: str | None) -> SubmittedTask | None:
    """Return the task that a submit with this key created. Raise KeyUsed if the key belongs to a retry."""
    earlier = task_of_trigger(connection, request_key) if request_key else None
    if earlier is None:
        return None
    if earlier.retry_of is not None:
        raise KeyUsed(key=request_key)
    return SubmittedTask(task=earlier, is_new=False)


def insert_new_task(
    connection: Connection,
    task: Task,
    *,
    by: Actor | None,
    trigger_key: str | None,
    notes: tuple[str, ...] = (),
    verb: str | None = None,
) -> SubmittedTask:
    """Insert the row of a new task and its first events.

    `by` is None for the task of a schedule; `notes` become warnings in the timeline; `verb` is `retry` or `resume` if
    the task continues another one.
    """
    insert_task(connection, task, trigger_key=trigger_key)
    if task.depends_on:
        insert_dependencies(connection, task)
    data: dict[str, object] = {"agent": task.agent, "priority": task.priority.name}
    if task.retry_of:
        data |= {"retryOf": task.retry_of, "verb": verb}
    if task.depends_on:
        data["dependsOn"] = list(task.depends_on)
    if task.submitted_by and not task.retry_of:
        data["submittedBy"] = task.submitted_by
    if by is not None:
        data |= by.event_data
        details = {} if task.retry_of is None else {"of": task.retry_of}
        record_audit(connection, by, verb or "submit", task.id, now=task.created_at, details=details)
    at = task.created_at
    warnings = [NewEvent(task_id=task.id, kind=EventKind.WARNING, at=at, data={"text": note}) for note in notes]
    append_events(connection, [NewEvent(task_id=task.id, kind=EventKind.SUBMITTED, at=at, data=data), *warnings])
    return SubmittedTask(task=task, is_new=True)


def log_submitted(submitted: SubmittedTask) -> None:
    task = submitted.task
    log.info("task submitted", extra={"task_id": task.id, "agent": task.agent, "new": submitted.is_new})


def resolve_preferences(request: Request, settings: Settings) -> Preferences:
    """Pure: resolve the preferences without the repository's own file, which only a runner can read."""
    for field, agent in (("agent", request.agent), ("defaultAgent", request.default_agent)):
        if agent is not None and not is_agent(agent):
            raise UnknownAgent(field=field, agent=agent, known=AGENTS_KNOWN)
    if request.repository is not None:
        repository_url(request.repository)  # raises an error that names the field
    mode = request.mode
    if mode is None and request.repository is not None and request.working_directory is None:
        mode = Mode.WORKTREE  # there is no directory to work in
    requested = (
        (Field.AGENT, request.agent),
        (Field.MODEL, request.model),
        (Field.EFFORT, request.effort),
        (Field.REPOSITORY, request.repository),
        (Field.BASE, request.base),
        (Field.MODE, mode),
    )
    preferences = resolve_layers(requested, request.labels, _default_agents(request, settings))
    _check_shell_options(request, preferences)
    return preferences


def _default_agents(request: Request, settings: Settings) -> tuple[tuple[Source, str], ...]:
    """Pure: a default never selects the shell for an issue, because anyone may have written its text."""
    relays = None if settings.default_agent == DEFAULTS[Field.AGENT] else settings.default_agent
    agents = ((Source.RELAY, relays), (Source.CALLER, request.default_agent))
    refused = AgentName.SHELL if request.issue is not None else None
    return tuple((source, agent) for source, agent in agents if agent is not None and agent != refused)


def _check_shell_options(request: Request, preferences: Preferences) -> None:
    """Refuse limits that a shell command would ignore, so that the caller does not rely on them."""
    if preferences.agent != AgentName.SHELL:
        return
    options = {
        f"permission mode {request.permission_mode}": request.permission_mode,
        f"a limit of {request.max_turns} turns": request.max_turns,
        f"a limit of {request.max_budget_usd} USD": request.max_budget_usd,
    }
    asked = [option for option, value in options.items() if value is not None]
    problems = [f"{option} is not supported for shell tasks" for option in asked]
    if problems:
        raise PreferenceConflict(problems)


@lru_cache(maxsize=256)  # tasks often arrive in bursts with the same preferences
def resolve_layers(
    requested: tuple[tuple[Field, str | None], ...], labels: tuple[str, ...], agents: tuple[tuple[Source, str], ...]
) -> Preferences:
    """`agents` are the default agents, weakest first."""
    asked = PreferenceLayer(
        source=Source.REQUEST, values={field: value for field, value in requested if value is not None}
    )
    defaults = [PreferenceLayer(source=source, values={Field.AGENT: agent}) for source, agent in agents]
    return resolve([*defaults, *parse_labels(labels), asked])


def build_task(request: Request, preferences: Preferences, settings: Settings, now: datetime) -> Task:
    """Pure: build the task that this request describes, or raise the reason to refuse it."""
    check_text(request)
    task_id = new_task_id()
    return Task(
        id=task_id,
        lineage=task_id,
        state=TaskState.QUEUED,
        prompt=request.prompt,
        agent=preferences.agent,
        limits=Limits(
            timeout=request.timeout or timedelta(milliseconds=settings.task_timeout_ms),
            max_output=request.max_output or settings.max_output_buffer,
            max_budget_usd=request.max_budget_usd,
            max_turns=request.max_turns,
        ),
        created_at=now,
        priority=request.priority,
        model=preferences.model,
        effort=preferences.effort,
        permission_mode=request.permission_mode,
        working_directory=request.working_directory,
        machine=resolve_machine(request, preferences),
        rerun=request.rerun,
        mode=preferences.mode,
        repository=preferences.repository,
        base=preferences.base,
        title=request.title,
        issue=request.issue,
        choices=preferences.choices,
        depends_on=all_dependencies(request.depends_on, request.continue_from),
        continue_from=request.continue_from,
        on_dependency_failure=request.on_dependency_failure,
        created_by=request.by.person_id,
        runner=request.runner,
        tags=tuple(sorted(set(request.tags))),
    )


def check_text(request: Request) -> None:
    if not request.prompt.strip().strip(INVISIBLE).strip():
        raise InvalidField(field="prompt", why="is empty; describe the work to do")
    if len(request.prompt) > PROMPT_MAX:
        raise InvalidField(field="prompt", why=f"has {len(request.prompt):,} characters; the limit is {PROMPT_MAX:,}")
    if "\x00" in request.prompt:
        raise InvalidField(field="prompt", why="contains a NUL character, which cannot be passed to a program")
    titles = {"title": request.title, "issue.title": request.issue.title if request.issue else None}
    for field, title in titles.items():
        if title is not None and (CONTROL.search(title) or not title.strip().strip(INVISIBLE).strip()):
            raise InvalidField(field=field, why="must be one line of visible text")


def resolve_machine(request: Request, preferences: Preferences) -> str:
    """Return the machine whose runners may claim the task: that of its directory, or any machine for a repository."""
    directory, repository = request.working_directory, preferences.repository
    if directory is None and repository is None:
        raise InvalidField(
            field="workingDirectory", why="is missing; give a directory and its machine, or a repository"
        )
    if directory is not None and not directory.startswith("/"):
        raise InvalidField(field="workingDirectory", why="must be an absolute path")
    if directory is not None and repository is not None:
        raise InvalidField(field="repository", why="cannot be combined with workingDirectory; use one of them")
    if preferences.mode is Mode.IN_PLACE:
        _check_in_place(preferences)
    if preferences.base is not None and (problem := branch_problem(preferences.base)):
        raise InvalidField(field="base", why=problem)
    is_path = directory is not None or (repository is not None and repository_url(repository).startswith("/"))
    if is_path and request.machine is None:
        raise InvalidField(field="machine", why="is missing; name the machine that has the directory")
    return request.machine or ANY_MACHINE


def _check_in_place(preferences: Preferences) -> None:
    for field, value in (("repository", preferences.repository), ("base", preferences.base)):
        if value is not None:
            raise InvalidField(field=field, why="applies only to a fresh worktree; use worktree or pr")


@contextmanager
def prefix_fields(prefix: str) -> Iterator[None]:
    """Raise errors with the field's full path in the request."""
    try:
        yield
    except PreferenceConflict as error:
        raise PreferenceConflict([f"{prefix}: {problem}" for problem in error.problems]) from error
    except Refused as error:
        if error.field is None:
            raise
        raise type(error)(**{**error.data, "field": f"{prefix}.{error.field}"}) from error
