"""Maintains mirrors: local copies of repositories that all runners of a home share."""

from __future__ import annotations

import difflib
import logging
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio

from delegate.config.home_files import make_directory
from delegate.config.paths import Home
from delegate.config.values import mask_login
from delegate.errors import BadRepoFile, excerpt
from delegate.failpoints import failpoint
from delegate.preferences.names import branch_problem, repository_name
from delegate.preferences.repofile import FILE_NAME, RepoFile, parse
from delegate.runner.git.bare import (
    COMMIT,
    SHA256_CONFIG,
    is_directory,
    read_refs,
    read_small,
    replace_file,
    write_bare,
    write_refs,
)
from delegate.runner.git.program import NO_REPOSITORY, Git, GitFailed
from delegate.runner.removal import remove
from delegate.runner.workspaces.locks import hold_lock
from delegate.runner.workspaces.repositories import Base, Repository, SetupProblem
from delegate.runner.workspaces.scratch import copy_shallow, scratch_mirror

log = logging.getLogger(__name__)

FETCH_TIMEOUT = timedelta(minutes=15)
CLONE_TIMEOUT = timedelta(hours=2)  # for many gigabytes over a home connection
QUERY_TIMEOUT = timedelta(minutes=1)
HEADS = "refs/heads/"
FORK_HEADS = "refs/delegate/fork/"  # the branches of the fork that is pushed to
REMOTE_HEAD = "refs/delegate/head"  # where the repository's HEAD was at the last fetch
UNKNOWN_BRANCH = "not-known"  # in the HEAD of a mirror whose default branch is unknown
USUAL_BRANCHES = ("main", "master")
PACKS_MAX = 50  # git's own limit for `gc --auto`
LOOSE_MAX = 27  # files in one of 256 object directories: 6,700 in all, git's own limit
OTHER_HASH = "mismatched algorithms"  # git's error when the remote has SHA-256 and the repository SHA-1
SUGGESTIONS_MAX = 3
TIDY_TIMEOUT = 1.0  # seconds
REPOFILES_MAX = 32  # in memory
LINK_MODE = b"120000 "


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    path: Path
    repository: Repository
    heads: Mapping[str, str]  # each branch and its commit after the fetch
    default: str | None  # the branch that the repository's HEAD names
    pushed_heads: Mapping[str, str]  # the branches where tasks push to: the same, or those of the fork


def mirror_of(home: Home, key: str) -> Path:
    """The mirror of the repository with that key."""
    return home.mirrors / f"{key}.git"


def pushed_ref(repository: Repository, branch: str) -> str:
    """The ref in the mirror for a branch that a task pushes."""
    return f"{FORK_HEADS if repository.fork else HEADS}{branch}"


def lock_of(mirror: Path) -> Path:
    """The lock to hold while changing the mirror."""
    return mirror.with_suffix(".lock")


def is_mirror(path: Path) -> bool:
    """Whether it exists; a link in its place would let git write elsewhere."""
    return all(map(is_directory, (path, path / "objects", path / "objects" / "info", path / "objects" / "pack")))


async def fetch_mirror(git: Git, home: Home, repository: Repository) -> Mirror:
    """Fetches the mirror; creates it when it is missing, and recreates it when it is damaged."""
    make_directory(home.mirrors)
    path = mirror_of(home, repository.key)
    async with _lock_mirror(path, repository):
        if not is_mirror(path):
            return await _clone(git, path, repository)
        os.utime(path)  # a sweep removes mirrors that were not used for long
        try:
            has_head = await _fetch(git, path, repository, FETCH_TIMEOUT)
        except GitFailed as failed:
            return await _after_failure(git, path, repository, failed)
        return await _read(git, path, repository, has_head=has_head)


