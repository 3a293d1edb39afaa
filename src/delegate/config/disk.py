"""Measures the free space on the disks that Delegate writes to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def free_bytes(path: Path) -> int | None:
    """Return the bytes that this user can still write at a path, which need not exist yet; None when unknown."""
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return free_bytes(path.parent) if path != path.parent else None
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def describe_shortage(paths: Iterable[Path], floor: int) -> str | None:
    """Describe the first path with less free space than the floor; None when all have enough."""
    for path in paths:
        free = free_bytes(path)
        if free is not None and free < floor:
            return f"only {format_bytes(free)} are free on the disk of {path}, and {format_bytes(floor)} are needed"
    return None


def format_bytes(size: float) -> str:
    for unit in UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == UNITS[0] else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {UNITS[-1]}"
