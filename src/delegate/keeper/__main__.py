"""The keeper: one small process per home that starts the relay and runners, and restarts them when they die.

The keeper of a paired runner has no relay: its runners work for one elsewhere.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from delegate.config import home_files
from delegate.config.pairing import Pairing, check_machine, read_pairing
from delegate.config.paths import Home
from delegate.config.settings import Settings, load, receive_secrets
from delegate.errors import DelegateError, RelayUnreachable, StoreBusy
from delegate.keeper.children import Child, RunnerChild, StartOptions, start_child
from delegate.keeper.logs import rotate_logs
from delegate.keeper.orphans import Orphans
from delegate.keeper.paired_state import PairedState
from delegate.keeper.runners import RunnerCount, RunnerScaler, parse_runner_count
from delegate.log import configure
from delegate.runner.keeper_protocol import STOP_MARK

log = logging.getLogger(__name__)

TRIES_BEFORE_READY = 3  # a relay that dies this often before it was ever ready will not recover
LOCK_TIMEOUT = 20.0  # seconds for the relay of a killed keeper to stop and release the home
KEEPER_EXIT_TIMEOUT = 3.0  # seconds for a live keeper that has stopped everything to exit
CHECK_INTERVAL = 5.0  # seconds between checks for orphans that no signal announced, and of the log sizes
STOP_MARGIN = 15.0  # seconds beyond the agents' grace after which a runner that must stop is killed
RELAY_STOP_TIMEOUT = 15.0
PRIVATE_UMASK = 0o077  # the umask of a relay
BACKLOG = 1024  # connections that may wait while the relay restarts
Report = Callable[[dict[str, Any]], None]  # Any: one line of JSON


def relay_not_ready(paths: Home, why: str) -> RelayUnreachable:
    return RelayUnreachable(url=paths.root, why=why, advice=f"see the logs in {paths.logs}")


def run_keeper(settings: Settings, *, runners: str | None, report: Report) -> int:
    """Run as the keeper of a home until asked to stop; returns the exit code."""
    count = parse_runner_count(runners, settings)
    paths = Home(settings.home)
    other = home_files.lock_holder(paths.keeper_lock)
    lock = home_files.lock_home(paths, KEEPER_EXIT_TIMEOUT if other and other.is_alive else LOCK_TIMEOUT)
    home_files.make_token(paths)
    listener = listen_locally(paths)
    try:
        return Keeper(settings, count, lock=lock, listener=listener, report=report).run()
    finally:
        if home_files.is_same_file(lock, paths.keeper_lock):
            paths.address.unlink(missing_ok=True)
        listener.close()
        os.close(lock)


def run_paired_keeper(settings: Settings, *, runners: str, report: Report) -> int:
    """Run as the keeper of a paired runner until asked to stop; returns the exit code."""
    # The policy's "auto" is its default: unlike --runners auto, it does not lift the limit in the machine's settings.
    count = parse_runner_count(None if runners == "auto" else runners, settings)
    paths = Home(settings.home)
    pairing = read_pairing(paths)
    check_machine(paths)
    other = home_files.lock_holder(paths.keeper_lock)
    lock = home_files.lock_home(paths, KEEPER_EXIT_TIMEOUT if other and other.is_alive else LOCK_TIMEOUT)
    try:
        return Keeper(settings, count, lock=lock, pairing=pairing, report=report).run()
    finally:
        os.close(lock)


def listen_locally(paths: Home) -> socket.socket:
    """Open a socket for this machine, at the earlier port if possible. A keeper's outlives its relays: during a
    restart, clients wait and are not refused."""
    earlier = home_files.read_address(paths)
    paths.address.unlink(missing_ok=True)
    for port in [earlier.port, 0] if earlier else [0]:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(BACKLOG)
        except (OSError, OverflowError):
            listener.close()
            if port == 0:
                raise
        else:
            return listener
    raise AssertionError("port 0 is always tried")


class Keeper:
    """Has a listening socket for its relay, or a pairing with one elsewhere."""

    def __init__(
        self,
        settings: Settings,
        count: RunnerCount,
        *,
        lock: int,
        report: Report,
        listener: socket.socket | None = None,
        pairing: Pairing | None = None,
    ) -> None:
        self._settings, self._home = settings, Home(settings.home)
        self._lock, self._listener, self._report = lock, listener, report
        self._relay: Child | None = None
        if listener is not None:
            self._url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            limit = [] if count.ceiling is None else ["--max-runners", str(count.ceiling)]
            self._relay = Child(
                name="relay", arguments=["delegate.relay", "--socket-fd", str(listener.fileno()), *limit]
            )
        elif pairing is not None:
            self._url = pairing.relay_url
        self._paired = None if pairing is None else PairedState(self._home)
        self._selector = selectors.DefaultSelector()
        self._scaling = RunnerScaler(settings, count, self._url, self._selector)
        self._ready_once = False
        self._early_deaths = 0
        self._relay_output = b""
        self._relay_message: dict[str, Any] = {}  # the last one
        self._exit_code = 0
        self._stop_requests = 0  # one request drains, two stop now
        self._is_stopping = False
        self._kill_at = float("inf")
        self._orphans = Orphans()
        self._next_check_at = 0.0
        self._address: home_files.Address | None = None  # as it should be in the file

    def run(self) -> int:
        wake = self._install_signals()
        self._selector.register(wake, selectors.EVENT_READ)
        if self._relay is None:
            self._begin()
        while True:
            now = time.monotonic()
            self._scaling.tick(now)
            self._start_due(now)
            if self._is_finished():
                break
            self._wait(wake, now)
            self._reap()
            self._check_files(time.monotonic())
            if self._stop_requests < 2 and not home_files.is_same_file(self._lock, self._home.keeper_lock):
                log.error("the home was removed: stopping")
                self._request_stop(2)
            self._advance_stop()
            self._write_paired_state()
        if left := self._orphans.survivors:
            with suppress(OSError):  # the log has it too
                home_files.write_lock_holder(self._lock, left)
        return self._exit_code

    def _check_files(self, now: float) -> None:
        if now >= self._next_check_at:
            self._next_check_at = now + CHECK_INTERVAL
            rotate_logs(self._home)
            self._restore_address()

    def _restore_address(self) -> None:
        """Rewrite a damaged or missing address file: without it clients cannot find the relay."""
        if self._address is None or home_files.read_address(self._home) == self._address:
            return
        if home_files.is_same_file(self._lock, self._home.keeper_lock):
            log.warning("address file damaged or missing: writing it again")
            with suppress(DelegateError):  # the next check tries again
                home_files.write_private(self._home.address, self._address.as_json())

    def _write_paired_state(self) -> None:
        if self._paired is None:
            return
        if self._scaling.fatal_report is not None and self._stop_requests < 2:
            self._exit_code = int(self._scaling.fatal_report["error"]["exitCode"])
            log.error("runner cannot continue: stopping", extra={"told": self._scaling.fatal_report})
            self._request_stop(2)
        self._paired.write(self._scaling, is_stopping=self._is_stopping)

    def _is_finished(self) -> bool:
        is_relay_done = self._is_stopping if self._relay is None else not self._relay.wanted
        ended = is_relay_done and all(child.process is None for child in self._children())
        return ended and not self._end_orphans()

    def _children(self) -> Iterable[Child]:
        return [*([] if self._relay is None else [self._relay]), *self._scaling.children]

    def _install_signals(self) -> int:
        """Signals wake the loop through a pipe; the handlers only count."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._request_stop(1))
        weight = 2 if is_under_service_manager(os.getpid(), os.environ) else 1
        signal.signal(signal.SIGTERM, lambda *_: self._request_stop(weight))
        signal.signal(signal.SIGQUIT, lambda *_: self._request_stop(2))
        return reading

    def _request_stop(self, weight: int) -> None:
        self._stop_requests += weight

    def _wait(self, wake: int, now: float) -> None:
        deadlines = [child.due for child in self._children() if child.wanted and child.process is None]
        timeout = max(0.0, min([*deadlines, self._kill_at, self._scaling.next_due(), self._next_check_at]) - now)
        for key, _ in self._selector.select(timeout):
            if key.fd == wake:
                with suppress(BlockingIOError):
                    os.read(wake, 4096)
            elif isinstance(key.data, RunnerChild):
                self._scaling.read_reports(key.data, time.monotonic())
            else:
                self._read_relay(key.fd)

    def _start_due(self, now: float) -> None:
        for child in self._children():
            if child.wanted and child.process is None and child.due <= now:
                self._start(child, now)

    def _start(self, child: Child, now: float) -> None:
        if isinstance(child, RunnerChild):
            self._scaling.start(child, now)
            return
        assert self._listener is not None
        options = StartOptions(
            pass_fds=(self._listener.fileno(), self._lock), captures_output=True, umask=PRIVATE_UMASK
        )
        start_child(child, self._home, options, now)
        if child.process is not None and child.process.stdout is not None:
            self._relay_output, self._relay_message = b"", {}
            self._selector.register(child.process.stdout, selectors.EVENT_READ)

    def _read_relay(self, descriptor: int) -> None:
        piece = os.read(descriptor, 65_536)
        if not piece:
            self._selector.unregister(descriptor)
            return
        self._parse_relay_output(piece)

    def _parse_relay_output(self, piece: bytes) -> None:
        *lines, self._relay_output = (self._relay_output + piece)[:65_536].split(b"\n")
        for line in lines:
            message = self._relay_message = parse_ready_line(line)
            if message.get("ready"):
                self._handle_relay_ready()
            elif "waiting" in message and not self._ready_once:
                self._report(message)

    def _handle_relay_ready(self) -> None:
        assert self._relay is not None
        assert self._relay.process is not None
        assert self._listener is not None
        address = self._address = home_files.new_address(self._listener.getsockname()[1], self._relay.process.pid)
        try:
            home_files.write_private(self._home.address, address.as_json())
        except DelegateError as error:
            log.warning("address not written", extra={"why": error.message})
            if not self._ready_once:  # later the file exists already, with the same URL
                self._give_up(error.exit_code, error.report())
                return
        log.info("relay ready", extra={"url": self._url, "pid": address.pid})
        if not self._ready_once:
            self._begin()

    def _begin(self) -> None:
        self._ready_once = True
        if self._stop_requests == 0:
            self._scaling.begin(time.monotonic())
        self._report({"ready": True, "url": self._url, "runners": self._scaling.shape.base})

    def _reap(self) -> None:
        now = time.monotonic()
        for child in self._children():
            if child.process is not None and (code := child.process.poll()) is not None:
                log.info("child ended", extra={"child": child.name, "pid": child.process.pid, "exit_code": code})
                self._read_last_output(child)
                if isinstance(child, RunnerChild):
                    self._scaling.handle_exit(child, now)
                child.handle_exit(now)
                if child is self._relay and child.wanted:
                    self._handle_relay_exit(code)
        self._end_orphans()

    def _read_last_output(self, child: Child) -> None:
        """Read what the relay wrote just before it ended from the pipe."""
        assert child.process is not None
        if child.process.stdin is not None:
            with suppress(BrokenPipeError):
                child.process.stdin.close()
        if child.process.stdout is None:
            return
        descriptor = child.process.stdout.fileno()
        if descriptor in self._selector.get_map():
            os.set_blocking(descriptor, False)
            with suppress(BlockingIOError):
                self._parse_relay_output(os.read(descriptor, 65_536))
            self._selector.unregister(descriptor)
        child.process.stdout.close()

    def _handle_relay_exit(self, code: int) -> None:
        message = self._relay_message
        if message.get("error", {}).get("code") == StoreBusy.code:
            return  # the database may come back
        if "error" in message and (code == 3 or not self._ready_once):
            self._give_up(code, message)
        elif not self._ready_once:
            self._early_deaths += 1
            if self._early_deaths >= TRIES_BEFORE_READY:
                self._give_up(6, relay_not_ready(self._home, f"it ended with exit code {code}").report())

    def _give_up(self, code: int, message: dict[str, Any]) -> None:
        log.error("relay cannot run", extra={"exit_code": code, "told": message})
        self._exit_code = code
        self._report(message)
        if self._relay is not None:
            self._relay.wanted = False
            self._relay.close_input()
        self._request_stop(2)

    def _advance_stop(self) -> None:
        if self._stop_requests == 0:
            return
        was_stopping, self._is_stopping = self._is_stopping, True
        self._scaling.stop()
        runners = self._scaling.children
        self._drain(runner for runner in runners if runner.wanted)
        if not was_stopping:
            log.info("stop requested", extra={"now": self._stop_requests > 1})
        if self._stop_requests > 1 and self._kill_at == float("inf"):
            for runner in runners:
                runner.close_input()
            self._kill_at = time.monotonic() + self._settings.grace.total_seconds() + STOP_MARGIN
        if self._relay is not None and self._relay.wanted and all(runner.process is None for runner in runners):
            self._relay.wanted = False
            self._relay.send_signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + RELAY_STOP_TIMEOUT
        if time.monotonic() >= self._kill_at:
            for child in self._children():
                if not child.wanted:
                    child.send_signal(signal.SIGKILL)
            self._kill_at = time.monotonic() + 1.0

    def _drain(self, runners: Iterable[RunnerChild]) -> None:
        for runner in runners:
            runner.wanted = False
            with suppress(OSError):  # it has not started: it holds nothing
                (self._home.runners / str(runner.slot) / STOP_MARK).touch(mode=0o600)
            runner.send_signal(signal.SIGTERM)

    def _end_orphans(self) -> bool:
        """End the processes left by a runner and a supervisor killed together; True while some may still end."""
        return self._orphans.end({child.process.pid for child in self._children() if child.process is not None})


