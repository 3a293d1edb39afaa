"""An agent that leaves behind every kind of process that is hard to end.

Arguments: a directory, and `exit` (end once all of them live) or `stay`. Everything ignores SIGTERM and writes its
start time to a file `<role>-<pid>` in the directory.
"""

import os
import signal
import sys
import time
from pathlib import Path

FORK_EVERY = 0.05
ROLES = {"leader", "daemon1", "daemon2", "daemon3", "bare", "holder", "forker", "forked"}


def announce(directory: Path, role: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    draft = directory / f".{os.getpid()}"
    draft.write_text(start)
    draft.rename(directory / f"{role}-{os.getpid()}")


def sleep_on() -> None:
    while True:
        time.sleep(60)


def detach(*, keep_output: bool) -> bool:
    """Fork twice with a session between; True in the daemon."""
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    if not keep_output:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
    return True


def fork_on(directory: Path) -> None:
    while True:
        if not os.fork():
            announce(directory, "forked")
            sleep_on()
        time.sleep(FORK_EVERY)


def be(directory: Path, role: str) -> None:
    if not detach(keep_output=role == "holder"):
        os.wait()
        return
    if role == "bare":
        os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, str(directory), "bare"], {})
    announce(directory, role)
    if role == "forker":
        fork_on(directory)
    sleep_on()


def main() -> None:
    directory, ending = Path(sys.argv[1]), sys.argv[2]
    if ending == "bare":
        announce(directory, "bare")
        sleep_on()
    announce(directory, "leader")
    for role in sorted(ROLES - {"leader", "forked"}):
        be(directory, role)
    print("up", flush=True)
    while ending == "stay" or {path.name.partition("-")[0] for path in directory.glob("*-*")} != ROLES:
        time.sleep(FORK_EVERY)


if __name__ == "__main__":
    main()
