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
from delegate.cli.demo_work import FILES, TEST_COMMAND, TRY_OUT, WORKS, Work, git_environment
from delegate.cli.door import Door, examples, shared_options
from delegate.cli.screen import Screen
from delegate.cli.start import start
from delegate.cli.timeline import QUIET, event_words, moment, size_of_change, span, spent
from delegate.client import Client, StreamItem
from delegate.config import Home, Settings
from delegate.errors import Refused, Unavailable, escaped

if TYPE_CHECKING:
    from delegate.answers import RelayData, RunnerData, TaskData

RUNNERS = "2"
RUNNER_PATIENCE = 30.0  # seconds for a runner to start and to look for its agents
STOP_PATIENCE = 60.0
COMMAND_PATIENCE = 60.0
POLL = 0.05
# What the user has set for their own Delegate must not reach the demo, except where its programs are.
KEPT_SETTINGS = {"DELEGATE_CLAUDE_COMMAND", "DELEGATE_CODEX_COMMAND", "DELEGATE_GH_COMMAND"}


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


@click.command(
    epilog=examples("delegate demo", "delegate demo --agent claude", "delegate demo --repository you/playground")
)
@click.option(
    "--agent",
    type=click.Choice(["shell", "claude", "codex"]),
    default="shell",
    help="Who does the work; shell if not set.",
)
@click.option("--repository", metavar="OWNER/NAME", help="Open a real pull request there instead, with your own gh.")
@click.option("--keep", is_flag=True, help="Leave the repository and the demo's home for a closer look.")
@shared_options
@click.pass_obj
def demo(door: Door, agent: str, repository: str | None, keep: bool) -> None:
    """Watch work being delegated in a throw-away repository, up to its pull requests."""
    for program in ("git", "python3"):
        if shutil.which(program) is None:
            raise Refused(why=f"the demo needs {program}, which is not installed")
    stage = Stage(door)
    with throw_away_place(door.environ, keep=keep, is_real=repository is not None) as place:
        works: tuple[Work, ...] = WORKS
        where: dict[str, object] = {"repository": repository}
        if repository is None:
            make_repository(place)
            stage.opening(place)
            where = {"workingDirectory": str(place.repository), "machine": home.machine_id(place.home)}
        else:
            works = (TRY_OUT,)
        client = start_relay(place, agent)
        stage.relay_is_up(client.relay(), client.url, len(works))
        wish = {**where, "agent": agent, "pr": True}
        tasks = [client.submit({**wish, "prompt": work.text_for(agent), "title": work.title}) for work in works]
        ended = [follow_work(stage, client, Part(number=n + 1, of=works, task=task)) for n, task in enumerate(tasks)]
        stage.ending(place, client, ended, keep=keep)


@contextmanager
def throw_away_place(environ: Mapping[str, str], *, keep: bool, is_real: bool) -> Iterator[Place]:
    foreign = _settings_of_the_user()
    own = {name: text for name, text in environ.items() if name not in foreign}
    root = Path(tempfile.mkdtemp(prefix="delegate-demo-"))
    settings = {} if is_real else git_environment()
    place = Place(root=root.resolve(), environ={**own, **settings, "PYTHONDONTWRITEBYTECODE": "1"})
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
    """A clone and, beside it, what it was cloned from: the place where branches are pushed to."""
    place.repository.mkdir()
    for name, text in FILES.items():
        (place.repository / name).write_text(text)
    place.run("git", "init", "--quiet")
    place.run("git", "add", "--all")
    place.run("git", "commit", "--quiet", "--message", "A shop with a bug")
    place.run("git", "clone", "--quiet", "--bare", ".", str(place.remote))
    place.run("git", "remote", "add", "origin", str(place.remote))


def start_relay(place: Place, agent: str) -> Client:
    """A relay with runners of which one, at least, has seen the agent's program run."""
    programs = {"claude": place.settings.claude_command, "codex": place.settings.codex_command}
    if agent in programs and shutil.which(programs[agent], path=place.environ.get("PATH")) is None:
        raise _unusable(agent)
    start(place.settings, runners=RUNNERS, environ=place.environ)
    client = Client(place.settings)
    deadline = time.monotonic() + RUNNER_PATIENCE
    while len(runners := client.relay()["runners"]) < int(RUNNERS) or not _offer(runners, agent):
        if time.monotonic() > deadline and runners:
            raise _unusable(agent)
        if time.monotonic() > deadline:
            raise DemoFailed(why="no runner got ready", advice=f"look into {place.home.logs} (run it with --keep)")
        time.sleep(POLL)
    return client