def is_under_service_manager(pid: int, environ: Mapping[str, str]) -> bool:
    """Whether a TERM is followed by a KILL in seconds: as process 1 of a container, or as the process of a unit."""
    return pid == 1 or environ.get("SYSTEMD_EXEC_PID") == str(pid)


def parse_ready_line(output: bytes) -> dict[str, Any]:
    """Parse a line that a relay writes: that it is ready, what it waits for, or why it cannot run."""
    try:
        found = json.loads(output.partition(b"\n")[0])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    parser = argparse.ArgumentParser(prog="delegate-keeper")
    parser.add_argument("--runners")
    parser.add_argument("--paired", action="store_true")
    parser.add_argument("--report-fd", type=int, required=True)
    parser.add_argument("--secrets-fd", type=int)
    options = parser.parse_args()
    pipe = os.fdopen(options.report_fd, "wb", buffering=0)

    def report(message: dict[str, Any]) -> None:
        if not pipe.closed:
            with suppress(BrokenPipeError):
                pipe.write(json.dumps(message).encode() + b"\n")
            if "waiting" not in message:
                pipe.close()

    try:
        os.environ.update(receive_secrets(options.secrets_fd))
        settings = load(os.environ)
        configure(settings.log_level)
        if options.paired:
            return run_paired_keeper(settings, runners=options.runners or "auto", report=report)
        return run_keeper(settings, runners=options.runners, report=report)
    except DelegateError as error:
        report(error.report())
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
