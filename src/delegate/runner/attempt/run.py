"""Runs one agent process: writes its input, records its output, and stops it when it must end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import anyio

from delegate.failpoints import failpoint
from delegate.model import IS_WAITING, EventKind, Stream, Usage
from delegate.output_tail import CheckpointTail
from delegate.runner.agents.ask_tool import AskEndpoint
from delegate.runner.agents.base import AgentReading, Ending, Fact, Invocation
from delegate.runner.agents.timeline_facts import in_repository
from delegate.runner.attempt.watchdog import AgentActivity, TimeLimits, next_deadline
from delegate.runner.disk import DISK_CHECK_INTERVAL, RunnerDisk
from delegate.runner.lease import Lease
from delegate.runner.process.agent_process import AgentProcess, Exit
from delegate.runner.process.cgroups import MemoryLimit
from delegate.runner.prompts.rendering import message_prompt
from delegate.runner.shutdown import Shutdown
from delegate.runner.upload.record import Record
from delegate.wire.shared_models import UsageView

REPLIES_MAX = 4 * 1024 * 1024  # bytes of unsent replies; an agent that keeps asking without reading gets no more


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContext:
    """What a run writes to and watches; every change sends `shutdown.wakeup`."""

    record: Record
    lease: Lease
    shutdown: Shutdown
    time_limits: TimeLimits
    grace: timedelta
    disk: RunnerDisk
    started_at: float  # of the attempt; its time limit counts from here
    tail: CheckpointTail
    memory_limit: MemoryLimit | None = None  # for all processes of the attempt
    asking: AskEndpoint | None = None  # where the agent can ask the user a question
    spent: Usage = Usage()  # by earlier turns of this attempt
    directory: Path | None = None  # where the agent works
    root: Path | None = None  # of the repository around it

    @property
    def is_late(self) -> bool:
        return anyio.current_time() >= self.started_at + self.time_limits.total

    @property
    def cgroup(self) -> tuple[str, str] | None:
        return self.memory_limit.paths if self.memory_limit else None

    def memory_kills(self) -> int:
        return self.memory_limit.kills() if self.memory_limit else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How one agent process ended; the attempt may continue with another one."""

    exit: Exit
    ending: Ending


