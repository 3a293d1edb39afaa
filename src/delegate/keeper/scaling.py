"""The runners of the keeper: as many as there is work for and the machine can bear."""

from __future__ import annotations

import logging
import os
import selectors
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.config.values import RUNNERS_MAX, parse_runners
from delegate.errors import InvalidField
from delegate.keeper.capacity import Load, Pool, PoolLimits, Resource, Room
from delegate.keeper.children import OPEN, RunnerChild, Terms, hold_order, start_child
from delegate.keeper.machine import MachineState, cpu_seconds_of, used_below
from delegate.keeper.plan import Plan, Shape, Waiting, plan
from delegate.runner.keeper_protocol import News, words_of

log = logging.getLogger(__name__)

LOOK_BUSY, LOOK_IDLE = 1.0, 5.0  # seconds between looks at the machine
LOOK_LEAST = 0.1
WORDS_EVERY = 10.0  # seconds; a runner that is held tells the relay why, so they must not change with every look
READ_SIZE = 65_536
SETTLING_MOST = 2  # runners started together only to settle what their slots had left


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many runners somebody asked for, and how many tasks there may be at once; None: the machine decides."""

    fixed: int | None
    ceiling: int | None


def size_of(text: str | None, settings: Settings) -> Size:
    """`text` is what was said at the start, and beats the setting."""
    if text is None:
        return Size(fixed=None, ceiling=settings.max_runners)
    try:
        number = parse_runners(text)
    except ValueError as error:
        raise InvalidField(field="runners", why=str(error)) from error
    return Size(fixed=number, ceiling=number)


def limits_of(settings: Settings, size: Size) -> PoolLimits:
    return PoolLimits(
        cpu_threshold=settings.cpu_threshold / 100,
        memory_reserve=settings.memory_reserve,
        agent_memory=settings.agent_memory,
        task_memory_max=settings.task_memory_max,
        ceiling=size.ceiling,
    )


class Scaling:
    def __init__(self, settings: Settings, size: Size, url: str, selector: selectors.BaseSelector) -> None:
        self._home, self._url, self._selector = Home(settings.home), url, selector
        self._pool = Pool(limits_of(settings, size))
        self._machine = MachineState(self._spent_on_starts)
        most = RUNNERS_MAX if size.ceiling is None else size.ceiling
        self.shape = Shape.of(cores=self._machine.cores(), fixed=size.fixed, ceiling=most)
        self.children: list[RunnerChild] = []
        self._is_on = False
        self._look_at = 0.0
        self._looked_at = float("-inf")
        self._spent = 0.0
        self._held_for: Resource | None = None
        self._held_since = datetime.now(UTC)
        self._words_at = 0.0
        self._hold = b""
        self._unsettled: list[int] = []  # slots; the first is the next

    def begin(self, now: float) -> None:
        """There is a relay to claim from: start what is always there, and what must settle an earlier life."""
        self._is_on = True
        self._unsettled = left_behind(self._home)
        self._look(now)

    def stop(self) -> None:
        """Nobody is started, opened or held any more."""
        self._is_on = False

    def next_moment(self) -> float:
        return self._look_at if self._is_on else float("inf")

    def tick(self, now: float) -> None:
        self.children = [child for child in self.children if child.wanted or child.process is not None]
        if not self._is_on:
            return
        if now >= self._look_at:
            self._look(now)
        self._settle_some(now)
        room = self._pool.room(now)
        waiting = [_waiting(child) for child in self.children if child.wanted and child.attempt is None]
        self._obey(plan(waiting, self._pool.busy, room, self.shape, now), room, now)

    def _settle_some(self, now: float) -> None:
        """Beyond what there is room for, but few at a time; who has settled goes home, unless there is need for him."""
        taken = {child.slot for child in self.children}
        self._unsettled = [slot for slot in self._unsettled if slot not in taken]
        starting = sum(not child.is_ready and not child.is_in_trouble for child in self.children)
        for slot in self._unsettled[: max(0, SETTLING_MOST - starting)]:
            self._add(slot, now, idle_since=float("-inf"))

    def _look(self, now: float) -> None:
        usages: dict[str, Load] = {}
        for child in self.children:
            if child.attempt is not None and child.process is not None:
                used = used_below(child.process.pid)
                if used is not None:
                    usages[child.name] = used
        self._pool.look(self._machine.look(now), usages, now)
        self._looked_at = now
        is_quiet = self._pool.busy == 0 and self._held_for is None
        self._look_at = now + (LOOK_IDLE if is_quiet else LOOK_BUSY)

    def _obey(self, made: Plan, room: Room, now: float) -> None:
        hold = self._hold_order(made, room, now)
        for child in self.children:
            if child.slot in made.open:
                child.say(OPEN)
            elif child.slot in made.hold:
                child.say(hold)
            elif child.slot in made.retire:
                log.info("runner sent home", extra={"child": child.name})
                child.wanted = False
                child.tell(signal.SIGTERM)
        for _ in range(made.start):
            free = min(set(range(1, len(self.children) + 2)) - {child.slot for child in self.children})
            self._add(free, now, idle_since=now)

    def _hold_order(self, made: Plan, room: Room, now: float) -> bytes:
        """With the figures of now and then, and the moment when it began."""
        lacking = (room.lack.resource if room.lack else Resource.NUMBER) if made.hold else None
        if lacking != self._held_for:
            self._held_for, self._held_since, self._words_at = lacking, datetime.now(UTC), now
            self._look_at = min(self._look_at, self._looked_at + LOOK_BUSY)
        if now >= self._words_at:
            self._hold = hold_order(held_words(room, self._held_since))
            self._words_at = now + WORDS_EVERY
        return self._hold

    def _add(self, slot: int, now: float, *, idle_since: float) -> None:
        arguments = ["delegate.runner", "--slot", str(slot), "--relay-url", self._url]
        self.children.append(
            RunnerChild(name=f"runner-{slot}", arguments=arguments, slot=slot, due=now, idle_since=idle_since)
        )

    def start(self, child: RunnerChild, now: float) -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        terms = Terms(arguments=("--report-fd", str(writing)), pass_fds=(writing,))
        start_child(child, self._home, terms, now)
        os.close(writing)
        child.reports = reading
        self._selector.register(reading, selectors.EVENT_READ, child)

    def hear(self, child: RunnerChild, now: float) -> None:
        if child.reports is None:
            return
        piece = os.read(child.reports, READ_SIZE)
        if not piece:
            self._selector.unregister(child.reports)
            os.close(child.reports)
            child.reports = None
        *lines, child.unread = (child.unread + piece).split(b"\n")
        for line in lines:
            self._learn(child, words_of(line), now)

    def _learn(self, child: RunnerChild, news: object, now: float) -> None:
        match news:
            case {News.BUSY: str(attempt), News.AGENT: str(agent)}:
                self._is_well(child)
                child.attempt = attempt
                self._pool.begins(child.name, agent, now)
            case {News.IDLE: True}:
                self._is_well(child)
                self._ended(child, now)
            case {News.TROUBLE: True}:
                self._is_ill(child, now)
            case _:
                log.warning("runner not understood", extra={"child": child.name, "news": news})
        if now - self._looked_at >= LOOK_LEAST:
            self._look_at = now

    def _is_well(self, child: RunnerChild) -> None:
        is_new, child.is_ready, child.is_in_trouble = not child.is_ready, True, False
        if is_new and child.process is not None:
            self._spent += cpu_seconds_of(child.process.pid)

    def _is_ill(self, child: RunnerChild, now: float) -> None:
        if not child.is_in_trouble:  # it says so again whenever it has tried
            log.warning("runner in trouble", extra={"child": child.name})
            child.is_in_trouble, child.idle_since = True, now

    def died(self, child: RunnerChild, now: float) -> None:
        """What it said last does not matter any more."""
        if child.reports is not None:
            self._selector.unregister(child.reports)
            os.close(child.reports)
            child.reports = None
        self._ended(child, now)

    def _ended(self, child: RunnerChild, now: float) -> None:
        if child.attempt is not None:
            self._pool.ends(child.name, now)
            child.attempt, child.idle_since = None, now

    def _spent_on_starts(self) -> float:
        starting = [child.process.pid for child in self.children if child.process is not None and not child.is_ready]
        return self._spent + sum(cpu_seconds_of(pid) for pid in starting)


def _waiting(child: RunnerChild) -> Waiting:
    return Waiting(
        slot=child.slot,
        is_ready=child.is_ready and not child.is_in_trouble,
        is_open=child.is_open,
        is_in_trouble=child.is_in_trouble,
        since=child.idle_since,
    )


def held_words(room: Room, since: datetime) -> str:
    if room.lack is None:
        return "as many tasks run at once as may run on this machine"
    return f"the machine lacks {room.lack.resource} since {since:%Y-%m-%d %H:%M:%S} UTC: {room.lack.why}"


def left_behind(place: Home) -> list[int]:
    """Slots whose runner was at something when it ended; whoever has the slot next brings it to its end. A claim alone
    is no sign of that, every runner that waits has one; should it have been answered, its lease runs out."""
    try:
        slots = [path for path in place.runners.iterdir() if path.name.isascii() and path.name.isdigit()]
    except OSError:
        return []
    return sorted(int(path.name) for path in slots if 0 < int(path.name) <= RUNNERS_MAX and _has_left(path))


def _has_left(slot: Path) -> bool:
    return any(_has_entries(slot / name) for name in ("spool", "effects"))


def _has_entries(place: Path) -> bool:
    try:
        return any(place.iterdir())
    except OSError:
        return False
