"""Reads, writes and locks the files under DELEGATE_HOME that several processes share."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from delegate import __version__
from delegate.config import values
from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.errors import AlreadyRunning, DelegateError, DiskFull, EmptyToken, HomeNotWritable, LoosePermissions

PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700
LOCK_POLL = 0.02  # seconds between two tries for a lock that is held briefly
ADDRESS_REPAIR_TIMEOUT = 8.0  # seconds; a keeper checks its address file every five
TOKEN_BYTES = 32
LOOPBACK = values.LOOPBACK
DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the local relay listens, as written by its keeper."""

    url: str
    port: int
    pid: int
    keeper_pid: int
    version: str
    started_at: str

    def as_json(self) -> str:
        names = {"url": self.url, "port": self.port, "pid": self.pid, "keeperPid": self.keeper_pid}
        return json.dumps({**names, "version": self.version, "startedAt": self.started_at})


def new_address(port: int, pid: int) -> Address:
    """Return the address of a relay whose keeper is this process."""
    return Address(
        url=f"http://127.0.0.1:{port}",
        port=port,
        pid=pid,
        keeper_pid=os.getpid(),
        version=__version__,
        started_at=datetime.now(UTC).isoformat(),
    )


def explain_write_error(path: Path, error: OSError) -> DelegateError:
    """Convert a failed write under the home into an error for the user."""
    why = (error.strerror or str(error)).lower()
    if error.errno in DISK_FULL_ERRORS:
        return DiskFull(why=f"{why} ({path})")
    return HomeNotWritable(path=path, why=why)


def make_directory(path: Path) -> None:
    """Create the directory and its missing parents, accessible to this user only."""
    try:
        for directory in (*reversed(path.parents), path):
            if not directory.exists():
                directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise explain_write_error(path, error) from error


def write_private(path: Path, text: str) -> None:
    """Replace the file atomically: a reader sees the old text or the new one."""
    try:
        with _temporary_file(path, text) as scratch:
            scratch.replace(path)
    except OSError as error:
        raise explain_write_error(path, error) from error


def read_or_create(path: Path, make: Callable[[], str]) -> str:
    """Return the text of a file that is written once; the first process to need it creates it."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        make_directory(path.parent)
    except OSError as error:
        raise explain_write_error(path, error) from error
    try:
        with _temporary_file(path, make() + "\n") as scratch:
            # A link appears with its whole content and never replaces an existing file.
            os.link(scratch, path)
    except FileExistsError:
        pass
    except OSError as error:
        raise explain_write_error(path, error) from error
    return path.read_text().strip()


@contextmanager
def _temporary_file(path: Path, text: str) -> Iterator[Path]:
    """Write and flush a temporary file next to the path; remove it at the end."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(3).hex()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        yield scratch
    finally:
        scratch.unlink(missing_ok=True)


def machine_id(home: Home) -> str:
    """Return the name that binds tasks to this machine; it stays the same when the host is renamed."""
    return read_or_create(home.machine, lambda: f"{host_name()}-{os.urandom(4).hex()}")


def host_name() -> str:
    """Return the name of this machine without its domain, reduced to letters, digits and dashes."""
    name = "".join(c for c in socket.gethostname().split(".")[0] if c.isascii() and (c.isalnum() or c == "-"))
    return name.strip("-")[:60] or "machine"


def make_token(home: Home) -> str:
    """Return the admin token of the local relay; create it on the first start, or when a crash left an empty file. The
    caller holds the home's lock."""
    read_or_create(home.token, _new_token)
    if not (token := read_token(home)):
        write_private(home.token, f"{_new_token()}\n")
    return token or read_token(home)


def _new_token() -> str:
    return os.urandom(TOKEN_BYTES).hex()


def read_token(home: Home) -> str:
    """Return the admin token of the local relay; empty when there is none yet."""
    try:
        with home.token.open() as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise LoosePermissions(path=home.token, mode="600")
            return file.read().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise explain_write_error(home.token, error) from error


def token_for(settings: Settings, host: str | None) -> str:
    """Return the token for the relay on this host; None means the relay of this home, which accepts only its own token
    and, from the processes of an attempt, the attempt's.

    DELEGATE_TOKEN, or `token` in config.toml, is for a relay named by its address. The token in the home is sent only
    to this machine.
    """
    if host is None and _is_of_attempt(settings.token, Home(settings.home)):
        return settings.token
    home_token = read_token(Home(settings.home)) if host is None or host in LOOPBACK else ""
    if host is None and not home_token:
        raise EmptyToken(path=Home(settings.home).token)
    if host is None:
        return home_token
    is_named = host not in LOOPBACK or host == urlsplit(settings.relay_url).hostname
    return settings.token or home_token if is_named else home_token or settings.token


