"""Reads and writes `policy.toml`: what a paired runner accepts, and where repositories are on its machine."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from delegate.config.home_files import write_private
from delegate.config.values import parse_runners
from delegate.errors import BadPolicy
from delegate.placement import ANY_REPOSITORY as EVERY
from delegate.placement import TAG, Policy, policy_of, repository_key, shorten

PRIVACY = ("minimal", "summary", "full")
SENDERS = {"me": "my tasks", "members": "tasks of members", "linear": "issues from Linear", "schedules": "schedules"}
LISTS = ("repositories", "directories", "agents", "accept_from", "tags")
KEYS = {*LISTS, "in_place", "shell", "runners", "privacy", "checkouts"}
CAMEL = {"accept_from": "acceptFrom", "in_place": "inPlace"}
DEFAULTS = {"agents": Policy().agents, "accept_from": Policy().accept_from}
TEMPLATE = """\
# What this runner accepts. The relay cannot widen it. A change applies to the next task.

# Repositories, such as "github.com/acme/shop"; "*" alone stands for all.
repositories = {repositories}

# Directories in which tasks may work in place, if in_place is true.
directories = {directories}

agents = {agents}

# Whose tasks: me (who paired this runner), members, linear, schedules.
accept_from = {accept_from}

# Tasks that work in a directory instead of a worktree, and commands without an agent.
in_place = {in_place}
shell = {shell}

# Tasks at once: a number, or "auto" for as many as the machine can handle.
runners = {runners}

# What this runner reports: minimal, summary or full.
privacy = {privacy}

# For `delegate run --tag`.
tags = {tags}

# Where a repository is on this machine: files that its .delegate.toml carries, such as .env, come from there.
[checkouts]
{checkouts}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    rules: Policy = Policy()
    runners: str = "auto"
    privacy: str = "summary"
    tags: tuple[str, ...] = ()
    checkouts: Mapping[str, str] = field(default_factory=dict)  # directories by normalised repository

    def describe(self) -> str:
        """In one line, for people."""
        rules = self.rules
        repositories = "all repositories" if rules.repositories is None else ", ".join(map(shorten, rules.repositories))
        parts = [
            ", ".join(SENDERS[one] for one in rules.accept_from) or "no tasks",
            repositories or "no repository",
            ", ".join(rules.agents) or "no agent",
            *(name for name, is_on in (("work in place", rules.in_place), ("shell", rules.shell)) if is_on),
        ]
        return " · ".join(parts)

    def as_toml(self) -> str:
        rules = self.rules
        return TEMPLATE.format(
            repositories=_string(EVERY) if rules.repositories is None else _strings(rules.repositories),
            directories=_strings(rules.directories),
            agents=_strings(rules.agents),
            accept_from=_strings(rules.accept_from),
            in_place=str(rules.in_place).lower(),
            shell=str(rules.shell).lower(),
            runners=self.runners if self.runners.isdigit() else _string(self.runners),
            privacy=_string(self.privacy),
            tags=_strings(self.tags),
            checkouts="".join(f"{_string(name)} = {_string(path)}\n" for name, path in self.checkouts.items()),
        )


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _strings(values: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_string, values))}]"


def read_policy(path: Path) -> PolicyFile:
    """Raises BadPolicy when the file is missing or not valid: a runner without a policy accepts nothing."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadPolicy(path=path, why="the file is missing") from error
    except OSError as error:
        raise BadPolicy(path=path, why=(error.strerror or str(error)).lower()) from error
    except ValueError as error:
        raise BadPolicy(path=path, why=f"not valid TOML: {error}") from error
    return _parse(path, found)


def _parse(path: Path, found: Mapping[str, Any]) -> PolicyFile:
    if unknown := sorted(set(found) - KEYS):
        raise BadPolicy(path=path, why=f"unknown key {unknown[0]}; the keys are {', '.join(sorted(KEYS))}")
    lists = {name: _list(path, name, found[name]) for name in LISTS if name in found}
    switches = {name: _switch(path, name, found[name]) for name in ("in_place", "shell") if name in found}
    for name in lists.get("accept_from", ()):
        _require(path, "accept_from", name in SENDERS, f"made of {', '.join(SENDERS)}")
    for name in lists.get("tags", ()):
        _require(
            path, "tags", TAG.fullmatch(name) is not None, "made of letters, digits, dots, hyphens and underscores"
        )
    privacy = found.get("privacy", "summary")
    _require(path, "privacy", privacy in PRIVACY, f"one of {', '.join(PRIVACY)}")
    checkouts = found.get("checkouts", {})
    is_map = isinstance(checkouts, dict) and all(isinstance(one, str) for one in checkouts.values())
    _require(path, "checkouts", is_map, "a table of paths")
    return PolicyFile(
        rules=policy_of({CAMEL.get(name, name): value for name, value in {**DEFAULTS, **lists, **switches}.items()}),
        runners=_runners(path, found.get("runners", "auto")),
        privacy=privacy,
        tags=lists.get("tags", ()),
        checkouts={repository_key(name): str(Path(where).expanduser()) for name, where in checkouts.items()},
    )


def _runners(path: Path, value: object) -> str:
    try:
        count = parse_runners(str(value))
    except ValueError as error:
        raise BadPolicy(path=path, why=f"runners {error}") from error
    _require(path, "runners", count != 0, "at least 1")
    return str(value)


def _list(path: Path, name: str, value: object) -> Any:  # Any: a tuple of texts, or the text for all repositories
    if name == "repositories" and value in (EVERY, [EVERY]):
        return EVERY
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadPolicy(path=path, why=f"{name} must be a list of texts")
    return tuple(value)


def _switch(path: Path, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadPolicy(path=path, why=f"{name} must be true or false")
    return value


def _require(path: Path, name: str, is_valid: bool, wanted: str) -> None:  # noqa: FBT001
    if not is_valid:
        raise BadPolicy(path=path, why=f"{name} must be {wanted}")


def write_policy(path: Path, policy: PolicyFile) -> Path | None:
    """Write the file; a former one is kept under the returned name."""
    former = path.with_name(f"{path.name}.1")
    has_former = path.exists()
    if has_former:
        path.replace(former)
    write_private(path, policy.as_toml())
    return former if has_former else None
