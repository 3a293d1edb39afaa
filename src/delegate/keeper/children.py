"""The processes that the keeper has started: one relay and a number of runners."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from delegate.config.paths import Home
from delegate.errors import DelegateError
from delegate.keeper.logs import open_log
from delegate.runner.keeper_protocol import Order, line

log = logging.getLogger(__name__)

FIRST_DELAY, MOST_DELAY = 0.1, 5.0  # seconds before a child that died is started again
HEALTHY_AFTER = 10.0  # seconds of life after which a child's next death counts as its first


@dataclass(kw_only=True, eq=False)
class Child:
    name: str
    arguments: list[str]
    wanted: bool = True
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    delay: float = FIRST_DELAY
    due: float = 0.0  # when it is to be started, if it does not run

    def died(self, now: float) -> None:
        self.process = None
        self.delay = FIRST_DELAY if now - self.began > HEALTHY_AFTER else self.delay
        self.due = now + self.delay
        self.delay = min(self.delay * 2, MOST_DELAY)

    def tell(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def cut(self) -> None:
        """The end of its input: it must stop now, and hand back what it holds."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


@dataclass(kw_only=True, eq=False)
class RunnerChild(Child):
    """A runner says over `reports` when it has a task and when it has none; until it has spoken it is starting."""

    slot: int
    reports: int | None = None
    unread: bytes = b""
    is_ready: bool = False
    is_in_trouble: bool = False  # it said so, or died before it was ready
    attempt: str | None = None
    idle_since: float = 0.0
    order: bytes | None = None  # the last one it was given

    @property
    def is_open(self) -> bool:
        return self.order == OPEN

    def say(self, order: bytes) -> None:
        """Once: a runner keeps to what it was told. One that does not read must not stop the keeper: what finds no
        place in its pipe is dropped, and said as it stands then with the next tick."""
        if self.process is None or self.process.stdin is None or self.process.stdin.closed or order == self.order:
            return
        pipe = self.process.stdin.fileno()
        os.set_blocking(pipe, False)
        with suppress(BlockingIOError, BrokenPipeError):  # the latter: it has just died
            os.write(pipe, order)  # so short that it goes as a whole or not at all
            self.order = order

    def died(self, now: float) -> None:
        super().died(now)
        self.is_in_trouble = self.is_in_trouble or not self.is_ready
        self.unread, self.is_ready, self.attempt, self.order, self.idle_since = b"", False, None, None, now


OPEN = line({Order.OPEN: True})


def hold_order(why: str) -> bytes:
    return line({Order.HOLD: why})


def environment(place: Home, environ: Mapping[str, str]) -> dict[str, str]:
    """The user's own, but everything of this home speaks to its relay with its token, whoever started it."""
    elsewhere = {"DELEGATE_RELAY_URL", "DELEGATE_TOKEN"}
    kept = {name: value for name, value in environ.items() if name not in elsewhere}
    return {**kept, "DELEGATE_HOME": str(place.root)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a child is started, beyond what all of them share."""

    arguments: tuple[str, ...] = ()  # for this one time
    pass_fds: tuple[int, ...] = ()
    says: bool = False  # what it writes is for us, and not for its log
    umask: int = -1  # the user's own


def start_child(child: Child, place: Home, terms: Terms, now: float) -> None:
    """One that cannot be started counts as died."""
    child.began = now
    errors = _log_of(child, place)
    try:
        child.process = subprocess.Popen(
            [sys.executable, "-P", "-m", *child.arguments, *terms.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if terms.says else errors,
            stderr=errors,
            pass_fds=terms.pass_fds,
            start_new_session=True,  # a Ctrl-C in the terminal is the keeper's to handle
            umask=terms.umask,
            cwd=place.root,
            env=environment(place, os.environ),
        )
    except OSError:
        log.exception("child not started", extra={"child": child.name})
        child.died(now)
        return
    finally:
        os.close(errors)
    log.info("child started", extra={"child": child.name, "pid": child.process.pid})


def _log_of(child: Child, place: Home) -> int:
    try:
        return open_log(place, child.name)
    except DelegateError as error:  # a full disk must not keep the relay from coming back
        log.warning("no log", extra={"child": child.name, "why": error.message})
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