def _is_of_attempt(token: str, home: Home) -> bool:
    """Whether the token belongs to an attempt of this home, and not of one that a command was started in."""
    return token.startswith(values.AGENT_PREFIX) and token.startswith(values.agent_token_prefix(machine_id(home)))


def read_address(home: Home) -> Address | None:
    try:
        found = json.loads(home.address.read_text())
        return Address(
            url=str(found["url"]),
            port=int(found["port"]),
            pid=int(found["pid"]),
            keeper_pid=int(found["keeperPid"]),
            version=str(found["version"]),
            started_at=str(found["startedAt"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def live_address(home: Home) -> Address | None:
    """Return where the relay listens, if it is running.

    A file left by a dead keeper names a port that another program may use by now, and the token must not be sent
    there: the address is valid only while the keeper's lock is held.
    """
    return read_address(home) if is_held(home.keeper_lock) else None


def wait_for_address(home: Home, timeout: float) -> Address | None:
    """Like `live_address`, but give a live keeper time to rewrite a lost or damaged address file."""
    deadline = time.monotonic() + timeout
    while (address := live_address(home)) is None and time.monotonic() < deadline:
        keeper = lock_holder(home.keeper_lock)
        if keeper is None or not keeper.is_alive:
            return None
        time.sleep(LOCK_POLL)
    return address


def is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def acquire_lock(lock: Path, timeout: float) -> int | None:
    """Take a lock for the life of the returned descriptor; None when another process holds it until the timeout.

    Even a free lock needs a short timeout, because `is_held` takes it for an instant.
    """
    make_directory(lock.parent)
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError as error:
        raise explain_write_error(lock, error) from error
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(LOCK_POLL)
        else:
            return descriptor


def lock_home(home: Home, timeout: float) -> int:
    """Get the exclusive right to run a relay on this home and use its database while the descriptor is open."""
    lock = acquire_lock(home.keeper_lock, timeout)
    if lock is None:
        other = lock_holder(home.keeper_lock)
        raise AlreadyRunning(home=home.root, pid=other.pid if other else "unknown")
    try:
        write_lock_holder(lock)
    except OSError as error:
        os.close(lock)
        raise explain_write_error(home.keeper_lock, error) from error
    return lock


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether the path still leads to the open file; if not, another process may have recreated the home."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """The process that holds a lock and wrote its id into it."""

    pid: int
    started: str  # when it started: tells it from a later process with the same pid

    @property
    def is_alive(self) -> bool:
        return process_start(self.pid) == self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivingProcess:
    """A process that a keeper could not stop."""

    pid: int
    command: str
    why: str


def write_lock_holder(descriptor: int, survivors: Sequence[SurvivingProcess] = ()) -> None:
    """Write this process into a lock that it holds; at its end, also the processes it could not stop."""
    os.ftruncate(descriptor, 0)
    signature = {"pid": os.getpid(), "started": process_start(os.getpid()), "left": [asdict(one) for one in survivors]}
    os.pwrite(descriptor, json.dumps(signature).encode(), 0)


def surviving_processes(home: Home, keeper: LockHolder) -> list[SurvivingProcess]:
    """Return the processes that an ended keeper could not stop; none once the next keeper holds the lock."""
    try:
        found = json.loads(home.keeper_lock.read_text())
        if (found["pid"], found["started"]) != (keeper.pid, keeper.started):
            return []
        return [
            SurvivingProcess(pid=int(one["pid"]), command=str(one["command"]), why=str(one["why"]))
            for one in found["left"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def is_keeper_active(home: Home, keeper: LockHolder) -> bool:
    """Whether the keeper's process is alive or its relay still holds the lock."""
    return is_held(home.keeper_lock) or keeper.is_alive


def lock_holder(lock: Path) -> LockHolder | None:
    """Return the process that holds the lock; None when it is free."""
    if not is_held(lock):
        return None
    try:
        found = json.loads(lock.read_text())
        return LockHolder(pid=int(found["pid"]), started=str(found["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def process_start(pid: int) -> str | None:
    """Return when a process started, in the system's own unit; None when it is not running."""
    try:
        # The second field is the program's name in parentheses and may contain anything.
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if state in {"Z", "X"} else fields[18]
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return ""
    return ""