def _offer(runners: list[RunnerData], agent: str) -> bool:
    return any(agent in runner["agents"] for runner in runners)


def _unusable(agent: str) -> DemoFailed:
    return DemoFailed(why=f"{agent} cannot be used here", advice=f"install {agent} and log in, or leave --agent away")


def stop_relay(place: Place) -> None:
    holder = home.holder(place.home.keeper_lock)
    if holder is None:
        return
    if holder.is_alive:
        os.kill(holder.pid, signal.SIGQUIT)
    deadline = time.monotonic() + STOP_PATIENCE
    while home.is_kept(place.home, holder) and time.monotonic() < deadline:
        time.sleep(POLL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of the work, and the task it became."""

    number: int
    of: tuple[Work, ...]
    task: TaskData

    @property
    def work(self) -> Work:
        return self.of[self.number - 1]


def follow_work(stage: Stage, client: Client, part: Part) -> TaskData:
    """Show a task while it runs, or what it has done meanwhile, and return it as it ended."""
    task = part.task
    stage.delegated(part)
    with stage.working(part.work):
        for item in client.stream(task["taskId"]):
            if item is not None and item.kind == "end":
                task = item.data
            elif item is not None:
                stage.progress(item, task["agent"])
    stage.ended(task)
    if task["status"] != "completed":
        raise DemoFailed(why=f"{part.work.name} {task['status']}: {task['message']}", advice=task["advice"] or "")
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

    def relay_is_up(self, relay: RelayData, url: str, works: int) -> None:
        self._heading("A relay and its runners")
        self._fact("relay", f"{url}, process {relay['pid']}")
        for runner in relay["runners"]:
            self._fact("runner", f"{runner['name']}, process {runner['pid']}, agents: {', '.join(runner['agents'])}")
        if works > 1:
            self._heading("Two pieces of work at the same time, each in a worktree of its own")
        else:
            self._heading("One piece of work, in a worktree of its own")

    def delegated(self, part: Part) -> None:
        if self._door.as_json:
            return
        task = part.task
        self._console.print()
        count, task_id = (f"{part.number}/{len(part.of)} ", "dim"), (task["taskId"], "cyan")
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
        took = span((moment(task["finishedAt"] or "") - moment(task["startedAt"] or task["createdAt"])).total_seconds())
        good = task["status"] == "completed"
        words = ", ".join(filter(None, (f"{task['status']} in {took}", spent(task["usage"]))))
        self._console.print(Text.assemble("    ", ("✓ " if good else "✗ ", "green" if good else "red"), words))

    def ending(self, place: Place, client: Client, tasks: list[TaskData], *, keep: bool) -> None:
        if self._door.as_json:
            return
        for task in tasks:
            self._review(client, task)
        if place.repository.is_dir():
            self._heading("Your checkout")
            branch, changes = place.run("git", "branch", "--show-current"), place.run("git", "status", "--short")
            self._fact("branch", branch.strip())
            self._fact("changes", changes.strip() or "none: nobody but you touches it")
        self._heading("Where everything is")
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
            self._heading(f"No pull request: {task['title']}")
            self._fact("why", f"nothing was changed; {escaped(task['message'] or '')}")
            return
        self._heading(f"Pull request: {task['title']}")
        self._fact("where", result["pullRequest"] or "")
        self._fact("branch", f"{result['branch']}, from {result['base']}")
        self._fact("checks", f"{result['checksPassed']} of {result['checksTotal']} passed")
        self._fact("change", size_of_change(result))
        for line in result["summary"].splitlines():
            self._fact("", escaped(line))
        patch = client.change(task["taskId"])["patch"].rstrip()
        self._console.print(Syntax(patch, "diff", background_color="default", theme="ansi_dark"), soft_wrap=False)

    def _heading(self, text: str) -> None:
        self._console.print()
        self._console.print(Text(text, "bold"))

    def _fact(self, label: str, text: str) -> None:
        self._console.print(Text.assemble("  ", (f"{label:<10}", "dim"), f"  {text}"))

    def _shown(self, line: str, style: str) -> None:
        self._console.print(Text.assemble(("    │ ", "dim"), (line.rstrip(), style)))
