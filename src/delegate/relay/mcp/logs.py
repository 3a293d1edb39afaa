"""The output of a task, for an agent that looks at it now and then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import anyio

from delegate.model import TaskId
from delegate.relay.feeds import LOOK_SECONDS
from delegate.relay.lines import Line, Reading, Tail, has_more, read_to_end, views
from delegate.relay.mcp.calls import Call, Told
from delegate.relay.views import SHOWN
from delegate.report import follow
from delegate.report.follow import News
from delegate.states import FINAL_TASK_STATES
from delegate.wire import tools as wire

FOLLOW_SECONDS = 50.0  # many clients give up on a call after a minute
ANSWER_MAX = 1024 * 1024  # bytes of lines in one answer; GET /api/tasks/{task_id}/output/raw has everything


async def task_logs(call: Call, asked: wire.TaskLogs) -> Told:
    """The last lines at once. From `since` on the first ones, so that none is missed, and then as they come."""
    if asked.since is None:
        return await _last(call, TaskId(asked.task_id), asked.tail)
    return await _following(call, TaskId(asked.task_id), Reading.at(asked.since), asked.tail)


async def _last(call: Call, task_id: TaskId, most: int) -> Told:
    reading, tail = Reading(last=most), Tail(most, ANSWER_MAX)
    news = await read_to_end(call.relay.database, task_id, reading, tail)
    tail.add(reading.lines([], is_over=is_over(news)))
    return _told(news, tail.lines, reading)


async def _following(call: Call, task_id: TaskId, reading: Reading, most: int) -> Told:
    """Who says where it stopped waits for more; lines are told as they come to clients that want progress."""
    page = Page(most)
    deadline = anyio.current_time() + FOLLOW_SECONDS
    with call.relay.hub.listening(task_id) as bell:
        while True:
            news = await follow.output_news(call.relay.database, task_id, reading.after)
            for line in page.filled(reading.lines(news.chunks, is_over=is_over(news))):
                if call.progress is not None:
                    await call.progress(len(page.lines), line.text)
            if page.is_full or is_over(news) or call.relay.hub.closing.is_set():
                break
            if has_more(news):
                continue
            left = deadline - anyio.current_time()
            if left <= 0:
                break
            await bell.heard(min(left, LOOK_SECONDS))
    return _told(news, page.lines, reading)


def _told(news: News, lines: Iterable[Line], reading: Reading) -> Told:
    shown, status = views(lines), SHOWN[news.task.state]
    answer = wire.LogsAnswer(task_id=news.task.id, status=status, lines=shown, next=str(reading))
    return Told(answer=answer, text="\n".join([*(line.text for line in shown), f"[{news.task.id} is {status}]"]))


def is_over(news: News) -> bool:
    return news.task.state in FINAL_TASK_STATES and not has_more(news)


class Page:
    """The first lines of all that pass, and not more of them than an answer should carry."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self.lines: list[Line] = []

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= self._most or self._size >= ANSWER_MAX

    def filled(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Takes in what there is room for, and tells it."""
        for line in lines:
            self._size += len(line.data)
            self.lines.append(line)
            yield line
            if self.is_full:
                return
