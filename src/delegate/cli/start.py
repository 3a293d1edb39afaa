"""Have the local relay up: ten commands at the same instant start one keeper, and all of them wait for it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from delegate import home
from delegate.cli import keeper
from delegate.config import Home, Settings
from delegate.errors import Reported

AUTO = keeper.AUTO
READY_PATIENCE = 60.0  # seconds for a relay to get ready, migrations included


def start(settings: Settings, *, runners: str, environ: Mapping[str, str]) -> bool:
    """Have the local relay up, starting a keeper in the background if none runs; True when this call started it."""
    place = Home(settings.home)
    turn = home.hold(place.start_lock, READY_PATIENCE)
    if turn is None:
        raise keeper.not_ready(place, "another command is still starting it")
    try:
        if home.live_address(place) is not None:
            return False
        answer = _launch(place, runners, environ)
    finally:
        os.close(turn)
    if "error" in answer:
        told = answer["error"]
        raise Reported(code=told["code"], message=told["message"], hint=told["hint"] or "", exit_code=told["exitCode"])
    return True


def _launch(place: Home, runners: str, environ: Mapping[str, str]) -> dict[str, Any]:
    errors = keeper.open_log(place, "keeper")
    reading, writing = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", keeper.__name__, "--runners", runners, "--report-fd", str(writing)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[writing],
            start_new_session=True,
            cwd=place.root,
            env=keeper.environment(place, environ),
        )
    finally:
        os.close(writing)
        os.close(errors)
    try:
        told = _hear(reading, place)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    child.returncode = 0  # it lives on; nobody here waits for it
    return told


def _hear(descriptor: int, place: Home) -> dict[str, Any]:
    """The one line a keeper writes when its relay is ready, or when it cannot be."""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        if not select.select([pipe], [], [], READY_PATIENCE)[0]:
            raise keeper.not_ready(place, f"it was not ready after {READY_PATIENCE:.0f} s")
        told = keeper.read_answer(pipe.read())
    if not told:
        raise keeper.not_ready(place, "it ended before it was ready")
    return told
