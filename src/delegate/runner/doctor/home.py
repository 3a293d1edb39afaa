"""Examines DELEGATE_HOME: whether it is writable, whether others can read it, and its disk space."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from delegate.config.disk import describe_shortage, format_bytes, free_bytes
from delegate.config.home_files import read_token
from delegate.errors import DelegateError
from delegate.runner.disk import disk_of
from delegate.runner.doctor.context import DoctorContext
from delegate.runner.doctor.findings import DoctorSection, Finding

OTHERS_MASK = 0o077
WALK_TIMEOUT = 1.5  # seconds; counting stops then, for example in a home with a million files
LOW_SPACE_FACTOR = 2  # times the minimum; below that, warn


def examine_home(context: DoctorContext) -> list[Finding]:
    """Blocks."""
    root = context.home.root
    if not root.exists():
        above = next(path for path in root.parents if path.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            return [
                DoctorSection.HOME.problem(
                    "home", f"{context.display_path(root)} cannot be created", _home_fix(context, above)
                )
            ]
        return [DoctorSection.HOME.ok("home", f"{context.display_path(root)}, created when it is first needed")]
    if not root.is_dir() or not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return [
            DoctorSection.HOME.problem(
                "home", f"{context.display_path(root)} cannot be written", _home_fix(context, root)
            )
        ]
    return [_check_permissions(context), *_check_token(context)]


def _home_fix(context: DoctorContext, path: Path) -> str:
    return f"fix the permissions of {context.display_path(path)}, or set DELEGATE_HOME to a directory that you own"


def _check_permissions(context: DoctorContext) -> Finding:
    root = context.home.root
    found = root.stat()
    if found.st_uid != os.geteuid():
        return DoctorSection.HOME.warning(
            "home", f"{context.display_path(root)} belongs to another user", _home_fix(context, root)
        )
    if stat.S_IMODE(found.st_mode) & OTHERS_MASK:
        message = f"{context.display_path(root)} is open to other users (mode {stat.S_IMODE(found.st_mode):o})"
        return DoctorSection.HOME.warning("home", message, f"`chmod 700 {context.display_path(root)}`")
    return DoctorSection.HOME.ok("home", context.display_path(root))


def _check_token(context: DoctorContext) -> list[Finding]:
    try:
        token = read_token(context.home)
    except DelegateError as problem:
        return [DoctorSection.HOME.problem("token", problem.message, problem.hint)]
    return [DoctorSection.HOME.ok("token", "only you can read it")] if token else []


def examine_disk(context: DoctorContext) -> list[Finding]:
    """Blocks."""
    root = context.home.root
    free = free_bytes(root)
    if free is None:
        return [
            DoctorSection.HOME.warning("disk", f"the free space on the disk of {context.display_path(root)} is unknown")
        ]
    fix = f"free space on the disk of {context.display_path(root)}"
    for what, why in (
        ("the relay accepts no tasks", describe_shortage([root], context.settings.relay_min_free)),
        ("runners claim no tasks", disk_of(context.settings).shortage_to_start()),
    ):
        if why is not None:
            return [DoctorSection.HOME.problem("disk", f"{why}: {what}", fix)]
    if free < LOW_SPACE_FACTOR * max(context.settings.relay_min_free, context.settings.runner_min_free):
        floor = format_bytes(context.settings.runner_min_free)
        return [
            DoctorSection.HOME.warning("disk", f"{format_bytes(free)} free; runners claim no tasks below {floor}", fix)
        ]
    return [DoctorSection.HOME.ok("disk", f"{format_bytes(free)} free")]


def examine_size(context: DoctorContext) -> list[Finding]:
    """Blocks."""
    home = context.home
    if not home.root.is_dir():
        return []
    until = time.monotonic() + WALK_TIMEOUT
    parts = {directory.name: size_of(directory, until) for directory in (home.mirrors, home.workspaces, home.salvage)}
    whole = size_of(home.root, until)
    more = "" if time.monotonic() < until else "more than "
    details = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    return [DoctorSection.HOME.ok("size", f"{more}{format_bytes(whole)}" + (f" ({details})" if details else ""))]


def size_of(directory: Path, until: float) -> int:
    """Bytes on disk below the directory, as far as they were counted in time; links are not followed."""
    total, pending = 0, [os.fspath(directory)]
    while pending and time.monotonic() < until:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue  # just removed, or not readable
    return total
