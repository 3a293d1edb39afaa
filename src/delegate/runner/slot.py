"""A runner's own directory: its pending claim, and the spools of its attempts."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from pathlib import Path

from delegate.config.home_files import acquire_lock, make_directory, write_private
from delegate.errors import AlreadyRunning, InvalidField
from delegate.runner.keeper_protocol import STOP_MARK
from delegate.runner.removal import remove

log = logging.getLogger(__name__)

LOCK_TIMEOUT = 15.0  # seconds; a previous process may take up to ten to hand back its task
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


class Slot:
    """Locked by one process at a time, until it is closed or that process ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._claim = directory / "claim"
        self._spools = directory / "spool"
        lock = acquire_lock(directory / "lock", LOCK_TIMEOUT)
        if lock is None:
            raise AlreadyRunning(home=directory, pid="unknown")
        self._lock = lock
        make_directory(self._spools)
        make_directory(self.temporary)

    @property
    def name(self) -> str:
        return self._directory.name

    def close(self) -> None:
        os.close(self._lock)

    def claim_id(self) -> str:
        """The id of the unanswered claim, or a new one; repeating an id repeats the same claim."""
        try:
            kept = self._claim.read_text()
        except (OSError, ValueError):
            kept = ""
        if not FILE_NAME.fullmatch(kept):
            kept = f"claim-{secrets.token_hex(12)}"
            write_private(self._claim, kept)
        return kept

    def has_claim(self) -> bool:
        """Whether a claim was sent, or is about to be, without a known answer."""
        return self._claim.exists()

    def forget_claim(self) -> None:
        self._claim.unlink(missing_ok=True)

    def was_asked_to_stop(self) -> bool:
        """Whether the runner that held the slot before was asked to stop."""
        return (self._directory / STOP_MARK).exists()

    def forget_stop(self) -> None:
        (self._directory / STOP_MARK).unlink(missing_ok=True)

    @property
    def git(self) -> Path:
        """Temporary git repositories."""
        return self._directory / "git"

    @property
    def clock(self) -> Path:
        """The times that this runner has observed, for its deletions."""
        return self._directory / "clock.json"

    @property
    def temporary(self) -> Path:
        """The TMPDIR of the running attempt. Its path is short, because programs put sockets there."""
        return self._directory / "tmp"

    def clear_temporary(self) -> None:
        try:
            remove(self._directory, self.temporary.name)
        except OSError as error:  # the next attempt tries again
            log.warning("temporary files not removed", extra={"path": str(self.temporary), "why": error.strerror})
        make_directory(self.temporary)

    @property
    def effects(self) -> Path:
        """The journal of effects that this runner has started."""
        return self._directory / "effects"

    def spool(self, attempt_id: str) -> Path:
        """The attempt's directory; exists from just before the agent starts until the relay has the attempt's end."""
        if not FILE_NAME.fullmatch(attempt_id):
            raise InvalidField(field="attemptId", why="is not a valid directory name")
        return self._spools / attempt_id

    def spooled_attempts(self) -> list[str]:
        return sorted(path.name for path in self._spools.iterdir() if FILE_NAME.fullmatch(path.name))

    def remove_spool(self, attempt_id: str) -> None:
        try:
            shutil.rmtree(self.spool(attempt_id))
        except FileNotFoundError:
            return
        except OSError as error:  # the next start tries again
            log.warning("spool not removed", extra={"attempt_id": attempt_id, "why": error.strerror})
