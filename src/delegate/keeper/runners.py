"""Starts and retires the keeper's runners, according to the work and the machine's capacity."""

from __future__ import annotations

import logging
import os
import selectors
import signal
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.config.values import RUNNERS_MAX, parse_runners
from delegate.errors import InvalidField
from delegate.keeper.capacity import Capacity, Load, Pool, PoolLimits, Resource
from delegate.keeper.children import OPEN_COMMAND, RunnerChild, StartOptions, hold_command, start_child
from delegate.keeper.machine import MachineState, cpu_seconds_of, measure_descendants
from delegate.keeper.scaling import FleetShape, IdleRunner, Plan, plan
from delegate.runner.keeper_protocol import RunnerStatus, decode_line

log = logging.getLogger(__name__)

SAMPLE_INTERVAL_BUSY, SAMPLE_INTERVAL_IDLE = 1.0, 5.0  # seconds between samples of the machine
SAMPLE_INTERVAL_MIN = 0.1
HOLD_TEXT_INTERVAL = (
    10.0  # seconds; a held runner reports its reason to the relay, so the text must not change with every sample
)
READ_SIZE = 65_536
SETTLING_MAX = 2  # runners started together only to settle unfinished work of their slots


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerCount:
    """The number of runners the user asked for, and the most tasks at once; None: the machine decides."""

    fixed: int | None
    ceiling: int | None


def parse_runner_count(text: str | None, settings: Settings) -> RunnerCount:
    """`text` comes from the command line and overrides the setting."""
    if text is None:
        return RunnerCount(fixed=None, ceiling=settings.max_runners)
    try:
        number = parse_runners(text)
    except ValueError as error:
        raise InvalidField(field="runners", why=str(error)) from error
    return RunnerCount(fixed=number, ceiling=number)


def pool_limits(settings: Settings, count: RunnerCount) -> PoolLimits:
    return PoolLimits(
        cpu_threshold=settings.cpu_threshold / 100,
        memory_reserve=settings.memory_reserve,
        agent_memory=settings.agent_memory,
        task_memory_max=settings.task_memory_max,
        ceiling=count.ceiling,
    )


