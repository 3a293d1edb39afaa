"""Builds the title and the body of a pull request. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from delegate.errors import escape
from delegate.model import Issue, Usage
from delegate.preferences.models import short_model_name
from delegate.runner.forges.sanitize import find_closed, find_references, one_line, sanitize_markdown, title_line

if TYPE_CHECKING:  # the checks module imports this package
    from delegate.runner.checks import CheckResult

BODY_MAX = 60_000  # characters; GitHub allows 65,536
TITLE_MAX = 200  # characters; GitHub allows 256
CODE_MAX = 200  # characters of a command or a path
LISTED_MAX = 20  # checks, paths or warnings; the rest is counted
SHORT_COMMIT = 9
SAFE_URL = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&*+,;=%-]{1,500}")
SPECIAL = re.compile(r"([\\`*_\[\]|~#$])")

BLANK_LINES = re.compile(r"\n{3,}")

AUTHOR = "*The agent's summary:*"  # before its text, which could begin with the mark of a warning
NO_SUMMARY = "The agent wrote no summary."
CUT = "*(The summary is cut here; `delegate status` shows all of it.)*"
PROTECTED = "These paths decide what runs in CI or on a developer's machine; review them first:"
MARKER = re.compile(r"<!-- delegate:(task-[A-Za-z0-9]+) -->")
END_MARKER = "<!-- /delegate -->"
OUR_SECTION = re.compile(rf"{MARKER.pattern}.*?(?:{END_MARKER}|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFacts:
    task_id: str
    summary: str  # the agent's last message
    agent: str
    model: str | None
    duration: timedelta
    commit: str
    files: int
    additions: int
    deletions: int
    issue: Issue | None = None
    checks: Sequence[CheckResult] = ()
    usage: Usage = field(default_factory=Usage)
    protected: Sequence[str] = ()  # changed paths that a person should review
    warnings: Sequence[str] = ()  # Delegate's own sentences, trusted
    closes: Sequence[str] = ()  # issues that the user's own words are about


def pull_request_title(issue: Issue | None, title: str | None, prompt: str, *, is_agents: bool = False) -> str:
    """`KEY · title` of the issue, the user's own title, or the first line of the request. An agent's closes nothing."""
    own: frozenset[str] = frozenset() if is_agents else own_references(issue, title, prompt)
    if issue is not None:
        parts = (title_line(issue.key, TITLE_MAX, own), title_line(issue.title, TITLE_MAX, own))
        return title_line(" · ".join(part for part in parts if part), TITLE_MAX, own)
    return first_title(title, prompt, TITLE_MAX, own)


def first_title(title: str | None, prompt: str, limit: int, own: frozenset[str]) -> str:
    """The title, or else the first line of the prompt that shows anything."""
    found = (title_line(line, limit, own) for line in [title or "", *prompt.splitlines()] if line.strip())
    return next((line for line in found if line), "Work by an agent")


def own_references(issue: Issue | None, *words: str | None) -> frozenset[str]:
    """What the task may close: the issues in the user's own words, or the issue that the task is for.

    Anyone may have written the title and the text of an issue.
    """
    return frozenset({issue.key.lower()}) if issue else find_references("\n".join(filter(None, words)))


def closed_issues(issue: Issue | None, title: str | None, prompt: str) -> tuple[str, ...]:
    """The issues that the user's own title or first line asks to fix."""
    first = next((line for line in prompt.splitlines() if line.strip()), "")
    return () if issue else find_closed(f"{title or ''}\n{first}")[:LISTED_MAX]


def pull_request_body(facts: BodyFacts) -> str:
    before = [marker(facts.task_id), _introduction(facts), _warnings(facts)]
    after = [_checks(facts), _numbers(facts), _link(facts.issue), END_MARKER]
    ours = "\n\n".join(part for part in (*before, *after) if part)
    summary = quote_summary(sanitize_markdown(facts.summary[:BODY_MAX]), BODY_MAX - len(ours) - 10)
    return "\n\n".join(part for part in (*before, summary or NO_SUMMARY, *after) if part)


def quote_summary(text: str, limit: int) -> str:
    """As a quotation: nothing in it can pass for a part of ours or swallow the text after it."""
    text = BLANK_LINES.sub("\n\n", text.strip("\n")).rstrip()
    if not text:
        return ""
    quoted = "\n".join(f"> {line}".rstrip() for line in (AUTHOR, "", *text.split("\n")))
    return quoted if len(quoted) <= limit else f"{quoted[: limit - len(CUT) - 2]}\n\n{CUT}"


