"""Wakes what waits inside this relay: runners for tasks, followers for updates."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from delegate.placement import prefix_of
from delegate.queue.cascade import Transition
from delegate.queue.placement import LaneScope
from delegate.states import FINAL_TASK_STATES, TaskState

FEED_TURNS = 2  # feeds that read and encode at once; more would take the threads and the time of other requests
ALL_TASKS = "*"
CLOCK_KEY = "clock"  # the relay's clock subscribes to it


@dataclass(eq=False, slots=True)
class Waiter:
    """A waiting claim. An unused wake-up passes to the next waiter of the lane."""

    scope: LaneScope
    woken: anyio.Event = field(default_factory=anyio.Event)
    lane: str | None = None  # the lane it was woken for

    def consume_wakeup(self) -> str | None:
        """Return the lane it was woken for, and allow the next wake-up. Called before looking for a task."""
        lane, self.lane = self.lane, None
        if self.woken.is_set():
            self.woken = anyio.Event()
        return lane


class Hub:
    def __init__(self) -> None:
        self._waiters: dict[str, deque[Waiter]] = defaultdict(deque)  # by the beginning of their lanes
        self._subscriptions: dict[str, set[Subscription]] = defaultdict(set)
        self.closing = anyio.Event()
        self.open_feeds: Counter[str] = Counter()  # by the name of who reads
        self.feed_turns = anyio.CapacityLimiter(FEED_TURNS)
        self.is_keeper_gone = False  # then runners hand back their tasks, and no new work is accepted

    @contextmanager
    def add_waiter(self, scope: LaneScope) -> Iterator[Waiter]:
        waiter = Waiter(scope)
        prefixes = tuple(dict.fromkeys(scope.prefixes))
        for prefix in prefixes:
            self._waiters[prefix].append(waiter)
        try:
            yield waiter
        finally:
            for prefix in prefixes:
                self._waiters[prefix].remove(waiter)
                if not self._waiters[prefix]:
                    del self._waiters[prefix]
            if waiter.lane is not None:
                self.wake(waiter.lane)

    def wake(self, lane: str) -> None:
        """Wake one runner, never all: one task became claimable."""
        for waiter in self._waiters.get(prefix_of(lane), ()):
            if not waiter.woken.is_set() and waiter.scope.covers(lane):
                waiter.lane = lane
                waiter.woken.set()
                return

    @contextmanager
    def subscribe(self, key: str) -> Iterator[Subscription]:
        subscription = Subscription()
        self._subscriptions[key].add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions[key].discard(subscription)
            if not self._subscriptions[key]:
                del self._subscriptions[key]

    def notify(self, task_id: str) -> None:
        """Wake the followers of a task."""
        for subscription in (*self._subscriptions.get(task_id, ()), *self._subscriptions.get(ALL_TASKS, ())):
            subscription.notified.set()

    def notify_with_holder(self, task_id: str) -> None:
        """Wake the followers of a task and its runner, for changes that the runner has not made itself."""
        for subscription in self._subscriptions.get(holder_key(task_id), ()):
            subscription.notified.set()
        self.notify(task_id)

    def notify_key(self, key: str) -> None:
        for subscription in self._subscriptions.get(key, ()):
            subscription.notified.set()

    def close(self) -> None:
        """Wake every waiter: the relay is stopping."""
        self.closing.set()
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.woken.set()
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.notified.set()


class Subscription:
    def __init__(self) -> None:
        self.notified = anyio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait for a notification; False after a timeout. One that arrived before the wait is not lost."""
        with anyio.move_on_after(seconds) as scope:
            await self.notified.wait()
        self.notified = anyio.Event()
        return not scope.cancelled_caught


def holder_key(task_id: str) -> str:
    """Return the key to which the runner that holds a task subscribes."""
    return f"{task_id}/holder"


def notify(hub: Hub, transition: Transition) -> None:
    for task in (transition.task, *transition.others):
        if task.state is TaskState.QUEUED and task.not_before is None:
            hub.wake(task.lane)
        if task.schedule_id is not None and task.state in FINAL_TASK_STATES:
            hub.notify_key(CLOCK_KEY)  # another schedule may wait for this end
        hub.notify_with_holder(task.id)
