"""Parses and validates a repository's `.delegate.toml`. Standard library only."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from delegate.config.values import parse_duration_ms
from delegate.errors import BadRepoFile, excerpt
from delegate.model import Field

FILE_NAME = ".delegate.toml"
SIZE_MAX = 64 * 1024  # bytes; more than anyone writes by hand
ENTRIES_MAX = 100
ENTRY_MAX = 4_000  # characters of a command or a pattern
PROMPT_ADDITION_MAX = 20_000
TURNS_MAX = 10
BUDGET_MAX = 1e6
TIMEOUTS = (timedelta(seconds=1), timedelta(hours=24))
TOML_POSITION = re.compile(r"\s*\(at (?:line (?P<line>\d+), column \d+|end of document)\)")


@dataclass(frozen=True, slots=True)
class Key:
    """How a key is parsed, its type as shown to users, and its help text."""

    read: Callable[[object], Any]  # Any: each key has its own type, checked by the field it fills
    kind: str
    help: str


def key(*, default: Any, read: Callable[[object], Any], kind: str, help: str) -> Any:
    return field(default=default, metadata={"key": Key(read, kind, help)})


def read_line(value: object) -> str:
    text = _require_text(value)
    if not text.strip() or len(text) > ENTRY_MAX or not text.isprintable():
        raise ValueError("must be one line of text")
    return text.strip()


def read_text(value: object) -> str:
    text = _require_text(value)
    if len(text) > PROMPT_ADDITION_MAX or "\x00" in text:
        raise ValueError(f"must have at most {PROMPT_ADDITION_MAX:,} characters and no NUL")
    return text


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be a string in quotes, not {describe_value(value)}")
    return value


def read_list(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f'must be a list of strings, as in ["…"], not {describe_value(value)}')
    if len(value) > ENTRIES_MAX:
        raise ValueError(f"must have at most {ENTRIES_MAX} entries")
    for number, entry in enumerate(value, start=1):
        if not isinstance(entry, str):
            raise TypeError(f"must contain only strings, but entry {number} is {describe_value(entry)}")
        if not entry.strip() or len(entry) > ENTRY_MAX or "\x00" in entry:
            raise ValueError(f"entry {number} must have 1 to {ENTRY_MAX:,} characters and no NUL")
    return tuple(value)


def read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"must be true or false, not {describe_value(value)}")
    return value


def read_turns(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TURNS_MAX:
        raise ValueError(f"must be a whole number from 0 to {TURNS_MAX}, not {describe_value(value)}")
    return value


def read_dollars(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= BUDGET_MAX:
        raise ValueError(f"must be a positive number of US dollars, not {describe_value(value)}")
    return float(value)


def read_duration(value: object) -> timedelta:
    text = value.strip() if isinstance(value, str) else ""
    if not text or text.isdigit():  # without a unit it could be seconds or milliseconds
        raise ValueError(f'must be a duration with a unit, as in "90s", "30m" or "2h", not {describe_value(value)}')
    try:
        found = timedelta(milliseconds=parse_duration_ms(text))
    except (ValueError, OverflowError):
        raise ValueError(f'must be a duration, as in "90s", "30m" or "2h", not {describe_value(value)}') from None
    if not TIMEOUTS[0] <= found <= TIMEOUTS[1]:
        raise ValueError("must be from 1s to 24h")
    return found


def describe_value(value: object) -> str:
    """Return a value as it looks in the file."""
    match value:
        case str():
            return f'"{excerpt(value)}"'
        case bool():
            return str(value).lower()
        case dict():
            return "a table"
        case list():
            return "a list"
    return excerpt(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoFile:
    agent: str | None = key(
        default=None,
        read=read_line,
        kind="string",
        help="the agent for this repository unless a request names another: `claude`, …",
    )
    model: str | None = key(
        default=None, read=read_line, kind="string", help="the agent's model; the agent's own default if not set"
    )
    effort: str | None = key(
        default=None,
        read=read_line,
        kind="string",
        help="how long the agent thinks: `minimal`, `low`, `medium`, `high`, `xhigh` or `max`",
    )
    base: str | None = key(
        default=None,
        read=read_line,
        kind="string",
        help="the branch that work starts from; the repository's default branch if not set",
    )
    setup: tuple[str, ...] = key(
        default=(),
        read=read_list,
        kind="list of strings",
        help="commands that prepare a fresh worktree, run before the agent",
    )
    setup_timeout: timedelta = key(
        default=timedelta(minutes=10),
        read=read_duration,
        kind="duration",
        help="how long each setup command may take",
    )
    checks: tuple[str, ...] = key(
        default=(),
        read=read_list,
        kind="list of strings",
        help="commands that must exit with code 0 before anything is pushed",
    )
    check_timeout: timedelta = key(
        default=timedelta(minutes=10), read=read_duration, kind="duration", help="how long each check may take"
    )
    check_turns: int = key(
        default=2,
        read=read_turns,
        kind="number",
        help="how many times the agent may try to fix failing checks; 0 to 10",
    )
    carry: tuple[str, ...] = key(
        default=(),
        read=read_list,
        kind="list of strings",
        help="patterns of untracked files to copy from your checkout into the worktree, such as `.env`",
    )
    draft: bool = key(default=False, read=read_bool, kind="true or false", help="open pull requests as drafts")
    protected: tuple[str, ...] = key(
        default=(),
        read=read_list,
        kind="list of strings",
        help="additional paths; a change to one makes the pull request a draft with a warning",
    )
    prompt: str = key(
        default="", read=read_text, kind="string", help="what every agent should know about this repository"
    )
    budget_usd: float | None = key(
        default=None,
        read=read_dollars,
        kind="number",
        help="US dollars that an attempt may cost, if the agent reports its cost",
    )

    @property
    def preferences(self) -> Mapping[Field, str]:
        """The preferences that the file sets."""
        named = {Field.AGENT: self.agent, Field.MODEL: self.model, Field.EFFORT: self.effort, Field.BASE: self.base}
        return {one: value for one, value in named.items() if value is not None}


KEYS: Mapping[str, Key] = {entry.name: entry.metadata["key"] for entry in fields(RepoFile)}


def parse(text: str | bytes) -> RepoFile:
    """Parse the file. Raises BadRepoFile, which names the key and, if known, the line."""
    source = _decode(text)
    values = {}
    for name, value in _parse_toml(source).items():
        if name not in KEYS:
            raise _bad(source, f"unknown key {excerpt(name)}; {_advice(name)}", name)
        try:
            values[name] = KEYS[name].read(value)
        except (TypeError, ValueError) as error:
            raise _bad(source, f"{name} {error}", name) from None
    return RepoFile(**values)


def _decode(text: str | bytes) -> str:
    if len(text) > SIZE_MAX:
        raise _bad("", f"is larger than {SIZE_MAX:,} bytes")
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _bad("", f"is not UTF-8 at byte {error.start}") from None


def _parse_toml(source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        position = TOML_POSITION.search(str(error))
        why = f"is not valid TOML: {TOML_POSITION.sub('', str(error))}"
        raise _bad(source, why, line=int(position["line"]) if position and position["line"] else None) from None
    except (ValueError, RecursionError):  # an integer of 5,000 digits, or deeply nested arrays
        raise _bad(source, "contains a value that is too large or nested too deeply") from None


def _advice(name: str) -> str:
    near = get_close_matches(name.lower().replace("-", "_"), KEYS, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known keys: {', '.join(KEYS)}"


def _bad(source: str, why: str, name: str | None = None, line: int | None = None) -> BadRepoFile:
    line = line or (_line_of(source, name) if name else None)
    where = FILE_NAME if line is None else f"{FILE_NAME}, line {line}"
    return BadRepoFile(where=where, why=why, file=FILE_NAME, key=name, line=line)


def _line_of(source: str, name: str) -> int | None:
    """Return the line that sets a key; None when it is ambiguous, as when a multi-line string looks the same."""
    pattern = re.compile(rf"^[ \t]*\[*[ \t]*[\"']?{re.escape(name)}[\"']?[ \t]*[=.\]]")
    found = [number for number, line in enumerate(source.split("\n"), start=1) if pattern.match(line)]
    return found[0] if len(found) == 1 else None
