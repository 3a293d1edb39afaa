"""One agent process from its launch to its end: fed, read, watched, and stopped when it must be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import anyio

from delegate.failpoints import failpoint
from delegate.model import EventKind
from delegate.runner.agents.base import Ending, Invocation, Reading
from delegate.runner.lease import Lease
from delegate.runner.process import AgentProcess, Exit
from delegate.runner.record import Record
from delegate.runner.shutdown import Shutdown
from delegate.runner.watchdog import Patience, Signs, next_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a run writes to and listens to; the attention of the shutdown is called when one of them has changed."""

    record: Record
    lease: Lease
    shutdown: Shutdown
    patience: Patience
    grace: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    exit: Exit
    ending: Ending
    is_broken_off: bool  # for reasons of the runner, not of the agent
    is_supervisor_lost: bool


class Run:
    def __init__(self, process: AgentProcess, reading: Reading, around: Surroundings, started_at: float) -> None:
        self._process = process
        self._reading = reading
        self._around = around
        self._attention = around.shutdown.attention
        self._signs = Signs(started_at=started_at, launched_at=anyio.current_time())
        self._ending = Ending.EXITED
        self._is_broken_off = False

    async def to_its_end(self, invocation: Invocation) -> RunEnd:
        """Returns when the agent has ended, all its output is recorded, and nothing of it lives."""
        try:
            self._note_start(invocation)
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

    def _note_start(self, invocation: Invocation) -> None:
        failpoint("runner.launched")
        self._around.record.fact(EventKind.STARTED, {"pid": self._process.pid, "argv0": invocation.argv[0]})

    async def _listen(self) -> None:
        record, signs = self._around.record, self._signs
        while True:
            try:
                stream, data = await self._process.receive()
            except anyio.EndOfStream:
                return
            signs.output_at = anyio.current_time()
            record.output(stream, data)
            for fact in self._reading.feed(stream, data):
                record.fact(fact.kind, fact.data)
            self._note_result()

    def _note_result(self) -> None:
        if self._reading.result_seen == (self._signs.result_at is not None):
            return
        self._signs.result_at = anyio.current_time() if self._reading.result_seen else None
        self._attention.send()

    async def _speak(self, invocation: Invocation) -> None:
        """Hand the agent its task and then the messages for it; its input ends with its result."""
        await self._process.send(invocation.opening)
        if not invocation.keep_input_open:
            await self._process.close_input()
        while self._signs.result_at is None:
            await self._pass_messages_on()
            if self._signs.result_at is None:
                await self._attention.wait()
        await self._process.close_input()

    async def _pass_messages_on(self) -> None:
        for message in self._around.lease.take_messages():
            data = self._reading.message(message.text)
            if data is None:
                text = "a message came, but this agent takes none while it works"
                self._around.record.fact(EventKind.WARNING, {"text": text})
            else:
                await self._process.send(data)
            self._around.lease.mark_seen(message)

    async def _watch(self) -> None:
        while (ending := self._must_end()) is None:
            deadline, _ = next_end(self._around.patience, self._signs)
            with anyio.move_on_at(deadline):
                await self._attention.wait()
        self._ending = ending
        await self._process.stop(self._grace())

    def _must_end(self) -> Ending | None:
        if self._around.lease.cancel_reason is not None:
            return Ending.CANCELLED
        if self._around.record.failure is not None or self._around.shutdown.is_now:
            self._is_broken_off = True
            return Ending.CANCELLED
        deadline, ending = next_end(self._around.patience, self._signs)
        return ending if anyio.current_time() >= deadline else None

    def _grace(self) -> timedelta:
        return min(self._around.grace, self._around.shutdown.grace)
