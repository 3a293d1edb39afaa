"""Log lines as `time level logger message key=value …`, one line each whatever the values hold."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

from delegate.errors import escaped

STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


class KeyValueFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        words = [at, record.levelname.lower(), record.name, escaped(record.getMessage())]
        words += [f"{key}={escaped(str(value))}" for key, value in vars(record).items() if key not in STANDARD_FIELDS]
        if record.exc_info:
            words.append(f"traceback={escaped(self.formatException(record.exc_info))}")
        return " ".join(words)


def configure(level: str) -> None:
    # Our lines name none of these, and finding them out takes as long as writing a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(LEVELS[level])
    # The libraries below announce every request; our own lines say what happened.
    for noisy in ("httpx2", "httpcore2", "uvicorn", "alembic", "sse_starlette"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
