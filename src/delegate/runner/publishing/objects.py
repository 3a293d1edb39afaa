"""Reads many git objects with one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from delegate.runner.workspaces.scratch import ScratchRepository


async def sizes_of(scratch: ScratchRepository, objects: Sequence[str]) -> list[int]:
    """In bytes; all objects must exist."""
    if not objects:
        return []
    answer = await scratch.git("cat-file", "--batch-check=%(objectsize)", input="\n".join(objects).encode())
    return [int(line) for line in answer.split()]


async def contents_of(scratch: ScratchRepository, names: Sequence[bytes]) -> list[bytes | None]:
    """None for a name that does not exist. Names must not contain line breaks."""
    if not names:
        return []
    return list(_read(await scratch.git("cat-file", "--batch", input=b"\n".join(names))))


def _read(answer: bytes) -> Iterator[bytes | None]:
    position = 0
    while position < len(answer):
        end = answer.index(b"\n", position)
        _, _, size = answer[position:end].rpartition(b" ")
        position = end + 1
        if not size.isdigit():  # "missing", in place of a type and a size
            yield None
            continue
        yield answer[position : position + int(size)]
        position += int(size) + 1
