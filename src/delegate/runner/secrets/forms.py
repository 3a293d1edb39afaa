"""What a secret looks like in a stream of bytes: the forms that a known value takes, and the shapes of tokens."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

LEAST = 8  # characters; shorter values occur by chance
URL_SAFE = bytes.maketrans(b"+/", b"-_")
# A token does not begin in the middle of a word; in JSON the word before may be the letter of an escaped line end.
BOUNDARY = rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
CONTEXT = 2  # bytes before a place that decide whether something begins there


def forms(value: bytes) -> dict[bytes, str]:
    """Every spelling of a value, and what the spelling is called; the plain one has no name."""
    found = {value: ""}
    for spelling, called in ((_in_urls, "url-encoded"), (_in_json, "JSON-escaped"), (_in_base64, "base64")):
        for form in spelling(value):
            found.setdefault(form, called)
    return found


def _in_urls(value: bytes) -> list[bytes]:
    upper = [quote(value, safe="").encode(), quote(value).encode(), quote_plus(value).encode()]
    return [*upper, *(re.sub(rb"%..", lambda code: code[0].lower(), form) for form in upper)]


def _in_json(value: bytes) -> list[bytes]:
    """Once, and once more: what an agent reads from a JSON file stands in the JSON that it prints."""
    text = value.decode("utf-8", "surrogateescape")
    once = [json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]]
    once += [form.replace("/", "\\/") for form in once]
    twice = [json.dumps(form, ensure_ascii=False)[1:-1] for form in once]
    return [form.encode("utf-8", "surrogateescape") for form in (*once, *twice)]


def _in_base64(value: bytes) -> list[bytes]:
    """As part of something longer: it may begin at any of three places of a group, and its ends mix with others."""
    pieces = []
    for before in range(3):
        first, end = -(-8 * before // 6), 8 * (before + len(value)) // 6
        pieces.append(b64encode(bytes(before) + value)[first:end])
    return [*pieces, *(piece.translate(URL_SAFE) for piece in pieces)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """So many of these characters in a row; `cut` is how a last one of several bytes begins."""

    chars: bytes
    least: int = 1
    most: int = 1
    cut: bytes = b""

    def times(self, least: int, most: int) -> bytes:
        return b"%b{%d,%d}" % (self.chars, least, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kind of token that is known by its looks. `head` is enough of its beginning to look for: its last character is
    none of a class, and as rare as can be had."""

    name: str
    head: bytes
    parts: tuple[Part, ...]
    closing: tuple[Part, ...] = ()  # belongs to it when it follows
    has_boundary: bool = False

    def whole(self) -> bytes:
        closing = b"(?:%b)?" % _joined(self.closing) if self.closing else b""
        return self._boundary + _joined(self.parts) + closing

    def unfinished(self) -> bytes:
        """Matches up to the end of the data what may become one, or a longer one, with the next byte."""
        return self._boundary + _unfinished((*self.parts, *self.closing))

    @property
    def _boundary(self) -> bytes:
        return BOUNDARY if self.has_boundary else b""


def _joined(parts: tuple[Part, ...]) -> bytes:
    return b"".join(part.times(part.least, part.most) for part in parts)


def _unfinished(parts: tuple[Part, ...]) -> bytes:
    part, *rest = parts
    cut = b"(?:%b)?" % part.cut if part.cut else b""
    if not rest:
        return part.times(0, part.most - 1) + cut + rb"\Z"
    here = part.times(0, part.most - 1 if cut else max(part.least - 1, 0)) + cut + rb"\Z"
    return b"(?:%b|%b%b)" % (here, part.times(part.least, part.most), _unfinished(tuple(rest)))


def _exactly(text: str) -> tuple[Part, ...]:
    return tuple(Part(chars=re.escape(char).encode()) for char in text)


def _run(chars: bytes, least: int, most: int = 255) -> Part:
    return Part(chars=chars, least=least, most=most)


WORD = rb"[A-Za-z0-9]"
NAME = rb"[A-Za-z0-9_-]"
LABEL = _run(rb"[A-Z0-9 ]", 0, 24)
# The line ends of a key are bytes in a file and escapes in JSON. The largest keys in use take 13 kB.
KEY_TEXT = Part(chars=rb"(?:[A-Za-z0-9+/=\r\n]|\\{1,4}[nr])", least=40, most=16_384, cut=rb"\\{1,4}")

SHAPES = (
    Shape(
        name="GitHub token",
        head=b"gh[pousr]_",
        parts=(*_exactly("gh"), Part(chars=b"[pousr]"), *_exactly("_"), _run(WORD, 36)),
    ),
    Shape(name="GitHub token", head=b"github_pat_", parts=(*_exactly("github_pat_"), _run(rb"[A-Za-z0-9_]", 22))),
    Shape(name="GitLab token", head=b"glpat-", parts=(*_exactly("glpat-"), _run(NAME, 20))),
    Shape(name="npm token", head=b"npm_", parts=(*_exactly("npm_"), _run(WORD, 36)), has_boundary=True),
    Shape(name="Anthropic key", head=b"sk-", parts=(*_exactly("sk-ant-"), _run(NAME, 20))),
    Shape(name="OpenAI key", head=b"sk-", parts=(*_exactly("sk-proj-"), _run(NAME, 20))),
    Shape(name="OpenAI key", head=b"sk-", parts=(*_exactly("sk-svcacct-"), _run(NAME, 20))),
    Shape(name="API key", head=b"sk-", parts=(*_exactly("sk-"), _run(WORD, 32)), has_boundary=True),
    Shape(
        name="AWS key",
        head=b"A[KS]IA",
        parts=(*_exactly("A"), Part(chars=b"[KS]"), *_exactly("IA"), _run(rb"[A-Z0-9]", 16, 16)),
        has_boundary=True,
    ),
    Shape(
        name="Slack token",
        head=b"xox[abprs]-",
        parts=(*_exactly("xox"), Part(chars=b"[abprs]"), *_exactly("-"), _run(rb"[A-Za-z0-9-]", 10)),
    ),
    Shape(
        name="JWT",
        head=b"eyJ",
        parts=(
            *_exactly("eyJ"),
            _run(NAME, 10, 4096),
            *_exactly(".eyJ"),
            _run(NAME, 10, 4096),
            *_exactly("."),
            _run(NAME, 20, 1024),
        ),
        has_boundary=True,
    ),
    Shape(
        name="private key",
        head=b"-----B",
        parts=(*_exactly("-----BEGIN "), LABEL, *_exactly("PRIVATE KEY-----"), KEY_TEXT),
        closing=(*_exactly("-----END "), LABEL, *_exactly("PRIVATE KEY-----")),
    ),
)


def heads() -> tuple[re.Pattern[bytes], list[int]]:
    """Finds the last character of each head; the number of the group that matched is the index of its length.

    That character first and a look behind then: most bytes are passed over without a second look.
    """
    by_end: dict[bytes, list[bytes]] = {}
    for shape in SHAPES:
        known = by_end.setdefault(shape.head[-1:], [])
        if shape.head not in known:
            known.append(shape.head)
    choices = [
        b"%b(?:%b)" % (re.escape(end), b"|".join(b"(?<=%b)()" % head for head in found))
        for end, found in by_end.items()
    ]
    sizes = [len(re.sub(rb"\[[^]]*\]", b"x", head)) for found in by_end.values() for head in found]
    return re.compile(b"|".join(choices)), [0, *sizes]
