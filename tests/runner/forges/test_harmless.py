"""What agents and issues say is read by people and by the forge: nothing of it may do anything."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegate.runner.forges.sanitize import BREAK, INVISIBLE, one_line, sanitize_markdown, strip_invisible

# As GitHub and trackers read them, freely: a mention, a keyword that closes, a tag, an image, a trailer.
POWERFUL = {
    "mention": re.compile(r"@[A-Za-z0-9]"),
    "closing": re.compile(
        r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)\b:?\s+(?:[\w.-]+/[\w.-]+)?(?:#|GH-|https?://\S+/issues/)\d", re.I
    ),
    "tag": re.compile(r"<[A-Za-z/!?]"),
    "entity": re.compile(r"&(?:#\d+|#x[0-9a-f]+|\w+);", re.I),
    "image": re.compile(r"!\["),
    "trailer": re.compile(r"^(?:Co-authored-by|Signed-off-by|Delegate-Task|skip-checks)\s*:", re.I | re.M),
    "escape": re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"),
    "hidden": re.compile(r"[\u200c-\u200f\u202a-\u202e\u2060-\u2069\U000e0000-\U000e007f]"),
}
PIECES = [
    "@octocat", "Fixes #12", "closes: acme/other#3", "resolved GH-4", "<!--", "-->", "<!", "--", ">", "<", "<script>",
    "</details>", "<img src=x onerror=alert(1)>", "&#64;", "&commat;", "octocat", "![x](https://example.org/?q=secret)",
    "!", "[", "Co-authored-by: A <a@example.org>", "Signed-off-by: B", "\n", "\r", "\u2028", " ",
    "\x1b[31m", "\x1b]52;c;aGk=\x07", "\x1b]8;;https://example.org\x1b\\",
    "\x9b2J", "\x00", "\u202e", "\u200d", "\U000e0041", "fi", "xes", "#", "12",
]  # fmt: skip


@pytest.mark.promise("P19")
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("thanks @octocat", f"thanks @{BREAK}octocat"),
        ("thanks &#64;octocat and &commat;octocat", f"thanks &{BREAK}#64;octocat and &{BREAK}commat;octocat"),
        ("Fixes #12", f"F{BREAK}ixes #12"),
        ("Closes: acme/other#3, resolves PER-7", f"C{BREAK}loses: acme/other#3, r{BREAK}esolves PER-7"),
        ("Closes\n#12", f"C{BREAK}loses\n#12"),
        ("Fixed in https://github.com/acme/x/issues/3", f"F{BREAK}ixed in https://github.com/acme/x/issues/3"),
        ("Fi<!-- x -->xes #12", f"F{BREAK}ixes #12"),
        ("Fi\u200bxes #12", f"F{BREAK}ixes #12"),
        ("before <!-- do as I say --> after", "before  after"),
        ("before <!-- never closed", f"before <{BREAK}!-- never closed"),
        ("<<!-- -->!-- hidden -->", f"<{BREAK}!-- hidden -->"),
        ("<script>alert(1)</script>", f"<{BREAK}script>alert(1)<{BREAK}/script>"),
        ("[x](javascript:alert(1))", f"[x](javascript{BREAK}:alert(1))"),
        ("![x](https://example.org/?q=secret)", f"!{BREAK}[x](https://example.org/?q=secret)"),
        (f"data:image/png;base64,{'A' * 1_000_000}", "data:…"),
        ("Co-authored-by: A", f"Co-authored-by{BREAK}: A"),
        ("> Signed-off-by: A", f"> Signed-off-by{BREAK}: A"),
        ("Delegate-Task: task-9", f"Delegate-Task{BREAK}: task-9"),
        ("[skip ci] done", f"[{BREAK}skip ci] done"),
        ("/deploy production", f"/{BREAK}deploy production"),
        ("copied \x1b]52;c;aGVsbG8=\x07 it", "copied  it"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x07\x1b[2A\x1b[2Kgone \x9b31mred\x9b0m", "gone red"),
        ("one\r\ntwo\rthree\u2028four", "one\ntwo\nthree\nfour"),
        ("\u202eevil\u202c \U000e0041\U000e0042tags \ud800", "evil tags \ufffd"),
    ],
)
def test_what_would_do_something_only_looks_like_it(said: str, shown: str) -> None:
    assert sanitize_markdown(said) == shown


@pytest.mark.parametrize(
    "said",
    [
        "## What\n\n- `pytest -q` passes\n- a < b && c > d\n\n```python\nx: list[int] = []  # fix later\n```",
        "Run `ruff check --fix .`; see #12 and docs/limits.md",
        "| a | b |\n| --- | --- |\n| 1 | 2 |",
        "Ünïcode, 日本語, emoji 🎉 and ❤️",
    ],
)
def test_honest_words_stay_as_they_are(said: str) -> None:
    assert sanitize_markdown(said) == said


@pytest.mark.promise("P19")
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join))
def test_no_mixture_of_such_things_comes_to_life(said: str) -> None:
    shown = sanitize_markdown(said)

    assert {name for name, power in POWERFUL.items() if power.search(shown)} == set()


@given(st.text())
def test_plain_text_has_nothing_that_is_not_seen(said: str) -> None:
    assert INVISIBLE.search(strip_invisible(said)) is None


@pytest.mark.parametrize("unit", ["<!--", "\x90", "\x1b]", "fix ", "@a", "&a", "a-", "> ", "\n/a", "data:a;base64,"])
def test_a_long_repetition_is_read_in_one_go(unit: str) -> None:
    said = unit * (60_000 // len(unit))

    assert len(sanitize_markdown(said)) <= 2 * len(said)


def test_one_line_is_one_line_and_cut_visibly() -> None:
    assert one_line("  first\n\n second\tthird ", 100) == "first second third"
    assert one_line("word " * 100, 20) == "word word word word…"
