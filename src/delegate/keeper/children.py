"""The keeper's child processes: one relay and a number of runners."""

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
from delegate.config.settings import SECRET_VARIABLES, send_secrets
from delegate.config.values import REPOSITORY_VARIABLES
from delegate.errors import DelegateError
from delegate.keeper.logs import open_log
from delegate.runner.keeper_protocol import RunnerCommand, encode_line

log = logging.getLogger(__name__)

RESTART_DELAY_MIN, RESTART_DELAY_MAX = 0.1, 5.0  # seconds before a child that died is started again
HEALTHY_AFTER = 10.0  # seconds after which a child's next death counts as its first


@dataclass(kw_only=True, eq=False)
class Child:
    name: str
    arguments: list[str]
    wanted: bool = True
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    delay: float = RESTART_DELAY_MIN
    due: float = 0.0  # when it is to be started, if it does not run

    def handle_exit(self, now: float) -> None:
        self.process = None
        self.delay = RESTART_DELAY_MIN if now - self.started_at > HEALTHY_AFTER else self.delay
        self.due = now + self.delay
        self.delay = min(self.delay * 2, RESTART_DELAY_MAX)

    def send_signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def close_input(self) -> None:
        """Tell the child to stop now and hand back what it holds, by closing its input."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


@dataclass(kw_only=True, eq=False)
class RunnerChild(Child):
    """A runner, which reports over `reports` whether it has a task; it is starting until its first report."""

    slot: int
    reports: int | None = None
    unread: bytes = b""
    is_ready: bool = False
    is_in_trouble: bool = False  # it reported so, or died before it was ready
    attempt: str | None = None
    task_id: str = ""  # of the attempt
    agent: str = ""
    idle_since: float = 0.0
    last_command: bytes | None = None  # the last one that was sent

    @property
    def is_open(self) -> bool:
        return self.last_command == OPEN_COMMAND

    def send_command(self, command: bytes) -> None:
        """Send a command unless it was the last one sent. A runner that does not read must not block the keeper: what
        does not fit into its pipe is dropped, and the next tick sends the command that applies then."""
        if (
            self.process is None
            or self.process.stdin is None
            or self.process.stdin.closed
            or command == self.last_command
        ):
            return
        pipe = self.process.stdin.fileno()
        os.set_blocking(pipe, False)
        with suppress(BlockingIOError, BrokenPipeError):  # the latter: it has just died
            os.write(pipe, command)  # short enough to be written as a whole or not at all
            self.last_command = command

    def handle_exit(self, now: float) -> None:
        super().handle_exit(now)
        self.is_in_trouble = self.is_in_trouble or not self.is_ready
        self.unread, self.is_ready, self.attempt, self.last_command, self.idle_since = b"", False, None, None, now


OPEN_COMMAND = encode_line({RunnerCommand.OPEN: True})


def hold_command(why: str) -> bytes:
    return encode_line({RunnerCommand.HOLD: why})


def child_environment(paths: Home, environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment, except that every process of this home uses its relay and its token, that git finds the
    repository of the directory it runs in, and that our secrets go through a pipe."""
    left_out = {"DELEGATE_RELAY_URL", "DELEGATE_TOKEN", *SECRET_VARIABLES, *REPOSITORY_VARIABLES}
    kept = {name: value for name, value in environ.items() if name not in left_out}
    return {**kept, "DELEGATE_HOME": str(paths.root)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """How to start a child, beyond what all children share."""

    arguments: tuple[str, ...] = ()  # for this start only
    pass_fds: tuple[int, ...] = ()
    captures_output: bool = False  # its output goes to the keeper, not to its log
    umask: int = -1  # inherited


def start_child(child: Child, paths: Home, options: StartOptions, now: float) -> None:
    """Start a child; a failed start counts as its death."""
    child.started_at = now
    errors, secrets = _log_of(child, paths), send_secrets(os.environ)
    try:
        child.process = subprocess.Popen(
            [sys.executable, "-P", "-m", *child.arguments, *options.arguments, "--secrets-fd", str(secrets)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if options.captures_output else errors,
            stderr=errors,
            pass_fds=(*options.pass_fds, secrets),
            start_new_session=True,  # only the keeper handles Ctrl-C in the terminal
            umask=options.umask,
            cwd=paths.root,
            env=child_environment(paths, os.environ),
        )
    except OSError:
        log.exception("child not started", extra={"child": child.name})
        child.handle_exit(now)
        return
    finally:
        os.close(errors)
        os.close(secrets)
    log.info("child started", extra={"child": child.name, "pid": child.process.pid})


def _log_of(child: Child, paths: Home) -> int:
    try:
        return open_log(paths, child.name)
    except DelegateError as error:  # a full disk must not prevent the relay's restart
        log.warning("log not opened", extra={"child": child.name, "why": error.message})
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
