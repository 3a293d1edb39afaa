"""The TaskLogs tool: reads and follows the output of a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import anyio

from delegate.model import TaskId
from delegate.relay.feeds import POLL_SECONDS
from delegate.relay.mcp.calls import ToolCall, ToolResult
from delegate.relay.output_lines import Line, LineReader, OutputTail, has_more, line_views, read_to_end
from delegate.relay.views import STATUS_OF_STATE
from delegate.report import follow
from delegate.report.follow import TaskUpdates
from delegate.states import FINAL_TASK_STATES
from delegate.wire import tools as wire

FOLLOW_SECONDS = 50.0  # many clients give up on a call after a minute
RESULT_BYTES_MAX = 1024 * 1024  # bytes of lines in one result; GET /api/tasks/{task_id}/output/raw has everything


async def task_logs(call: ToolCall, asked: wire.TaskLogs) -> ToolResult:
    """Return the last lines, or wait for lines after `since` and return the first of them, so that none is missed."""
    if asked.since is None:
        return await _read_last_lines(call, TaskId(asked.task_id), asked.tail)
    return await _follow_lines(call, TaskId(asked.task_id), LineReader.from_cursor(asked.since), asked.tail)


async def _read_last_lines(call: ToolCall, task_id: TaskId, limit: int) -> ToolResult:
    reader, tail = LineReader(last=limit), OutputTail(limit, RESULT_BYTES_MAX)
    updates = await read_to_end(call.relay.database, task_id, reader, tail)
    tail.add(reader.lines([], is_over=is_over(updates)))
    return await _to_result(call, updates, tail.lines, reader)


async def _follow_lines(call: ToolCall, task_id: TaskId, reader: LineReader, limit: int) -> ToolResult:
    """Wait for new lines; report each one as progress if the client asked for progress."""
    page = Page(limit)
    deadline = anyio.current_time() + FOLLOW_SECONDS
    with call.relay.hub.subscribe(task_id) as subscription:
        while True:
            updates = await follow.read_output_updates(call.relay.database, task_id, reader.after)
            for line in page.collect(reader.lines(updates.chunks, is_over=is_over(updates))):
                if call.progress is not None:
                    await call.progress(len(page.lines), line.text)
            if page.is_full or is_over(updates) or call.relay.hub.closing.is_set():
                break
            if has_more(updates):
                continue
            left = deadline - anyio.current_time()
            if left <= 0:
                break
            await subscription.wait(min(left, POLL_SECONDS))
    return await _to_result(call, updates, page.lines, reader)


async def _to_result(call: ToolCall, updates: TaskUpdates, lines: Iterable[Line], reader: LineReader) -> ToolResult:
    runner = await call.relay.database.read(lambda connection: follow.kept_on(connection, updates.task.id))
    shown, status = line_views(lines), STATUS_OF_STATE[updates.task.state]
    answer = wire.TaskLogsResult(task_id=updates.task.id, status=status, lines=shown, next=str(reader))
    kept = [] if runner is None else [f"[its output is kept on {runner}]"]
    text = "\n".join([*(line.text for line in shown), *kept, f"[{updates.task.id} is {status}]"])
    return ToolResult(answer=answer, text=text)


def is_over(updates: TaskUpdates) -> bool:
    return updates.task.state in FINAL_TASK_STATES and not has_more(updates)


class Page:
    """The first lines, up to the limits of one result."""

    def __init__(self, limit: int) -> None:
        self._max_lines = limit
        self._size = 0
        self.lines: list[Line] = []

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= self._max_lines or self._size >= RESULT_BYTES_MAX

    def collect(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield each line that is added; stop when the page is full."""
        for line in lines:
            self._size += len(line.data)
            self.lines.append(line)
            yield line
            if self.is_full:
                return
