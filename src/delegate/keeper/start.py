"""Have the local relay up: ten commands at the same instant start one keeper, and all of them wait for it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from delegate.config import home_files
from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.errors import Reported
from delegate.keeper import __main__ as keeper
from delegate.keeper.children import environment
from delegate.keeper.logs import open_log

ENDING_SIGNALS = {signal.SIGINT, signal.SIGTERM}
KEEPER = "delegate.keeper"
READY_PATIENCE = 60.0  # seconds for a relay to get ready, migrations included


def start(settings: Settings, *, runners: str | None, environ: Mapping[str, str]) -> bool:
    """Have the local relay up, starting a keeper in the background if none runs; True when this call started it."""
    place = Home(settings.home)
    turn = home_files.hold(place.start_lock, READY_PATIENCE)
    if turn is None:
        raise keeper.not_ready(place, "another command is still starting it")
    try:
        if home_files.mended_address(place, home_files.MENDING_PATIENCE) is not None:
            return False
        answer = _launch(place, runners, environ)
    finally:
        os.close(turn)
    if "error" in answer:
        told = answer["error"]
        raise Reported(code=told["code"], message=told["message"], hint=told["hint"] or "", exit_code=told["exitCode"])
    return True


def _launch(place: Home, runners: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
    errors = open_log(place, "keeper")
    reading, writing = os.pipe()
    said = [] if runners is None else ["--runners", runners]
    child = None
    try:
        with _undisturbed():
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", KEEPER, *said, "--report-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[writing],
                start_new_session=True,
                cwd=place.root,
                env=environment(place, environ),
                preexec_fn=_hear_signals,  # noqa: PLW1509  a command has one thread
            )
            os.close(writing)
            os.close(errors)
        told = _hear(reading, place)
    except BaseException:
        if child is not None:
            child.terminate()
            child.wait()
        raise
    child.returncode = 0  # it lives on; nobody here waits for it
    return told


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait: one between a child's birth and our knowing of it would leave the child behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hear_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


def _hear(descriptor: int, place: Home) -> dict[str, Any]:
    """The one line a keeper writes when its relay is ready, or when it cannot be."""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        if not select.select([pipe], [], [], READY_PATIENCE)[0]:
            raise keeper.not_ready(place, f"it was not ready after {READY_PATIENCE:.0f} s")
        told = keeper.read_answer(pipe.read())
    if not told:
        raise keeper.not_ready(place, "it ended before it was ready")
    return told
