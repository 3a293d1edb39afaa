"""`delegate demo`: the main job end to end, in a place of its own that is removed afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delegate.cli.context import Door, examples, shared_options
from delegate.cli.demo.stage import Part, Place, Stage
from delegate.cli.demo.work import CHAIN, FILES, TRY_OUT, WORKS, Work, git_environment
from delegate.client.client import Client
from delegate.config import home_files
from delegate.config.settings import Settings, source_of
from delegate.errors import Refused, Unavailable
from delegate.keeper.start import start

if TYPE_CHECKING:
    from delegate.client.responses import RunnerData, TaskData

RUNNERS = "2"
RUNNER_PATIENCE = 30.0  # seconds for a runner to start and to look for its agents
STOP_PATIENCE = 60.0
POLL = 0.05
# What the user has set for their own Delegate must not reach the demo, except where its programs are.
KEPT_SETTINGS = {"DELEGATE_CLAUDE_COMMAND", "DELEGATE_CODEX_COMMAND", "DELEGATE_GH_COMMAND"}


class DemoFailed(Unavailable):
    """the demo did not get to its end: {why}
    {advice}"""

    code, exit_code = "demo_failed", 1


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
        if repository is None:
            make_repository(place)
            stage.opening(place)
        client = start_relay(place, agent)
        stage.relay_is_up(client.relay(), client.url)
        if repository is None:
            here = {"workingDirectory": str(place.repository), "machine": home_files.machine_id(place.home)}
            chain = hand_in(client, CHAIN, {**here, "agent": "shell"})
            works = hand_in(client, WORKS, {**here, "agent": agent})
            perform(stage, client, "A chain: the deploy waits for the tests, and they wait for the build", chain)
            ended = perform(stage, client, "Two pieces of work at the same time, and one that waits for both", works)
        else:
            works = hand_in(client, (TRY_OUT,), {"repository": repository, "agent": agent})
            ended = perform(stage, client, "One piece of work, in a worktree of its own", works)
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
    names = {name for field in fields(Settings) for name in source_of(field.name).variables}
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
    holder = home_files.holder(place.home.keeper_lock)
    if holder is None:
        return
    if holder.is_alive:
        os.kill(holder.pid, signal.SIGQUIT)
    deadline = time.monotonic() + STOP_PATIENCE
    while home_files.is_kept(place.home, holder) and time.monotonic() < deadline:
        time.sleep(POLL)


def hand_in(client: Client, works: tuple[Work, ...], wish: Mapping[str, object]) -> list[Part]:
    """All of them at once: they name each other."""
    tasks = client.submit_together([work.request(wish) for work in works])
    pairs = enumerate(zip(works, tasks, strict=True), 1)
    return [Part(number=number, of=len(works), work=work, task=task) for number, (work, task) in pairs]


def perform(stage: Stage, client: Client, title: str, parts: list[Part]) -> list[TaskData]:
    stage.heading(title)
    stage.plan([part.task for part in parts])
    return [follow_work(stage, client, part) for part in parts]


def follow_work(stage: Stage, client: Client, part: Part) -> TaskData:
    """Show a task while it runs, or what it has done meanwhile, and return it as it ended."""
    task = part.task
    stage.delegated(part)
    for item in client.stream(task["taskId"]):
        if item is not None and item.kind == "end":
            task = item.data
        elif item is not None:
            stage.progress(item, task["agent"])
    stage.ended(task)
    if task["status"] != part.work.ends:
        raise DemoFailed(why=f"{part.work.name} {task['status']}: {task['message']}", advice=task["advice"] or "")
    return task
