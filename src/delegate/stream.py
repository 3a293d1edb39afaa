"""A task's stream: what its server-sent events say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from delegate.http_answer import Event, NotHttp

STREAM_MESSAGE_MAX = 8 * 1024 * 1024  # bytes of one event


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


def understood(event: Event) -> StreamItem:
    return StreamItem(id=event.id, kind=event.kind, data=parsed(event.data.decode("utf-8", "replace")))
