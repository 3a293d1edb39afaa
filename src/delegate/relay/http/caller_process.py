"""Finds out whether a request comes from a process of an attempt, which must not use the owner's token.

Linux only: it reads which process holds the other end of a loopback connection, and that process's ancestors. An
attempt's processes are descendants of a runner, and so of the keeper, even when they have lost their parents.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

PROC = Path("/proc")
RELAY_ADDRESS = "127.0.0.1"
MAPPED = "0000000000000000FFFF0000"  # how an IPv4 address begins as one of IPv6
UID_FIELD, INODE_FIELD = 7, 9  # of a line in /proc/net/tcp
# Of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
HEADER_SIZE, DIAG_UID_OFFSET, ALL_STATES = 16, 64, 0xFFFFFFFF
ANY_INTERFACE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # and no cookie
OTHER_USERS = -1  # instead of an inode
CHAIN_MAX = 10_000  # ancestors; more are a race with reused process ids
TRIES = 3
OWN_PROGRAMS = (b"delegate.relay", b"delegate.runner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The other end of a connection to this relay."""

    address: str
    port: int
    relay_port: int


@dataclass(frozen=True, slots=True)
class CallingProcess:
    """The process at the other end, as far as it concerns attempts."""

    is_in_attempt: bool
    runner: int | None = None  # the process id of the attempt's runner; None: the process is not identified


OUTSIDE, UNKNOWN = CallingProcess(is_in_attempt=False), CallingProcess(is_in_attempt=True)


def find_caller(peer: Peer, keeper: int) -> CallingProcess:
    """Find the process at the other end. Blocks.

    A process that cannot be identified counts as one of an attempt if it has closed its end, or while agents run: an
    agent can hide its open files, or end as soon as it has sent its request.
    """
    if sys.platform != "linux":
        return OUTSIDE
    for _ in range(TRIES):
        with suppress(OSError):  # it or an ancestor ended meanwhile
            return _look_up(peer, keeper)
    return UNKNOWN


def _look_up(peer: Peer, keeper: int) -> CallingProcess:
    has_agents = _has_agents(keeper)  # first: an agent that holds the socket below, even hidden, must live now
    inode = _socket_inode(peer)
    if inode is None:
        return UNKNOWN
    if inode == OTHER_USERS or not has_agents:
        return OUTSIDE
    holder = _holder_of(inode)
    return UNKNOWN if holder is None or _socket_inode(peer) != inode else _caller_at(holder, inode, keeper)


def _socket_inode(peer: Peer) -> int | None:
    """Return the inode of the client's end; None when it is closed, OTHER_USERS for example for a proxy."""
    uid, inode = _ask_kernel(peer) or _search_tables(peer) or (os.geteuid(), 0)
    if not inode:  # first: the kernel may report any user for a closed one
        return None
    return inode if uid == os.geteuid() else OTHER_USERS


def _ask_kernel(peer: Peer) -> tuple[int, int] | None:
    """Return user and inode by SOCK_DIAG; None also where the kernel does not answer such questions."""
    addresses = [socket.inet_aton(address).ljust(16, b"\0") for address in (peer.address, RELAY_ADDRESS)]
    wanted = struct.pack("!HH16s16s", peer.port, peer.relay_port, *addresses) + ANY_INTERFACE
    request = struct.pack("=BBHI", socket.AF_INET, socket.IPPROTO_TCP, 0, ALL_STATES) + wanted
    header = struct.pack("=IHHII", HEADER_SIZE + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1)
            kernel.send(header + request)
            answer = kernel.recv(4096)
    except OSError:
        return None
    if struct.unpack_from("=H", answer, 4)[0] != SOCK_DIAG_BY_FAMILY:
        return None
    uid, inode = struct.unpack_from("=II", answer, HEADER_SIZE + DIAG_UID_OFFSET)
    return uid, inode


def _search_tables(peer: Peer) -> tuple[int, int] | None:
    """The same from the tables of connections, which is slow. An IPv6 socket can have an IPv4 address."""
    client, relay = (socket.inet_aton(address)[::-1].hex().upper() for address in (peer.address, RELAY_ADDRESS))
    for table, mapped in (("tcp", ""), ("tcp6", MAPPED)):
        entries = (PROC / "net" / table).read_text()
        start = entries.find(f": {mapped}{client}:{peer.port:04X} {mapped}{relay}:{peer.relay_port:04X} ")
        if start >= 0:
            fields = entries[start : entries.find("\n", start)].split()
            return int(fields[UID_FIELD]), int(fields[INODE_FIELD])
    return None


def _holder_of(inode: int) -> int | None:
    """Search the newest processes first: most clients are commands that have just started."""
    for pid in sorted((int(name) for name in os.listdir(PROC) if name.isdigit()), reverse=True):  # noqa: PTH208
        with suppress(OSError):  # it has ended, or is not readable
            if _holds(pid, inode):
                return pid
    return None


def _holds(pid: int, inode: int) -> bool:
    descriptors, link = PROC / str(pid) / "fd", f"socket:[{inode}]"
    return any(_link_of(descriptors / number) == link for number in os.listdir(descriptors))  # noqa: PTH208


def _link_of(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)  # noqa: PTH115  half the time of Path.readlink
    except OSError:
        return ""


def _caller_at(pid: int, inode: int, keeper: int) -> CallingProcess:
    chain = _ancestors(pid)
    if keeper not in chain[1:]:
        return OUTSIDE
    runner = chain[chain.index(keeper) - 1]
    # Between fork and exec, a program that the runner starts holds the runner's own connections.
    if _is_own_program(runner) and _holds(runner, inode):
        return OUTSIDE
    return CallingProcess(is_in_attempt=True, runner=runner)


def _ancestors(pid: int) -> list[int]:
    """Return the process and its ancestors, the nearest first."""
    chain = [pid]
    while chain[-1] > 1 and len(chain) < CHAIN_MAX:
        # The second field is the program's name in parentheses and may contain anything.
        fields = (PROC / str(chain[-1]) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        chain.append(int(fields[1]))
    return chain


def _is_own_program(pid: int) -> bool:
    return any(before == b"-m" and word in OWN_PROGRAMS for before, word in pairwise(_command(pid)))


def _has_agents(keeper: int) -> bool:
    """Whether the keeper has more below it than a relay, runners and spare supervisors, or Linux does not tell."""
    try:
        children = [pid for pid in _children(keeper) if pid != os.getpid()]
        below = [pid for child in children for pid in _children(child)]
        is_quiet = all(map(_is_own_program, children)) and all(map(_is_spare_supervisor, below))
    except OSError:
        return True
    return not is_quiet


def _is_spare_supervisor(pid: int) -> bool:
    return any(word.endswith(b"/supervisor.py") for word in _command(pid)[:4]) and not _children(pid)


def _command(pid: int) -> list[bytes]:
    return (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in os.listdir(PROC / str(pid) / "task"):  # noqa: PTH208
        found += map(int, (PROC / str(pid) / "task" / thread / "children").read_text().split())
    return found
