"""When there is too little room on the runner's disks to begin something, or to go on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from delegate.config.disk import describe_shortage
from delegate.config.home_files import DISK_FULL_ERRORS
from delegate.config.paths import Home
from delegate.config.settings import Settings

DISK_CHECK_INTERVAL = 1.0  # seconds; a fast disk takes a gigabyte in that time
HARD_SHARE = 8  # of what a new attempt needs, one part in eight must be left for one that works
DISK_FULL_MESSAGES = ("no space left on device", "disk quota exceeded")


class DiskLow(Exception):
    """There is not enough room to go on; the text is a sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerDisk:
    """The places may be on one disk or on several."""

    paths: tuple[Path, ...]
    floor: int

    def shortage_to_start(self) -> str | None:
        """Why nothing new may begin here; None when it may."""
        return describe_shortage(self.paths, self.floor)

    def shortage_to_continue(self) -> str | None:
        """Why nothing may go on here; None when it may."""
        return describe_shortage(self.paths, self.floor // HARD_SHARE)


def disk_of(settings: Settings) -> RunnerDisk:
    home = Home(settings.home)
    return RunnerDisk(paths=(home.runners, home.workspaces, home.mirrors), floor=settings.runner_min_free)


def is_disk_full(problem: BaseException) -> bool:
    """Whether a failure, or the words of a program that failed, mean a full disk."""
    if isinstance(problem, DiskLow) or (isinstance(problem, OSError) and problem.errno in DISK_FULL_ERRORS):
        return True
    return any(words in str(problem).lower() for words in DISK_FULL_MESSAGES)
