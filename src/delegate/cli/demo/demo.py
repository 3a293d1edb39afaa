"""`delegate demo`: runs example tasks end to end in a temporary directory."""

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

from delegate.cli.context import CommandContext, HintedUsage, examples, shared_options
from delegate.cli.demo.stage import DemoDisplay, DemoSandbox, DemoStep
from delegate.cli.demo.work import CHAIN, FILES, TRY_OUT, WORKS, DemoWork, git_environment
from delegate.client.client import Client
from delegate.config import home_files
from delegate.config.settings import Settings, setting_spec
from delegate.errors import Refused, Unavailable
from delegate.keeper.start import start

if TYPE_CHECKING:
    from delegate.client.responses import ProcessData, TaskData

RUNNERS = "2"
RUNNER_TIMEOUT = 30.0  # seconds for a runner to start and find its agents
STOP_TIMEOUT = 60.0
POLL = 0.05
# The user's settings must not affect the demo, except for the paths of programs.
KEPT_SETTINGS = {"DELEGATE_CLAUDE_COMMAND", "DELEGATE_CODEX_COMMAND", "DELEGATE_GH_COMMAND"}


class DemoFailed(Unavailable):
    """the demo failed: {why}
    {advice}"""

    code, exit_code = "demo_failed", 1


@click.command(
    epilog=examples(
        "delegate demo",
        "delegate demo --linear",
        "delegate demo --agent claude",
        "delegate demo --repository you/playground",
    )
)
@click.option(
    "--agent",
    type=click.Choice(["shell", "claude", "codex"]),
    default="shell",
    help="Agent that does the work. [default: shell]",
)
@click.option(
    "--repository", metavar="OWNER/NAME", help="Open a real pull request in this repository, with your own gh login."
)
@click.option("--linear", is_flag=True, help="Begin with an issue in a stand-in for Linear; no account is needed.")
@click.option("--keep", is_flag=True, help="Keep the demo's repository and home directory.")
@shared_options
@click.pass_obj
def demo(context: CommandContext, agent: str, repository: str | None, linear: bool, keep: bool) -> None:
    """Run example tasks in a temporary repository. They end in pull requests."""
    for program in ("git", "python3"):
        if shutil.which(program) is None:
            raise Refused(why=f"the demo needs {program}, which is not installed")
    if linear and repository is not None:
        raise HintedUsage("--linear and --repository are two demos; use one", "`delegate demo --help` shows examples")
    display = DemoDisplay(context)
    with temporary_sandbox(context.environ, keep=keep, is_real=repository is not None) as sandbox:
        if repository is None:
            make_repository(sandbox)
            display.show_intro(sandbox)
        if linear:
            show_linear(display, sandbox, agent, keep=keep)
            return
        client = start_relay(sandbox, agent)
        display.show_relay(client.relay(), client.url)
        if repository is None:
            here = {"workingDirectory": str(sandbox.repository), "machine": home_files.machine_id(sandbox.home)}
            chain = submit_all(client, CHAIN, {**here, "agent": "shell"})
            works = submit_all(client, WORKS, {**here, "agent": agent})
            follow_all(display, client, "A chain: deploy waits for test, and test waits for build", chain)
            ended = follow_all(display, client, "Two tasks at the same time, and one that waits for both", works)
        else:
            works = submit_all(client, (TRY_OUT,), {"repository": repository, "agent": agent})
            ended = follow_all(display, client, "One task, in its own worktree", works)
        display.show_summary(sandbox, client, ended, keep=keep)


def show_linear(display: DemoDisplay, sandbox: DemoSandbox, agent: str, *, keep: bool) -> None:
    from delegate.cli.demo import linear_story  # noqa: PLC0415  only this demo needs an HTTP server

    with linear_story.open_linear(agent) as linear:
        equipped = linear_story.equip(sandbox, linear, agent)
        linear_story.show_issue(display, linear, agent)
        client = start_relay(equipped, "claude" if agent == "shell" else agent)
        display.show_relay(client.relay(), client.url)
        task = linear_story.follow_issue(display, client, equipped, linear)
        display.show_end(task)
        if task["status"] != "completed":
            raise DemoFailed(why=f"{linear_story.KEY} {task['status']}: {task['message']}", advice=task["advice"] or "")
        display.show_summary(equipped, client, [task], keep=keep, your_turn="delegate linear connect")
        stop_relay(sandbox)  # before Linear, to which it would post


