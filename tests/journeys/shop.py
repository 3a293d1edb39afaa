"""A whole Delegate beside a loopback GitHub and scripted models: what the journeys to a pull request share."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.anthropic_standin import AnthropicStandin
from tests.fakes.github import GitHub, living_github
from tests.fakes.github_repositories import Pull
from tests.fakes.openai_standin import OpenAIStandin
from tests.fakes.world import World, living, wait_until
from tests.git import run_git

from delegate.config.home_files import machine_id
from delegate.config.paths import Home

TEST_SHOP = """\
import unittest

from shop import total


class TotalTest(unittest.TestCase):
    def test_half_price(self):
        self.assertEqual(total([10, 20], discount_percent=50), 15)
"""
SHOP = "def total(prices, discount_percent=0):\n    return sum(prices) * (1 - discount_percent)\n"
FIXED = SHOP.replace("discount_percent)\n", "discount_percent / 100)\n")
CHECK = "python3 -m unittest"
FILES = {
    "shop.py": SHOP,
    "test_shop.py": TEST_SHOP,
    ".gitignore": "__pycache__/\n.env\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """One Delegate, one GitHub and the scripted models: starting them takes longer than most journeys."""

    world: World
    github: GitHub
    claude: AnthropicStandin
    codex: OpenAIStandin


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A repository on GitHub, and a user's clone of it."""

    market: Market
    repository: str
    clone: Path

    @property
    def world(self) -> World:
        return self.market.world

    @property
    def github(self) -> GitHub:
        return self.market.github

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        return run_git(*arguments, cwd=cwd or self.clone, env=self.world.environment)

    def submit(self, prompt: str, **fields: Any) -> str:
        """A pull request from the clone, unless the fields say otherwise."""
        machine = machine_id(Home(self.world.home))
        request = {"workingDirectory": str(self.clone), "machine": machine, "agent": "shell", "pr": True, **fields}
        return str(self.world.post("/api/tasks", {"prompt": prompt, **request})["taskId"])

    def deliver(self, prompt: str, **fields: Any) -> dict[str, Any]:
        return self.world.wait_for(self.submit(prompt, **fields))

    def seed(self, files: dict[str, str], **more: Any) -> str:
        return self.github.seed(self.repository, files, **more)

    @property
    def pulls(self) -> list[Pull]:
        return self.github.pulls(self.repository)

    @property
    def branches(self) -> list[str]:
        return self.github.branches(self.repository)

    @property
    def workspaces(self) -> list[str]:
        return sorted(path.name for path in (self.world.home / "workspaces").glob("*"))

    def wait_until_tidy(self) -> None:
        """A runner removes what is left of a workspace before it claims again."""
        wait_until(lambda: not self.workspaces)

    def events_until(self, task_id: str, kind: str) -> dict[str, dict[str, Any]]:
        """What the timeline tells, by kind, as soon as it has this one."""

        def look() -> dict[str, dict[str, Any]]:
            events = {event["kind"]: event["data"] for event in self.world.task(task_id)["timeline"]}
            return events if kind in events else {}

        return dict(wait_until(look))

    def wait_for_file(self, task_id: str, name: str) -> Path:
        """A file that the agent makes in its worktree."""
        path = self.world.home / "workspaces" / task_id / "tree" / name
        wait_until(path.exists)
        return path

    def on_remote(self, branch: str, path: str) -> str:
        return self.git("show", f"{branch}:{path}", cwd=self.github.bare(self.repository))


def needed(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


@contextmanager
def open_market(place: Path, runners: int = 1, **more: str) -> Iterator[Market]:
    home = place / "user"
    (home / ".codex").mkdir(parents=True)
    with living_github(place / "github") as github, AnthropicStandin({}) as claude, OpenAIStandin({}) as codex:
        (home / ".codex" / "config.toml").write_text(codex.codex_config())
        surroundings = {
            **github.env,
            **claude.environment(home),
            "CODEX_HOME": str(home / ".codex"),
            "STANDIN_API_KEY": "test-key-of-openai",
            "PYTHONDONTWRITEBYTECODE": "1",
            "DELEGATE_CLAUDE_COMMAND": shutil.which("claude") or "claude",
            "DELEGATE_CODEX_COMMAND": shutil.which("codex") or "codex",
            **more,
        }
        with living(place / "home", **surroundings) as world:
            world.ok("up", "--runners", str(runners))
            yield Market(world=world, github=github, claude=claude, codex=codex)


@contextmanager
def audited_market(place: Path, *programs: str, runners: int = 1, **more: str) -> Iterator[Market]:
    """A market that needs these programs, and whose invariants are checked at the end."""
    needed(*programs)
    with open_market(place, runners, **more) as market:
        yield market
        market.world.down()
        market.world.audit()


def open_shop(market: Market, place: Path, checks: Sequence[str] = (CHECK,)) -> Shop:
    repository = f"acme/shop-{secrets.token_hex(3)}"
    market.github.seed(repository, {**FILES, ".delegate.toml": f"checks = {json.dumps(checks)}\n"})
    shop = Shop(market=market, repository=repository, clone=place / "clone")
    shop.git("clone", "-q", market.github.url(repository), str(shop.clone), cwd=place)
    return shop


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below, with its mode and its bytes; links as what they say."""
    found: dict[str, tuple[int, bytes]] = {}
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(directory, name)
            status = path.lstat()
            data = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(root))] = (status.st_mode, data)
    return found
