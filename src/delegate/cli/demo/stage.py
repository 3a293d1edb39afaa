"""The demo's display and its temporary directory."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from delegate.cli.commands.results import escape_line, lines_of, paint_line
from delegate.cli.context import CommandContext
from delegate.cli.demo.work import BUG, DemoWork
from delegate.cli.render.log_lines import log_line
from delegate.cli.render.screen import OutputSanitizer
from delegate.cli.render.terminal import format_duration, is_ascii, parse_time
from delegate.cli.render.timeline import QUIET_KINDS, format_change_size, format_clock, format_event, format_usage
from delegate.cli.render.tree import ASCII, LINES, draw
from delegate.client.client import Client, StreamItem
from delegate.config.paths import Home
from delegate.config.settings import Settings, load
from delegate.errors import escape

if TYPE_CHECKING:
    from delegate.client.responses import RelayData, TaskData

COMMAND_TIMEOUT = 60.0
SIDE_COLOURS = {"done": "green", "error": "red", "issue": "bold", "label": "bold"}  # of lines that Linear shows
YOUR_TURN = 'delegate run --pr "fix the failing test"'


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSandbox:
    """The directory that holds everything the demo creates."""

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
        """Run one of the demo's own commands; the tasks themselves are run by runners."""
        done = subprocess.run(
            command,
            cwd=self.repository,
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
        return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoStep:
    """One work item, and the task it became."""

    number: int
    of: int
    work: DemoWork
    task: TaskData


class DemoDisplay:
    """Prints the demo: in colour on a terminal, as plain lines elsewhere, and only JSON with --json."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._style = context.style()
        self._pending, self._side = "", ""
        self._sanitizer = OutputSanitizer()

    def show_intro(self, sandbox: DemoSandbox) -> None:
        self._print("Delegate hands tasks to agents on your machine and keeps them safe until they are done.")
        self.show_heading("A small repository with a bug")
        self._print_fact("repository", str(sandbox.repository))
        self._print_fact("the bug", BUG)

    def show_relay(self, relay: RelayData, url: str) -> None:
        self.show_heading("A relay and its runners")
        self._print_fact("relay", f"{url}, process {relay['pid']}")
        for runner in relay["processes"]:
            self._print_fact(
                "runner", f"{runner['name']}, process {runner['pid']}, agents: {', '.join(runner['agents'])}"
            )

    def show_facts(self, title: str, facts: Mapping[str, str]) -> None:
        self.show_heading(title)
        for label, text in facts.items():
            self._print_fact(label, text)

    def show_side(self, side: str, entry: Mapping[str, str]) -> None:
        """A line of the runner's log, or one that Linear shows; the side is named where it changes."""
        label = f"{side:<6}" if side != self._side else " " * 6
        self._side = side
        lines = [log_line(entry, self._style)] if side == "runner" else self._lines_of_linear(entry)
        mark = self._style.paint("│", "dim")
        for line in lines:
            self._print(f"{self._style.paint(label, 'bold')} {mark} {line}")
            label = " " * 6

    def _lines_of_linear(self, entry: Mapping[str, str]) -> list[str]:
        time, level = format_clock(entry["at"]), entry["level"]
        word = self._style.paint(f"{level:<8}", SIDE_COLOURS.get(level, "cyan"))
        first, *rest = [escape(line) for line in entry["message"].splitlines() if line.strip()]
        return [f"{self._style.paint(time, 'dim')} {word} {first}", *(f"{'':17} {line}" for line in rest)]

    def show_plan(self, tasks: list[TaskData]) -> None:
        """Which waits for which, as `delegate status --tree` draws it."""
        if len(tasks) > 1:
            marks = ASCII if is_ascii(self._context.environ, sys.stdout) else LINES
            for line in draw(tasks, self._style, marks):
                self._print(f"  {line}")

    def show_task(self, part: DemoStep) -> None:
        task, paint = part.task, self._style.paint
        count, title = paint(f"{part.number}/{part.of} ", "dim"), paint(part.work.title, "bold")
        self._print("", f"{count}{title}  {paint(task['taskId'], 'cyan')}")
        mark = "$" if task["agent"] == "shell" else ">"
        self._print(*(paint(f"    {mark} {line}", "dim") for line in task["prompt"].splitlines()))

    def show_progress(self, item: StreamItem, agent: str) -> None:
        if item.kind == "output" and (agent == "shell" or item.data["stream"] == "stderr"):
            text = self._pending + self._sanitizer.feed(base64.b64decode(item.data["output"]))
            *lines, self._pending = text.split("\n")
            for line in lines:
                self._print_progress(line)
        elif item.kind == "event" and item.data["kind"] not in QUIET_KINDS and (description := format_event(item.data)):
            self._print_progress(description)

    def show_end(self, task: TaskData) -> None:
        if self._pending:
            self._print_progress(self._pending)
            self._pending = ""
        if self._context.as_json:
            self._context.print_json(task)
        good = task["status"] == "completed"
        summary = ", ".join(filter(None, (f"{task['status']}{_format_run_time(task)}", format_usage(task["usage"]))))
        summary += "" if good else f": {escape(task['message'] or '')}"
        self._print(f"    {self._style.paint('✓' if good else '✗', 'green' if good else 'red')} {summary}")

    def show_summary(
        self, sandbox: DemoSandbox, client: Client, tasks: list[TaskData], *, keep: bool, your_turn: str = YOUR_TURN
    ) -> None:
        if self._context.as_json:
            return
        for task in tasks:
            if task["mode"] != "in_place":
                self._review(client, task)
        if sandbox.repository.is_dir():
            self.show_heading("Your checkout")
            branch, changes = sandbox.run("git", "branch", "--show-current"), sandbox.run("git", "status", "--short")
            self._print_fact("branch", branch.strip())
            self._print_fact("changes", changes.strip() or "none: Delegate does not touch it")
        self.show_heading("Where everything is")
        self._print_fact("repository", str(sandbox.repository))
        self._print_fact("database", str(sandbox.home.database))
        self._print_fact("logs", str(sandbox.home.logs))
        if keep:
            self._print_fact("inspect", f"DELEGATE_HOME={sandbox.home.root} delegate status")
        else:
            self._print_fact("", "all of it is deleted now; `delegate demo --keep` keeps it")
        self._print("", f"Your turn: {self._style.paint(your_turn, 'bold')}")

    def _review(self, client: Client, task: TaskData) -> None:
        """Show what a reviewer reads: the summary, the checks and the change."""
        result = task["result"]
        if result is None or result["branch"] is None:
            self.show_heading(f"No pull request: {task['title']}")
            self._print_fact("why", f"nothing was changed; {escape(task['message'] or '')}")
            return
        issue = task["issue"]
        title = f"{issue['key']} · {issue['title']}" if issue else task["title"]
        self.show_heading(f"Pull request: {title}")
        self._print_fact("where", result["pullRequest"] or "")
        self._print_fact("branch", f"{result['branch']}, from {result['base']}")
        self._print_fact("checks", f"{result['checksPassed']} of {result['checksTotal']} passed")
        self._print_fact("change", format_change_size(result))
        for line in result["summary"].splitlines():
            self._print_fact("", escape(line))
        show = paint_line if self._style.colour else escape_line
        self._print(*map(show, lines_of(client.change(task["taskId"])["patch"].rstrip())))

    def show_heading(self, text: str) -> None:
        self._print("", self._style.paint(text, "bold"))

    def _print_fact(self, label: str, text: str) -> None:
        self._print(f"  {self._style.paint(f'{label:<10}', 'dim')}  {text}")

    def _print_progress(self, line: str) -> None:
        self._print(f"{self._style.paint('    │ ', 'dim')}{line.rstrip()}")

    def _print(self, *lines: str) -> None:
        """Flushes, because a pipe would otherwise show the demo only at its end."""
        if not self._context.as_json and sys.stdout is not None:
            self._context.print(lines)
            sys.stdout.flush()


def _format_run_time(task: TaskData) -> str:
    if task["startedAt"] is None:
        return ""
    return (
        f" in {format_duration((parse_time(task['finishedAt'] or '') - parse_time(task['startedAt'])).total_seconds())}"
    )
