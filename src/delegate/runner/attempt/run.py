"""One agent process from its launch to its end: fed, read, watched, and stopped when it must be."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta

import anyio

from delegate.checkpoint_lines import Tail
from delegate.failpoints import failpoint
from delegate.model import EventKind, Stream, Usage
from delegate.runner.agents.asking import Asking
from delegate.runner.agents.base import Ending, Fact, Invocation, Reading
from delegate.runner.attempt.watchdog import Patience, Signs, next_end
from delegate.runner.disk import LOOK_EVERY, Disk
from delegate.runner.lease import Lease
from delegate.runner.process.agent_process import AgentProcess, Exit
from delegate.runner.process.cgroups import Ceiling
from delegate.runner.prompts.rendering import message_words
from delegate.runner.shutdown import Shutdown
from delegate.runner.upload.record import Record
from delegate.wire.parts import UsageView

REPLIES_MAX = 4 * 1024 * 1024  # bytes; an agent that asks and asks and reads no answer gets no more of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """What a run writes to and listens to; the attention of the shutdown is called when one of them has changed."""

    record: Record
    lease: Lease
    shutdown: Shutdown
    patience: Patience
    grace: timedelta
    disk: Disk
    started_at: float  # of the attempt; its time is counted from here
    tail: Tail
    ceiling: Ceiling | None = None  # on the memory of all that it starts
    asking: Asking | None = None  # by which its agent can ask a person
    spent: Usage = Usage()  # by earlier turns of this attempt

    @property
    def cgroup(self) -> tuple[str, str] | None:
        return self.ceiling.places if self.ceiling else None

    def memory_kills(self) -> int:
        return self.ceiling.kills() if self.ceiling else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    exit: Exit
    ending: Ending
    is_broken_off: bool  # for reasons of the runner, not of the agent
    is_supervisor_lost: bool


class Run:
    def __init__(self, process: AgentProcess, reading: Reading, around: Workbench) -> None:
        self._process = process
        self._reading = reading
        self._around = around
        self._attention = around.shutdown.attention
        self._signs = Signs(started_at=around.started_at, launched_at=anyio.current_time())
        self._ending = Ending.EXITED
        self._is_broken_off = False
        self._replies = bytearray()

    async def to_its_end(self, invocation: Invocation) -> RunEnd:
        """Returns when the agent has ended, all its output is recorded, and nothing of it lives."""
        try:
            failpoint("runner.launched")
            async with anyio.create_task_group() as group:
                group.start_soon(self._speak, invocation)
                group.start_soon(self._watch)
                await self._listen()
                end = await self._process.wait()
                group.cancel_scope.cancel()
        finally:
            await self._process.aclose()
            self._around.record.flush()
        return RunEnd(
            exit=end,
            ending=self._ending,
            is_broken_off=self._is_broken_off,
            is_supervisor_lost=self._process.supervisor_lost,
        )

    async def _listen(self) -> None:
        record, signs = self._around.record, self._signs
        while True:
            try:
                stream, data = await self._process.receive()
            except anyio.EndOfStream:
                for stream in Stream:
                    self._read(stream, record.end_output(stream))
                return
            signs.output_at = anyio.current_time()
            self._read(stream, record.output(stream, data))

    def _read(self, stream: Stream, data: bytes) -> None:
        record, tail = self._around.record, self._around.tail
        tail.output(data)
        for fact in self._reading.feed(stream, data):
            told = summed(fact, self._around.spent)
            record.fact(told.kind, told.data)
            tail.fact(told.kind, told.data)
        self._note_replies()
        self._note_result()

    def _note_replies(self) -> None:
        """Whoever reads must not write as well: an agent that reads nothing would then not be read either."""
        replies = self._reading.replies()
        if replies and len(self._replies) < REPLIES_MAX:
            self._replies += replies
            self._attention.send()

    def _note_result(self) -> None:
        if self._reading.result_seen == (self._signs.result_at is not None):
            return
        self._signs.result_at = anyio.current_time() if self._reading.result_seen else None
        self._attention.send()

    async def _speak(self, invocation: Invocation) -> None:
        """Hand the agent its task, then answers and the messages for it; its input ends with its result."""
        await self._process.send(invocation.opening)
        if not invocation.keep_input_open:
            await self._process.close_input()
        while True:
            await self._reply()
            await self._pass_messages_on()
            if self._signs.result_at is not None:
                break
            if not self._replies:
                await self._attention.wait()
        await self._process.close_input()

    async def _reply(self) -> None:
        while self._replies:
            data = bytes(self._replies)
            self._replies.clear()
            await self._process.send(data)

    async def _pass_messages_on(self) -> None:
        """What the agent does not take now stays with the lease, for a further turn."""
        messages = self._around.lease.take_messages()
        for number, message in enumerate(messages):
            data = self._reading.message(message_words(message.text))
            if data is None:
                self._around.lease.put_back(messages[number:])
                return
            self._note_result()  # there may have been one: the message takes it back
            await self._process.send(data)
            self._around.lease.mark_seen(message)

    async def _watch(self) -> None:
        while (ending := self._must_end()) is None:
            deadline, _ = next_end(self._around.patience, self._signs)
            with anyio.move_on_at(min(deadline, anyio.current_time() + LOOK_EVERY)):
                await self._attention.wait()
        self._ending = ending
        await self._process.stop(self._grace())

    def _must_end(self) -> Ending | None:
        if self._around.lease.cancel_reason is not None:
            return Ending.CANCELLED
        if self._around.record.failure is not None or self._around.shutdown.is_now:
            self._is_broken_off = True
            return Ending.CANCELLED
        if self._around.disk.is_nearly_full() is not None:
            return Ending.DISK_FULL
        self._signs.asked_at = self._around.lease.asked_at
        deadline, ending = next_end(self._around.patience, self._signs)
        return ending if anyio.current_time() >= deadline else None

    def _grace(self) -> timedelta:
        return min(self._around.grace, self._around.shutdown.grace)


def summed(fact: Fact, before: Usage) -> Fact:
    """Pure: usage is told for the whole attempt, and an agent knows only its own turn."""
    if fact.kind is not EventKind.USAGE:
        return fact
    known = UsageView(**asdict(before)).model_dump(by_alias=True)
    data = {name: _number(value) + known.get(name, 0) for name, value in fact.data.items()}
    return Fact(kind=fact.kind, data={**known, **data})


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0
