"""The demo as its audience sees it, and the place it plays in."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from delegate import config
from delegate.cli.demo_work import BUG, Work
from delegate.cli.door import Door
from delegate.cli.screen import Screen
from delegate.cli.terminal import is_ascii
from delegate.cli.timeline import QUIET, event_words, moment, size_of_change, span, spent
from delegate.cli.tree import ASCII, LINES, draw
from delegate.client import Client
from delegate.config import Home, Settings
from delegate.errors import escaped
from delegate.stream import StreamItem

if TYPE_CHECKING:
    from delegate.answers import RelayData, TaskData

COMMAND_PATIENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Everything the demo makes is in here."""

    root: Path
    environ: Mapping[str, str]

    @property
    def repository(self) -> Path:
        return self.root / "shop"

    @property
    def remote(self) -> Path:
        return self.root / "shop.git"

    @property
    def home(self) -> Home:
        return Home(self.root / "home")

    @property
    def settings(self) -> Settings:
        return config.load({**self.environ, "DELEGATE_HOME": str(self.home.root)})

    def run(self, *command: str) -> str:
        """The demo's own small commands; the work itself is done by runners."""
        done = subprocess.run(
            command,
            cwd=self.repository,
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_PATIENCE,
            check=False,
        )
        return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of the work, and the task it became."""

    number: int
    of: int
    work: Work
    task: TaskData


class Stage:
    """What the audience sees: rich on a terminal, plain lines elsewhere, nothing but JSON with --json."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True, quiet=door.as_json, emoji=False)
        self._pending = ""
        self._screen = Screen()

    def opening(self, place: Place) -> None:
        self._console.print("Delegate hands work to agents on your machine and keeps it safe until it is done.")
        self.heading("A small repository with a bug")
        self._fact("repository", str(place.repository))
        self._fact("the bug", BUG)

    def relay_is_up(self, relay: RelayData, url: str) -> None:
        self.heading("A relay and its runners")
        self._fact("relay", f"{url}, process {relay['pid']}")
        for runner in relay["runners"]:
            self._fact("runner", f"{runner['name']}, process {runner['pid']}, agents: {', '.join(runner['agents'])}")

    def plan(self, tasks: list[TaskData]) -> None:
        """Which waits for which, as `delegate status --tree` draws it."""
        if len(tasks) > 1:
            marks = ASCII if is_ascii(self._door.environ, sys.stdout) else LINES
            for line in draw(tasks, self._door.look(), marks):
                self._console.print(Text.from_ansi(f"  {line}"))

    def delegated(self, part: Part) -> None:
        if self._door.as_json:
            return
        task = part.task
        self._console.print()
        count, task_id = (f"{part.number}/{part.of} ", "dim"), (task["taskId"], "cyan")
        self._console.print(Text.assemble(count, (part.work.title, "bold"), "  ", task_id))
        for line in task["prompt"].splitlines():
            self._console.print(Text(f"    {'$' if task['agent'] == 'shell' else '>'} {line}", "dim"))

    @contextmanager
    def working(self, work: Work) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(f"{work.name} …", spinner="dots"):
            yield

    def progress(self, item: StreamItem, agent: str) -> None:
        if item.kind == "output" and (agent == "shell" or item.data["stream"] == "stderr"):
            text = self._pending + self._screen.feed(base64.b64decode(item.data["output"]))
            *lines, self._pending = text.split("\n")
            for line in lines:
                self._shown(line, "")
        elif item.kind == "event" and item.data["kind"] not in QUIET and (words := event_words(item.data)):
            self._shown(words, "")

    def ended(self, task: TaskData) -> None:
        if self._pending:
            self._shown(self._pending, "")
            self._pending = ""
        if self._door.as_json:
            self._door.print_json(task)
        good = task["status"] == "completed"
        words = ", ".join(filter(None, (f"{task['status']}{_took(task)}", spent(task["usage"]))))
        words += "" if good else f": {escaped(task['message'] or '')}"
        self._console.print(Text.assemble("    ", ("✓ " if good else "✗ ", "green" if good else "red"), words))

    def ending(self, place: Place, client: Client, tasks: list[TaskData], *, keep: bool) -> None:
        if self._door.as_json:
            return
        for task in tasks:
            if task["mode"] != "in_place":
                self._review(client, task)
        if place.repository.is_dir():
            self.heading("Your checkout")
            branch, changes = place.run("git", "branch", "--show-current"), place.run("git", "status", "--short")
            self._fact("branch", branch.strip())
            self._fact("changes", changes.strip() or "none: nobody but you touches it")
        self.heading("Where everything is")
        self._fact("repository", str(place.repository))
        self._fact("database", str(place.home.database))
        self._fact("logs", str(place.home.logs))
        if keep:
            self._fact("look at it", f"DELEGATE_HOME={place.home.root} delegate status")
        else:
            self._fact("", "all of it is removed now; `delegate demo --keep` leaves it")
        self._console.print()
        self._console.print(Text.assemble("Your turn: ", ('delegate delegate --pr "say what is to be done"', "bold")))

    def _review(self, client: Client, task: TaskData) -> None:
        """What a reviewer looks at: the words, the checks and the change."""
        result = task["result"]
        if result is None or result["branch"] is None:
            self.heading(f"No pull request: {task['title']}")
            self._fact("why", f"nothing was changed; {escaped(task['message'] or '')}")
            return
        self.heading(f"Pull request: {task['title']}")
        self._fact("where", result["pullRequest"] or "")
        self._fact("branch", f"{result['branch']}, from {result['base']}")
        self._fact("checks", f"{result['checksPassed']} of {result['checksTotal']} passed")
        self._fact("change", size_of_change(result))
        for line in result["summary"].splitlines():
            self._fact("", escaped(line))
        patch = client.change(task["taskId"])["patch"].rstrip()
        self._console.print(Syntax(patch, "diff", background_color="default", theme="ansi_dark"), soft_wrap=False)

    def heading(self, text: str) -> None:
        self._console.print()
        self._console.print(Text(text, "bold"))

    def _fact(self, label: str, text: str) -> None:
        self._console.print(Text.assemble("  ", (f"{label:<10}", "dim"), f"  {text}"))

    def _shown(self, line: str, style: str) -> None:
        self._console.print(Text.assemble(("    │ ", "dim"), (line.rstrip(), style)))


def _took(task: TaskData) -> str:
    if task["startedAt"] is None:
        return ""
    return f" in {span((moment(task['finishedAt'] or '') - moment(task['startedAt'])).total_seconds())}"
