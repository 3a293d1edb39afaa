"""Formats each log record as one line: `time level logger message key=value …`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from delegate.errors import escape

STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


LineFilter = Callable[[str], str]


class KeyValueFormatter(logging.Formatter):
    def __init__(self, clean: LineFilter = str) -> None:
        super().__init__()
        self._clean = clean

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        parts = [at, record.levelname.lower(), record.name, escape(record.getMessage())]
        parts += [f"{key}={escape(str(value))}" for key, value in vars(record).items() if key not in STANDARD_FIELDS]
        if record.exc_info:
            parts.append(f"traceback={escape(self.formatException(record.exc_info))}")
        return self._clean(" ".join(parts))


def configure(level: str) -> None:
    # Our lines name neither thread nor caller, so looking them up would be wasted work.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001  # documented in the logging HOWTO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(LEVELS[level])
    # These libraries log every request; our own lines say what happened.
    for noisy in ("httpx2", "httpcore2", "uvicorn", "alembic", "sse_starlette"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def filter_log_lines(clean: LineFilter) -> None:
    """Pass every further line through `clean`, which removes secrets."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(KeyValueFormatter(clean))


def build_secret_filter(secrets: Iterable[str]) -> LineFilter:
    """Build a filter for a process that knows all its secrets."""
    known = sorted({secret for secret in secrets if secret}, key=len, reverse=True)

    def clean(line: str) -> str:
        for secret in known:
            line = line.replace(secret, "[redacted]")
        return line

    return clean
