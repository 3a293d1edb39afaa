"""When there is too little room on the runner's disks to begin something, or to go on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from delegate.config.disk import shortage
from delegate.config.home_files import DISK_FULL_ERRORS
from delegate.config.paths import Home
from delegate.config.settings import Settings

LOOK_EVERY = 1.0  # seconds; a fast disk takes a gigabyte in that time
HARD_SHARE = 8  # of what a new attempt needs, one part in eight must be left for one that works
FULL = ("no space left on device", "disk quota exceeded")


class DiskLow(Exception):
    """There is not enough room to go on; the text is a sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The places may be on one disk or on several."""

    places: tuple[Path, ...]
    floor: int

    def lacks_room(self) -> str | None:
        """Why nothing new may begin here; None when it may."""
        return shortage(self.places, self.floor)

    def is_nearly_full(self) -> str | None:
        """Why nothing may go on here; None when it may."""
        return shortage(self.places, self.floor // HARD_SHARE)


def disk_of(settings: Settings) -> Disk:
    home = Home(settings.home)
    return Disk(places=(home.runners, home.workspaces, home.mirrors), floor=settings.runner_min_free)


def is_disk_full(problem: BaseException) -> bool:
    """Whether a failure, or the words of a program that failed, mean a full disk."""
    if isinstance(problem, DiskLow) or (isinstance(problem, OSError) and problem.errno in DISK_FULL_ERRORS):
        return True
    return any(words in str(problem).lower() for words in FULL)
