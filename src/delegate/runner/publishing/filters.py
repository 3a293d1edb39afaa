"""Files that a repository stores through a program: as pointers to large files, or encrypted.

The program is not run, and what it would turn the file into is not known. Taken as it lies there, a large file would
replace its pointer, and an encrypted one would be published in clear.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import anyio

from delegate.runner.publishing.clean import Clean
from delegate.runner.publishing.traps import unless_trapped
from delegate.runner.workspaces.bare import read_small

ATTRIBUTES_MAX = 1024 * 1024  # bytes of one file
STORING = re.compile(rb"lfs|.*crypt.*", re.I)


async def stored_through_filters(clean: Clean, paths: Sequence[bytes]) -> frozenset[bytes]:
    """Which of these are there, and would have to go through such a program."""
    if not await anyio.to_thread.run_sync(_mentions_filters, clean.tree, paths):
        return frozenset()
    asked = b"".join(path + b"\0" for path in paths)
    asking = clean.git("check-attr", "-z", "--stdin", "filter", input=asked, tree=True)
    answer = await unless_trapped(clean.tree, asking)
    return await anyio.to_thread.run_sync(_present, clean.tree, answer)


def _present(tree: Path, answer: bytes) -> frozenset[bytes]:
    fields = answer.split(b"\0")  # path, attribute and value in turn
    named = (path for path, value in zip(fields[0::3], fields[2::3], strict=False) if STORING.fullmatch(value))
    return frozenset(path for path in named if os.path.lexists(os.fsencode(tree) + b"/" + path))


def _mentions_filters(tree: Path, paths: Sequence[bytes]) -> bool:
    """Spares a process where no attribute file on the way to a path could ask for one."""
    directories = {b""}
    for path in paths:
        parent = path.rpartition(b"/")[0]
        while parent not in directories:
            directories.add(parent)
            parent = parent.rpartition(b"/")[0]
    places = (tree / os.fsdecode(directory) / ".gitattributes" for directory in directories)
    return any("filter" in read_small(place, ATTRIBUTES_MAX) for place in places)
