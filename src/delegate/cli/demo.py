"""`delegate demo`: the main job end to end, in a place of its own that is removed afterwards."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from delegate import config, home
from delegate.cli import terminal
from delegate.cli.demo_work import FILES, TEST_COMMAND, WORKS, Work, git_environment
from delegate.cli.door import Door, examples, shared_options
from delegate.cli.screen import Screen
from delegate.cli.start import start
from delegate.cli.timeline import QUIET, clock, event_words, moment, span, spent
from delegate.client import Client, StreamItem
from delegate.config import Home, Settings
from delegate.errors import Refused, Unavailable

if TYPE_CHECKING:
    from delegate.answers import RelayData, TaskData

RUNNERS = "2"
RUNNER_PATIENCE = 30.0  # seconds for a runner to start and to look for its agents
STOP_PATIENCE = 60.0
COMMAND_PATIENCE = 60.0
POLL = 0.05
# What the user has set for their own Delegate must not reach the demo, except where its agent is.
KEPT_SETTINGS = {"DELEGATE_CLAUDE_COMMAND"}


class DemoFailed(Unavailable):
    """the demo did not get to its end: {why}
    {advice}"""

    code, exit_code = "demo_failed", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Everything the demo makes is in here."""

    root: Path
    environ: Mapping[str, str]

    @property
    def repository(self) -> Path:
        return self.root / "shop"

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


@click.command(epilog=examples("delegate demo", "delegate demo --agent claude", "delegate demo --keep"))
@click.option(
    "--agent", type=click.Choice(["shell", "claude"]), default="shell", help="Who does the work; shell if not set."
)
@click.option("--keep", is_flag=True, help="Leave the repository and the demo's home for a closer look.")
@shared_options
@click.pass_obj
def demo(door: Door, agent: str, keep: bool) -> None:
    """Watch three pieces of work being delegated in a throw-away repository."""
    for program in ("git", "python3"):
        if shutil.which(program) is None:
            raise Refused(why=f"the demo needs {program}, which is not installed")
    stage = Stage(door)
    with throw_away_place(door.environ, keep=keep) as place:
        make_repository(place)
        stage.opening(place)
        client = start_relay(place, agent)
        stage.relay_is_up(client.relay(), client.url)
        tasks = [run_work(stage, client, place, agent, number) for number in range(len(WORKS))]
        stage.ending(place, client, tasks, keep=keep)


@contextmanager
def throw_away_place(environ: Mapping[str, str], *, keep: bool) -> Iterator[Place]:
    foreign = _settings_of_the_user()
    own = {name: text for name, text in environ.items() if name not in foreign}
    root = Path(tempfile.mkdtemp(prefix="delegate-demo-"))
    place = Place(root=root.resolve(), environ={**own, **git_environment(), "PYTHONDONTWRITEBYTECODE": "1"})
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield place
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stop_relay(place)
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


def _settings_of_the_user() -> set[str]:
    names = {name for field in fields(Settings) for name in config.source_of(field.name).variables}
    return names - KEPT_SETTINGS


def _leave(*_: object) -> None:
    raise KeyboardInterrupt


def make_repository(place: Place) -> None:
    place.repository.mkdir()
    for name, text in FILES.items():
        (place.repository / name).write_text(text)
    place.run("git", "init", "--quiet")
    place.run("git", "add", "--all")
    place.run("git", "commit", "--quiet", "--message", "A shop with a bug")
    place.run("git", "tag", "before")


def start_relay(place: Place, agent: str) -> Client:
    start(place.settings, runners=RUNNERS, environ=place.environ)
    client = Client(place.settings)
    deadline = time.monotonic() + RUNNER_PATIENCE
    while len(runners := client.relay()["runners"]) < int(RUNNERS):
        if time.monotonic() > deadline:
            raise DemoFailed(why="no runner got ready", advice=f"look into {place.home.logs} (run it with --keep)")
        time.sleep(POLL)
    if not any(agent in runner["agents"] for runner in runners):
        raise DemoFailed(
            why=f"{agent} cannot be used here", advice=f"install {agent} and log in, or leave --agent away"
        )
    return client


def stop_relay(place: Place) -> None:
    holder = home.holder(place.home.keeper_lock)
    if holder is None:
        return
    if holder.is_alive:
        os.kill(holder.pid, signal.SIGQUIT)
    deadline = time.monotonic() + STOP_PATIENCE
    while home.is_kept(place.home, holder) and time.monotonic() < deadline:
        time.sleep(POLL)


