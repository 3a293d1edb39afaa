"""Refuses a task whose directory is missing or not in a repository, if the directory is on the relay's own machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from delegate.errors import InvalidField
from delegate.intake.from_wire import request_of
from delegate.intake.submit import prefix_fields, resolve_preferences
from delegate.model import Mode
from delegate.relay.requests import Relay
from delegate.store.database import Connection
from delegate.store.schedules import schedule_of_trigger
from delegate.store.tasks import task_of_trigger
from delegate.wire.tasks import SubmitRequest

GOOD_SECONDS = 1.0  # for which a good directory is not checked again: submits come in bursts
GOOD_MAX = 1_000
LOOK_TIMEOUT = 2.0  # seconds; a network disk that does not respond is the runner's problem


async def check_location(relay: Relay, body: SubmitRequest) -> None:
    """A task that waits for others is not checked: they may create its directory."""
    if relay.machine is None or body.machine != relay.machine or body.depends_on or body.continue_from:
        return
    location = (body.working_directory, body.repository, body.pr, body.worktree, *body.labels)
    now = anyio.current_time()
    if now - relay.good_locations.get(location, float("-inf")) < GOOD_SECONDS:
        return
    mode = resolve_preferences(request_of(body), relay.settings).mode
    problem: InvalidField | None = None
    with anyio.move_on_after(LOOK_TIMEOUT):
        look = partial(find_location_problem, body.working_directory, body.repository, mode)
        problem = await to_thread.run_sync(look, abandon_on_cancel=True, limiter=relay.location_checks)
    if problem is None:
        if len(relay.good_locations) >= GOOD_MAX:
            relay.good_locations.clear()
        relay.good_locations[location] = now
    if problem is not None and not await relay.database.read(partial(_is_key_known, key=body.request_key)):
        raise problem


async def check_locations(relay: Relay, bodies: Sequence[SubmitRequest], prefix: str) -> None:
    for number, body in enumerate(bodies):
        with prefix_fields(f"{prefix}.{number}"):
            await check_location(relay, body)


def find_location_problem(directory: str | None, repository: str | None, mode: Mode) -> InvalidField | None:
    """The same rules as those of the runner, which also asks git."""
    if directory is None:
        is_path = repository is not None and repository.startswith("/")
        why = _directory_problem(repository or "") if is_path else None
        return None if why is None else InvalidField(field="repository", why=why)
    why = _directory_problem(directory)
    if why is None and mode is not Mode.IN_PLACE:
        why = _repository_problem(directory)
    return None if why is None else InvalidField(field="workingDirectory", why=why)


def _directory_problem(path: str) -> str | None:
    try:
        found = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} does not exist"
    except OSError:  # the runner reports it
        return None
    return None if stat.S_ISDIR(found.st_mode) else f"{path} is not a directory"


def _repository_problem(directory: str) -> str | None:
    inner = Path(os.path.realpath(directory))
    if any(os.path.lexists(path / ".git") for path in (inner, *inner.parents)):
        return None
    if (inner / "HEAD").is_file() and (inner / "objects").is_dir():
        return f"{directory} is a bare repository; use `--repository {directory}` instead"
    advice = "use `--repository`, or leave out `--pr` and `--worktree` to work in place"
    return f"{directory} is not in a git repository; {advice}"


def _is_key_known(connection: Connection, key: str | None) -> bool:
    """A repeated request gets the same response, whatever has happened to its directory."""
    if key is None:
        return False
    return task_of_trigger(connection, key) is not None or schedule_of_trigger(connection, key) is not None