class RunnerScaler:
    def __init__(self, settings: Settings, count: RunnerCount, url: str, selector: selectors.BaseSelector) -> None:
        self._home, self._url, self._selector = Home(settings.home), url, selector
        self._pool = Pool(pool_limits(settings, count))
        self._machine = MachineState(self._measure_startup)
        most = RUNNERS_MAX if count.ceiling is None else count.ceiling
        self.shape = FleetShape.of(cores=self._machine.cores(), fixed=count.fixed, ceiling=most)
        self.children: list[RunnerChild] = []
        self._is_on = False
        self._next_sample_at = 0.0
        self._last_sample_at = float("-inf")
        self._startup_seconds = 0.0
        self._held_for: Resource | None = None
        self._held_since = datetime.now(UTC)
        self._hold_text_due_at = 0.0
        self._hold, self._hold_reason = b"", ""
        self._unsettled: list[int] = []  # slots, the next one first
        self.fatal_report: dict[str, Any] | None = None  # an error after which no runner can work
        self.relay_problem: str | None = None  # why the relay is away, as a runner says
        self.is_draining = False  # at the relay

    @property
    def shortage(self) -> str | None:
        """Why an idle runner may not claim now."""
        return None if self._held_for is None else self._hold_reason

    def begin(self, now: float) -> None:
        """The relay is ready: start the base runners, and those that must settle unfinished work."""
        self._is_on = True
        self._unsettled = slots_with_leftovers(self._home)
        self._take_sample(now)

    def stop(self) -> None:
        """Start, open and hold no more runners."""
        self._is_on = False

    def next_due(self) -> float:
        return self._next_sample_at if self._is_on else float("inf")

    def tick(self, now: float) -> None:
        self.children = [child for child in self.children if child.wanted or child.process is not None]
        if not self._is_on:
            return
        if now >= self._next_sample_at:
            self._take_sample(now)
        self._start_unsettled(now)
        capacity = self._pool.capacity(now)
        waiting = [_idle_runner(child) for child in self.children if child.wanted and child.attempt is None]
        self._apply(plan(waiting, self._pool.busy, capacity, self.shape, now), capacity, now)

    def _start_unsettled(self, now: float) -> None:
        """Ignores the capacity, but starts few at a time; a runner that has settled is retired unless it is needed."""
        taken = {child.slot for child in self.children}
        self._unsettled = [slot for slot in self._unsettled if slot not in taken]
        starting = sum(not child.is_ready and not child.is_in_trouble for child in self.children)
        for slot in self._unsettled[: max(0, SETTLING_MAX - starting)]:
            self._add(slot, now, idle_since=float("-inf"))

    def _take_sample(self, now: float) -> None:
        usages: dict[str, Load] = {}
        for child in self.children:
            if child.attempt is not None and child.process is not None:
                used = measure_descendants(child.process.pid)
                if used is not None:
                    usages[child.name] = used
        self._pool.record_sample(self._machine.sample(now), usages, now)
        self._last_sample_at = now
        is_quiet = self._pool.busy == 0 and self._held_for is None
        self._next_sample_at = now + (SAMPLE_INTERVAL_IDLE if is_quiet else SAMPLE_INTERVAL_BUSY)

    def _apply(self, made: Plan, capacity: Capacity, now: float) -> None:
        hold = self._hold_command(made, capacity, now)
        for child in self.children:
            if child.slot in made.open:
                child.send_command(OPEN_COMMAND)
            elif child.slot in made.hold:
                child.send_command(hold)
            elif child.slot in made.retire:
                log.info("runner retired", extra={"child": child.name})
                child.wanted = False
                child.send_signal(signal.SIGTERM)
        for _ in range(made.start):
            free = min(set(range(1, len(self.children) + 2)) - {child.slot for child in self.children})
            self._add(free, now, idle_since=now)

    def _hold_command(self, made: Plan, capacity: Capacity, now: float) -> bytes:
        """The hold command with its reason, whose figures change only now and then."""
        lacking = (capacity.shortage.resource if capacity.shortage else Resource.NUMBER) if made.hold else None
        if lacking != self._held_for:
            self._held_for, self._held_since, self._hold_text_due_at = lacking, datetime.now(UTC), now
            self._next_sample_at = min(self._next_sample_at, self._last_sample_at + SAMPLE_INTERVAL_BUSY)
        if now >= self._hold_text_due_at:
            self._hold_reason = hold_reason(capacity, self._held_since)
            self._hold = hold_command(self._hold_reason)
            self._hold_text_due_at = now + HOLD_TEXT_INTERVAL
        return self._hold

    def _add(self, slot: int, now: float, *, idle_since: float) -> None:
        arguments = ["delegate.runner", "--slot", str(slot), "--relay-url", self._url]
        self.children.append(
            RunnerChild(name=f"runner-{slot}", arguments=arguments, slot=slot, due=now, idle_since=idle_since)
        )

    def start(self, child: RunnerChild, now: float) -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        options = StartOptions(arguments=("--report-fd", str(writing)), pass_fds=(writing,))
        start_child(child, self._home, options, now)
        os.close(writing)
        child.reports = reading
        self._selector.register(reading, selectors.EVENT_READ, child)

    def read_reports(self, child: RunnerChild, now: float) -> None:
        if child.reports is None:
            return
        piece = os.read(child.reports, READ_SIZE)
        if not piece:
            self._selector.unregister(child.reports)
            os.close(child.reports)
            child.reports = None
        *lines, child.unread = (child.unread + piece).split(b"\n")
        for line in lines:
            self._handle_status(child, decode_line(line), now)

    def _handle_status(self, child: RunnerChild, status: object, now: float) -> None:
        match status:
            case {RunnerStatus.BUSY: str(attempt), RunnerStatus.AGENT: str(agent), RunnerStatus.TASK: str(task_id)}:
                self._mark_ready(child)
                child.attempt, child.task_id, child.agent = attempt, task_id, agent
                self._pool.record_start(child.name, agent, now)
            case {RunnerStatus.WAITING: bool(waits)}:
                self._pool.record_waiting(child.name, waits=waits)
            case {RunnerStatus.IDLE: True}:
                self._mark_ready(child)
                self._end_attempt(child, now)
            case {RunnerStatus.TROUBLE: True}:
                self._mark_failing(child, now)
            case {RunnerStatus.AWAY: str(why)}:
                self.relay_problem = why or None
            case {RunnerStatus.DRAIN: bool(drains)}:
                self.is_draining = drains
            case {RunnerStatus.FATAL: {"error": {"code": str(), "exitCode": int()}} as report}:
                self.fatal_report = report
            case _:
                log.warning("runner report not understood", extra={"child": child.name, "news": status})
        if now - self._last_sample_at >= SAMPLE_INTERVAL_MIN:
            self._next_sample_at = now

    def _mark_ready(self, child: RunnerChild) -> None:
        is_new, child.is_ready, child.is_in_trouble = not child.is_ready, True, False
        if is_new and child.process is not None:
            self._startup_seconds += cpu_seconds_of(child.process.pid)

    def _mark_failing(self, child: RunnerChild, now: float) -> None:
        if not child.is_in_trouble:  # it reports this after every failed try
            log.warning("runner in trouble", extra={"child": child.name})
            child.is_in_trouble, child.idle_since = True, now

    def handle_exit(self, child: RunnerChild, now: float) -> None:
        """Read its last reports: it may have said why it ended."""
        with suppress(BlockingIOError):
            self.read_reports(child, now)
        if child.reports is not None:
            self._selector.unregister(child.reports)
            os.close(child.reports)
            child.reports = None
        self._end_attempt(child, now)

    def _end_attempt(self, child: RunnerChild, now: float) -> None:
        if child.attempt is not None:
            self._pool.record_end(child.name, now)
            child.attempt, child.idle_since = None, now

    def _measure_startup(self) -> float:
        starting = [child.process.pid for child in self.children if child.process is not None and not child.is_ready]
        return self._startup_seconds + sum(cpu_seconds_of(pid) for pid in starting)


def _idle_runner(child: RunnerChild) -> IdleRunner:
    return IdleRunner(
        slot=child.slot,
        is_ready=child.is_ready and not child.is_in_trouble,
        is_open=child.is_open,
        is_in_trouble=child.is_in_trouble,
        since=child.idle_since,
    )


def hold_reason(capacity: Capacity, since: datetime) -> str:
    if capacity.shortage is None:
        return "the maximum number of tasks is already running on this machine"
    short = capacity.shortage
    return f"the machine has been short of {short.resource} since {since:%Y-%m-%d %H:%M:%S} UTC: {short.why}"


def slots_with_leftovers(paths: Home) -> list[int]:
    """Slots whose runner ended with unfinished work, which the next runner of the slot settles. A claim alone does not
    count, since every idle runner has one; if the relay granted it, its lease expires."""
    try:
        slots = [path for path in paths.runners.iterdir() if path.name.isascii() and path.name.isdigit()]
    except OSError:
        return []
    return sorted(int(path.name) for path in slots if 0 < int(path.name) <= RUNNERS_MAX and _has_leftovers(path))


def _has_leftovers(slot: Path) -> bool:
    return any(_has_entries(slot / name) for name in ("spool", "effects"))


def _has_entries(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False
