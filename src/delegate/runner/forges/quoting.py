"""Closes all blocks in an agent's Markdown, so that the text after it stays outside of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

CUT = "*(The summary is cut here; `delegate status` shows all of it.)*"
BLANK_LINES = re.compile(r"\n{3,}")
HEADING = re.compile(r"(#{1,6})(?=[ \t])")
SMALLEST_HEADING, HEADING_SHIFT = 6, 2  # our own headings have level 3
FENCE = re.compile(r"(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})(?P<rest>.*)")
FENCE_MAX = 20  # characters; a longer fence is treated as malicious


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    lines: list[str]
    open_fence: str  # of a code block that is still open at the end
    is_ambiguous: bool  # whether a fence opens a block depends on the block around it


def close_blocks(text: str, limit: int) -> str:
    """The text, at most `limit` characters, with all its blocks closed.

    A list or a quotation ends where our next heading begins; only a code block at the top level would swallow it. One
    that starts in the first column is closed here. An indented one may belong to a list or not: then the whole text
    is quoted, and ends with the quotation.
    """
    text = BLANK_LINES.sub("\n\n", text.strip("\n")).rstrip()
    read = _read(text)
    if read.is_ambiguous:
        return _cut("\n".join(f"> {line}".rstrip() for line in read.lines), limit, "> ")
    shaped = "\n".join(read.lines)
    if len(shaped) + FENCE_MAX < limit:
        return f"{shaped}\n{read.open_fence}" if read.open_fence else shaped
    kept = shaped[: limit - len(CUT) - FENCE_MAX - 4]
    open_fence = _read(kept, shrinks_headings=False).open_fence
    return f"{kept}\n{open_fence}\n\n{CUT}" if open_fence else f"{kept}\n\n{CUT}"


def _cut(quoted: str, limit: int, prefix: str) -> str:
    if len(quoted) <= limit:
        return quoted
    return f"{quoted[: limit - len(CUT) - 8]}\n{prefix.strip()}\n{prefix}{CUT}"


def _read(text: str, *, shrinks_headings: bool = True) -> _Lines:
    lines: list[str] = []
    open_fence, is_ambiguous = "", False
    for line in text.split("\n"):
        found = FENCE.match(line)
        if open_fence:
            if found and found["fence"].startswith(open_fence) and not found["rest"].strip():
                open_fence = ""
        elif found and not ("`" in found["fence"] and "`" in found["rest"]):
            is_ambiguous = is_ambiguous or bool(found["indent"]) or len(found["fence"]) > FENCE_MAX
            open_fence = found["fence"]
        elif shrinks_headings:
            line = HEADING.sub(_shrink_heading, line, count=1) if line.startswith("#") else line  # noqa: PLW2901
        lines.append(line)
    return _Lines(lines=lines, open_fence=open_fence, is_ambiguous=is_ambiguous)


def _shrink_heading(found: re.Match[str]) -> str:
    return "#" * min(len(found[1]) + HEADING_SHIFT, SMALLEST_HEADING)
