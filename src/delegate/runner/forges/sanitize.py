"""Makes text from outside safe for a pull request: readable, and without side effects.

A forge acts on text: `@name` notifies a person, `Fixes #1` closes an issue, a comment hides text, an image is fetched.
None of that may come from an agent or an issue. We do not guess which parts the forge treats as code: an invisible
character breaks such words everywhere; in titles, which people search and copy, a visible one.
"""

from __future__ import annotations

import re

BREAK = "\u200b"

ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"
)
LINE_ENDS = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
# Control characters but tab and line feed; soft hyphen, zero width, bidirectional, tags and other invisible letters.
INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
SURROGATES = re.compile(r"[\ud800-\udfff]")
COMMENT, COMMENT_END = "<!--", "-->"
INLINE_DATA = re.compile(r"data:[\w.+/-]{1,80};base64,[A-Za-z0-9+/=_-]{64,}", re.IGNORECASE)

REFERENCE = r"(?:#\d|\b[a-z][a-z0-9]{1,9}-\d|/(?:issues?|pull)/)"
KEYWORD = r"(?:clos|fix|resolv|complet|implement)(?:e|es|ed|ing|s)?"
ISSUE_REFERENCE = r"(?:[\w.-]+/[\w.-]+)?#\d+|\bgh-\d+|https?://\S+/(?:issues?|work_items|pull|merge_requests)/\S+"
# They look like keys of a tracker, but a title with a broken hyphen in them is not found by a search.
STANDARDS = r"(?:aes|base|cp|cve|cwe|ed|fips|hmac|http|ieee|iec|iso|latin|md|oauth|pep|rfc|rsa|sha|tls|ucs|utf|windows)"
ANY_REFERENCE = re.compile(rf"{ISSUE_REFERENCE}|\b(?!{STANDARDS}-)[a-z][a-z0-9]{{1,9}}-\d+", re.IGNORECASE)
ANY_KEYWORD = re.compile(rf"\b{KEYWORD}\b", re.IGNORECASE)
# An imperative at the start of a line or sentence. Atomic: of `#55 partially`, `#5` must not remain.
CLOSING = r"(?:close|fix|resolve)(?:s|(?<=x)es)?\b[ \t]*+:?[ \t]*+"
CLOSED = re.compile(
    r"(?:^|[.!?](?=[ \t]))[ \t>*+-]*(?:please,?[ \t]+)?"
    rf"{CLOSING}((?>#\d+(?:,?(?: and)?(?: then)? ?(?:{CLOSING})?#\d+)*))(?![ \t(]*(?:partially|partly|in part)\b)",
    re.IGNORECASE | re.MULTILINE,
)
HYPHEN = "\u2011"  # looks like the usual one, but forms no key of a tracker
# Text that a forge acts on; the break goes before the second group.
ACTIVE_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"(<)([a-z/!?])",  # tags
        r"(&)(#|[a-z][a-z0-9]*;)",  # entities, which may stand for one of the characters below
        r"(@)([a-z0-9_])",  # mentions
        r"(!)(\[)",  # images: the forge would fetch them, with any data in their URL
        r"(\b(?:java|vb)script)(:)",
        r"(^[ \t>*+-]*\[!)([^\]\n]*\]:)",  # a link that would replace the mark of a warning
        rf"(\b{KEYWORD})(?=\b\W{{0,20}}[\w.:/-]{{0,100}}{REFERENCE})()",  # closing an issue
        rf"((?<![\w-]){KEYWORD})(?=\b[^\n]{{0,100}}{REFERENCE})()",  # the same, with more words in between
        r"(^[ \t>*+-]*[a-z][a-z-]*-(?:by|task|id|checks))([ \t]*:)",  # trailers of a squashed commit
        r"(\[)((?:skip|no)[ -](?:ci|actions)\]|(?:ci|actions)[ -]skip\])",
        r"(^[ \t>*+-]*/)([a-z][a-z-]*(?:[ \t]|$))",  # bot commands
    )
)


def strip_invisible(text: str) -> str:
    """Removes terminal escapes, control and invisible characters; normalizes line ends to LF."""
    text = LINE_ENDS.sub("\n", ESCAPES.sub("", text))
    return SURROGATES.sub("\ufffd", INVISIBLE.sub("", text))


def sanitize_markdown(text: str) -> str:
    """Keeps the appearance of Markdown, but nothing in it notifies, closes, hides, fetches or claims anything."""
    text = INLINE_DATA.sub("data:…", strip_comments(strip_invisible(text)))
    for active in ACTIVE_PATTERNS:
        text = active.sub(_insert_break, text)
    return text


def strip_comments(text: str) -> str:
    """Removes comments. One that is never closed stays, and is broken like every tag."""
    kept, at = [], 0
    while (start := text.find(COMMENT, at)) >= 0 and (end := text.find(COMMENT_END, start + len(COMMENT))) >= 0:
        kept.append(text[at:start])
        at = end + len(COMMENT_END)
    return "".join(kept) + text[at:]


def _insert_break(found: re.Match[str]) -> str:
    first, second = found.groups()
    if second:
        return f"{first}{BREAK}{second}"
    return f"{first[0]}{BREAK}{first[1:]}"  # a keyword, broken inside


def title_line(text: str, limit: int, own: frozenset[str] = frozenset()) -> str:
    """For titles and subjects: like `one_line`, but with visible breaks, and without one in a reference to `own`."""
    line = " ".join(strip_comments(strip_invisible(text[: 4 * limit])).split())
    if ANY_KEYWORD.search(line):
        line = ANY_REFERENCE.sub(
            lambda found: found[0] if found[0].lower() in own else _split_reference(found[0]), line
        )
    for active in ACTIVE_PATTERNS:
        line = active.sub(lambda found: " ".join(found.groups()) if found[2] else found[0], line)
    return line if len(line) <= limit else f"{_cut_before_number(line, limit - 1).rstrip()}…"


def _split_reference(reference: str) -> str:
    return re.sub(r"([#/])(?=\d)", r"\1 ", re.sub(r"-(?=\d)", HYPHEN, reference))


def _cut_before_number(line: str, limit: int) -> str:
    """The beginning of the line. A part of a number would name another issue."""
    return line[:limit].rstrip("0123456789") if line[limit].isdigit() else line[:limit]


def find_references(text: str) -> frozenset[str]:
    """The issues and pull requests that the text names, in lower case."""
    return frozenset(found.lower() for found in ANY_REFERENCE.findall(text))


def find_closed(text: str) -> tuple[str, ...]:
    """The issues of the same repository that the text asks to fix, such as `#5`."""
    return tuple(dict.fromkeys(re.findall(r"#\d+", " ".join(CLOSED.findall(text)))))


def one_line(text: str, limit: int) -> str:
    """Sanitized, on one line, shortened with an ellipsis."""
    line = sanitize_markdown(" ".join(strip_invisible(text[: 4 * limit]).split()))
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"
