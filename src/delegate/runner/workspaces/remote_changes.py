"""Notices when the remote of a user's checkout was changed during a task in place: a later push would go elsewhere.

The settings are read without git, so that a task starts without delay and no configuration of an agent applies.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from delegate.config.home_files import make_directory, write_private
from delegate.config.paths import Home
from delegate.config.values import mask_login
from delegate.runner.git.bare import read_small
from delegate.runner.workspaces.repositories import SetupProblem, checkout_above

CONFIG_MAX = 256 * 1024  # bytes of a configuration that are read
SECTION = re.compile(r"\s*\[\s*([A-Za-z0-9.-]+)(?:\s+\"((?:[^\"\\]|\\.)*)\")?\s*\](.*)")
PAIR = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")
ROUTE = re.compile(
    r"remote\.(?:.+\.(?:url|pushurl)|pushdefault)|branch\..+\.(?:remote|pushremote)"
    r"|url\..+\.(?:insteadof|pushinsteadof)|include(?:if\..+)?\.path",
    re.DOTALL,
)
Routes = Mapping[str, str]  # the settings that decide where a push goes; several values of one have a line each


def read_routes(directory: Path) -> Routes:
    """Empty outside of a repository."""
    with suppress(SetupProblem, OSError, RuntimeError):
        git_dir = checkout_above(directory) / ".git"
        if git_dir.is_file():
            git_dir = git_dir.parent / read_small(git_dir).strip().removeprefix("gitdir: ")
        common = read_small(git_dir / "commondir").strip()
        return parse_routes(read_small(git_dir / common / "config", CONFIG_MAX))
    return {}


def parse_routes(text: str) -> Routes:
    found: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        rest = line
        if header := SECTION.match(line):
            section = header[1].lower() + (f".{header[2]}" if header[2] is not None else "")
            rest = header[3]
        if (pair := PAIR.match(rest)) and ROUTE.fullmatch(name := f"{section}.{pair[1].lower()}"):
            value = pair[2].strip().strip('"')
            found[name] = f"{found[name]}\n{value}" if name in found else value
    return found


def changed_routes(before: Routes, after: Routes) -> dict[str, tuple[str | None, str | None]]:
    """What could redirect a push: not another remote beside `origin`, nor a branch that follows a known remote."""
    known = {name.split(".", 1)[1].rpartition(".")[0] for name in before if name.startswith("remote.")}

    def is_harmless(name: str) -> bool:
        if name.startswith("branch."):
            return after.get(name, "origin") in known
        remote = name.removeprefix("remote.").rpartition(".")[0]
        return name.startswith("remote.") and "origin" in known and remote not in known and remote != ""

    names = [name for name in {**before, **after} if before.get(name) != after.get(name) and not is_harmless(name)]
    return {name: (before.get(name), after.get(name)) for name in names}


def describe_changes(changes: Mapping[str, tuple[str | None, str | None]]) -> str:
    return "; ".join(
        f"{name} was {_shown(before)} and is {_shown(after)}" for name, (before, after) in sorted(changes.items())
    )


def note_changes(home: Home, directory: Path, before: Routes, task_id: str) -> str | None:
    """Remember a change since `before`, for `refuse_changed_remote`; returns it as text."""
    changes = changed_routes(before, read_routes(directory))
    if not changes:
        return None
    top = checkout_above(directory)
    earlier = _read_note(home, top).get("before", {})
    first = {**{name: value for name, (value, _) in changes.items()}, **earlier}
    make_directory(home.remotes)
    write_private(_note(home, top), json.dumps({"task": task_id, "before": first}))
    return describe_changes(changes)


def refuse_changed_remote(home: Home, source: Path) -> None:
    """Raises SetupProblem while a change that was made during a task is in effect and not accepted."""
    noted = _read_note(home, source)
    if not noted:
        return
    now = read_routes(source)
    changes = {name: (value, now.get(name)) for name, value in noted["before"].items() if now.get(name) != value}
    if not changes:
        _note(home, source).unlink(missing_ok=True)
        return
    raise SetupProblem(
        f"the remote of {source} was changed while {noted['task']} ran there: {describe_changes(changes)}. "
        "Change it back with `git config`, or name the repository with --repository, "
        f"or accept the change with `rm {shlex.quote(str(_note(home, source)))}`"
    )


def _note(home: Home, source: Path) -> Path:
    return home.remotes / f"{hashlib.sha256(bytes(source)).hexdigest()[:16]}.json"


def _read_note(home: Home, source: Path) -> dict[str, dict[str, str | None]]:
    try:
        return dict(json.loads(_note(home, source).read_text()))
    except (OSError, ValueError):
        return {}


def _shown(value: str | None) -> str:
    return "not set" if value is None else ", ".join(mask_login(ascii(part)[1:-1]) for part in value.split("\n"))
