"""Removes control sequences from agents' output before a terminal shows it."""

from __future__ import annotations

import codecs
import re

# An escape sequence may hide anything between its first and its last byte, so it is removed or kept as a whole.
SEQUENCE = re.compile(
    r"\x1b\[(?P<colour>[0-9;:]*m)"  # colour and weight: the only ones that pass
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # other CSI
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # two and three byte escapes
    r"|(?P<line>\r+\n?)"  # a return to the line's start could overwrite text
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # the rest of C0 but tab and line feed; C1
)
UNFINISHED = re.compile(r"(?:\r+|\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x9c]*\x1b?|[ -/]*)?)\Z")
UNFINISHED_MAX = 4096  # a longer one is not an escape sequence but an attempt to hide output


class OutputSanitizer:
    """Decodes output for a terminal: keeps colours, removes what moves the cursor, erases or queries the terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes, *, final: bool = False) -> str:
        text = self._held + self._decoder.decode(data, final)
        self._held = ""
        if not final and (rest := UNFINISHED.search(text, max(0, len(text) - UNFINISHED_MAX))):
            text, self._held = text[: rest.start()], text[rest.start() :]
        return SEQUENCE.sub(_keep_allowed, text)


def _keep_allowed(found: re.Match[str]) -> str:
    if found["line"]:
        return "\n"
    return found[0] if found["colour"] else ""
