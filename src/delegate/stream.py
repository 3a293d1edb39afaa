"""A task's stream: server-sent events from bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from delegate.exchange import NotHttp

STREAM_LINE_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamItem:
    """One message of a task's stream: kind is `event`, `output` or `end`."""

    id: str
    kind: str
    data: Any  # EventData, the piece of output, or TaskData: as the kind says


def parsed(data: bytes | str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise NotHttp("its answer is not JSON") from None


class StreamParser:
    """Server-sent events from bytes that come in any pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, piece: bytes) -> Iterator[StreamItem]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > STREAM_LINE_MAX:
            raise ConnectionResetError("its stream has an endless line")
        for line in lines:
            yield from self._line(line.rstrip(b"\r").decode("utf-8", "replace"))

    def _line(self, line: str) -> Iterator[StreamItem]:
        if line.startswith(":"):
            return
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = (
                self._fields[name] + "\n" + value[1:] if name == "data" and name in self._fields else value[1:]
            )
            return
        fields, self._fields = self._fields, {}
        if "data" in fields:
            yield StreamItem(id=fields.get("id", ""), kind=fields.get("event", "message"), data=parsed(fields["data"]))