async def repair_mirror(git: Git, home: Home, repository: Repository) -> bool:
    """Recreates the mirror if it is damaged; False when it is intact."""
    path = mirror_of(home, repository.key)
    async with _lock_mirror(path, repository):
        if is_mirror(path) and await _is_intact(git, path):
            return False
        await _clone(git, path, repository)
    return True


def _lock_mirror(path: Path, repository: Repository) -> AbstractAsyncContextManager[None]:
    message = f"another runner has been fetching {repository.name} for hours; retry when it is done"
    return hold_lock(lock_of(path), CLONE_TIMEOUT.total_seconds(), message)


async def _fetch(git: Git, path: Path, repository: Repository, timeout: timedelta) -> bool:
    """Returns whether the remote has a HEAD; one without, or with a dangling one, can be fetched too."""
    heads, has_head = f"+{HEADS}*:{HEADS}*", True
    try:
        await _fetch_refs(git, path, repository.url, timeout, heads, f"+HEAD:{REMOTE_HEAD}")
    except GitFailed as failed:
        if "remote ref HEAD" not in failed.why:
            raise
        await _fetch_refs(git, path, repository.url, timeout, heads)
        has_head = False
    if repository.fork is not None:
        try:
            await _fetch_refs(git, path, repository.fork, timeout, f"+{HEADS}*:{FORK_HEADS}*")
        except GitFailed as failed:
            raise _unreachable_problem(repository.fork, failed) from failed
    return has_head


async def _fetch_refs(git: Git, path: Path, url: str, timeout: timedelta, *refspecs: str) -> None:
    quiet = ("-q", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--prune", "--update-shallow")
    with scratch_mirror(git, path) as scratch:
        await scratch.run_remote("fetch", *quiet, "--", url, *refspecs, timeout=timeout)
        copy_shallow(scratch.directory, path)
        refs = read_refs(scratch.directory)
    if refs != read_refs(path):
        write_refs(path, refs)


async def _after_failure(git: Git, path: Path, repository: Repository, failed: GitFailed) -> Mirror:
    """Tells an unreachable remote from a mirror that a killed git or a bad disk has damaged."""
    await _query_remote(git, repository, "HEAD")
    log.warning("mirror not fetched", extra={"mirror": path.name, "why": mask_login(failed.why)})
    await anyio.to_thread.run_sync(_remove_leftovers, path)
    if await _is_intact(git, path, "--connectivity-only"):
        try:
            has_head = await _fetch(git, path, repository, FETCH_TIMEOUT)
        except GitFailed as retry_failed:
            raise _unreachable_problem(repository.url, retry_failed) from retry_failed
        return await _read(git, path, repository, has_head=has_head)
    return await _clone(git, path, repository)


async def _is_intact(git: Git, path: Path, *how: str) -> bool:
    try:
        with scratch_mirror(git, path) as scratch:
            await scratch.git("fsck", "--no-dangling", "--no-progress", *how)
    except GitFailed as failed:
        log.warning("mirror damaged", extra={"mirror": path.name, "why": failed.why})
        return False
    return True


def _remove_leftovers(path: Path) -> None:
    """Removes what a killed git left; we hold the mirror's lock, so the files are not in use."""
    for found in (*path.glob("*.lock"), *path.glob("refs/**/*.lock"), *path.glob("objects/**/tmp_*")):
        remove(found.parent, found.name)


async def _clone(git: Git, path: Path, repository: Repository) -> Mirror:
    """Clones into a temporary directory and renames it, so that a mirror is complete or missing."""
    for leftover in path.parent.glob(f".{repository.key}.*"):
        await anyio.to_thread.run_sync(remove, leftover.parent, leftover.name)
    fresh = path.parent / f".{repository.key}.{secrets.token_hex(4)}"
    make_directory(fresh)
    write_bare(fresh, branch=UNKNOWN_BRANCH, alternates=b"")
    failpoint("mirror.made")
    try:
        has_head = await _fetch_first(git, fresh, repository)
    except GitFailed as failed:
        await anyio.to_thread.run_sync(remove, fresh.parent, fresh.name)
        raise _unreachable_problem(repository.url, failed) from failed
    failpoint("mirror.fetched")
    await anyio.to_thread.run_sync(_replace, path, fresh)
    failpoint("mirror.placed")
    return await _read(git, path, repository, has_head=has_head)


async def _fetch_first(git: Git, fresh: Path, repository: Repository) -> bool:
    try:
        return await _fetch(git, fresh, repository, CLONE_TIMEOUT)
    except GitFailed as failed:
        if OTHER_HASH not in failed.why:
            raise
    (fresh / "config").write_text(SHA256_CONFIG)
    return await _fetch(git, fresh, repository, CLONE_TIMEOUT)


def _replace(path: Path, fresh: Path) -> None:
    if os.path.lexists(path):
        old = path.parent / f"{fresh.name}-old"  # the next sweep removes this name
        path.rename(old)
        fresh.rename(path)
        remove(old.parent, old.name)
    else:
        fresh.rename(path)


async def _read(git: Git, path: Path, repository: Repository, *, has_head: bool) -> Mirror:
    refs = read_refs(path)
    heads = _branches(refs, HEADS)
    pushed_heads = heads if repository.fork is None else _branches(refs, FORK_HEADS)
    tip = refs.get(REMOTE_HEAD) if has_head else None
    default = await _find_default_branch(
        git, path, repository, [branch for branch, commit in heads.items() if commit == tip]
    )
    return Mirror(path=path, repository=repository, heads=heads, default=default, pushed_heads=pushed_heads)


def _branches(refs: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): commit for name, commit in refs.items() if name.startswith(prefix)}


