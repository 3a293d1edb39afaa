"""Opens and rotates the log files of the processes that the keeper starts."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from delegate.config import home_files
from delegate.config.paths import Home

log = logging.getLogger(__name__)

LOG_MAX = 10 * 1024 * 1024
OLD_LOG = ".old.log"
COPY_SIZE = 1024 * 1024


def open_log(paths: Home, name: str) -> int:
    """Open a log file for appending; a large one is renamed first, and one old file is kept."""
    home_files.make_directory(paths.logs)
    path = paths.logs / f"{name}.log"
    try:
        if path.exists() and path.stat().st_size > LOG_MAX:
            path.replace(path.with_suffix(OLD_LOG))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, home_files.PRIVATE_FILE)
    except OSError as error:
        raise home_files.explain_write_error(path, error) from error


def rotate_logs(paths: Home) -> None:
    """Rotate logs that have grown too long while open: writers append, so they continue at the new end."""
    for path in paths.logs.glob("*.log"):
        try:
            if path.stat().st_size <= LOG_MAX or path.name.endswith(OLD_LOG):
                continue
            scratch = path.with_suffix(".new")
            with suppress(OSError):  # a full disk must at least not get fuller
                _copy_end(path, scratch)
                scratch.replace(path.with_suffix(OLD_LOG))
            scratch.unlink(missing_ok=True)
            os.truncate(path, 0)
        except OSError as error:
            log.warning("log not shortened", extra={"path": path, "why": error.strerror})


def _copy_end(path: Path, copy: Path) -> None:
    """Copy the last LOG_MAX bytes: a child may write more than that between two checks."""
    descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, home_files.PRIVATE_FILE)
    with path.open("rb") as source, os.fdopen(descriptor, "wb") as target:
        source.seek(max(0, path.stat().st_size - LOG_MAX))
        while piece := source.read(COPY_SIZE):
            target.write(piece)
