"""DELEGATE_HOME: whether it can be written, who else can read it, and whether its disk has room."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from delegate.config.disk import free_bytes, shortage, spoken
from delegate.config.home_files import read_token
from delegate.errors import DelegateError
from delegate.runner.disk import disk_of
from delegate.runner.doctor.case import Case
from delegate.runner.doctor.findings import Finding, Part

LOOSE = 0o077
WALK_TIME = 1.5  # seconds; a home with a million files is not counted to its end
SOON = 2  # times the floor: below that it is time to make room


def examine_home(case: Case) -> list[Finding]:
    """Blocks."""
    root = case.home.root
    if not root.exists():
        above = next(path for path in root.parents if path.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            return [Part.HOME.problem("home", f"{case.place(root)} cannot be made", _home_fix(case, above))]
        return [Part.HOME.ok("home", f"{case.place(root)}, made when it is first needed")]
    if not root.is_dir() or not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return [Part.HOME.problem("home", f"{case.place(root)} cannot be written", _home_fix(case, root))]
    return [_permissions(case), *_token(case)]


def _home_fix(case: Case, place: Path) -> str:
    return f"mend the permissions of {case.place(place)}, or set DELEGATE_HOME to a directory of yours"


def _permissions(case: Case) -> Finding:
    root = case.home.root
    found = root.stat()
    if found.st_uid != os.geteuid():
        return Part.HOME.warning("home", f"{case.place(root)} belongs to another user", _home_fix(case, root))
    if stat.S_IMODE(found.st_mode) & LOOSE:
        message = f"{case.place(root)} is open to other users (mode {stat.S_IMODE(found.st_mode):o})"
        return Part.HOME.warning("home", message, f"`chmod 700 {case.place(root)}`")
    return Part.HOME.ok("home", case.place(root))


def _token(case: Case) -> list[Finding]:
    try:
        token = read_token(case.home)
    except DelegateError as problem:
        return [Part.HOME.problem("token", problem.message, problem.hint)]
    return [Part.HOME.ok("token", "only you can read it")] if token else []


def examine_disk(case: Case) -> list[Finding]:
    """Blocks."""
    root = case.home.root
    free = free_bytes(root)
    if free is None:
        return [Part.HOME.warning("disk", f"nobody can tell how much is free on the disk of {case.place(root)}")]
    fix = f"make room on the disk of {case.place(root)}"
    for what, why in (
        ("the relay takes no task", shortage([root], case.settings.relay_min_free)),
        ("runners take no task", disk_of(case.settings).lacks_room()),
    ):
        if why is not None:
            return [Part.HOME.problem("disk", f"{why}: {what}", fix)]
    if free < SOON * max(case.settings.relay_min_free, case.settings.runner_min_free):
        floor = spoken(case.settings.runner_min_free)
        return [Part.HOME.warning("disk", f"{spoken(free)} free; below {floor} runners take no task", fix)]
    return [Part.HOME.ok("disk", f"{spoken(free)} free")]


def examine_size(case: Case) -> list[Finding]:
    """Blocks."""
    home = case.home
    if not home.root.is_dir():
        return []
    until = time.monotonic() + WALK_TIME
    parts = {place.name: size_of(place, until) for place in (home.mirrors, home.workspaces, home.salvage)}
    whole = size_of(home.root, until)
    more = "" if time.monotonic() < until else "more than "
    told = ", ".join(f"{name} {spoken(size)}" for name, size in parts.items() if size)
    return [Part.HOME.ok("size", f"{more}{spoken(whole)}" + (f" ({told})" if told else ""))]


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
            continue  # it has just been removed, or is not ours to read
    return total
