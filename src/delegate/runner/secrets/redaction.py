"""Removes secrets from everything an attempt prints or reports, before it is stored or sent.

Known values are searched for in all their forms at once. A regular expression with hundreds of alternatives would
process only 15 MB/s, so a sieve looks up aligned words instead: wherever a value begins, at least one whole word of
eight (or four) bytes of it lies at a multiple of that width from the start of the data.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress
from typing import Literal, NamedTuple

from delegate.model import Stream
from delegate.runner.secrets.forms import CONTEXT, MIN_LENGTH, SHAPES, build_head_pattern, find_line_breaks, forms

WIDE, NARROW = 8, 4  # bytes of a word; both are widths of an integer
CODES: dict[int, Literal["Q", "I"]] = {WIDE: "Q", NARROW: "I"}
STRIDE_MAX = 4  # words between two lookups; more would save little, and the end is searched byte by byte
PIECE = 1024 * 1024  # bytes searched at a time, while no other thread can run
START = 4  # bytes that tell whether a value may begin at a position
HEADS, HEAD_SIZES = build_head_pattern()
WHOLE = re.compile(b"|".join(b"(%b)" % shape.whole_pattern() for shape in SHAPES))
UNFINISHED = re.compile(b"|".join(shape.unfinished_pattern() for shape in SHAPES))
NAME = re.compile(r"[^A-Za-z0-9_. -]+")
# Fields that hold identifiers, which must stay what they are: a branch may be named after a word that is a secret too.
IDENTIFIERS = frozenset(
    {"base", "base_commit", "baseCommit", "branch", "commit", "pull_request", "session_id", "sessionId", "url"}
)


class SecretMatch(NamedTuple):
    """A match, complete or possible. Matches at one position sort by precedence: unfinished ones first."""

    start: int
    rank: int
    minus_end: int  # the longest first
    label: str = ""


OPEN_VALUE, VALUE, OPEN_SHAPE, SHAPE = range(4)


class Sieve:
    """Finds values of at least 2 * width - 1 bytes; the longer all of them are, the fewer words it looks up."""

    def __init__(self, width: int, values: Sequence[bytes]) -> None:
        self._width = width
        self._code = CODES[width]
        self._stride = min((min(map(len, values)) + 1) // width - 1, STRIDE_MAX)
        self._positions: dict[int, list[tuple[bytes, int]]] = {}
        for value in values:
            for offset in range(self._stride * width):
                (word,) = memoryview(value[offset : offset + width]).cast(self._code)
                self._positions.setdefault(word, []).append((value, offset))
        self._words = frozenset(self._positions)

    @property
    def min_match_length(self) -> int:
        return (self._stride + 1) * self._width - 1

    def find(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Where values begin; one may extend beyond the data if at least `min_match_length` bytes of it are there."""
        words = memoryview(data)[: len(data) // self._width * self._width].cast(self._code)[:: self._stride]
        if self._words.isdisjoint(words):
            return
        for index in compress(range(len(words)), map(self._words.__contains__, words)):
            for value, offset in self._positions[words[index]]:
                start = index * self._stride * self._width - offset
                if start >= 0 and value.startswith(data[start : start + len(value)]):
                    yield start, value


class JoinedLines:
    """Data without the line breaks in wrapped base64, and where its bytes were before."""

    def __init__(self, data: bytes, breaks: Sequence[tuple[int, int]]) -> None:
        edges = [0, *(edge for found in breaks for edge in found), len(data)]
        pieces = [(begin, data[begin:end]) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
        self.data = b"".join(piece for _, piece in pieces)
        self._begins = [begin for begin, _ in pieces]
        self._offsets = list(accumulate((len(piece) for _, piece in pieces), initial=0))[:-1]

    def locate(self, find: SecretMatch) -> SecretMatch:
        """The match in the data with line breaks."""
        end = self._position(-find.minus_end - 1) + 1 if find.minus_end else 0
        return find._replace(start=self._position(find.start), minus_end=-end)

    def _position(self, joined: int) -> int:
        piece = bisect_right(self._offsets, joined) - 1
        return self._begins[piece] + joined - self._offsets[piece]


class Redactor:
    """Knows the secrets; a `Redaction`, one for each attempt, keeps the state of the streams."""

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        self._labels: dict[bytes, str] = {}
        for name, value in secrets.items():
            if len(value) < MIN_LENGTH:
                continue
            for form, called in forms(value).items():
                label = NAME.sub(" ", name) + (f" ({called})" if called else "")
                self._labels.setdefault(form, label)
        self._values = sorted(self._labels)
        self._starts = frozenset(value[:size] for value in self._values for size in range(1, START + 1))
        wide = [value for value in self._values if len(value) >= 2 * WIDE - 1]
        narrow = [value for value in self._values if len(value) < 2 * WIDE - 1]
        self._sieves = [Sieve(width, found) for width, found in ((WIDE, wide), (NARROW, narrow)) if found]
        self._min_match_length = max((sieve.min_match_length for sieve in self._sieves), default=0)

    def begin(self) -> Redaction:
        return Redaction(self)

    def text(self, text: str) -> str:
        return self.begin().text(text)

    def find_known_secrets(self, data: bytes) -> list[str]:
        """The known secrets in the data, by name and form; token patterns are not included."""
        overlap = max(map(len, self._values), default=0)
        pieces = (data[begin : begin + PIECE + overlap] for begin in range(0, len(data), PIECE))
        return sorted({find.label for piece in pieces for find in self._find_known(piece, is_last=True)})

    def redact(self, data: bytes, start: int, found: Counter[str], *, is_last: bool) -> tuple[bytes, int]:
        """The decided part of the data from `start` on, without secrets, and the position where it ends.

        The data before `start` was handled earlier and serves only as context.
        """
        finds = [*self._find_known(data, is_last=is_last), *_find_shapes(data, start, is_last=is_last)]
        if not is_last:
            finds += self._find_begun(data, start)
        pieces: list[bytes] = []
        at = start
        for find in sorted(finds):
            if find.start < at:
                continue
            pieces.append(data[at : find.start])
            at = find.start
            if find.rank in (OPEN_VALUE, OPEN_SHAPE):
                return b"".join(pieces), at
            pieces.append(b"[redacted: %b]" % find.label.encode())
            found[find.label] += 1
            at = -find.minus_end
        pieces.append(data[at:])
        return b"".join(pieces), len(data)

    def _find_known(self, data: bytes, *, is_last: bool) -> Iterator[SecretMatch]:
        yield from self._find_values(data, is_last=is_last)
        if breaks := find_line_breaks(data):
            joined = JoinedLines(data, breaks)
            found = [*self._find_values(joined.data, is_last=is_last)]
            found += [] if is_last else self._find_begun(joined.data, 0)
            yield from map(joined.locate, found)

    def _find_values(self, data: bytes, *, is_last: bool) -> Iterator[SecretMatch]:
        for sieve in self._sieves:
            for start, value in sieve.find(data):
                end = start + len(value)
                if end <= len(data):
                    yield SecretMatch(start, VALUE, -end, self._labels[value])
                elif not is_last:
                    yield SecretMatch(start, OPEN_VALUE, 0)

    def _find_begun(self, data: bytes, start: int) -> Iterator[SecretMatch]:
        """Where the end of the data may begin a value but is too short for the sieve."""
        first = max(start, len(data) - self._min_match_length + 1)
        for position in [at for at in range(first, len(data)) if data[at : at + START] in self._starts]:
            rest = data[position:]
            index = bisect_left(self._values, rest)
            if index < len(self._values) and self._values[index] == rest:
                index += 1
            if index < len(self._values) and self._values[index].startswith(rest):
                yield SecretMatch(position, OPEN_VALUE, 0)


def find_shapes(data: bytes) -> Iterator[tuple[bytes, str]]:
    """Everything that matches a token pattern, with the kind of token."""
    for find in _find_shapes(data, 0, is_last=True):
        yield data[find.start : -find.minus_end], find.label


def _find_heads(data: bytes) -> Iterator[re.Match[bytes]]:
    """Searches piece by piece: a match is one byte, and its lookbehind may reach into the previous piece."""
    for begin in range(0, len(data), PIECE):
        yield from HEADS.finditer(data, begin, begin + PIECE)


def _find_shapes(data: bytes, start: int, *, is_last: bool) -> Iterator[SecretMatch]:
    for head in _find_heads(data):
        position = head.end() - HEAD_SIZES[head.lastindex or 0]
        if not is_last and UNFINISHED.match(data, position):
            yield SecretMatch(position, OPEN_SHAPE, 0)
        elif whole := WHOLE.match(data, position):
            yield SecretMatch(position, SHAPE, -whole.end(), SHAPES[(whole.lastindex or 1) - 1].name)
    if is_last:
        return
    for position in range(max(start, len(data) - max(HEAD_SIZES) + 1), len(data)):
        if UNFINISHED.match(data, position):
            yield SecretMatch(position, OPEN_SHAPE, 0)


@dataclass(slots=True)
class Redaction:
    """Redacts one attempt's output and facts. `found` counts what was removed, by name and form of the secret."""

    redactor: Redactor
    found: Counter[str] = field(default_factory=Counter)
    _before: dict[Stream, bytes] = field(default_factory=dict)
    _held: dict[Stream, bytes] = field(default_factory=dict)

    def feed(self, stream: Stream, data: bytes) -> bytes:
        """The next bytes of a stream without secrets; a possible start of a secret is held until more bytes arrive."""
        return self._redact(stream, data, is_last=False)

    def flush(self, stream: Stream) -> bytes:
        """The bytes still held, at the end of a stream."""
        rest = self._redact(stream, b"", is_last=True)
        del self._before[stream]
        return rest

    def text(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        if len(data) < MIN_LENGTH:
            return text
        count = self.found.total()
        clean, _ = self.redactor.redact(data, 0, self.found, is_last=True)
        return text if self.found.total() == count else clean.decode("utf-8", "replace")

    def data(self, value: dict[str, object]) -> dict[str, object]:
        """The same data with redacted texts; top-level names and identifiers are never secret."""
        return {name: self._clean_entry(name, entry) for name, entry in value.items()}

    def _clean_entry(self, name: object, entry: object) -> object:
        return entry if name in IDENTIFIERS and isinstance(entry, str) else self._clean(entry)

    def _clean(self, value: object) -> object:
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self._clean(name): self._clean_entry(name, entry) for name, entry in value.items()}
            case list() | tuple():
                return [self._clean(entry) for entry in value]
            case _:
                return value

    def _redact(self, stream: Stream, data: bytes, *, is_last: bool) -> bytes:
        before = self._before.get(stream, b"")
        whole = b"".join((before, self._held.get(stream, b""), data))
        clean, position = self.redactor.redact(whole, len(before), self.found, is_last=is_last)
        self._before[stream] = whole[max(position - CONTEXT, 0) : position]
        self._held[stream] = whole[position:]
        return clean
