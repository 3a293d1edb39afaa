"""Finds the repository that a task works on, without touching the user's checkout."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from delegate.config.values import mask_login
from delegate.errors import InvalidField
from delegate.preferences.names import repository_name, repository_url
from delegate.runner.git.program import Git, GitFailed

READ_TIMEOUT = timedelta(minutes=1)  # the checkout may be on a slow disk
KEY_NAME_MAX = 40  # characters of a repository's name in the name of its mirror
PLAIN_HEADER = re.compile(r"\[([A-Za-z0-9-]+)(?: \"([A-Za-z0-9._/-]+)\")?\]")
PLAIN_PAIR = re.compile(r"\t([A-Za-z0-9-]+) = ([^\"\\;#\s]+(?: [^\"\\;#\s]+)*)")
HELPER_URL = re.compile(r"[A-Za-z0-9+.-]+::")  # a URL that makes git run a helper program


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    key: str  # names the mirror on disk
    url: str  # fetched from and pushed to, as the user wrote it
    name: str  # owner/name, or the name of the folder
    source: Path | None = None  # the user's checkout, if the task came from one


def repository(url: str, source: Path | None = None) -> Repository:
    name = repository_name(url)
    readable = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:KEY_NAME_MAX] or "repository"
    digest = hashlib.sha256(url.encode(errors="surrogateescape")).hexdigest()[:12]
    return Repository(key=f"{readable.lower()}-{digest}", url=url, name=name, source=source)


async def locate(git: Git, name: str | None, working_directory: str | None) -> Repository:
    """The repository with this name, or without a name the one that contains the working directory."""
    if name is not None:
        return await _locate_named(git, name)
    if working_directory is None:
        raise SetupProblem("the task names neither a repository nor a directory in one; use --repository")
    source = checkout_above(Path(working_directory))
    return repository(await _address(git, source), source)


async def _locate_named(git: Git, text: str) -> Repository:
    try:
        url = repository_url(text)
    except InvalidField as problem:
        raise SetupProblem(problem.message) from problem
    if not url.startswith("/"):
        return repository(url)
    source = _checkout_at(Path(url))
    await _settings(git, source or Path(url), *([] if source else [f"--git-dir={url}"]))
    return repository(url, source)


def _checkout_at(path: Path) -> Path | None:
    """The checkout that a task names by its path; None when it may be a bare repository."""
    if path.is_symlink():
        raise SetupProblem(f"{path} is a symbolic link; name the repository itself")
    if path.is_dir() and not (path / ".git").exists():
        return None
    return checkout_above(path)


def checkout_above(directory: Path) -> Path:
    """The top directory of the checkout that contains the directory."""
    if not directory.is_dir():
        raise SetupProblem(f"{directory} is not a directory on this machine")
    inner = Path(os.path.realpath(directory))
    top = next((path for path in (inner, *inner.parents) if (path / ".git").exists()), None)
    if top is None and (inner / "HEAD").is_file() and (inner / "objects").is_dir():
        raise SetupProblem(f"{directory} is a bare repository: name it with --repository")
    if top is None:
        raise SetupProblem(
            f"{directory} is not in a git repository. Use --repository, or leave out --pr to work in place"
        )
    if top in {Path(os.path.realpath(Path.home())), Path("/")}:
        raise SetupProblem(f"{top} itself cannot be the repository of a task; name a project's repository")
    return top


async def _address(git: Git, source: Path) -> str:
    """The URL of the remote `origin`, or of the only remote, or else the path of the checkout."""
    remotes: dict[str, str] = {}
    for name, value in _plain_settings(source) or await _settings(git, source):
        found = re.fullmatch(r"remote\.(.+)\.url", name, re.DOTALL)
        if found:
            remotes.setdefault(found[1], value)
    url = remotes.get("origin") or (next(iter(remotes.values())) if len(remotes) == 1 else str(source))
    if url.startswith("-") or not url.isprintable() or HELPER_URL.match(url):
        raise SetupProblem(f"{mask_login(ascii(url))}, the remote of {source}, is not a URL that Delegate can use")
    return _absolute(source, url)


def _absolute(source: Path, url: str) -> str:
    is_relative = not url.startswith("/") and ":" not in url
    return os.path.normpath(source / url) if is_relative else url


def _plain_settings(source: Path) -> list[tuple[str, str]] | None:
    """Parses the configuration without git; None when it is not in the simple form that git writes."""
    directory, config = source / ".git", source / ".git" / "config"
    try:
        owners = {source.stat().st_uid, directory.lstat().st_uid, config.lstat().st_uid}
        lines = config.read_text().splitlines()
    except (OSError, ValueError):
        return None
    if owners != {os.geteuid()} or not (directory / "HEAD").is_file():
        return None
    settings, section = [], ""
    for line in lines:
        if header := PLAIN_HEADER.fullmatch(line):
            section = f"{header[1].lower()}.{header[2]}" if header[2] else header[1].lower()
        elif pair := PLAIN_PAIR.fullmatch(line):
            settings.append((f"{section}.{pair[1].lower()}", pair[2]))
        else:
            return None
    return None if any(name.startswith(("include", "extensions")) for name, _ in settings) else settings


async def _settings(git: Git, source: Path, *where: str) -> list[tuple[str, str]]:
    """The repository's own settings; git applies its usual checks, such as for a repository of another user."""
    # With a broken `.git`, git must not search the parent directories for another repository.
    extra = {"GIT_CEILING_DIRECTORIES": str(source.parent)}
    arguments = (*where, "config", "--local", "--includes", "--list", "-z")
    try:
        listed = await git.run_remote(*arguments, cwd=source, timeout=READ_TIMEOUT, extra=extra)
    except GitFailed as failed:
        raise SetupProblem(
            f"{source} cannot be used as a repository: {await _failure_reason(git, source, extra)}"
        ) from failed
    pairs = (entry.partition("\n") for entry in listed.decode(errors="surrogateescape").split("\0") if entry)
    return [(name, value) for name, _, value in pairs]


async def _failure_reason(git: Git, source: Path, extra: Mapping[str, str]) -> str:
    try:
        await git.run_remote("rev-parse", "--git-dir", cwd=source, timeout=READ_TIMEOUT, extra=extra)
    except GitFailed as failed:
        complaint = failed.done.stderr.decode(errors="replace") if failed.done else failed.why
        return next(iter(complaint.splitlines()), failed.why)  # advice follows the first line
    return "its settings cannot be read"


class SetupProblem(Exception):
    """The attempt cannot start; the text is a sentence for the user."""