def run_work(stage: Stage, client: Client, place: Place, agent: str, number: int) -> TaskData:
    """Delegate one piece of work, show it while it runs, and return its task as it ended."""
    work = WORKS[number]
    request = {"prompt": work.text_for(agent), "agent": agent, "workingDirectory": str(place.repository)}
    task = client.submit({**request, "machine": home.machine_id(place.home)})
    stage.delegated(number, work, task)
    with stage.working(work):
        for item in client.stream(task["taskId"]):
            if item is not None and item.kind == "end":
                task = item.data
            elif item is not None:
                stage.progress(item, agent)
    stage.ended(task)
    if task["status"] != "completed":
        raise DemoFailed(why=f"{work.name} {task['status']}: {task['message']}", advice=task["advice"] or "")
    return task


class Stage:
    """What the audience sees: rich on a terminal, plain lines elsewhere, nothing but JSON with --json."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True, quiet=door.as_json, emoji=False)
        self._pending = ""
        self._screen = Screen()

    def opening(self, place: Place) -> None:
        self._console.print("Delegate hands work to agents on your machine and keeps it safe until it is done.")
        self._heading("A small repository with a bug")
        self._fact("repository", str(place.repository))
        failing = place.run(*TEST_COMMAND.split()).splitlines()
        telling = [line for line in failing if line.startswith(("FAIL:", "AssertionError", "Ran", "FAILED"))]
        self._fact("its tests", TEST_COMMAND)
        for line in telling:
            self._shown(line, "red")

    def relay_is_up(self, relay: RelayData, url: str) -> None:
        self._heading("A relay and its runners")
        self._fact("relay", f"{url}, process {relay['pid']}")
        for runner in relay["runners"]:
            self._fact("runner", f"{runner['name']}, process {runner['pid']}, agents: {', '.join(runner['agents'])}")
        self._heading("Three pieces of work, each delegated when the one before is done")

    def delegated(self, number: int, work: Work, task: TaskData) -> None:
        if self._door.as_json:
            return
        self._console.print()
        count, task_id = (f"{number + 1}/{len(WORKS)} ", "dim"), (task["taskId"], "cyan")
        self._console.print(Text.assemble(count, (work.name, "bold"), f": {work.about}  ", task_id))
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
        took = span((moment(task["finishedAt"] or "") - moment(task["startedAt"] or task["createdAt"])).total_seconds())
        good = task["status"] == "completed"
        words = ", ".join(filter(None, (f"{task['status']} in {took}", spent(task["usage"]))))
        self._console.print(Text.assemble("    ", ("✓ " if good else "✗ ", "green" if good else "red"), words))

    def ending(self, place: Place, client: Client, tasks: list[TaskData], *, keep: bool) -> None:
        if self._door.as_json:
            return
        self._heading("What changed")
        diff = place.run("git", "diff", "before", "HEAD").rstrip()
        self._console.print(Syntax(diff, "diff", background_color="default", theme="ansi_dark"), soft_wrap=False)
        self._heading("Timeline")
        for work, task in zip(WORKS, tasks, strict=True):
            for event in client.task(task["taskId"])["events"]:
                if words := event_words(event):
                    line = Text.assemble(
                        "  ", (clock(event["at"]), "dim"), f"  {work.name:<8} ", terminal.fit(words, 90)
                    )
                    self._console.print(line)
        self._heading("Where everything is")
        self._fact("repository", str(place.repository))
        self._fact("database", str(place.home.database))
        self._fact("logs", str(place.home.logs))
        if keep:
            self._fact("look at it", f"DELEGATE_HOME={place.home.root} delegate status")
        else:
            self._fact("", "all of it is removed now; `delegate demo --keep` leaves it")
        self._console.print()
        self._console.print(Text.assemble("Your turn: ", ('delegate delegate "say what is to be done"', "bold")))

    def _heading(self, text: str) -> None:
        self._console.print()
        self._console.print(Text(text, "bold"))

    def _fact(self, label: str, text: str) -> None:
        self._console.print(Text.assemble("  ", (f"{label:<10}", "dim"), f"  {text}"))

    def _shown(self, line: str, style: str) -> None:
        self._console.print(Text.assemble(("    │ ", "dim"), (line.rstrip(), style)))