@contextmanager
def temporary_sandbox(environ: Mapping[str, str], *, keep: bool, is_real: bool) -> Iterator[DemoSandbox]:
    foreign = _settings_of_the_user()
    own = {name: text for name, text in environ.items() if name not in foreign}
    root = Path(tempfile.mkdtemp(prefix="delegate-demo-"))
    settings = {} if is_real else git_environment()
    sandbox = DemoSandbox(root=root.resolve(), environ={**own, **settings, "PYTHONDONTWRITEBYTECODE": "1"})
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield sandbox
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stop_relay(sandbox)
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


def _settings_of_the_user() -> set[str]:
    names = {name for field in fields(Settings) for name in setting_spec(field.name).variables}
    return names - KEPT_SETTINGS


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def make_repository(sandbox: DemoSandbox) -> None:
    """Create a repository and, beside it, the bare repository that branches are pushed to."""
    sandbox.repository.mkdir()
    for name, text in FILES.items():
        (sandbox.repository / name).write_text(text)
    sandbox.run("git", "init", "--quiet")
    sandbox.run("git", "add", "--all")
    sandbox.run("git", "commit", "--quiet", "--message", "A shop with a bug")
    sandbox.run("git", "clone", "--quiet", "--bare", ".", str(sandbox.remote))
    sandbox.run("git", "remote", "add", "origin", str(sandbox.remote))


def start_relay(sandbox: DemoSandbox, agent: str) -> Client:
    """Start a relay, and wait until one of its runners can use the agent."""
    programs = {"claude": sandbox.settings.claude_command, "codex": sandbox.settings.codex_command}
    if agent in programs and shutil.which(programs[agent], path=sandbox.environ.get("PATH")) is None:
        raise _agent_unusable(agent)
    start(sandbox.settings, runners=RUNNERS, environ=sandbox.environ)
    client = Client(sandbox.settings)
    deadline = time.monotonic() + RUNNER_TIMEOUT
    while len(runners := client.relay()["processes"]) < int(RUNNERS) or not _has_agent(runners, agent):
        if time.monotonic() > deadline and runners:
            raise _agent_unusable(agent)
        if time.monotonic() > deadline:
            raise DemoFailed(
                why="no runner became ready", advice=f"see the logs in {sandbox.home.logs} (run it with --keep)"
            )
        time.sleep(POLL)
    return client


def _has_agent(runners: list[ProcessData], agent: str) -> bool:
    return any(agent in runner["agents"] for runner in runners)


def _agent_unusable(agent: str) -> DemoFailed:
    return DemoFailed(why=f"{agent} cannot be used here", advice=f"install {agent} and log in, or leave out --agent")


def stop_relay(sandbox: DemoSandbox) -> None:
    holder = home_files.lock_holder(sandbox.home.keeper_lock)
    if holder is None:
        return
    if holder.is_alive:
        os.kill(holder.pid, signal.SIGQUIT)
    deadline = time.monotonic() + STOP_TIMEOUT
    while home_files.is_keeper_active(sandbox.home, holder) and time.monotonic() < deadline:
        time.sleep(POLL)


def submit_all(client: Client, works: tuple[DemoWork, ...], defaults: Mapping[str, object]) -> list[DemoStep]:
    """Submit all tasks in one request, because they refer to each other."""
    tasks = client.submit_together([work.request(defaults) for work in works])
    pairs = enumerate(zip(works, tasks, strict=True), 1)
    return [DemoStep(number=number, of=len(works), work=work, task=task) for number, (work, task) in pairs]


def follow_all(display: DemoDisplay, client: Client, title: str, parts: list[DemoStep]) -> list[TaskData]:
    display.show_heading(title)
    display.show_plan([part.task for part in parts])
    return [follow_work(display, client, part) for part in parts]


def follow_work(display: DemoDisplay, client: Client, part: DemoStep) -> TaskData:
    """Show a task while it runs, or what it has already done, and return it when it has ended."""
    task = part.task
    display.show_task(part)
    for item in client.stream(task["taskId"]):
        if item is not None and item.kind == "end":
            task = item.data
        elif item is not None:
            display.show_progress(item, task["agent"])
    display.show_end(task)
    if task["status"] != part.work.ends:
        raise DemoFailed(why=f"{part.work.name} {task['status']}: {task['message']}", advice=task["advice"] or "")
    return task
