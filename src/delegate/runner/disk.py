"""Decides whether the runner's disks have enough free space to start an attempt or to continue one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from delegate.config.disk import describe_shortage
from delegate.config.home_files import DISK_FULL_ERRORS
from delegate.config.paths import Home
from delegate.config.settings import Settings

DISK_CHECK_INTERVAL = 1.0  # seconds; a fast disk takes a gigabyte in that time
HARD_SHARE = 8  # a running attempt may continue while an eighth of what a new one needs is free
DISK_FULL_MESSAGES = ("no space left on device", "disk quota exceeded")


class DiskLow(Exception):
    """The disk has too little free space to continue; the text is shown to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerDisk:
    """The paths may be on one disk or on several."""

    paths: tuple[Path, ...]
    floor: int

    def shortage_to_start(self) -> str | None:
        """Why no attempt may start; None when one may."""
        return describe_shortage(self.paths, self.floor)

    def shortage_to_continue(self) -> str | None:
        """Why no attempt may continue; None when it may."""
        return describe_shortage(self.paths, self.floor // HARD_SHARE)


def disk_of(settings: Settings) -> RunnerDisk:
    home = Home(settings.home)
    return RunnerDisk(paths=(home.runners, home.workspaces, home.mirrors), floor=settings.runner_min_free)


def is_disk_full(problem: BaseException) -> bool:
    """Whether an exception, or the error message of a failed program, means that the disk is full."""
    if isinstance(problem, DiskLow) or (isinstance(problem, OSError) and problem.errno in DISK_FULL_ERRORS):
        return True
    return any(words in str(problem).lower() for words in DISK_FULL_MESSAGES)
