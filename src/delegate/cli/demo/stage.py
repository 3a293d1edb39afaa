"""The demo as its audience sees it, and the place it plays in."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from delegate.cli.commands.results import lines_of, painted_line, plain
from delegate.cli.context import Door
from delegate.cli.demo.work import BUG, Work
from delegate.cli.render.screen import Screen
from delegate.cli.render.terminal import is_ascii
from delegate.cli.render.timeline import QUIET, event_words, moment, size_of_change, span, spent
from delegate.cli.render.tree import ASCII, LINES, draw
from delegate.client.client import Client, StreamItem
from delegate.config.paths import Home
from delegate.config.settings import Settings, load
from delegate.errors import escaped

if TYPE_CHECKING:
    from delegate.client.responses import RelayData, TaskData

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
        return load({**self.environ, "DELEGATE_HOME": str(self.home.root)})

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
    """Prints the demo: in colour on a terminal, as plain lines elsewhere, and only JSON with --json."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._look = door.look()
        self._pending = ""
        self._screen = Screen()

    def opening(self, place: Place) -> None:
        self._print("Delegate hands work to agents on your machine and keeps it safe until it is done.")
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
            for line in draw(tasks, self._look, marks):
                self._print(f"  {line}")

    def delegated(self, part: Part) -> None:
        task, paint = part.task, self._look.paint
        count, title = paint(f"{part.number}/{part.of} ", "dim"), paint(part.work.title, "bold")
        self._print("", f"{count}{title}  {paint(task['taskId'], 'cyan')}")
        mark = "$" if task["agent"] == "shell" else ">"
        self._print(*(paint(f"    {mark} {line}", "dim") for line in task["prompt"].splitlines()))

    def progress(self, item: StreamItem, agent: str) -> None:
        if item.kind == "output" and (agent == "shell" or item.data["stream"] == "stderr"):
            text = self._pending + self._screen.feed(base64.b64decode(item.data["output"]))
            *lines, self._pending = text.split("\n")
            for line in lines:
                self._print_progress(line)
        elif item.kind == "event" and item.data["kind"] not in QUIET and (words := event_words(item.data)):
            self._print_progress(words)

    def ended(self, task: TaskData) -> None:
        if self._pending:
            self._print_progress(self._pending)
            self._pending = ""
        if self._door.as_json:
            self._door.print_json(task)
        good = task["status"] == "completed"
        words = ", ".join(filter(None, (f"{task['status']}{_took(task)}", spent(task["usage"]))))
        words += "" if good else f": {escaped(task['message'] or '')}"
        self._print(f"    {self._look.paint('✓' if good else '✗', 'green' if good else 'red')} {words}")

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
        next_command = self._look.paint('delegate run --pr "fix the failing test"', "bold")
        self._print("", f"Your turn: {next_command}")

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
        show = painted_line if self._look.colour else plain
        self._print(*map(show, lines_of(client.change(task["taskId"])["patch"].rstrip())))

    def heading(self, text: str) -> None:
        self._print("", self._look.paint(text, "bold"))

    def _fact(self, label: str, text: str) -> None:
        self._print(f"  {self._look.paint(f'{label:<10}', 'dim')}  {text}")

    def _print_progress(self, line: str) -> None:
        self._print(f"{self._look.paint('    │ ', 'dim')}{line.rstrip()}")

    def _print(self, *lines: str) -> None:
        """Flushes, because a pipe would otherwise show the demo only at its end."""
        if not self._door.as_json and sys.stdout is not None:
            self._door.print(lines)
            sys.stdout.flush()


def _took(task: TaskData) -> str:
    if task["startedAt"] is None:
        return ""
    return f" in {span((moment(task['finishedAt'] or '') - moment(task['startedAt'])).total_seconds())}"
