"""The repository that the doctor was asked in, seen as a runner would see it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from delegate.config.settings import source_of
from delegate.errors import BadRepoFile, PreferenceConflict
from delegate.model import AgentName, Choice, Field, Source
from delegate.preferences.models import shown_model
from delegate.preferences.repofile import FILE_NAME, SIZE_MAX, RepoFile, parse
from delegate.preferences.resolve import DEFAULTS, PLACES, Preferences, Wish, resolve
from delegate.runner.doctor.case import PATIENCE, Case, aside, counted, told
from delegate.runner.doctor.commands import missing_programs
from delegate.runner.doctor.findings import Finding, Part
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.workspaces.carried import INCLUDE_FILE, INCLUDE_MAX
from delegate.runner.workspaces.repositories import Repository, SetupProblem, locate
from delegate.wire.runners import Assignment

QUIET = {"GIT_OPTIONAL_LOCKS": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    standing: Choice  # the agent of a task that names none, and who says so
    top: Path | None = None  # None: not inside a repository
    repository: Repository | None = None
    why_not: str = ""  # why a task could not work on it
    repofile: RepoFile | None = None  # None: there is none, or none that can be read
    file_problem: str = ""
    wanted: Preferences | None = None  # None: nobody can tell, or nobody can fulfil it
    conflict: str = ""

    @property
    def agent(self) -> str:
        """Who would do the next task in a worktree of this repository, or else anywhere."""
        return self.wanted.agent if self.wanted else self.standing.value


def unseen_checkout(case: Case) -> Checkout:
    """All that is known without a look: the settings."""
    agent = case.settings.default_agent
    if agent == DEFAULTS[Field.AGENT]:
        return Checkout(standing=Choice(field=Field.AGENT, value=agent, source=Source.DEFAULT))
    is_variable = any(case.environ.get(name) for name in source_of("default_agent").variables)
    # The file of this home is its relay's too, unless that is elsewhere; a variable goes along with each task.
    source = Source.CALLER if is_variable or not case.settings.is_local else Source.RELAY
    return Checkout(standing=Choice(field=Field.AGENT, value=agent, source=source))


async def find_checkout(case: Case, git: Git | None) -> Checkout:
    """A look at files and settings; no remote is asked."""
    unseen = unseen_checkout(case)
    top = await aside(lambda: _top(case))
    if top is None:
        return replace(unseen, wanted=resolve([_settings(unseen)]))
    repository, why_not = await _repository(git, top, unseen.agent)
    repofile, file_problem = await aside(lambda: _file(top))
    wanted, conflict = (None, "") if file_problem else _preferences(unseen, repofile)
    return replace(
        unseen,
        top=top,
        repository=repository,
        why_not=why_not,
        repofile=repofile,
        file_problem=file_problem,
        wanted=wanted,
        conflict=conflict,
    )


def _top(case: Case) -> Path | None:
    """A repository of the whole home, as some keep their settings in, is not what tasks are about."""
    inner = Path(os.path.realpath(case.directory))
    top = next((path for path in (inner, *inner.parents) if (path / ".git").exists()), None)
    return None if top in {Path("/"), Path(os.path.realpath(case.environ.get("HOME", "/")))} else top


async def _repository(git: Git | None, top: Path, agent: str) -> tuple[Repository | None, str]:
    if git is None:
        return None, ""
    # What is read of it is the directory alone.
    here = Assignment(
        attempt_id="",
        task_id="",
        fence=0,
        number=1,
        agent=agent,
        prompt="",
        timeout_ms=0,
        max_output=0,
        lineage="",
        working_directory=str(top),
    )
    try:
        return await locate(git, here), ""
    except SetupProblem as problem:
        return None, told(str(problem))


def _file(top: Path) -> tuple[RepoFile | None, str]:
    try:
        with (top / FILE_NAME).open("rb") as file:
            return parse(file.read(SIZE_MAX + 1)), ""
    except FileNotFoundError:
        return None, ""
    except BadRepoFile as problem:
        return None, problem.message
    except OSError as problem:
        return None, f"{FILE_NAME} cannot be read: {(problem.strerror or str(problem)).lower()}"


def _settings(unseen: Checkout) -> Wish:
    return Wish(source=unseen.standing.source, values={Field.AGENT: unseen.standing.value})


def _preferences(unseen: Checkout, repofile: RepoFile | None) -> tuple[Preferences | None, str]:
    wishes = [Wish(source=Source.REPOSITORY_FILE, values=repofile.preferences)] if repofile else []
    try:
        return resolve([_settings(unseen), *wishes]), ""
    except PreferenceConflict as conflict:
        return None, conflict.message


async def examine_checkout(case: Case, git: Git | None, checkout: Checkout) -> list[Finding]:
    if checkout.top is None:
        where = case.place(case.directory)
        return [
            Part.REPOSITORY.note("directory", f"{where} is in no git repository: tasks here work in place"),
            _next_task(checkout),
        ]
    if checkout.why_not:
        fix = "make `git status` work here, or let tasks work in place"
        return [Part.REPOSITORY.problem("repository", checkout.why_not, fix)]
    findings = [await _repository_file(git, checkout), *_programs(case, checkout)]
    findings += await _carried(checkout)
    return [*findings, _next_task(checkout)]


async def _repository_file(git: Git | None, checkout: Checkout) -> Finding:
    if checkout.file_problem:
        fix = "mend that line; docs/delegate-toml.md has every key"
        return Part.REPOSITORY.problem(FILE_NAME, checkout.file_problem, fix)
    if checkout.repofile is None:
        return Part.REPOSITORY.note(FILE_NAME, "there is none: no setup, no checks, the default agent")
    if git is not None and not await _is_committed(git, checkout):
        message = "is not committed as it is here: a task in a worktree reads it from the branch it starts from"
        return Part.REPOSITORY.note(FILE_NAME, message, f"`git commit` and push {FILE_NAME}")
    setup, checks = len(checkout.repofile.setup), len(checkout.repofile.checks)
    return Part.REPOSITORY.ok(FILE_NAME, f"{counted(setup, 'setup command')}, {counted(checks, 'check')}")


async def _is_committed(git: Git, checkout: Checkout) -> bool:
    top = checkout.top
    assert top is not None
    try:
        committed = await git.reach("cat-file", "blob", f"HEAD:{FILE_NAME}", cwd=top, timeout=PATIENCE, extra=QUIET)
    except GitFailed:
        return False
    here = await aside((top / FILE_NAME).read_bytes)
    return committed.replace(b"\r\n", b"\n") == here.replace(b"\r\n", b"\n")


def _programs(case: Case, checkout: Checkout) -> list[Finding]:
    """A command may bring the program of the next one, so only the first is sure to need what is there now."""
    if checkout.repofile is None:
        return []
    setup, checks = checkout.repofile.setup, checkout.repofile.checks
    first = (setup or checks)[:1]
    findings = []
    for command in dict.fromkeys((*setup, *checks)):
        for name in missing_programs(command, case.environ):
            is_sure = command in first
            found = Part.REPOSITORY.problem if is_sure else Part.REPOSITORY.warning
            message = f"`{told(command)}` needs {told(name)}, which is not on PATH"
            findings.append(found("setup" if command in setup else "checks", message, f"install {told(name)}"))
    return findings


async def _carried(checkout: Checkout) -> list[Finding]:
    top = checkout.top
    assert top is not None
    try:
        text = await aside(lambda: _head(top / INCLUDE_FILE))
    except FileNotFoundError:
        return []
    except OSError as problem:
        return [Part.REPOSITORY.warning(INCLUDE_FILE, f"cannot be read: {(problem.strerror or '').lower()}")]
    patterns = [line for line in text.splitlines() if line.strip() and not line.startswith(b"#")]
    return [Part.REPOSITORY.ok(INCLUDE_FILE, counted(len(patterns), "pattern"))]


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(INCLUDE_MAX)


def _next_task(checkout: Checkout) -> Finding:
    if checkout.wanted is None:
        if checkout.file_problem:
            return Part.REPOSITORY.note("next task", "cannot be told before the file can be read")
        return Part.REPOSITORY.problem("next task", checkout.conflict, f"change {FILE_NAME}")
    words = _chosen({choice.field: choice for choice in checkout.wanted.choices})
    standing = checkout.standing
    if checkout.agent != standing.value:
        place = PLACES[standing.source]
        return Part.REPOSITORY.ok("next task", f"{words}; in place: {told(standing.value)} ({place})")
    return Part.REPOSITORY.ok("next task", words)


def _chosen(choices: Mapping[Field, Choice]) -> str:
    """As in "codex (.delegate.toml), effort high (.delegate.toml), its own default model"."""
    said = []
    for one in (Field.AGENT, Field.MODEL, Field.EFFORT):
        if one in choices:
            value = shown_model(choices[one].value) if one is Field.MODEL else choices[one].value
            label = "" if one is Field.AGENT else f"{one} "
            said.append(f"{label}{told(value)} ({PLACES[choices[one].source]})")
    if Field.MODEL not in choices and choices[Field.AGENT].value in {AgentName.CLAUDE, AgentName.CODEX}:
        said.append("its own default model")
    return ", ".join(said)
