"""A file system of a few megabytes, to be filled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BLOCK = b"x" * 65_536


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = f"size={megabytes}m,mode=700,uid={os.getuid()},gid={os.getgid()}"
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    mounted = subprocess.run(
        [*as_root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run([*as_root, "umount", "-l", str(place)], check=True)


@contextmanager
def filled(place: Path) -> Iterator[None]:
    """There is not a byte left; afterwards everything is as before."""
    filler = place / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            for size in (len(BLOCK), 1024, 1):
                _write_until_full(file.fileno(), BLOCK[:size])
        yield
    finally:
        filler.unlink()


def _write_until_full(descriptor: int, block: bytes) -> None:
    try:
        while os.write(descriptor, block):
            pass
    except OSError:
        return
