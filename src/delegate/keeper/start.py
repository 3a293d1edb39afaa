"""Starts the local relay: commands that run at the same time start one keeper, and all wait for it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from delegate.config import home_files
from delegate.config.paths import Home
from delegate.config.settings import Settings, send_secrets
from delegate.errors import Reported
from delegate.keeper import __main__ as keeper
from delegate.keeper.children import child_environment
from delegate.keeper.logs import open_log

ENDING_SIGNALS = {signal.SIGINT, signal.SIGTERM}
KEEPER = "delegate.keeper"
NOTICE_AFTER = 1.5  # seconds of waiting for another process after which the user is told
START_NOTICE_AFTER = 10.0  # seconds; a start on a busy machine takes less
READY_TIMEOUT = 60.0  # seconds for a relay to become ready, including migrations
DATABASE_TIMEOUT = 20.0  # seconds that a command waits for a database that does not respond


def ignore_notice(_: str) -> None:
    """Wait in silence."""


def start(
    settings: Settings,
    *,
    runners: str | None,
    environ: Mapping[str, str],
    notice: Callable[[str], None] = ignore_notice,
) -> bool:
    """Start a keeper in the background unless one runs; True if this call started it."""
    paths = Home(settings.home)
    lock = home_files.acquire_lock(paths.start_lock, NOTICE_AFTER)
    if lock is None:
        notice("waiting for another command that is starting the relay")
        lock = home_files.acquire_lock(paths.start_lock, READY_TIMEOUT)
    if lock is None:
        raise keeper.relay_not_ready(paths, "another command is still starting it")
    try:
        if _find_running_relay(paths, notice):
            return False
        report = _launch(paths, runner_options(runners), environ, notice)
    finally:
        os.close(lock)
    _raise_reported(report)
    return True


def start_paired(settings: Settings, *, runners: str, environ: Mapping[str, str]) -> bool:
    """Start the keeper of a paired runner in the background unless one runs; True if this call started it."""
    paths = Home(settings.home)
    lock = home_files.acquire_lock(paths.start_lock, READY_TIMEOUT)
    if lock is None:
        raise keeper.relay_not_ready(paths, "another command is still starting this runner")
    try:
        if home_files.is_held(paths.keeper_lock):
            return False
        report = _launch(paths, [*runner_options(runners), "--paired"], environ, ignore_notice)
    finally:
        os.close(lock)
    _raise_reported(report)
    return True


def runner_options(runners: str | None) -> list[str]:
    return [] if runners is None else ["--runners", runners]


def _raise_reported(report: dict[str, Any]) -> None:
    if "error" in report:
        error = report["error"]
        raise Reported(
            code=error["code"], message=error["message"], hint=error["hint"] or "", exit_code=error["exitCode"]
        )


def _find_running_relay(paths: Home, notice: Callable[[str], None]) -> bool:
    if home_files.wait_for_address(paths, NOTICE_AFTER) is not None:
        return True
    other = home_files.lock_holder(paths.keeper_lock)
    if other is not None:
        notice(f"waiting for the keeper, process {other.pid}, which holds {paths.root} but has no relay")
    return home_files.wait_for_address(paths, home_files.ADDRESS_REPAIR_TIMEOUT) is not None


def _launch(
    paths: Home, arguments: list[str], environ: Mapping[str, str], notice: Callable[[str], None]
) -> dict[str, Any]:
    errors = open_log(paths, "keeper")
    reading, writing = os.pipe()
    secrets = send_secrets(environ)
    options = [*arguments, "--secrets-fd", str(secrets)]
    child = None
    try:
        with _block_signals():
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", KEEPER, *options, "--report-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[writing, secrets],
                start_new_session=True,
                cwd=paths.root,
                env=child_environment(paths, environ),
                preexec_fn=_unblock_signals,  # noqa: PLW1509  a command has one thread
            )
            for descriptor in (writing, errors, secrets):
                os.close(descriptor)
        report = _read_report(reading, paths, lambda: notice(f"waiting for the relay to start; see {paths.logs}"))
    except BaseException:
        if child is not None:
            child.terminate()
            child.wait()
        raise
    child.returncode = 0  # it keeps running, and this process does not wait for it
    return report


@contextmanager
def _block_signals() -> Iterator[None]:
    """Delay signals: one that arrives before the child's pid is known would leave the child behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


def _read_report(descriptor: int, paths: Home, on_delay: Callable[[], None]) -> dict[str, Any]:
    """Read what a keeper writes: perhaps what its relay waits for, then that it is ready or has failed."""
    started_at = time.monotonic()
    deadline = started_at + READY_TIMEOUT
    why = f"it was not ready after {READY_TIMEOUT:.0f} s"
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        if not select.select([pipe], [], [], START_NOTICE_AFTER)[0]:
            on_delay()
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            report = keeper.parse_ready_line(pipe.readline())
            if not report:
                raise keeper.relay_not_ready(paths, "it ended before it was ready")
            if "waiting" not in report:
                return report
            why = report["waiting"]
            deadline = min(deadline, started_at + DATABASE_TIMEOUT)
    raise keeper.relay_not_ready(paths, why)
