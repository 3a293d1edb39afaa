"""The encodings in which a known secret may appear, and the patterns of well-known tokens."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

from delegate.tokens import AGENT_PREFIX, PERSON_PREFIX, RUNNER_PREFIX, SLOT_PREFIX

MIN_LENGTH = 8  # characters; shorter values occur by chance
URL_SAFE = bytes.maketrans(b"+/", b"-_")
# A token does not begin inside a word; in JSON, the letter before it may belong to an escaped line end.
BOUNDARY = rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
# Programs wrap base64 at 64 or 76 columns. The ends of such lines, in a file or escaped in JSON; one at the end of the
# data may be incomplete. Each pattern begins with a literal, which makes it fast.
FULL_LINE = 60
LINE_ENDS = (
    re.compile(rb"\n(?<=[A-Za-z0-9+/]{%d}\n)" % FULL_LINE),
    re.compile(rb"\r(?<=[A-Za-z0-9+/]{%d}\r)(?:\n|\Z)" % FULL_LINE),
    re.compile(rb"\\(?<=[A-Za-z0-9+/]{%d}\\)\\{0,3}(?:r\\{1,4}(?:n|\Z)|[rn]|\Z)" % FULL_LINE),
)
CONTEXT = FULL_LINE  # preceding bytes that decide whether a token or a break can begin at a position


def forms(value: bytes) -> dict[bytes, str]:
    """Every encoding of a value, with its name; that of the plain value is empty."""
    found = {value: ""}
    for spelling, called in ((_url_forms, "url-encoded"), (_json_forms, "JSON-escaped"), (_base64_forms, "base64")):
        for form in spelling(value):
            found.setdefault(form, called)
    return found


def _url_forms(value: bytes) -> list[bytes]:
    upper = [quote(value, safe="").encode(), quote(value).encode(), quote_plus(value).encode()]
    return [*upper, *(re.sub(rb"%..", lambda code: code[0].lower(), form) for form in upper)]


def _json_forms(value: bytes) -> list[bytes]:
    """Escaped once and twice: an agent may print, as JSON, text that it read from a JSON file."""
    text = value.decode("utf-8", "surrogateescape")
    once = [json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]]
    once += [form.replace("/", "\\/") for form in once]
    twice = [json.dumps(form, ensure_ascii=False)[1:-1] for form in once]
    return [form.encode("utf-8", "surrogateescape") for form in (*once, *twice)]


def _base64_forms(value: bytes) -> list[bytes]:
    """As part of a longer text: at each of three offsets in a group, without characters shared with neighbours."""
    pieces = []
    for before in range(3):
        first, end = -(-8 * before // 6), 8 * (before + len(value)) // 6
        pieces.append(b64encode(bytes(before) + value)[first:end])
    return [*pieces, *(piece.translate(URL_SAFE) for piece in pieces)]


def find_line_breaks(data: bytes) -> list[tuple[int, int]]:
    """Where the lines of wrapped base64 end."""
    return sorted(found.span() for pattern in LINE_ENDS for found in pattern.finditer(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPart:
    """`least` to `most` characters in a row; `cut` matches an incomplete last one of several bytes."""

    chars: bytes
    least: int = 1
    most: int = 1
    cut: bytes = b""

    def times(self, least: int, most: int) -> bytes:
        return b"%b{%d,%d}" % (self.chars, least, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShape:
    """A kind of token with a recognizable pattern. `head` is the part of its beginning to search for; its last
    character is a literal, and as rare as possible."""

    name: str
    head: bytes
    parts: tuple[TokenPart, ...]
    closing: tuple[TokenPart, ...] = ()  # part of the token if present
    has_boundary: bool = False

    def whole_pattern(self) -> bytes:
        closing = b"(?:%b)?" % _join_parts(self.closing) if self.closing else b""
        return self._boundary + _join_parts(self.parts) + closing

    def unfinished_pattern(self) -> bytes:
        """Matches, up to the end of the data, what further bytes may turn into a token or into a longer one."""
        return self._boundary + _unfinished_pattern((*self.parts, *self.closing))

    @property
    def _boundary(self) -> bytes:
        return BOUNDARY if self.has_boundary else b""


def _join_parts(parts: tuple[TokenPart, ...]) -> bytes:
    return b"".join(part.times(part.least, part.most) for part in parts)


def _unfinished_pattern(parts: tuple[TokenPart, ...]) -> bytes:
    part, *rest = parts
    cut = b"(?:%b)?" % part.cut if part.cut else b""
    if not rest:
        return part.times(0, part.most - 1) + cut + rb"\Z"
    here = part.times(0, part.most - 1 if cut else max(part.least - 1, 0)) + cut + rb"\Z"
    return b"(?:%b|%b%b)" % (here, part.times(part.least, part.most), _unfinished_pattern(tuple(rest)))


def _literal(text: str) -> tuple[TokenPart, ...]:
    return tuple(TokenPart(chars=re.escape(char).encode()) for char in text)


def _repeat(chars: bytes, least: int, most: int = 255) -> TokenPart:
    return TokenPart(chars=chars, least=least, most=most)


WORD = rb"[A-Za-z0-9]"
NAME = rb"[A-Za-z0-9_-]"
LABEL = _repeat(rb"[A-Z0-9 ]", 0, 24)
# The line ends of a key are bytes in a file and escapes in JSON. The largest keys in use have 13 kB.
KEY_TEXT = TokenPart(chars=rb"(?:[A-Za-z0-9+/=\r\n]|\\{1,4}[nr])", least=40, most=16_384, cut=rb"\\{1,4}")

# Long enough that no name in a program looks like one. Of people, runners (also to pair), their slots, and attempts.
OWN_TOKENS = tuple(
    TokenShape(
        name="Delegate token", head=prefix.encode(), parts=(*_literal(prefix), _repeat(NAME, 43)), has_boundary=True
    )
    for prefix in (PERSON_PREFIX, RUNNER_PREFIX, SLOT_PREFIX, AGENT_PREFIX)
)
SHAPES = (
    *OWN_TOKENS,
    TokenShape(
        name="GitHub token",
        head=b"gh[pousr]_",
        parts=(*_literal("gh"), TokenPart(chars=b"[pousr]"), *_literal("_"), _repeat(WORD, 36)),
    ),
    TokenShape(
        name="GitHub token", head=b"github_pat_", parts=(*_literal("github_pat_"), _repeat(rb"[A-Za-z0-9_]", 22))
    ),
    TokenShape(name="GitLab token", head=b"glpat-", parts=(*_literal("glpat-"), _repeat(NAME, 20))),
    TokenShape(name="npm token", head=b"npm_", parts=(*_literal("npm_"), _repeat(WORD, 36)), has_boundary=True),
    TokenShape(name="Anthropic key", head=b"sk-", parts=(*_literal("sk-ant-"), _repeat(NAME, 20))),
    TokenShape(name="OpenAI key", head=b"sk-", parts=(*_literal("sk-proj-"), _repeat(NAME, 20))),
    TokenShape(name="OpenAI key", head=b"sk-", parts=(*_literal("sk-svcacct-"), _repeat(NAME, 20))),
    TokenShape(name="API key", head=b"sk-", parts=(*_literal("sk-"), _repeat(WORD, 32)), has_boundary=True),
    TokenShape(
        name="AWS key",
        head=b"A[KS]IA",
        parts=(*_literal("A"), TokenPart(chars=b"[KS]"), *_literal("IA"), _repeat(rb"[A-Z0-9]", 16, 16)),
        has_boundary=True,
    ),
    TokenShape(
        name="Slack token",
        head=b"xox[abprs]-",
        parts=(*_literal("xox"), TokenPart(chars=b"[abprs]"), *_literal("-"), _repeat(rb"[A-Za-z0-9-]", 10)),
    ),
    TokenShape(
        name="JWT",
        head=b"eyJ",
        parts=(
            *_literal("eyJ"),
            _repeat(NAME, 10, 4096),
            *_literal(".eyJ"),
            _repeat(NAME, 10, 4096),
            *_literal("."),
            _repeat(NAME, 20, 1024),
        ),
        has_boundary=True,
    ),
    TokenShape(
        name="private key",
        head=b"-----B",
        parts=(*_literal("-----BEGIN "), LABEL, *_literal("PRIVATE KEY-----"), KEY_TEXT),
        closing=(*_literal("-----END "), LABEL, *_literal("PRIVATE KEY-----")),
    ),
)


def build_head_pattern() -> tuple[re.Pattern[bytes], list[int]]:
    """Matches the last character of each head; the number of the matching group is the index of its length.

    Searching for that character and then looking behind skips most bytes quickly.
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
