"""The runner's connection to its keeper: receives commands on stdin and reports the runner's status."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio

from delegate.errors import DelegateError
from delegate.runner.keeper_protocol import RunnerCommand, RunnerStatus, decode_line, encode_line
from delegate.runner.shutdown import Shutdown
from delegate.runner.wakeup import Wakeup

log = logging.getLogger(__name__)

STDIN = 0
FIRST_COMMAND_TIMEOUT = 5.0  # seconds for the keeper to say whether the runner may claim; after that, it may


class KeeperLink:
    """Without a keeper (`report_fd` is None), the runner is never held and reports nothing."""

    def __init__(self, report_fd: int | None = None) -> None:
        self._report_fd = report_fd
        self._has_command = report_fd is None
        self._changed = Wakeup()
        self._claim_scope: anyio.CancelScope | None = None
        self.hold_reason: str | None = None  # why the runner may not claim now
        if report_fd is not None:
            os.set_inheritable(report_fd, False)  # noqa: FBT003

    async def wait_for_first_command(self) -> None:
        """Returns when the first command has arrived; the keeper sends it right after starting the runner."""
        with anyio.move_on_after(FIRST_COMMAND_TIMEOUT):
            while not self._has_command:
                await self._changed.wait()
        self._has_command = True

    async def wait_for_change(self, timeout: float) -> None:
        with anyio.move_on_after(timeout):
            await self._changed.wait()

    @contextmanager
    def cancel_when_held(self) -> Iterator[None]:
        """The block is cancelled when the keeper puts the runner on hold."""
        with anyio.CancelScope() as scope:
            self._claim_scope = scope
            try:
                yield
            finally:
                self._claim_scope = None

    def report_busy(self, attempt_id: str, task_id: str, agent: str) -> None:
        self._send({RunnerStatus.BUSY: attempt_id, RunnerStatus.TASK: task_id, RunnerStatus.AGENT: agent})

    def report_waiting(self, *, waits: bool) -> None:
        self._send({RunnerStatus.WAITING: waits})

    def report_idle(self) -> None:
        self._send({RunnerStatus.IDLE: True})

    def report_trouble(self) -> None:
        self._send({RunnerStatus.TROUBLE: True})

    def report_away(self, why: str) -> None:
        """Report why the relay does not answer; an empty text, that it does again."""
        self._send({RunnerStatus.AWAY: why})

    def report_drain(self, *, drains: bool) -> None:
        self._send({RunnerStatus.DRAIN: drains})

    def report_fatal(self, error: DelegateError) -> None:
        self._send({RunnerStatus.FATAL: error.report()})

    def _send(self, status: dict[str, object]) -> None:
        if self._report_fd is not None:
            with suppress(BrokenPipeError):  # `listen` notices it too and stops the runner
                os.write(self._report_fd, encode_line(status))

    async def listen(self, shutdown: Shutdown) -> None:
        """Handle the keeper's commands on stdin; end of file means that the keeper has exited."""
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(STDIN).st_mode)
        except OSError:
            return
        if not is_pipe:
            return
        unread = b""
        while piece := await _read():
            *lines, unread = (unread + piece).split(b"\n")
            for command_line in lines:
                self.handle_command(command_line)
        log.warning("the keeper has exited: stopping")
        shutdown.stop_now()

    def handle_command(self, command_line: bytes) -> None:
        match decode_line(command_line):
            case {RunnerCommand.HOLD: str(why)}:
                self.hold_reason = why
                if self._claim_scope is not None:
                    self._claim_scope.cancel()
            case {RunnerCommand.OPEN: True}:
                self.hold_reason = None
            case unknown:
                log.warning("unknown command from the keeper", extra={"order": unknown})
        self._has_command = True
        self._changed.send()


async def _read() -> bytes:
    await anyio.wait_readable(STDIN)
    return os.read(STDIN, 4096)
