"""Who waits for what inside this relay: runners for tasks, followers for news."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from delegate.queue.ending import Moved
from delegate.states import FINAL_TASK_STATES, TaskState

ALL_TASKS = "*"
CLOCK = "clock"  # where the relay's own clock listens
AGENTS = "agents"  # where the door for agents listens for the first that is at work


@dataclass(eq=False, slots=True)
class Waiter:
    """A parked claim. Woken once; a wake-up it leaves with goes to the next in line."""

    lanes: tuple[str, ...]
    woken: anyio.Event = field(default_factory=anyio.Event)
    lane: str | None = None  # the lane it was woken for

    def look(self) -> str | None:
        """It goes and looks for a task: from here on it can be woken again. Returns the lane it was woken for."""
        lane, self.lane = self.lane, None
        if self.woken.is_set():
            self.woken = anyio.Event()
        return lane


class Hub:
    def __init__(self) -> None:
        self._waiters: dict[str, deque[Waiter]] = defaultdict(deque)
        self._bells: dict[str, set[Bell]] = defaultdict(set)
        self.closing = anyio.Event()
        self.is_left_alone = False  # its keeper is gone: whoever works hands back, and nobody new comes

    @contextmanager
    def waiting(self, lanes: Iterable[str]) -> Iterator[Waiter]:
        waiter = Waiter(tuple(dict.fromkeys(lanes)))
        for lane in waiter.lanes:
            self._waiters[lane].append(waiter)
        try:
            yield waiter
        finally:
            for lane in waiter.lanes:
                self._waiters[lane].remove(waiter)
                if not self._waiters[lane]:
                    del self._waiters[lane]
            if waiter.lane is not None:
                self.wake(waiter.lane)

    def wake(self, lane: str) -> None:
        """One task became claimable: wake one runner, never all of them."""
        for waiter in self._waiters.get(lane, ()):
            if not waiter.woken.is_set():
                waiter.lane = lane
                waiter.woken.set()
                return

    @contextmanager
    def listening(self, key: str) -> Iterator[Bell]:
        bell = Bell()
        self._bells[key].add(bell)
        try:
            yield bell
        finally:
            self._bells[key].discard(bell)
            if not self._bells[key]:
                del self._bells[key]

    def ring(self, task_id: str) -> None:
        """Something happened to a task: its followers should look."""
        for bell in (*self._bells.get(task_id, ()), *self._bells.get(ALL_TASKS, ())):
            bell.rung.set()

    def alert(self, task_id: str) -> None:
        """Something happened that the holder of the task should know, too: its own reports are no news to it."""
        for bell in self._bells.get(holder_of(task_id), ()):
            bell.rung.set()
        self.ring(task_id)

    def call(self, key: str) -> None:
        """Whoever listens under this name should look."""
        for bell in self._bells.get(key, ()):
            bell.rung.set()

    def close(self) -> None:
        """The relay stops: nobody should wait any longer."""
        self.closing.set()
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.woken.set()
        for bells in self._bells.values():
            for bell in bells:
                bell.rung.set()


class Bell:
    def __init__(self) -> None:
        self.rung = anyio.Event()

    async def heard(self, seconds: float) -> bool:
        """Wait for the next ring; False when there was none in time. Rings before the wait are not lost."""
        with anyio.move_on_after(seconds) as scope:
            await self.rung.wait()
        self.rung = anyio.Event()
        return not scope.cancelled_caught


def holder_of(task_id: str) -> str:
    """Where the runner that holds a task listens."""
    return f"{task_id}/holder"


def tell(hub: Hub, moved: Moved) -> None:
    for task in (moved.task, *moved.others):
        if task.state is TaskState.QUEUED and task.not_before is None:
            hub.wake(task.lane)
        if task.schedule_id is not None and task.state in FINAL_TASK_STATES:
            hub.call(CLOCK)  # another schedule may have waited for this end
        hub.alert(task.id)
