"""Where the relay is: looked up in the home when it is up, asked of another process when it must be started.

`delegate.config` owns the files of the home and the settings. This module only reads them, with a quarter of the
modules; a test compares the two.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REACH = "delegate.cli.reach"
REACH_PATIENCE = 90.0  # seconds for it to start a relay; it gives up by itself before
SAID_MAX = 64 * 1024
LOOSE = 0o077  # nobody else may read the token
ADVICE = "run `delegate status` to see what is wrong"


class Unreachable(Exception):
    """No relay, and no hope that waiting helps."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


class Endpoint:
    """A relay that is up, as far as anybody knows, and what opens it."""

    __slots__ = ("address", "authority", "host", "is_local", "is_secure", "machine", "path", "port", "token")

    def __init__(self, found: Mapping[str, Any]) -> None:  # Any: JSON
        self.address = str(found["address"])
        self.host = str(found["host"])
        self.authority = str(found["authority"])
        self.port = int(found["port"])
        self.is_secure = bool(found["secure"])
        self.is_local = bool(found["local"])
        self.path = str(found["path"])
        self.token = str(found["token"])
        self.machine = str(found["machine"])


def on_this_machine(port: int, token: str, machine: str) -> dict[str, Any]:
    """As the asked process tells it."""
    host = "127.0.0.1"
    where = {"address": host, "host": host, "authority": f"{host}:{port}", "port": port, "path": ""}
    return {**where, "secure": False, "local": True, "token": token, "machine": machine}


def home_of(environ: Mapping[str, str]) -> str:
    return os.path.abspath(os.path.expanduser(environ.get("DELEGATE_HOME") or "~/.delegate"))


def may_be_elsewhere(environ: Mapping[str, str]) -> bool:
    """Whether the settings may name a relay; who knows them all must say."""
    if environ.get("DELEGATE_RELAY_URL"):
        return True
    try:
        return b"relay_url" in _text(home_of(environ), "config.toml")
    except OSError:
        return False


def look(environ: Mapping[str, str]) -> Endpoint | None:
    """The relay of this home if it is up and everything about it is as it should be."""
    home = home_of(environ)
    try:
        if not _is_held(os.path.join(home, "keeper.lock")):
            return None
        found = json.loads(_text(home, "relay.json"))
        with open(os.path.join(home, "token"), "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & LOOSE:
                return None
            token = file.read().strip().decode("ascii")
        machine = _text(home, "machine").strip().decode()
        return Endpoint(on_this_machine(int(found["port"]), token, machine))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _text(home: str, name: str) -> bytes:
    with open(os.path.join(home, name), "rb") as file:
        return file.read(SAID_MAX)


def _is_held(lock: str) -> bool:
    """The address of a dead keeper may be somebody else's by now, and the token must not go there."""
    descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class Way:
    """The way to the relay: known, being asked for, or unknown."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._is_local = not may_be_elsewhere(environ)
        self._elsewhere: Endpoint | None = None
        self._child = 0
        self._began = 0.0
        self._said = b""
        self.pipe = -1  # what the asked process says; -1 when none is asked

    def find(self, now: float, *, start: bool) -> Endpoint | None:
        """An endpoint to connect to; None: not yet, or not without starting a relay."""
        endpoint = self.known()
        if endpoint is None and self.pipe < 0 and (start or not self._is_local):
            self._ask(now)
        return endpoint

    def known(self) -> Endpoint | None:
        return look(self._environ) if self._is_local else self._elsewhere

    def lost(self) -> None:
        """The endpoint did not answer: what was said about it may be old."""
        self._elsewhere = None

    def hear(self) -> bool:
        """Read what the asked process says; True when it has said it all. Raises Unreachable with its words."""
        piece = os.read(self.pipe, SAID_MAX)
        self._said += piece
        if piece and len(self._said) < SAID_MAX:
            return False
        self._end()
        self._understand()
        return True

    def check(self, now: float) -> None:
        if self.pipe >= 0 and now - self._began > REACH_PATIENCE:
            os.kill(self._child, signal.SIGKILL)
            self._end()
            raise Unreachable("relay_unreachable", f"no relay after {REACH_PATIENCE:.0f} s", ADVICE)

    def _ask(self, now: float) -> None:
        self.pipe, writing = os.pipe()
        self._began, self._said = now, b""
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 2)]
        try:
            self._child = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", REACH],
                self._environ,
                file_actions=[*quiet, (os.POSIX_SPAWN_DUP2, writing, 1)],
                setpgroup=0,  # a client that ends us and our group must not end a start that others wait for
                setsigmask=(),
            )
        finally:
            os.close(writing)

    def _end(self) -> None:
        os.close(self.pipe)
        self.pipe = -1
        os.waitpid(self._child, 0)

    def _understand(self) -> None:
        try:
            said = json.loads(self._said)
            problem = said.get("error")
            endpoint = None if problem else Endpoint(said)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Unreachable("relay_unreachable", "the relay could not be found", ADVICE) from None
        if endpoint is None:
            raise Unreachable(problem["code"], problem["message"], problem["hint"] or "")
        self._is_local = endpoint.is_local
        self._elsewhere = None if endpoint.is_local else endpoint
