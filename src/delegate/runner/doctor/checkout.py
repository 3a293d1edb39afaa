"""Examines the repository in the current directory, as a runner would see it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from delegate.config.settings import setting_spec
from delegate.errors import BadRepoFile, PreferenceConflict
from delegate.model import AgentName, Choice, Field, Source
from delegate.preferences.models import short_model_name
from delegate.preferences.repofile import FILE_NAME, SIZE_MAX, RepoFile, parse
from delegate.preferences.resolve import DEFAULTS, SOURCE_NAMES, PreferenceLayer, Preferences, resolve
from delegate.runner.doctor.commands import missing_programs
from delegate.runner.doctor.context import (
    EXAMINATION_TIMEOUT,
    DoctorContext,
    pluralize,
    quote_line,
    run_in_daemon_thread,
)
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.git.program import Git, GitFailed
from delegate.runner.workspaces.repositories import Repository, SetupProblem, has_repository, locate
from delegate.runner.workspaces.untracked_files import INCLUDE_FILE, INCLUDE_MAX

NO_OPTIONAL_LOCKS = {"GIT_OPTIONAL_LOCKS": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    default_choice: Choice  # the agent of a task that names none, and what chose it
    top: Path | None = None  # None: not inside a repository
    repository: Repository | None = None
    why_not: str = ""  # why a task could not work on it
    repofile: RepoFile | None = None  # None: missing or unreadable
    file_problem: str = ""
    preferences: Preferences | None = None  # None: the file is unreadable, or its preferences conflict
    conflict: str = ""

    @property
    def agent(self) -> str:
        """The agent of the next task in a worktree of this repository, else the default agent."""
        return self.preferences.agent if self.preferences else self.default_choice.value


def default_checkout(context: DoctorContext) -> Checkout:
    """What the settings alone decide, without reading any file."""
    agent = context.settings.default_agent
    if agent == DEFAULTS[Field.AGENT]:
        return Checkout(default_choice=Choice(field=Field.AGENT, value=agent, source=Source.DEFAULT))
    is_variable = any(context.environ.get(name) for name in setting_spec("default_agent").variables)
    # A local relay reads the settings file of this home too; a variable is sent along with each task.
    source = Source.CALLER if is_variable or not context.settings.is_local else Source.RELAY
    return Checkout(default_choice=Choice(field=Field.AGENT, value=agent, source=source))


async def find_checkout(context: DoctorContext, git: Git | None) -> Checkout:
    """Reads files and settings; contacts no remote."""
    default = default_checkout(context)
    top = await run_in_daemon_thread(lambda: _top(context))
    if top is None:
        return replace(default, preferences=resolve([_settings_layer(default)]))
    repository, why_not = await _repository(git, top)
    repofile, file_problem = await run_in_daemon_thread(lambda: _read_repofile(top))
    preferences, conflict = (None, "") if file_problem else _preferences(default, repofile)
    return replace(
        default,
        top=top,
        repository=repository,
        why_not=why_not,
        repofile=repofile,
        file_problem=file_problem,
        preferences=preferences,
        conflict=conflict,
    )


def _top(context: DoctorContext) -> Path | None:
    """Skips a repository in the home directory itself (dotfiles): tasks do not work on it."""
    inner = Path(os.path.realpath(context.directory))
    top = next(filter(has_repository, (inner, *inner.parents)), None)
    return None if top in {Path("/"), Path(os.path.realpath(context.environ.get("HOME", "/")))} else top


async def _repository(git: Git | None, top: Path) -> tuple[Repository | None, str]:
    if git is None:
        return None, ""
    try:
        return await locate(git, None, str(top)), ""
    except SetupProblem as problem:
        return None, quote_line(str(problem))


def _read_repofile(top: Path) -> tuple[RepoFile | None, str]:
    try:
        if not stat.S_ISREG(kind := (top / FILE_NAME).lstat().st_mode):  # opening a named pipe would wait for ever
            what = "a symbolic link" if stat.S_ISLNK(kind) else "not a regular file"
            return None, f"{FILE_NAME} is {what}; a task reads only a file that is committed under this name"
        with (top / FILE_NAME).open("rb") as file:
            return parse(file.read(SIZE_MAX + 1)), ""
    except FileNotFoundError:
        return None, ""
    except BadRepoFile as problem:
        return None, problem.message
    except OSError as problem:
        return None, f"{FILE_NAME} cannot be read: {(problem.strerror or str(problem)).lower()}"


def _settings_layer(default: Checkout) -> PreferenceLayer:
    return PreferenceLayer(source=default.default_choice.source, values={Field.AGENT: default.default_choice.value})


def _preferences(default: Checkout, repofile: RepoFile | None) -> tuple[Preferences | None, str]:
    layers = [PreferenceLayer(source=Source.REPOSITORY_FILE, values=repofile.preferences)] if repofile else []
    try:
        return resolve([_settings_layer(default), *layers]), ""
    except PreferenceConflict as conflict:
        return None, conflict.message


async def examine_checkout(context: DoctorContext, git: Git | None, checkout: Checkout) -> list[Finding]:
    if checkout.top is None:
        where = context.display_path(context.directory)
        return [
            DoctorSection.REPOSITORY.note("directory", f"{where} is not in a git repository: tasks here work in place"),
            _next_task(checkout),
        ]
    if checkout.why_not:
        fix = "make `git status` work here, or run tasks in place"
        return [DoctorSection.REPOSITORY.problem("repository", checkout.why_not, fix)]
    findings = [await _repository_file(git, checkout), *_check_programs(context, checkout)]
    findings += await _check_include_file(checkout)
    return [*findings, _next_task(checkout)]


async def _repository_file(git: Git | None, checkout: Checkout) -> Finding:
    if checkout.file_problem:
        fix = "fix that line; docs/delegate-toml.md lists every key"
        return DoctorSection.REPOSITORY.problem(FILE_NAME, checkout.file_problem, fix)
    if checkout.repofile is None:
        return DoctorSection.REPOSITORY.note(FILE_NAME, "not found: no setup, no checks, the default agent")
    if git is not None and not await _is_committed(git, checkout):
        message = "has uncommitted changes: a task in a worktree reads it from the branch it starts from"
        return DoctorSection.REPOSITORY.note(FILE_NAME, message, f"`git commit` and push {FILE_NAME}")
    setup, checks = len(checkout.repofile.setup), len(checkout.repofile.checks)
    return DoctorSection.REPOSITORY.ok(FILE_NAME, f"{pluralize(setup, 'setup command')}, {pluralize(checks, 'check')}")


async def _is_committed(git: Git, checkout: Checkout) -> bool:
    top = checkout.top
    assert top is not None
    try:
        committed = await git.run_remote(
            "cat-file", "blob", f"HEAD:{FILE_NAME}", cwd=top, timeout=EXAMINATION_TIMEOUT, extra=NO_OPTIONAL_LOCKS
        )
    except GitFailed:
        return False
    here = await run_in_daemon_thread((top / FILE_NAME).read_bytes)
    return committed.replace(b"\r\n", b"\n") == here.replace(b"\r\n", b"\n")


def _check_programs(context: DoctorContext, checkout: Checkout) -> list[Finding]:
    """Only the first command surely needs its program now: a command may install the program of the next one."""
    if checkout.repofile is None:
        return []
    setup, checks = checkout.repofile.setup, checkout.repofile.checks
    first = (setup or checks)[:1]
    findings = []
    for command in dict.fromkeys((*setup, *checks)):
        for name in missing_programs(command, context.environ):
            is_sure = command in first
            found = DoctorSection.REPOSITORY.problem if is_sure else DoctorSection.REPOSITORY.warning
            message = f"`{quote_line(command)}` needs {quote_line(name)}, which is not on PATH"
            findings.append(found("setup" if command in setup else "checks", message, f"install {quote_line(name)}"))
    return findings


async def _check_include_file(checkout: Checkout) -> list[Finding]:
    top = checkout.top
    assert top is not None
    try:
        text = await run_in_daemon_thread(lambda: _head(top / INCLUDE_FILE))
    except FileNotFoundError:
        return []
    except OSError as problem:
        return [DoctorSection.REPOSITORY.warning(INCLUDE_FILE, f"cannot be read: {(problem.strerror or '').lower()}")]
    patterns = [line for line in text.splitlines() if line.strip() and not line.startswith(b"#")]
    return [DoctorSection.REPOSITORY.ok(INCLUDE_FILE, pluralize(len(patterns), "pattern"))]


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(INCLUDE_MAX)


def _next_task(checkout: Checkout) -> Finding:
    if checkout.preferences is None:
        if checkout.file_problem:
            return DoctorSection.REPOSITORY.note("next task", f"unknown until {FILE_NAME} can be read")
        return DoctorSection.REPOSITORY.problem("next task", checkout.conflict, f"change {FILE_NAME}")
    text = _describe_choices({choice.field: choice for choice in checkout.preferences.choices})
    default_choice = checkout.default_choice
    if checkout.agent != default_choice.value:
        source = SOURCE_NAMES[default_choice.source]
        return DoctorSection.REPOSITORY.ok(
            "next task", f"{text}; in place: {quote_line(default_choice.value)} ({source})"
        )
    return DoctorSection.REPOSITORY.ok("next task", text)


def _describe_choices(choices: Mapping[Field, Choice]) -> str:
    """As in "codex (.delegate.toml), effort high (.delegate.toml), its own default model"."""
    parts = []
    for one in (Field.AGENT, Field.MODEL, Field.EFFORT):
        if one in choices:
            value = short_model_name(choices[one].value) if one is Field.MODEL else choices[one].value
            label = "" if one is Field.AGENT else f"{one} "
            parts.append(f"{label}{quote_line(value)} ({SOURCE_NAMES[choices[one].source]})")
    if Field.MODEL not in choices and choices[Field.AGENT].value in {AgentName.CLAUDE, AgentName.CODEX}:
        parts.append("its own default model")
    return ", ".join(parts)
