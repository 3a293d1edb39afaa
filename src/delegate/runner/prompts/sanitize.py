"""Makes text from outside safe for a prompt: reveals hidden text and fences it. Pure."""

from __future__ import annotations

import re
from hashlib import sha256
from itertools import count, groupby

COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
# Controls but tab and line feed, soft hyphen, zero width, direction, fillers, selectors, tags, halves of pairs.
HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff"
)
PICTURE = "\u2190-\u2bff\ufe0f\U0001f000-\U0001faff"
# A joiner between two emoji makes one of them; that is normal text.
INVISIBLE = re.compile(f"(?<=[{PICTURE}])\u200d(?=[{PICTURE}])|(?P<hidden>[{HIDDEN}]+)")
TAGS = range(0xE0020, 0xE007F)  # invisible characters, each a copy of an ASCII one
TAG_LENGTH = 6


def fence_text(name: str, text: str) -> str:
    """Puts the text between two tags that it does not contain, so that it cannot close them."""
    mark = fence_tag(name, text)
    return f"<{mark}>\n{text.strip(chr(10))}\n</{mark}>"


def fence_tag(name: str, text: str) -> str:
    """The tag's name: the same for the same text, and unpredictable for the author of the text."""
    low = text.casefold()
    for turn in count():
        digest = sha256(f"{turn}:{text}".encode(errors="surrogatepass")).hexdigest()[:TAG_LENGTH]
        if digest not in low:
            return f"{name}-{digest}"
    raise AssertionError("there is always another number")


def reveal_hidden(text: str) -> str:
    """Spells out what a rendered page would hide: invisible characters and comments."""
    lines = text.replace("\r\n", "\n")
    marked = COMMENT.sub(lambda comment: f"[not shown to readers: {comment[0]}]", lines)
    return INVISIBLE.sub(lambda found: _spell_out(found["hidden"]) if found["hidden"] else found[0], marked)


def _spell_out(hidden: str) -> str:
    """Tag characters as the text they spell, other characters by their code point."""
    parts = []
    for is_tag, run in groupby(hidden, key=lambda char: ord(char) in TAGS):
        if is_tag:
            parts.append(f"[hidden text: {''.join(chr(ord(char) - 0xE0000) for char in run)}]")
        else:
            parts += [_format_code_point(char, len(list(same))) for char, same in groupby(run)]
    return "".join(parts)


def _format_code_point(char: str, times: int) -> str:
    return f"[U+{ord(char):04X}]" if times == 1 else f"[U+{ord(char):04X} × {times}]"
