"""Finds out whether a request comes from a process of an attempt, which must not use the owner's token.

Linux only: it reads which process holds the other end of a loopback connection, and that process's ancestors. An
attempt's processes are descendants of a runner, and so of the keeper, even when they have lost their parents.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

PROC = Path("/proc")
UID_FIELD, INODE_FIELD = 7, 9  # of a line in /proc/net/tcp
CHAIN_MAX = 10_000  # ancestors; more are a race with reused process ids
OWN_PROGRAMS = (b"delegate.relay", b"delegate.runner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The other end of a connection to this relay."""

    port: int
    relay_port: int


def is_in_attempt(peer: Peer, keeper: int) -> bool:
    """Whether the process at the other end belongs to an attempt. Blocks.

    A process that cannot be identified counts as one if it has closed its end, or while agents run: an agent can hide
    its open files, or end as soon as it has sent its request.
    """
    try:
        has_agents = _has_agents(keeper)  # first: whatever hides the socket below must live now
        inode = _socket_inode(peer)
        holder = None if inode is None else _holder_of(inode)
        is_closed = inode is None or _socket_inode(peer) != inode
        if is_closed or holder is None:
            return is_closed or has_agents
        return _is_below_runner(holder, keeper)
    except _OtherUser:
        return False
    except OSError:  # it ended meanwhile, or there is no /proc
        return PROC.joinpath("self").exists()


class _OtherUser(Exception):
    """The connection belongs to another user of this machine, for example a proxy."""


def _socket_inode(peer: Peer) -> str | None:
    """Return the inode of the client's end; None when it is closed."""
    table = (PROC / "net" / "tcp").read_bytes()
    start = table.find(b": 0100007F:%04X 0100007F:%04X " % (peer.port, peer.relay_port))
    if start < 0:
        return None
    fields = table[start : table.find(b"\n", start)].split()
    uid, inode = fields[UID_FIELD].decode(), fields[INODE_FIELD].decode()
    if int(uid) != os.geteuid():
        raise _OtherUser
    return None if inode == "0" else inode


def _holder_of(inode: str) -> int | None:
    """Search the newest processes first: most clients are commands that have just started."""
    link = f"socket:[{inode}]"
    for pid in sorted((int(name) for name in os.listdir(PROC) if name.isdigit()), reverse=True):  # noqa: PTH208
        try:
            descriptors = PROC / str(pid) / "fd"
            if any(_link_of(descriptors / number) == link for number in os.listdir(descriptors)):  # noqa: PTH208
                return pid
        except OSError:  # it has ended, or is not readable
            continue
    return None


def _link_of(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)  # noqa: PTH115  half the time of Path.readlink
    except OSError:
        return ""


def _is_below_runner(pid: int, keeper: int) -> bool:
    chain = _ancestors(pid)
    if keeper not in chain[1:]:
        return False
    return chain[1] != keeper or not _is_own_program(pid)


def _ancestors(pid: int) -> list[int]:
    """Return the process and its ancestors, the nearest first."""
    chain = [pid]
    while chain[-1] > 1 and len(chain) < CHAIN_MAX:
        # The second field is the program's name in parentheses and may contain anything.
        fields = (PROC / str(chain[-1]) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        chain.append(int(fields[1]))
    return chain


def _is_own_program(pid: int) -> bool:
    words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    return any(before == b"-m" and word in OWN_PROGRAMS for before, word in pairwise(words))


def _has_agents(keeper: int) -> bool:
    """Whether any process exists below a runner's supervisors or lost its parents; assume so if Linux does not tell."""
    try:
        children = [pid for pid in _children(keeper) if pid != os.getpid()]
        if not all(_is_own_program(child) for child in children):
            return True
        return any(_children(supervisor) for runner in children for supervisor in _children(runner))
    except OSError:
        return True


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in os.listdir(PROC / str(pid) / "task"):  # noqa: PTH208
        found += map(int, (PROC / str(pid) / "task" / thread / "children").read_text().split())
    return found
