"""The bridge's event loop: one `poll` over the client, the relay and the timeouts."""

from __future__ import annotations

import gc
import os
import select
import signal
import time

from delegate.mcp_bridge import rpc
from delegate.mcp_bridge.dispatcher import Dispatcher
from delegate.mcp_bridge.stdio import LINE_MAX, READ_SIZE, Input, Output, OversizedLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STDIN, STDOUT, STDERR = 0, 1, 2
CLOSE_TIMEOUT = 0.4  # seconds to send the last notifications after the client has closed standard input
ANSWER_TIMEOUT = 100.0  # seconds without a response after that; longer than a relay takes to start, and any call
FLUSH_TIMEOUT = 0.4  # seconds to write the last errors to the client
HANGUP_MASK = select.POLLHUP | select.POLLERR | select.POLLNVAL


def run(*, verbose: bool) -> int:
    """Run the bridge until the client disconnects; returns the exit code."""
    for descriptor in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # no connection may get the number of a closed standard stream
    level = os.environ.get("DELEGATE_LOG_LEVEL") or os.environ.get("LOG_LEVEL") or ""
    exit_code = Bridge(os.environ, verbose=verbose or level.lower() == "debug").run()
    gc.freeze()  # a last garbage collection would only delay the exit
    return exit_code


class Bridge:
    def __init__(self, environ: Mapping[str, str], *, verbose: bool) -> None:
        self._verbose = verbose
        self._input, self._output = Input(), Output(STDOUT)
        self._dispatcher = Dispatcher(environ, self._output, self._log)
        self._poll = select.poll()
        self._masks: dict[int, int] = {}
        self._wake = -1  # becomes readable on a signal
        self._key, self._keys = os.urandom(8).hex(), 0
        self._is_open = True  # whether the client may still send something
        self._end_at = float("inf")
        self._owed = (0, 0)  # calls without a response, and bytes that the client has not read
        self._is_over = False

    def run(self) -> int:
        """Return the exit code: 1 if a call got no response of the relay."""
        self._wake = _install_signals()
        while True:
            now = time.monotonic()
            self._dispatcher.advance(now, may_listen=self._is_open)
            done = not self._is_open and self._dispatcher.is_idle and not self._output.waiting
            self._update_end(now)
            if self._is_over or done or now >= self._end_at:
                break
            self._watch()
            for descriptor, mask in self._poll.poll(self._timeout(now)):
                self._react(descriptor, mask)
        self._dispatcher.fail_open_calls()
        self._flush()
        self._dispatcher.delete_session()
        return 1 if self._dispatcher.has_failed_calls or self._output.waiting else 0

    def _update_end(self, now: float) -> None:
        """After the end of input, wait for what is owed as long as it becomes less."""
        owed = (self._dispatcher.open_calls, self._output.waiting)
        if not self._is_open and (owed != self._owed or self._end_at == float("inf")):
            self._end_at = now + (ANSWER_TIMEOUT if any(owed) else CLOSE_TIMEOUT)
        self._owed = owed

    def _flush(self) -> None:
        """Write what the client still accepts."""
        waiting = select.poll()
        waiting.register(STDOUT, select.POLLOUT)
        until = time.monotonic() + FLUSH_TIMEOUT
        while self._output.waiting and (ready := waiting.poll(max(0.0, until - time.monotonic()) * 1000)):
            if not self._write(ready[0][1]):
                break

    def _watch(self) -> None:
        """Register what to wait for. While the client does not read, the bridge does not read from the relay either."""
        is_full = self._output.is_full
        wanted = {} if is_full else self._dispatcher.poll_masks()
        wanted |= {self._wake: select.POLLIN, STDOUT: self._output.mask}
        if self._is_open:
            wanted[STDIN] = 0 if is_full or self._dispatcher.is_full else select.POLLIN
        for number in self._masks.keys() - wanted.keys():
            self._poll.unregister(number)
        for number, mask in wanted.items():
            if self._masks.get(number) != mask:
                self._poll.register(number, mask)
        self._masks = wanted

    def _timeout(self, now: float) -> float | None:
        """Return the milliseconds until something is due."""
        soonest = min(self._end_at, self._dispatcher.due)
        return None if soonest == float("inf") else max(0.0, soonest - now) * 1000 + 1

    def _react(self, descriptor: int, mask: int) -> None:
        if descriptor == self._wake:
            self._is_over = True
        elif descriptor == STDIN:
            self._read()
        elif descriptor == STDOUT:
            self._write(mask)
        else:
            self._dispatcher.react(descriptor)

    def _read(self) -> None:
        try:
            data = os.read(STDIN, READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self._is_open = False
        for line in self._input.feed(data) if data else self._input.flush():
            try:
                self._handle_line(line)
            except rpc.Refusal as refusal:
                self._output.enqueue(refusal.line)

    def _handle_line(self, line: bytes | OversizedLine) -> None:
        if isinstance(line, OversizedLine):
            text = f"this message is longer than {LINE_MAX:,} bytes; send a shorter one"
            raise rpc.Refusal(rpc.INVALID_REQUEST, text, line.id)
        self._dispatcher.enqueue(rpc.parse_line(line, self._new_key))

    def _new_key(self) -> str:
        """Return a key that is unique across calls and bridges."""
        self._keys += 1
        return f"mcp-{self._key}-{self._keys}"

    def _write(self, mask: int) -> bool:
        """Return whether the client still reads."""
        try:
            if mask & HANGUP_MASK:
                raise BrokenPipeError("the client has closed standard output")
            self._output.write()
        except OSError:
            self._is_over = True
            return False
        return True

    def _log(self, event: str, **fields: object) -> None:
        if self._verbose:
            details = "".join(f" {name}={value!s}" for name, value in fields.items())
            line = "".join(c if c.isprintable() else "?" for c in f"delegate mcp: {event}{details}")
            try:
                os.write(STDERR, f"{line}\n".encode())
            except OSError:
                self._verbose = False


def _install_signals() -> int:
    """Return a descriptor that becomes readable on a signal, so that a signal ends `poll`."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reading
