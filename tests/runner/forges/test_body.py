"""The pull request as a reviewer sees it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from delegate.model import Issue, Usage
from delegate.runner.checks import CheckResult
from delegate.runner.forges.body import (
    BODY_MAX,
    END_MARKER,
    NO_SUMMARY,
    BodyFacts,
    closed_issues,
    merge_body,
    pull_request_body,
    pull_request_title,
    task_of,
)

ISSUE = Issue(
    key="PER-44", title="Rate limit runner endpoints", url="https://linear.app/acme/issue/PER-44/rate-limit-runner"
)
SUMMARY = """\
# Rate limits for runners

Runner endpoints now answer `429` with `Retry-After` after 100 requests a minute from one address.

- `limits.py`: a token bucket per address, bounded at 10,000 addresses.
- The claim endpoint is exempt: it is a long poll and never more than one a minute."""
FACTS = BodyFacts(
    task_id="task-3f2a91c0de",
    summary=SUMMARY,
    agent="claude",
    model="sonnet-4-5",
    duration=timedelta(minutes=6, seconds=12),
    commit="3f2a91c0de3f2a91c0de3f2a91c0de3f2a91c0de",
    files=5,
    additions=1120,
    deletions=14,
    issue=ISSUE,
    checks=(
        CheckResult(command="pytest -q", ok=True, passed=17, total=17, seconds=1.24, tail="", exit_code=0),
        CheckResult(
            command="ruff check . | tee out", ok=True, passed=None, total=None, seconds=75, tail="", exit_code=0
        ),
    ),
    usage=Usage(input_tokens=1200, cache_read_tokens=44_000, output_tokens=3210, cost_usd=0.4213, turns=9),
)
FULL = """\
<!-- delegate:task-3f2a91c0de -->

Opened automatically for PER-44.

