"""Builds the facts that all agents share, in the same format and with the same limits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path

from delegate.model import EventKind, Usage
from delegate.runner.agents.base import Fact
from delegate.runner.agents.lines import as_text, one_line
from delegate.wire.shared_models import UsageView

TEXT_MAX = 60_000  # characters of a message in an event; the output has all of it
SUMMARY_MAX = 200
ID_MAX = 200
PATH_MAX = 1_000
COMPARED_MAX = 500  # lines of an edit that are compared; of a longer one all lines count as changed
# What the tools of the known agents do: Claude Code, Codex, and the kinds of tools of the Agent Client Protocol.
TOOLS = {
    "read": ("Read", "NotebookRead", "read"),
    "edit": ("Edit", "MultiEdit", "Write", "NotebookEdit", "edit", "write", "delete", "move"),
    "run": ("Bash", "BashOutput", "KillBash", "KillShell", "shell", "bash", "execute"),
    "search": ("Grep", "Glob", "LS", "grep", "glob", "list", "search"),
    "fetch": ("WebFetch", "WebSearch", "web_search", "webfetch", "fetch"),
    "plan": ("TodoWrite", "TaskCreate", "TaskUpdate", "TaskList", "ExitPlanMode", "think", "todowrite"),
    "call": ("Task", "Agent", "Skill", "mcp__delegate__ask_user", "delegate.ask_user", "other", "tool"),
}
VERBS = {name: verb for verb, names in TOOLS.items() for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAccess:
    """The file that a tool call reads or changes; its path is as the agent wrote it."""

    path: str
    additions: int | None = None
    deletions: int | None = None


def warning(text: str) -> Fact:
    return Fact(kind=EventKind.WARNING, data={"text": text})


def tool(name: str, summary: str, call_id: str, access: FileAccess | None = None) -> Fact:
    data: dict[str, object] = {
        "name": one_line(name, SUMMARY_MAX),
        "summary": one_line(summary, SUMMARY_MAX),
        "id": one_line(call_id, ID_MAX),
        "verb": VERBS.get(name, "call"),
    }
    if access is not None and access.path:
        numbers = {"additions": access.additions, "deletions": access.deletions}
        data |= {"path": access.path[:PATH_MAX], **{key: count for key, count in numbers.items() if count is not None}}
    return Fact(kind=EventKind.TOOL, data=data)


def in_repository(fact: Fact, directory: Path, root: Path) -> Fact:
    """Replace the path of a tool call with the path in the repository; remove it if the file is elsewhere.

    `directory` is where the agent works. A file that is not changed must exist: otherwise the path is only a text.
    """
    named = fact.data.get("path")
    if fact.kind is not EventKind.TOOL or not isinstance(named, str):
        return fact
    whole = os.path.normpath(directory / named)
    parents = (str(root), os.path.realpath(root))
    inside = next((whole[len(parent) + 1 :] for parent in parents if whole.startswith(parent + os.sep)), "")
    is_file = fact.data.get("verb") == "edit" or os.path.lexists(whole)
    data = {key: value for key, value in fact.data.items() if key != "path"}
    return Fact(kind=fact.kind, data=data | {"path": one_line(inside, PATH_MAX)} if inside and is_file else data)


def repository_root(directory: Path) -> Path:
    """The directory of the repository around this one; the directory itself if there is none."""
    return next((place for place in (directory, *directory.parents) if (place / ".git").exists()), directory)


def count_changes(old: str, new: str) -> tuple[int, int]:
    """The numbers of lines that an edit adds and removes."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > COMPARED_MAX:
        return len(after), len(before)
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    same = sum(block.size for block in blocks)
    return len(after) - same, len(before) - same


def count_lines(text: str) -> int:
    return len(text.splitlines())


def summarize_input(given: dict[str, object], fields: Iterable[str]) -> str:
    """The summary of a call: the first of these input fields that is not empty."""
    return next((text for field in fields if (text := as_text(given.get(field)).strip())), "")


def usage_fact(usage: Usage) -> Fact:
    return Fact(kind=EventKind.USAGE, data=UsageView(**asdict(usage)).model_dump(by_alias=True))