class AgentRun:
    def __init__(self, process: AgentProcess, reading: AgentReading, context: AttemptContext) -> None:
        self._process = process
        self._reading = reading
        self._context = context
        self._wakeup = context.shutdown.wakeup
        self._activity = AgentActivity(started_at=context.started_at, launched_at=anyio.current_time())
        self._ending = Ending.EXITED
        self._replies = bytearray()

    async def run_to_end(self, invocation: Invocation) -> RunEnd:
        """Returns when the agent has ended, all its output is recorded, and none of its processes is left."""
        try:
            failpoint("runner.launched")
            async with anyio.create_task_group() as group:
                group.start_soon(self._write_input, invocation)
                group.start_soon(self._watch)
                await self._read_output()
                end = await self._process.wait()
                group.cancel_scope.cancel()
        finally:
            await self._process.aclose()
            self._context.record.flush()
        is_lost = self._process.supervisor_lost and self._ending is Ending.EXITED
        return RunEnd(exit=end, ending=Ending.SUPERVISOR_LOST if is_lost else self._ending)

    async def _read_output(self) -> None:
        record, activity = self._context.record, self._activity
        while True:
            try:
                stream, data = await self._process.receive()
            except anyio.EndOfStream:
                for stream in Stream:
                    self._handle_output(stream, record.end_output(stream))
                return
            activity.output_at = anyio.current_time()
            self._handle_output(stream, record.output(stream, data))

    def _handle_output(self, stream: Stream, data: bytes) -> None:
        record, tail = self._context.record, self._context.tail
        tail.output(data)
        for fact in self._reading.feed(stream, data):
            adjusted = self._adjust(fact)
            record.fact(adjusted.kind, adjusted.data)
            tail.fact(adjusted.kind, adjusted.data)
        self._note_replies()
        self._note_result()

    def _adjust(self, fact: Fact) -> Fact:
        directory, root = self._context.directory, self._context.root
        placed = fact if directory is None or root is None else in_repository(fact, directory, root)
        return add_prior_usage(placed, self._context.spent)

    def _note_replies(self) -> None:
        """Queue replies for the writing task: if the reader wrote, an agent that does not read would block both."""
        replies = self._reading.replies()
        if replies and len(self._replies) < REPLIES_MAX:
            self._replies += replies
            self._wakeup.send()

    def _note_result(self) -> None:
        if self._reading.result_seen != (self._activity.result_at is not None):
            self._activity.result_at = anyio.current_time() if self._reading.result_seen else None
            self._wakeup.send()
        self._note_waiting()

    def _note_waiting(self) -> None:
        left = self._reading.left_running
        if bool(left) == (self._activity.waiting_since is not None):
            return
        self._activity.waiting_since = anyio.current_time() if left else None
        if left:
            text = f"waiting for a command that the agent left running: {left}"
            self._context.record.fact(EventKind.WARNING, {"text": text, IS_WAITING: True})
        self._wakeup.send()

    async def _write_input(self, invocation: Invocation) -> None:
        """Send the prompt, then replies and messages; close the input when the agent has reported its result."""
        await self._process.send(invocation.initial_input)
        if not invocation.keep_input_open:
            await self._process.close_input()
        while True:
            await self._reply()
            await self._deliver_messages()
            if self._activity.result_at is not None:
                break
            if not self._replies:
                await self._wakeup.wait()
        await self._process.close_input()

    async def _reply(self) -> None:
        while self._replies:
            data = bytes(self._replies)
            self._replies.clear()
            await self._process.send(data)

    async def _deliver_messages(self) -> None:
        """Messages that the agent cannot receive now go back to the lease, for a further turn."""
        messages = self._context.lease.take_messages()
        for number, message in enumerate(messages):
            data = self._reading.message(message_prompt(message.text))
            self._note_result()  # the message resets an earlier result
            if data is None or not await self._process.send(data):
                self._context.lease.put_back(messages[number:])
                return
            self._context.lease.mark_seen(message)

    async def _watch(self) -> None:
        while (ending := self._must_end()) is None:
            deadline, _ = next_deadline(self._context.time_limits, self._activity)
            with anyio.move_on_at(min(deadline, anyio.current_time() + DISK_CHECK_INTERVAL)):
                await self._wakeup.wait()
        self._ending = ending
        if left := self._reading.left_running:
            text = f"stopping a command that the agent left running: {left}"
            self._context.record.fact(EventKind.WARNING, {"text": text})
        await self._process.stop(self._grace())

    def _must_end(self) -> Ending | None:
        if self._context.lease.cancel_reason is not None:
            return Ending.CANCELLED
        if self._context.record.failure is not None or self._context.shutdown.is_now:
            return Ending.INTERRUPTED
        if self._context.disk.shortage_to_continue() is not None:
            return Ending.DISK_FULL
        self._activity.asked_at = self._context.lease.asked_at
        deadline, ending = next_deadline(self._context.time_limits, self._activity)
        return ending if anyio.current_time() >= deadline else None

    def _grace(self) -> timedelta:
        return min(self._context.grace, self._context.shutdown.grace)


def add_prior_usage(fact: Fact, before: Usage) -> Fact:
    """Pure: an agent reports the usage of its turn; events hold that of the whole attempt."""
    if fact.kind is not EventKind.USAGE:
        return fact
    known = UsageView(**asdict(before)).model_dump(by_alias=True)
    data = {name: _number(value) + known.get(name, 0) for name, value in fact.data.items()}
    return Fact(kind=fact.kind, data={**known, **data})


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0
