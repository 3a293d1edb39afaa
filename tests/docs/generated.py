"""Generates the parts of the documentation that follow from the code; `python -m tests.docs.generated` writes them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from tests.docs.mcp_tools import mcp_tools
from tests.docs.pages import ROOT, all_pages

from delegate.cli.commands.runner_privacy import level_rows
from delegate.preferences.repofile import KEYS, RepoFile
from delegate.states import ADVICE, ATTEMPT_MOVES, PARKING_REASONS, STATE_MEANINGS, TASK_MOVES, Reason

PART = re.compile(r"(<!-- generated: (?P<name>[\w -]+) -->\n).*?(<!-- /generated -->)", re.S)
ENDS_WELL = frozenset({Reason.DONE, Reason.NO_CHANGES})


def refreshed(text: str) -> str:
    """Return a page with its generated parts up to date."""
    return PART.sub(lambda found: f"{found[1]}\n{made(found['name'])}\n{found[3]}", text)


def made(name: str) -> str:
    if name.startswith("tests "):
        return tests_list(name.removeprefix("tests "))
    parts = {
        "task-states": lambda: state_diagram(TASK_MOVES, first=("blocked", "queued")),
        "attempt-states": lambda: state_diagram(ATTEMPT_MOVES, first=("running",)),
        "state-meanings": state_meanings,
        "reasons": reasons,
        "layers": layers,
        "repository-file": repository_file,
        "mcp-tools": mcp_tools,
        "privacy-levels": privacy_levels,
    }
    return parts[name]()


def state_diagram(moves: Mapping[Any, frozenset[Any]], *, first: tuple[str, ...]) -> str:
    lines = [f"    [*] --> {state}" for state in first]
    for old, ways in moves.items():
        lines += [f"    {old} --> {new}" for new in moves if new in ways]
        if not ways:
            lines.append(f"    {old} --> [*]")
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def state_meanings() -> str:
    return table(["state", "meaning"], [[f"`{state}`", meaning] for state, meaning in STATE_MEANINGS.items()])


def reasons() -> str:
    rows = [[f"`{reason}`", _effect(reason), advice or "–"] for reason, advice in ADVICE.items()]
    return table(["reason", "the task", "what to do"], rows)


def _effect(reason: Reason) -> str:
    if reason in ENDS_WELL:
        return "completed"
    if reason in PARKING_REASONS:
        return "waits for the reset"
    others = {
        Reason.CANCELLED: "cancelled",
        Reason.DEPENDENCY_FAILED: "cancelled",
        Reason.HANDED_BACK: "is queued again",
        Reason.QUESTION: "waits for the answer",
    }
    return others.get(reason, "failed")


def layers() -> str:
    """The layers of import-linter, highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = next(contract for contract in settings["contracts"] if contract["type"] == "layers")
    names = [layer.replace("delegate.", "") for layer in contract["layers"]]
    return "\n".join(["```", *names, "```", ""])


def privacy_levels() -> str:
    """What leaves a runner's machine."""
    return table(["what", "`minimal`", "`summary` also", "`full` also"], [list(row) for row in level_rows()])


def repository_file() -> str:
    """Every key of .delegate.toml."""
    defaults = {entry.name: entry.default for entry in fields(RepoFile)}
    rows = [[f"`{name}`", key.kind, _default(defaults[name]), key.help] for name, key in KEYS.items()]
    return table(["key", "value", "default", "meaning"], rows)


def _default(value: object) -> str:
    match value:
        case None | "" | ():
            return "–"
        case bool():
            return f"`{str(value).lower()}`"
        case timedelta():
            return f'`"{value.total_seconds() / 60:g}m"`'
    return f"`{value}`"


def tests_list(promise: str) -> str:
    """The test files that prove a promise, each with how many of its tests cite it, or `all`."""
    cited_by: dict[str, list[str]] = {}
    for path, name in proofs().get(promise, []):
        cited_by.setdefault(path, []).append(name)
    links = [
        f"[{path.removeprefix('tests/')}](../{path}) ({len(names) if all(names) else 'all'})"
        for path, names in cited_by.items()
    ]
    return "*Tests.* " + ",\n".join(links) + ".\n" if links else ""


@cache
def proofs() -> dict[str, list[tuple[str, str]]]:
    """The tests that cite each promise: their file, and their name unless the whole file cites it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for promise, name in cited(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(promise, []).append((str(path.relative_to(ROOT)), name))
    return found


def cited(tree: ast.Module) -> Iterator[tuple[str, str]]:
    decorated: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            decorated |= {part: node.name for decorator in node.decorator_list for part in ast.walk(decorator)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="promise"), args=[ast.Constant(value=str(promise))]):
                yield promise, decorated.get(node, "")


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write() -> list[Path]:
    changed = [page for page in all_pages() if refreshed(page.text) != page.text]
    for page in changed:
        page.path.write_text(refreshed(page.text), encoding="utf-8")
    return [page.path for page in changed]


if __name__ == "__main__":
    for path in write():
        print(path.relative_to(ROOT))
