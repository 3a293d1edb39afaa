"""Records an attempt's output and facts: redacts, batches and spools them, and uploads them in sequence."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import anyio

from delegate.errors import Refused, SequenceGap
from delegate.failpoints import failpoint
from delegate.model import EventKind, Privacy, Stream
from delegate.runner.secrets.redaction import Redaction
from delegate.runner.upload import privacy
from delegate.runner.upload.local_record import LocalRecord
from delegate.runner.upload.spool import Batch, Spool
from delegate.runner.wakeup import Wakeup
from delegate.wire.basics import CHUNK_MAX
from delegate.wire.runners import Control

log = logging.getLogger(__name__)
GATHER_INTERVAL = 0.01  # seconds to collect small pieces into one upload; too short for a person to notice

Upload = Callable[[Batch], Awaitable[Control]]
LogEvent = Callable[[EventKind, dict[str, object], datetime], None]


def ignore_event(_: EventKind, __: dict[str, object], ___: datetime) -> None:
    pass


class Record:
    """`failure` is set when the disk cannot be written: the attempt must end, and its output is incomplete.

    `local` and the log for people get everything; the spool, and with it the relay, gets what the privacy level lets
    through.
    """

    def __init__(
        self,
        spool: Spool,
        redaction: Redaction,
        wakeup: Wakeup,
        *,
        local: LocalRecord,
        level: Privacy = Privacy.FULL,
        log_event: LogEvent = ignore_event,
    ) -> None:
        self._spool = spool
        self._local = local
        self._level = level
        self._log_event = log_event
        self._redaction = redaction
        self._wakeup = wakeup
        self._pieces: list[bytes] = []
        self._gathered = 0
        self._stream = Stream.STDOUT
        self._arrived = Wakeup()
        self._spooled = Wakeup()
        self._progress = Wakeup()
        self._urgent = Wakeup()
        self._is_urgent = False
        self.failure: OSError | None = None
        self.is_refused = False

    @property
    def next_seq(self) -> int:
        return self._spool.next_seq

    @property
    def is_complete(self) -> bool:
        """Everything was spooled and can still be sent."""
        return self.failure is None and not self.is_refused

    @property
    def is_uploaded(self) -> bool:
        """The relay has everything, or refuses to take the rest."""
        return self._spool.is_empty or self.is_refused

    def open(self) -> None:
        """Create the spool; from here on the attempt counts as started."""

        def create(_: datetime) -> None:
            self._spool.create()
            self._local.open()

        self._write(create)

    def close(self) -> None:
        self._spool.close()
        self._local.close()

    def output(self, stream: Stream, data: bytes) -> bytes:
        """Returns what is recorded: the data without secrets, less an end that may be the start of a secret."""
        return self._keep(stream, self._redaction.feed(stream, data))

    def end_output(self, stream: Stream) -> bytes:
        """Record what was held back of a stream that has ended; returns it."""
        return self._keep(stream, self._redaction.flush(stream))

    def _keep(self, stream: Stream, data: bytes) -> bytes:
        if not data:
            return data
        if stream is not self._stream or self._gathered + len(data) > CHUNK_MAX:
            self.flush()
            self._stream = stream
        self._pieces.append(data)
        self._gathered += len(data)
        self._arrived.send()
        return data

    def fact(self, kind: EventKind, data: dict[str, object]) -> None:
        clean = self._redaction.data(data)
        sent = privacy.event(self._level, kind, clean)

        def write(at: datetime) -> None:
            self._local.fact(kind, clean, at)
            self._log_event(kind, clean, at)
            if sent is not None:
                self._spool.fact(kind, sent, at)

        self._write(write)

    def secrets_in(self, data: bytes) -> list[str]:
        """The names of this machine's secrets in data that is about to be published."""
        return self._redaction.redactor.find_known_secrets(data)

    def without_secrets(self, text: str) -> str:
        return self._redaction.text(text)

    def note_secrets(self) -> None:
        """Warn which secrets were removed, and in which form, so that the user knows that they were printed."""
        if self._redaction.found:
            names = ", ".join(sorted(self._redaction.found))
            self.fact(EventKind.WARNING, {"text": f"secrets were removed from the output: {names}"})

    def note_kept(self) -> None:
        """Report how much output stays here; called once, at the end."""
        size = self._local.output_bytes
        if size and self._level is not Privacy.FULL:
            self._write(lambda at: self._spool.kept(size, at))

    def end(self, outcome: object) -> None:
        """Keep the outcome on this machine."""
        self._write(lambda at: self._local.end(outcome, at))

    def flush(self) -> None:
        if self._pieces:
            data, stream = b"".join(self._pieces), self._stream
            self._pieces, self._gathered = [], 0
            keep = self._spool if self._level is Privacy.FULL else self._local
            self._write(lambda at: keep.output(stream, data, at))

    async def gather(self) -> None:
        """Spool arriving output, GATHER_INTERVAL after its first piece."""
        while True:
            if not self._pieces:
                await self._arrived.wait()
            await anyio.sleep(GATHER_INTERVAL)
            self.flush()

    async def upload(self, send: Upload) -> None:
        """Upload spooled items until cancelled, or until the relay refuses them."""
        while True:
            try:
                batch = self._spool.batch()
                if batch is None:
                    await self._spooled.wait()
                    await self._wait_to_gather()
                    continue
                control = await send(batch)
                self._spool.acknowledge(control.next_seq, batch)
            except (Refused, SequenceGap, OSError) as failure:
                log.error("output cannot be uploaded", extra={"why": str(failure)})  # noqa: TRY400  why has the details
                self.is_refused = True
            self._progress.send()
            if self.is_refused:
                return

    def stop_gathering(self) -> None:
        """Upload without delay from now on: the end of the attempt waits for the last items."""
        self._is_urgent = True
        self._urgent.send()

    async def _wait_to_gather(self) -> None:
        if not self._is_urgent:
            with anyio.move_on_after(GATHER_INTERVAL):
                await self._urgent.wait()

    async def wait_for_progress(self) -> None:
        await self._progress.wait()

    def _write(self, write: Callable[[datetime], None]) -> None:
        if self.failure is not None:
            return
        try:
            write(datetime.now(UTC))
            failpoint("runner.spooled")
        except OSError as failure:
            self.failure = failure
            self._wakeup.send()
            return
        self._spooled.send()
