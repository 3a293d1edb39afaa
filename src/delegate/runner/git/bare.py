"""Writes and reads bare repositories as files: faster than a git process, and independent of git configuration."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from delegate.runner.removal import remove

REF_BYTES = 4096  # of one loose ref; a longer file is not a ref
PACKED_BYTES = 256 * 1024 * 1024
REFS_MAX = 100_000
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
BARE_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
SHA256_CONFIG = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectFormat = sha256\n"
SHA256_LENGTH = 64  # characters of an object's id


def bare_config(object_id: str) -> str:
    """The configuration for a repository with objects such as this one."""
    return SHA256_CONFIG if len(object_id) == SHA256_LENGTH else BARE_CONFIG


def write_bare(
    path: Path,
    *,
    branch: str,
    alternates: bytes,
    object_id: str = "",
    refs: Mapping[str, str] | None = None,
    config: str = "",
) -> None:
    """Create a repository, or rewrite HEAD, config, alternates and refs of an existing one; its objects stay.

    `object_id` is any object that it has or borrows.
    """
    for below in (".", "objects", "objects/info", "objects/pack", "refs"):
        ensure_real_directory(path / below)
    write_new_file(path / "HEAD", f"ref: refs/heads/{branch}\n".encode())
    write_new_file(path / "config", (bare_config(object_id) + config).encode(errors="surrogateescape"))
    write_new_file(path / "objects" / "info" / "alternates", alternates)
    if refs is not None:
        write_new_file(path / "packed-refs", format_packed_refs(refs))


def ensure_real_directory(directory: Path) -> None:
    """Create the directory if it is missing; replace a link or file in its place."""
    if not is_directory(directory):
        remove(directory.parent, directory.name)
        directory.mkdir()


def is_directory(path: Path) -> bool:
    """Whether the path is a directory, not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def write_new_file(path: Path, content: bytes) -> None:
    """Write a new file in place of anything an agent put there: a link or a pipe would lead elsewhere."""
    remove(path.parent, path.name)
    with path.open("xb") as file:
        file.write(content)


def replace_file(path: Path, content: bytes) -> None:
    """Like `write_new_file`, but a reader sees the old content or the new."""
    write_new_file(path.with_name(f"{path.name}.new"), content)
    if is_directory(path):
        remove(path.parent, path.name)
    path.with_name(f"{path.name}.new").replace(path)


def write_refs(repository: Path, refs: Mapping[str, str]) -> None:
    """Replaces all refs, without following links in the repository."""
    replace_file(repository / "packed-refs", format_packed_refs(refs))
    remove(repository, "refs")
    (repository / "refs").mkdir()


def format_packed_refs(refs: Mapping[str, str]) -> bytes:
    lines = sorted((name.encode(errors="surrogateescape"), commit.encode()) for name, commit in refs.items())
    return b"# pack-refs with: sorted \n" + b"".join(b"%s %s\n" % (commit, name) for name, commit in lines)


def remote_config(url: str, push_url: str) -> str:
    push = f"\tpushurl = {_quote(push_url)}\n" if push_url != url else ""
    return f'[remote "origin"]\n\turl = {_quote(url)}\n{push}\tfetch = +refs/heads/*:refs/remotes/origin/*\n'


def _quote(url: str) -> str:
    escaped = url.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def read_refs(repository: Path) -> dict[str, str]:
    """All refs that name an object; symbolic refs, damaged refs and symbolic links are left out."""
    refs = dict(_packed_refs(repository))
    for name in _loose_names(repository, "refs"):
        if len(refs) >= REFS_MAX:
            break
        commit = read_small(repository / name).strip()
        if COMMIT.fullmatch(commit):
            refs[name] = commit
    return refs


def read_ref(repository: Path, name: str) -> str | None:
    """One ref, without reading the others; None when it is missing, symbolic or damaged."""
    loose = read_small(repository / name).strip()
    if loose:
        return loose if COMMIT.fullmatch(loose) else None
    return next((commit for packed, commit in _packed_refs(repository) if packed == name), None)


def _packed_refs(repository: Path) -> Iterator[tuple[str, str]]:
    for line in read_small(repository / "packed-refs", PACKED_BYTES).split("\n"):
        commit, _, name = line.partition(" ")
        if COMMIT.fullmatch(commit) and name.startswith("refs/"):
            yield name, commit


def _loose_names(repository: Path, below: str) -> Iterator[str]:
    try:
        with os.scandir(repository / below) as entries:
            found = list(entries)
    except OSError:
        return
    for entry in found:
        name = f"{below}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _loose_names(repository, name)
        elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(".lock"):
            yield name


def read_small(path: Path, limit: int = REF_BYTES) -> str:
    """The beginning of a file that an agent may have replaced; empty when it is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):  # ValueError: a name with a NUL
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(limit).decode(errors="surrogateescape")
