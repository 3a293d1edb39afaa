"""The output of a task, for an agent that looks at it now and then."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import anyio

from delegate.model import TaskId
from delegate.relay.feeds import LOOK_SECONDS
from delegate.relay.mcp.calls import Call, Told
from delegate.relay.mcp.lines import Reading
from delegate.relay.views import SHOWN
from delegate.report import follow
from delegate.report.follow import News
from delegate.states import FINAL_TASK_STATES
from delegate.wire import tools as wire
from delegate.wire.tasks import OutputLine

FOLLOW_SECONDS = 50.0  # many clients give up on a call after a minute
ANSWER_MAX = 1024 * 1024  # characters in one answer; GET /api/tasks/{task_id}/output/raw has everything


async def task_logs(call: Call, asked: wire.TaskLogs) -> Told:
    """The last lines at once. From `since` on the first ones, so that none is missed, and then as they come.

    Only who says where it stopped waits for more: clients want progress of every call, agents do not.
    """
    task_id = TaskId(asked.task_id)
    reading = Reading() if asked.since is None else Reading.at(asked.since)
    page = Page(asked.tail, keeps_last=asked.since is None)
    progress = None if asked.since is None else call.progress
    deadline = anyio.current_time() + (0.0 if progress is None else FOLLOW_SECONDS)
    with call.relay.hub.listening(task_id) as bell:
        while True:
            news = await follow.output_news(call.relay.database, task_id, reading.after)
            for line in page.filled(reading.lines(news.chunks, is_over=is_over(news))):
                if progress is not None:
                    await progress(page.count, line.text)
            if page.is_full or is_over(news) or call.relay.hub.closing.is_set():
                break
            if has_more(news):
                continue
            left = deadline - anyio.current_time()
            if left <= 0:
                break
            await bell.heard(min(left, LOOK_SECONDS))
    status = SHOWN[news.task.state]
    answer = wire.LogsAnswer(task_id=task_id, status=status, lines=list(page.lines), next=str(reading))
    return Told(answer=answer, text="\n".join([*(line.text for line in page.lines), f"[{task_id} is {status}]"]))


def has_more(news: News) -> bool:
    return len(news.chunks) == follow.CHUNKS_PER_READ


def is_over(news: News) -> bool:
    return news.task.state in FINAL_TASK_STATES and not has_more(news)


class Page:
    """The lines of one answer: the last of all that pass, or the first."""

    def __init__(self, most: int, *, keeps_last: bool) -> None:
        self._most = most
        self._keeps_last = keeps_last
        self._size = 0
        self.count = 0
        self.lines: deque[OutputLine] = deque()

    @property
    def is_full(self) -> bool:
        return not self._keeps_last and (len(self.lines) >= self._most or self._size >= ANSWER_MAX)

    def filled(self, lines: Iterator[OutputLine]) -> Iterator[OutputLine]:
        """Takes in what there is room for, and tells it."""
        for line in lines:
            self.count += 1
            self._size += len(line.text)
            self.lines.append(line)
            while self._keeps_last and (len(self.lines) > self._most or self._size > ANSWER_MAX):
                self._size -= len(self.lines.popleft().text)
            yield line
            if self.is_full:
                return
