"""Keeps an attempt's record on the runner's machine: the events, the end, and the output that the relay does not get.

One file of JSON lines per attempt, `records/LINEAGE/TASK.ATTEMPT.jsonl` in the home. The texts are those of the spool:
secrets are removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from delegate.config.home_files import PRIVATE_FILE, make_directory
from delegate.errors import InvalidField
from delegate.model import EventKind, Stream
from delegate.runner.upload.spool import FACTS_MAX, fact_line, output_line

END = "end"  # the kind of the line with the outcome
KEPT_DAYS = timedelta(days=14)
KEPT_MAX = 1 << 30  # bytes of all records; the oldest are removed first


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedItem:
    kind: str
    at: str
    data: dict[str, object]
    stream: str = ""
    output: str = ""  # base64


class LocalRecord:
    """Every method may raise OSError."""

    def __init__(self, path: Path, *, output_max: int) -> None:
        self._path = path
        self._output_max = output_max  # bytes of output to keep; 0 when the relay has it
        self._facts = 0
        self._file: BinaryIO | None = None
        self._number = 0
        self.output_bytes = 0  # that came, kept or not

    def open(self) -> None:
        make_directory(self._path.parent.parent)
        make_directory(self._path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(self._path, flags, PRIVATE_FILE), "ab", buffering=0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def fact(self, kind: EventKind, data: dict[str, object], at: datetime) -> None:
        if self._facts <= FACTS_MAX:
            line = fact_line(self._number, kind, data, at)
            self._facts += len(line)
            self._append(line)

    def output(self, stream: Stream, data: bytes, at: datetime) -> None:
        room = self._output_max - self.output_bytes
        self.output_bytes += len(data)
        if room > 0:
            self._append(output_line(self._number, stream, data[:room], at))

    def end(self, outcome: object, at: datetime) -> None:
        """The outcome as JSON; a later one replaces an earlier one."""
        item = {"seq": self._number, "at": at.isoformat(), "kind": END, "data": outcome}
        self._append(json.dumps(item, separators=(",", ":")).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self.open()
        assert self._file is not None
        self._number += 1
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]


def record_path(records: Path, lineage: str, task_id: str, attempt_id: str) -> Path:
    """The relay chooses these ids: none may lead out of the directory."""
    for name in (lineage, task_id, attempt_id):
        if not name.replace("-", "").isalnum() or not name.isascii() or name.startswith("-"):
            raise InvalidField(field="assignment", why=f"{name!r} is not a valid file name")
    return records / lineage / f"{task_id}.{attempt_id}.jsonl"


def records_of_task(records: Path, task_id: str) -> list[Path]:
    """The files of a task's attempts on this machine, oldest first."""
    return sorted(records.glob(f"*/{task_id}.*.jsonl"), key=_age_key) if task_id.isprintable() else []


def records_of_lineage(records: Path, lineage: str) -> list[Path]:
    return sorted((records / lineage).glob("*.jsonl"), key=_age_key)


def read_items(path: Path) -> Iterator[RecordedItem]:
    """Skips a last line that is incomplete."""
    with path.open("rb") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError):
                item = json.loads(line)
                yield RecordedItem(
                    kind=str(item["kind"]),
                    at=str(item["at"]),
                    data=dict(item.get("data", {})),
                    stream=str(item.get("stream", "")),
                    output=str(item.get("output", "")),
                )


def remove_old_records(records: Path, now: datetime) -> None:
    """Remove files that are too old, then the oldest while all together are too large."""
    found = sorted(records.glob("*/*.jsonl"), key=_age_key, reverse=True) if records.is_dir() else []
    total = 0
    for path in found:
        with suppress(OSError):  # another runner has removed it
            state = path.stat()
            total += state.st_size
            if total > KEPT_MAX or now - datetime.fromtimestamp(state.st_mtime, UTC) > KEPT_DAYS:
                path.unlink()
    for directory in {path.parent for path in found}:
        with suppress(OSError):  # it is not empty
            directory.rmdir()


def _age_key(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, path.name
    except OSError:
        return 0.0, path.name