async def _find_default_branch(git: Git, path: Path, repository: Repository, tied: list[str]) -> str | None:
    """A fetch shows the commit of the remote's HEAD, not its branch; usually that is enough to skip a query."""
    remembered = read_small(path / "HEAD").strip().removeprefix(f"ref: {HEADS}")
    if remembered in tied:
        return remembered
    if not tied:
        return None
    named = tied[0] if len(tied) == 1 else await _query_default_branch(git, repository)
    if named in tied:
        replace_file(path / "HEAD", f"ref: {HEADS}{named}\n".encode())
        return named
    return None


async def _query_default_branch(git: Git, repository: Repository) -> str | None:
    answer = await _query_remote(git, repository, "HEAD")
    found = re.search(rf"^ref: {HEADS}(.*)\tHEAD$", answer, re.MULTILINE)
    return found[1] if found else None


async def _query_remote(git: Git, repository: Repository, *patterns: str) -> str:
    arguments = ("ls-remote", "-q", "--symref", "--", repository.url, *patterns)
    try:
        answer = await git.run_remote(*arguments, cwd=Path("/"), timeout=QUERY_TIMEOUT, extra=NO_REPOSITORY)
    except GitFailed as failed:
        raise _unreachable_problem(repository.url, failed) from failed
    return answer.decode(errors="surrogateescape")


def _unreachable_problem(url: str, failed: GitFailed) -> SetupProblem:
    address = mask_login(url)
    return SetupProblem(
        f"{repository_name(url)} could not be fetched from {address}: {mask_login(failed.why)}; "
        f"check that `git ls-remote {address}` works"
    )


async def base_of(git: Git, mirror: Mirror, wanted: str | None) -> Base:
    """The branch to start from, and its newest commit; the default branch when `wanted` is None."""
    name = mirror.repository.name
    if not mirror.heads:
        raise SetupProblem(f"{name} has no commits: {_first_commit_advice(mirror.repository)}")
    branch = wanted or mirror.default or next((usual for usual in USUAL_BRANCHES if usual in mirror.heads), None)
    if branch is None:
        raise SetupProblem(f"{name} has no default branch: choose a branch with --base")
    if branch not in mirror.heads:
        raise SetupProblem(f"{await _why_no_base(git, mirror, branch)}; {_suggest_branches(mirror, branch)}")
    if problem := branch_problem(branch):  # git allows more than we do
        raise SetupProblem(f"the base {excerpt(branch)} of {name} {problem}")
    return Base(branch=branch, commit=mirror.heads[branch])


