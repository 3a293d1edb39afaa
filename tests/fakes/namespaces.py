"""Network namespaces: other machines, as far as the network is concerned. Needs root and iproute2."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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
