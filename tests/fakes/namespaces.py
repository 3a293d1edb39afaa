"""Network namespaces: other machines, as far as the network is concerned. Needs root and iproute2."""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

from tests.fakes.connect_proxy import copy_both_ways

CLONE_NEWNET = 0x40000000
BLOCKS = 1 << 15  # networks of four addresses in 198.18.0.0/15, which is reserved for tests of networks


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Joined to our own namespace by a pair of virtual devices."""

    name: str
    device: str  # our end
    address: str  # theirs
    gateway: str  # ours, as they see it

    def command(self, words: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def set_link(self, *, up: bool) -> None:
        _ip("link", "set", self.device, "up" if up else "down")

    @contextmanager
    def sharing(self, port: int) -> Iterator[None]:
        """What listens on our loopback at this port can also be reached on theirs."""
        with ThreadPoolExecutor(1) as inside:  # a thread that stays in their namespace until it ends
            server = inside.submit(self._listen, port).result()
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()

    def _listen(self, port: int) -> ThreadingTCPServer:
        with Path("/run/netns", self.name).open() as theirs:
            assert ctypes.CDLL(None, use_errno=True).setns(theirs.fileno(), CLONE_NEWNET) == 0, ctypes.get_errno()
        return _Forwarder(("127.0.0.1", port), _Forward)


class _Forwarder(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


class _Forward(BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError), socket.create_connection(self.request.getsockname()) as ours:
            copy_both_ways(self.request, ours)


@contextmanager
def network_namespace() -> Iterator[Namespace]:
    block = secrets.randbelow(BLOCKS)
    first = (198 << 24) + (18 << 16) + 4 * block
    ours, theirs = (".".join(str((first + host) >> shift & 255) for shift in (24, 16, 8, 0)) for host in (1, 2))
    made = Namespace(name=f"dlg-{os.getpid()}-{block:x}", device=f"dlg{block:x}a", address=theirs, gateway=ours)
    inner = f"dlg{block:x}b"
    _ip("netns", "add", made.name)
    try:
        _ip("link", "add", made.device, "type", "veth", "peer", "name", inner, "netns", made.name)
        _ip("addr", "add", f"{ours}/30", "dev", made.device)
        _ip("link", "set", made.device, "up")
        for words in (f"addr add {theirs}/30 dev {inner}", f"link set {inner} up", "link set lo up"):
            _ip("-n", made.name, *words.split())
        yield made
    finally:
        _ip("netns", "delete", made.name)  # the devices go with it


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