def _first_commit_advice(repository: Repository) -> str:
    if repository.url == str(repository.source):  # without a remote
        return "make a first one with `git commit --allow-empty -m 'Initial commit'`"
    return "push a first one with `git push -u origin HEAD`"


async def _why_no_base(git: Git, mirror: Mirror, wanted: str) -> str:
    name = mirror.repository.name
    if COMMIT.fullmatch(wanted):
        return f"{wanted} is a commit: the base of {name} must be a branch"
    if problem := branch_problem(wanted):
        return f"the base {excerpt(wanted)} {problem}"
    if await _query_remote(git, mirror.repository, f"refs/tags/{wanted}"):
        return f"{wanted} is a tag: the base of {name} must be a branch"
    return f"{name} has no branch {wanted}"


def _suggest_branches(mirror: Mirror, wanted: str) -> str:
    short = wanted.removeprefix(HEADS).removeprefix("origin/")
    near = difflib.get_close_matches(short, mirror.heads, n=SUGGESTIONS_MAX)
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = ", …" if len(mirror.heads) > SUGGESTIONS_MAX else ""
    return f"its branches are {', '.join(sorted(mirror.heads)[:SUGGESTIONS_MAX])}{more}"


async def tidy(git: Git, home: Home) -> None:
    """Packs objects, but drops none: running attempts may borrow any of them."""
    if not home.mirrors.is_dir():
        return
    for path in filter(is_mirror, sorted(home.mirrors.glob("*.git"))):
        packs = sum(1 for _ in path.glob("objects/pack/*.pack"))
        if packs <= PACKS_MAX and sum(1 for _ in path.glob("objects/17/*")) <= LOOSE_MAX:
            continue
        with suppress(SetupProblem, GitFailed):  # in use, or damaged: the next fetch handles it
            async with hold_lock(lock_of(path), TIDY_TIMEOUT, "in use"):
                with scratch_mirror(git, path) as scratch:
                    await scratch.git("repack", "-q", "-n", "-d", "--geometric=2")


class RepositoryFiles:
    """Reads and caches the `.delegate.toml` of base commits, which never change."""

    def __init__(self) -> None:
        self._cache: dict[tuple[Path, str], RepoFile] = {}

    async def get(self, git: Git, mirror: Mirror, base: Base) -> RepoFile:
        """Never reads the agent's tree. Raises SetupProblem when the file is invalid."""
        key = (mirror.path, base.commit)
        if key not in self._cache:
            found = await _read_repofile(git, mirror, base)
            self._cache = {**dict(list(self._cache.items())[-REPOFILES_MAX:]), key: found}
        return self._cache[key]


async def _read_repofile(git: Git, mirror: Mirror, base: Base) -> RepoFile:
    with scratch_mirror(git, mirror.path) as scratch:
        found = await scratch.git("cat-file", "--batch", input=f"{base.commit}:{FILE_NAME}\n".encode())
    header, _, content = found.partition(b"\n")
    if header.endswith(b" missing"):
        return RepoFile()
    if b" blob " not in header:
        raise SetupProblem(f"{FILE_NAME} in the repository is not a file")
    try:
        return parse(content[:-1])  # git adds a newline
    except BadRepoFile as problem:
        with scratch_mirror(git, mirror.path) as scratch:
            entry = await scratch.git("ls-tree", base.commit, "--", FILE_NAME)
        if entry.startswith(LINK_MODE):  # its content is the path of its target
            raise SetupProblem(f"{FILE_NAME} in the repository is a symbolic link; commit the file itself") from None
        raise SetupProblem(problem.message) from problem