def marker(task_id: str) -> str:
    return f"<!-- delegate:{task_id} -->"


def task_of(body: str) -> str | None:
    """The task that a pull request belongs to, by the marker in its body."""
    found = MARKER.search(body)
    return found[1] if found else None


def merge_body(existing: str, ours: str) -> str:
    """Replaces our older section of the body; text that people added before and after it stays."""
    if not existing.strip():
        return ours
    if MARKER.search(existing):
        return OUR_SECTION.sub(lambda _: ours, existing, count=1)
    return f"{existing.rstrip()}\n\n---\n\n{ours}"


def _introduction(facts: BodyFacts) -> str:
    if facts.issue is None:
        closes = ", closes ".join(facts.closes)
        return f"Opened automatically for {facts.task_id}." + (f"\n\nCloses {closes}." if closes else "")
    key, title = _text(facts.issue.key), _text(facts.issue.title)
    name = f"{key} · {title}" if title else key
    url = facts.issue.url
    linked = f"[{name}]({url})" if url and SAFE_URL.fullmatch(url) else name
    return f"Opened automatically for {key}.\n\n**Issue:** {linked}"


def _warnings(facts: BodyFacts) -> str:
    parts = [[_text(sentence)] for sentence in facts.warnings[:LISTED_MAX]]
    if facts.protected:
        listed = [f"- {_code(path)}" for path in facts.protected[:LISTED_MAX]]
        more = len(facts.protected) - LISTED_MAX
        parts.append([PROTECTED, *listed, *([f"- and {more} more"] if more > 0 else [])])
    lines = [line for part in parts for line in ("", *part)]
    return "\n".join(["> [!WARNING]", *(f"> {line}".rstrip() for line in lines[1:])]) if parts else ""


def _checks(facts: BodyFacts) -> str:
    if not facts.checks:
        return "### Checks\n\nThis repository defines no checks, so none were run on this change."
    rows = [_row(check) for check in facts.checks[:LISTED_MAX]]
    more = len(facts.checks) - LISTED_MAX
    if more > 0:
        rows.append(f"| | and {more} more | {sum(c.ok for c in facts.checks[LISTED_MAX:])} of {more} passed | |")
    table = "\n".join(["| | check | result | time |", "| --- | --- | --- | --- |", *rows])
    return f"### Checks\n\n{table}\n\nRun by Delegate on {facts.commit[:SHORT_COMMIT]}, the commit that was pushed."


def _row(check: CheckResult) -> str:
    sign = "✅" if check.ok else "❌"
    command = _code(check.command).replace("|", "\\|")
    return f"| {sign} | {command} | {check.summary} | {_seconds(check.seconds)} |"


def _numbers(facts: BodyFacts) -> str:
    files = f"{facts.files:,} file{'' if facts.files == 1 else 's'}"
    change = f"**{files} changed** · +{facts.additions:,} −{facts.deletions:,}"
    used = facts.usage
    taken = used.input_tokens + used.cache_read_tokens + used.cache_write_tokens
    tokens = f"{_tokens(taken)} tokens in, {_tokens(used.output_tokens)} out" if taken or used.output_tokens else ""
    cost = f"${used.cost_usd:,.2f}" if used.cost_usd >= 0.005 else ""  # half a cent rounds to one
    model = _text(short_model_name(facts.model or ""))
    parts = (_text(facts.agent), model, tokens, cost, _duration(facts.duration), facts.task_id)
    return f"---\n\n{change}\n\n{' · '.join(part for part in parts if part)}"


def _link(issue: Issue | None) -> str:
    """What the tracker does when the pull request is open."""
    if issue is None or issue.review_state is None:
        return ""
    return f"Linked to {_text(issue.key)} — status updated to {_text(issue.review_state.capitalize())}."


def _text(text: str) -> str:
    """On one line, with Markdown escaped."""
    return SPECIAL.sub(r"\\\1", one_line(text, TITLE_MAX))


def _code(text: str) -> str:
    """As inline code; backticks in the text cannot close it."""
    line = one_line(escape(text), CODE_MAX)
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    edge = " " if line.startswith("`") or line.endswith("`") or not line else ""
    return f"{fence}{edge}{line}{edge}{fence}"


def _tokens(count: int) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def _seconds(seconds: float) -> str:
    return _duration(timedelta(seconds=seconds)) if seconds >= 60 else f"{seconds:.1f} s"


def _duration(duration: timedelta) -> str:
    minutes, seconds = divmod(round(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
