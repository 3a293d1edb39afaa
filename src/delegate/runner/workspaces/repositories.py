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
from delegate.preferences.remotes import RemoteUnclear, choose_remotes
from delegate.runner.git.bare import read_small
from delegate.runner.git.program import Git, GitFailed

READ_TIMEOUT = timedelta(minutes=1)  # the checkout may be on a slow disk
KEY_NAME_MAX = 40  # characters of a repository's name in the name of its mirror
PLAIN_HEADER = re.compile(r"\[([A-Za-z0-9-]+)(?: \"([A-Za-z0-9._/-]+)\")?\]")
PLAIN_PAIR = re.compile(r"\t([A-Za-z0-9-]+) = ([^\"\\;#\s]+(?: [^\"\\;#\s]+)*)")
BRANCH_HEAD = "ref: refs/heads/"
HELPER_URL = re.compile(r"[A-Za-z0-9+.-]+::")  # a URL that makes git run a helper program


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The branch and commit that the work starts from and is compared with."""

    branch: str
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    key: str  # names the mirror on disk
    url: str  # fetched from, as the user wrote it
    name: str  # owner/name, or the name of the folder
    source: Path | None = None  # the user's checkout, if the task came from one
    fork: str | None = None  # the URL that is pushed to, if it is another one

    @property
    def push_url(self) -> str:
        return self.fork or self.url

    def folder(self, directory: str | None) -> str | None:
        """The path of a directory in the checkout from its top; None for the top, or outside."""
        if directory is None or self.source is None:
            return None
        path = Path(os.path.realpath(directory))
        is_below = path != self.source and path.is_relative_to(self.source)
        return str(path.relative_to(self.source)) if is_below else None


def repository(url: str, source: Path | None = None, push_url: str | None = None) -> Repository:
    name = repository_name(url)
    fork = None if push_url == url else push_url
    readable = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:KEY_NAME_MAX] or "repository"
    urls = url if fork is None else f"{url}\n{fork}"
    digest = hashlib.sha256(urls.encode(errors="surrogateescape")).hexdigest()[:12]
    return Repository(key=f"{readable.lower()}-{digest}", url=url, name=name, source=source, fork=fork)


async def locate(git: Git, name: str | None, working_directory: str | None) -> Repository:
    """The repository with this name, or without a name the one that contains the working directory."""
    if name is not None:
        return await _locate_named(git, name)
    if working_directory is None:
        raise SetupProblem("the task names neither a repository nor a directory in one; use --repository")
    return await _locate_checkout(git, checkout_above(Path(working_directory)))


async def _locate_named(git: Git, text: str) -> Repository:
    try:
        url = repository_url(text)
    except InvalidField as problem:
        raise SetupProblem(problem.message) from problem
    if not url.startswith("/"):
        return repository(url)
    source = _checkout_at(Path(url))
    if source is not None:
        return await _locate_checkout(git, source)
    await _settings(git, Path(url), f"--git-dir={url}")
    return repository(url)


def _checkout_at(path: Path) -> Path | None:
    """The checkout that a task names by its path; None when it may be a bare repository."""
    if path.is_symlink():
        raise SetupProblem(f"{path} is a symbolic link; name the repository itself")
    if path.is_dir() and not has_repository(path):
        return None
    return checkout_above(path)


def checkout_above(directory: Path) -> Path:
    """The top directory of the checkout that contains the directory."""
    if not directory.is_dir():
        raise SetupProblem(f"{directory} is not a directory on this machine")
    inner = Path(os.path.realpath(directory))
    top = next(filter(has_repository, (inner, *inner.parents)), None)
    if top is None and (inner / "HEAD").is_file() and (inner / "objects").is_dir():
        raise SetupProblem(f"{directory} is a bare repository: name it with `--repository {directory}`")
    empty = next((path / ".git" for path in (inner, *inner.parents) if (path / ".git").exists()), None)
    if top is None and empty is not None:
        raise SetupProblem(
            f"{directory} is not in a git repository: {empty} is an empty directory, which a killed program may have "
            f"left. Remove it with `rmdir {empty}`, or use --repository"
        )
    if top is None:
        raise SetupProblem(
            f"{directory} is not in a git repository. Use --repository, or leave out --pr to work in place"
        )
    if top in {Path(os.path.realpath(Path.home())), Path("/")}:
        raise SetupProblem(f"{top} itself cannot be the repository of a task; name a project's repository")
    return top


def has_repository(directory: Path) -> bool:
    """Whether the directory has a `.git` that is not empty; git passes over an empty one too."""
    entry = directory / ".git"
    try:
        return entry.is_file() or any(entry.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # git says why it cannot be read
        return True


async def _locate_checkout(git: Git, source: Path) -> Repository:
    """The remotes that git would use in the checkout; without any, the checkout itself."""
    settings = _plain_settings(source) or await _settings(git, source)
    branch = await _current_branch(git, source)
    try:
        urls = choose_remotes(settings, branch, git.push_default)
    except RemoteUnclear as unclear:
        choice = f"choose one with `git config branch.{branch}.remote NAME`, or " if branch else ""
        raise SetupProblem(f"{source} {unclear}: {choice}name a repository with --repository") from unclear
    if urls is None:
        return repository(str(source), source)
    return repository(_address(source, urls.fetch), source, _address(source, urls.push))


async def _current_branch(git: Git, source: Path) -> str | None:
    head = read_small(source / ".git" / "HEAD").strip()
    if not head:  # a linked worktree
        try:
            answer = await git.run_remote("symbolic-ref", "-q", "HEAD", cwd=source, timeout=READ_TIMEOUT)
        except GitFailed:
            return None
        head = f"ref: {answer.decode(errors='surrogateescape').strip()}"
    return head.removeprefix(BRANCH_HEAD) if head.startswith(BRANCH_HEAD) else None


def _address(source: Path, url: str) -> str:
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
        lines = [line.strip() for line in complaint.splitlines() if line.strip()]
        if "dubious ownership" in complaint:  # git's advice follows; a runner reads the user's settings when it starts
            return f"{'; '.join(lines)}; then restart Delegate with `delegate down` and `delegate up`"
        return next(iter(lines), failed.why)
    return "its settings cannot be read"


class SetupProblem(Exception):
    """The attempt cannot start; the text is a sentence for the user."""