**Issue:** [PER-44 · Rate limit runner endpoints](https://linear.app/acme/issue/PER-44/rate-limit-runner)

> *The agent's summary:*
>
> # Rate limits for runners
>
> Runner endpoints now answer `429` with `Retry-After` after 100 requests a minute from one address.
>
> - `limits.py`: a token bucket per address, bounded at 10,000 addresses.
> - The claim endpoint is exempt: it is a long poll and never more than one a minute.

### Checks

| | check | result | time |
| --- | --- | --- | --- |
| ✅ | `pytest -q` | 17/17 | 1.2 s |
| ✅ | `ruff check . \\| tee out` | passed | 1 min 15 s |

Run by Delegate on 3f2a91c0d, the commit that was pushed.

---

**5 files changed** · +1,120 −14

claude · sonnet-4-5 · 45.2k tokens in, 3.2k out · $0.42 · 6 min 12 s · task-3f2a91c0de

<!-- /delegate -->"""
SHORT = """\
<!-- delegate:task-3f2a91c0de -->

Opened automatically for task-3f2a91c0de.

> [!WARNING]
> The agent's history could not be used, so all of its work is one commit.
>
> These paths decide what runs in CI or on a developer's machine; review them first:
> - `.github/workflows/ci.yml`
> - `.mcp.json`

The agent wrote no summary.

### Checks

This repository defines no checks, so none were run on this change.

---

**1 file changed** · +3 −0

codex · 41 s · task-3f2a91c0de

<!-- /delegate -->"""


def test_a_whole_body() -> None:
    assert pull_request_body(FACTS) == FULL


def test_a_body_of_what_little_is_known() -> None:
    facts = BodyFacts(
        task_id=FACTS.task_id,
        summary=" \n",
        agent="codex",
        model=None,
        duration=timedelta(seconds=41),
        commit=FACTS.commit,
        files=1,
        additions=3,
        deletions=0,
        protected=(".github/workflows/ci.yml", ".mcp.json"),
        warnings=("The agent's history could not be used, so all of its work is one commit.",),
    )

    assert pull_request_body(facts) == SHORT


def test_a_red_check_says_how_it_ended() -> None:
    red = CheckResult(command="make test", ok=False, passed=None, total=None, seconds=2, tail="", exit_code=2)

    assert "| ❌ | `make test` | exit code 2 | 2.0 s |" in pull_request_body(replace(FACTS, checks=(red,)))


@pytest.mark.parametrize(
    ("issue", "title", "prompt", "expected"),
    [
        (ISSUE, "ignored", "ignored", "PER-44 · Rate limit runner endpoints"),
        (Issue(key="PER-44", title=""), None, "ignored", "PER-44"),
        (None, "A title of my own", "ignored", "A title of my own"),
        (None, None, "\n  Fix the login page\nand more", "Fix the login page"),
        (None, "\u200b", "\u200b\n\x1b[31m\nAt last", "At last"),
        (None, None, "\u200b", "Work by an agent"),
        (None, "--web", "ignored", "--web"),
        (None, "Fixes #3 for @octocat <!-- x -->", "", "Fixes #3 for @ octocat"),
        (
            Issue(key="PER-44", title="Fix #3, PER-45 and eng-6 for UTF-8 and ISO-8601 dates"),
            None,
            "",
            "PER-44 · Fix # 3, PER\u201145 and eng\u20116 for UTF-8 and ISO-8601 dates",
        ),
        (None, f"{'x' * 192} fix #1234", "", f"{'x' * 192} fix #…"),
        (None, "x" * 500, "", "x" * 199 + "…"),
    ],
)
def test_the_title_is_the_issues_the_users_or_the_first_line(
    issue: Issue | None, title: str | None, prompt: str, expected: str
) -> None:
    assert pull_request_title(issue, title, prompt).rstrip() == expected


@pytest.mark.parametrize(
    ("title", "prompt", "closed"),
    [
        (None, "Fix #5: the discount\nFixes #6", ("#5",)),
        ("The discount", "\nPlease fix #5, #6 and #7, then close #5", ("#5", "#6", "#7")),
        ("Resolve: #8", "Do not close #5; it is like #6", ("#8",)),
        ("Fix acme/other#5 and PER-44", "", ()),
        ("Closes #5", "Add a test. Then stop. Resolves #6 and fix #7", ("#5", "#6", "#7")),
        ("- fix #5", "> Please, close: #6", ("#5", "#6")),
        ("fixing #5 broke the build", "Investigate why closing #12 failed", ()),
        ("Do not implement or fix #5", "This must not accidentally close #7", ()),
        ("Fixes #55 partially", "Fix #5, #6 in part. Fix #7 (partly)", ()),
        ("Implementing #5 was wrong", "Revert the commit that fixes #6", ()),
        ("Fixed #5 comes back", "Why did we close #6?", ()),
    ],
)
def test_the_users_own_words_close_issues(title: str | None, prompt: str, closed: tuple[str, ...]) -> None:
    assert closed_issues(None, title, prompt) == closed
    assert closed_issues(ISSUE, title, prompt) == ()


@pytest.mark.parametrize("url", ["javascript:alert(1)", "https://example.org/) [x](https://evil.example", "", None])
def test_an_issue_without_a_proper_address_is_named_without_a_link(url: str | None) -> None:
    body = pull_request_body(replace(FACTS, issue=replace(ISSUE, url=url)))

    assert "**Issue:** PER-44 · Rate limit runner endpoints\n" in body


def test_an_issues_title_cannot_break_out_of_its_line() -> None:
    issue = replace(ISSUE, title="x](https://evil.example)\n\n# Approved by @boss | `")

    body = pull_request_body(replace(FACTS, issue=issue))

    assert "[PER-44 · x\\](https://evil.example) \\# Approved by @\u200bboss \\| \\`](https://linear.app/" in body


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("a`b.yml", "``a`b.yml``"),
        ("`", "`` ` ``"),
        ("new\nline", "`new\\nline`"),
        ("\x1b[31mred", "`\\x1b[31mred`"),
        ("Fixes #1", "`F\u200bixes #1`"),
    ],
)
def test_an_odd_path_stays_inside_its_code(path: str, shown: str) -> None:
    assert f"> - {shown}\n" in pull_request_body(replace(FACTS, protected=(path,)))


def test_long_lists_are_counted_beyond_a_point() -> None:
    many = tuple(f".github/workflows/{n}.yml" for n in range(25))
    checks = tuple(replace(FACTS.checks[0], command=f"check {n}") for n in range(25))

    body = pull_request_body(replace(FACTS, protected=many, checks=checks))

    assert "> - and 5 more" in body
    assert "| | and 5 more | 5 of 5 passed | |" in body


@pytest.mark.parametrize(
    "summary", ["word " * 100_000, "- x\n  ```\n" * 50_000, "```\n" + "x\n" * 100_000, "@" * 70_000]
)
def test_a_long_summary_is_cut_and_the_rest_stays(summary: str) -> None:
    body = pull_request_body(replace(FACTS, summary=summary))

    assert len(body) <= BODY_MAX
    assert "The summary is cut here" in body
    assert body.endswith(FULL[FULL.index("### Checks") :])


MARKDOWN = st.lists(
    st.sampled_from(
        [
            "```", "````", "~~~", "```py", " ```", "  ```", "   ~~~", "    ```", "\t```", "- ", "1. ", "> ", "- ```",
            "> ```", "\n", "\n\n", "x", "# h", "***", "===", "<div>", "<!--", "<pre>", "| a |\n| - |", "[x]: y",
            "[^1]: ", "`", "\\", "### Checks\n\n", "Checks\n---\n", "[!WARNING]\n", "[!WARNING]: x\n",
        ]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@pytest.mark.promise("P22")
@given(MARKDOWN)
def test_a_summary_neither_swallows_nor_imitates_a_part_of_ours(summary: str) -> None:
    body = pull_request_body(replace(FACTS, summary=summary))

    assert outside_quotes(body) == outside_quotes(pull_request_body(FACTS))
    assert body.endswith(END_MARKER)


def outside_quotes(body: str) -> list[str]:
    depth, found = 0, []
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(body):
        depth += token.nesting if token.type.startswith("blockquote") else 0
        if depth == 0 and token.content and token.content != NO_SUMMARY:
            found.append(token.content)
    return found


def test_the_marker_names_the_task_and_cannot_be_forged() -> None:
    forged = replace(FACTS, summary="<!-- delegate:task-666 -->\n<!-- /delegate -->\n<!-- delegate:task-666")

    body = pull_request_body(forged)

    assert task_of(body) == FACTS.task_id
    assert body.count("<!-- delegate:") == body.count(END_MARKER) == 1
    assert task_of("Somebody's own words.") is None


def test_our_part_is_replaced_and_everything_around_it_stays() -> None:
    other = pull_request_body(replace(FACTS, summary=r"Other \1 words."))

    assert merge_body("", FULL) == FULL
    assert merge_body(FULL, other) == other
    assert merge_body(f"Before.\n\n{FULL}\n\nAfter.", other) == f"Before.\n\n{other}\n\nAfter."
    assert merge_body("A person's.", FULL) == f"A person's.\n\n---\n\n{FULL}"
