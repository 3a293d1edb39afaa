"""Finds the relay: in the files of the home if it is running, otherwise through a child process that starts it.

`delegate.config` owns the files of the home and the settings. This module only reads them, and imports a quarter of
the modules; a test compares the two.
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
    from ssl import SSLContext
    from typing import Any

REACH_MODULE = "delegate.cli.reach"
REACH_TIMEOUT = 90.0  # seconds for the child to start a relay; its own limit is shorter
READ_MAX = 64 * 1024
OTHERS_MASK = 0o077  # other users must not be able to read the token
OTHERS_WRITE = 0o022
ADVICE = "run `delegate status` to see what is wrong"


class Unreachable(Exception):
    """There is no relay, and waiting will not help."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


class Endpoint:
    """The address and token of a relay that is probably running."""

    __slots__ = (
        "address", "authority", "ca_file", "host", "is_local", "is_secure", "machine", "path", "port", "proxy",
        "tls_context", "token",
    )  # fmt: skip

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
        self.ca_file: str | None = found.get("caFile")
        self.proxy: dict[str, Any] | None = found.get("proxy")  # host, port and authorization
        self.tls_context: SSLContext | None = None  # of the first connection: loading certificates takes time


def local_endpoint(port: int, token: str, machine: str) -> dict[str, Any]:
    """Return a local relay's endpoint in the form that the child process prints."""
    host = "127.0.0.1"
    where = {"address": host, "host": host, "authority": f"{host}:{port}", "port": port, "path": ""}
    return {**where, "secure": False, "local": True, "token": token, "machine": machine}


def home_of(environ: Mapping[str, str]) -> str:
    return os.path.abspath(os.path.expanduser(environ.get("DELEGATE_HOME") or "~/.delegate"))


def is_safe(home: str) -> bool:
    """Whether no other user can change the home or could have filled it, as `delegate.config.paths.check_home`."""
    trusted = (0, os.geteuid(), os.stat("/").st_uid)
    homes = {home, os.path.realpath(home)}
    paths = [os.path.join(home, name) for name in ("config.toml", "token", "relay.json", "keeper.lock")]
    for directory in homes:
        above = directory
        while above not in paths:
            paths.append(above)
            above = os.path.dirname(above)
    for path in paths:
        try:
            found = os.lstat(path)
        except OSError:
            continue
        is_shared = stat.S_ISDIR(found.st_mode) and found.st_mode & OTHERS_WRITE
        if found.st_uid not in trusted or (is_shared and (path in homes or not found.st_mode & stat.S_ISVTX)):
            return False
    return True


def may_be_remote(environ: Mapping[str, str]) -> bool:
    """Whether the settings may name a remote relay; only the child process knows for certain."""
    if environ.get("DELEGATE_RELAY_URL"):
        return True
    try:
        return b"relay_url" in _read_file(home_of(environ), "config.toml")
    except OSError:
        return False


def find_local_endpoint(environ: Mapping[str, str]) -> Endpoint | None:
    """Return the relay of this home if it is running and its files are valid and private."""
    home = home_of(environ)
    try:
        if not is_safe(home) or not _is_held(os.path.join(home, "keeper.lock")):
            return None
        found = json.loads(_read_file(home, "relay.json"))
        with open(os.path.join(home, "token"), "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & OTHERS_MASK:
                return None
            token = file.read().strip().decode("ascii")
        machine = _read_file(home, "machine").strip().decode()
        given = environ.get("DELEGATE_TOKEN", "")
        if given.startswith(f"dat_{machine.rpartition('-')[2]}_"):  # inside an attempt of this home
            token = given
        return Endpoint(local_endpoint(int(found["port"]), token, machine))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_file(home: str, name: str) -> bytes:
    with open(os.path.join(home, name), "rb") as file:
        return file.read(READ_MAX)


def _is_held(lock: str) -> bool:
    """Whether a keeper is alive. Another program may use a dead keeper's port, and must not get the token."""
    descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class RelayLocator:
    """Finds the relay, and starts the child process when that is needed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._is_local = not may_be_remote(environ)
        self._remote: Endpoint | None = None
        self._child = 0
        self._started_at = 0.0
        self._child_output = b""
        self.pipe = -1  # the child's output; -1 while there is no child

    def find(self, now: float, *, start: bool) -> Endpoint | None:
        """Return an endpoint to connect to; None: not yet, or not without starting a relay."""
        endpoint = self.current()
        if endpoint is None and self.pipe < 0 and (start or not self._is_local):
            self._start_child(now)
        return endpoint

    def current(self) -> Endpoint | None:
        return find_local_endpoint(self._environ) if self._is_local else self._remote

    def forget(self) -> None:
        """Discard the remote endpoint, which did not respond and may be outdated."""
        self._remote = None

    def read_child(self) -> bool:
        """Read the child's output; True when it is complete. Raises Unreachable if the child reports an error."""
        piece = os.read(self.pipe, READ_MAX)
        self._child_output += piece
        if piece and len(self._child_output) < READ_MAX:
            return False
        self._reap_child()
        self._parse_child_output()
        return True

    def check(self, now: float) -> None:
        if self.pipe >= 0 and now - self._started_at > REACH_TIMEOUT:
            os.kill(self._child, signal.SIGKILL)
            self._reap_child()
            raise Unreachable("relay_unreachable", f"the relay did not start within {REACH_TIMEOUT:.0f} s", ADVICE)

    def _start_child(self, now: float) -> None:
        self.pipe, writing = os.pipe()
        self._started_at, self._child_output = now, b""
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 2)]
        try:
            self._child = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", REACH_MODULE],
                self._environ,
                file_actions=[*quiet, (os.POSIX_SPAWN_DUP2, writing, 1)],
                setpgroup=0,  # a client that kills the bridge's process group must not kill a start others wait for
                setsigmask=(),
            )
        finally:
            os.close(writing)

    def _reap_child(self) -> None:
        os.close(self.pipe)
        self.pipe = -1
        os.waitpid(self._child, 0)

    def _parse_child_output(self) -> None:
        try:
            result = json.loads(self._child_output)
            problem = result.get("error")
            endpoint = None if problem else Endpoint(result)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Unreachable("relay_unreachable", "the relay could not be found", ADVICE) from None
        if endpoint is None:
            raise Unreachable(problem["code"], problem["message"], problem["hint"] or "")
        self._is_local = endpoint.is_local
        self._remote = None if endpoint.is_local else endpoint
