"""Commands for the local relay: up, down, info, serve."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from delegate.cli.context import CommandContext, WholeNumber, examples, shared_options
from delegate.cli.render.status import relay_page
from delegate.cli.render.terminal import format_duration, one_line, parse_time
from delegate.config import home_files, values
from delegate.config.settings import erase_secrets
from delegate.errors import DelegateError, Refused
from delegate.keeper import __main__ as keeper
from delegate.keeper.runners import parse_runner_count
from delegate.keeper.start import start

if TYPE_CHECKING:
    from delegate.client.responses import TaskData
    from delegate.model import Task

DOWN_POLL = 0.1
NOT_ENDED = {
    "queued": "is back in the queue",
    "waiting": "waits for an answer",
    "running": "did not stop in time; its outcome is decided when Delegate runs again",
}
KEEPER_NOTICE_AFTER = 1.5  # seconds in which a keeper that runs no tasks usually stops
FIRST_REPORT_AFTER = 0.5  # seconds; most drains end earlier and need no message
REPORT_INTERVAL = 1.0  # seconds between queries for running tasks
# Draining ends with the last task, and a task with its timeout; the margin is for stopping its processes.
DOWN_TIMEOUT = values.TIMEOUT_RANGE_MS[1] / 1000 + 600


@click.command(epilog=examples("delegate up", "delegate up --runners 4", "delegate up --foreground"))
@click.option(
    "--foreground",
    is_flag=True,
    help="Stay in the foreground. Ctrl-C lets running tasks finish; press it again to stop them now.",
)
@click.option(
    "--runners",
    metavar="N|auto",
    help="Number of runners, from 0 to 256, or auto for as many as the machine can handle. [default: auto]",
)
@shared_options
@click.pass_obj
def up(context: CommandContext, foreground: bool, runners: str | None) -> int:
    """Start the local relay and its runners."""
    context.require_local("delegate up")
    parse_runner_count(runners, context.settings)
    if foreground:
        return _run_in_foreground(context, runners)
    started = start(context.settings, runners=runners, environ=context.environ, notice=context.say_once)
    address = home_files.live_address(context.home)
    if context.as_json:
        context.print_json({"url": address.url if address else None, "started": started})
    elif address is not None:
        context.print([f"relay at {address.url}" + ("" if started else ", already up")])
        if not started and runners is not None:
            context.say(
                "--runners has no effect on a relay that is up",
                "`delegate down` stops it; then use `up --runners` again",
            )
    return 0


def _run_in_foreground(context: CommandContext, runners: str | None) -> int:
    from delegate import log  # noqa: PLC0415  slow to load, and only a keeper logs

    def report(message: dict[str, Any]) -> None:
        if "waiting" in message:
            context.say_once(f"{message['waiting']}; trying again until it responds")
        elif "error" in message:
            error = message["error"]
            context.say(error["message"], error["hint"] or "")
        else:
            context.say(
                f"relay at {message['url']}, {message['runners']} runners. Ctrl-C lets running tasks finish; "
                "press it again to stop them now"
            )

    erase_secrets()
    log.configure(context.settings.log_level)
    return keeper.run_keeper(context.settings, runners=runners, report=report)


@click.command(epilog=examples("delegate down", "delegate down --now"))
@click.option("--now", is_flag=True, help="Stop running tasks now; those that may run again return to the queue.")
@shared_options
@click.pass_obj
def down(context: CommandContext, now: bool) -> int:
    """Let running tasks finish, then stop the relay and its runners."""
    context.require_local("delegate down")
    holder = home_files.lock_holder(context.home.keeper_lock)
    if holder is None:
        context.say(f"no relay is running for {context.home.root}")
        return 0
    began = datetime.now(UTC)
    if holder.is_alive:  # else it was killed, and its relay is about to stop by itself
        # As process 1 a keeper takes TERM for the beginning of a KILL.
        os.kill(holder.pid, signal.SIGQUIT if now else signal.SIGINT)
    interrupts = _wait_until_gone(context, holder)
    left = home_files.surviving_processes(context.home, holder)
    for one in left:
        context.say(f"process {one.pid} ({one.command}) still exists: {one.why}", f"`ps -fp {one.pid}` shows it")
    stopped = _find_stopped_tasks(context, began) if now or interrupts > 1 else []
    if context.as_json:
        tasks = [{"taskId": task.id, "status": task.state, "reason": task.reason} for task in stopped]
        context.print_json({"stopped": True, "pid": holder.pid, "left": [asdict(one) for one in left], "tasks": tasks})
    else:
        context.print(["stopped", *map(describe_outcome, stopped)])
    return 0


def _find_stopped_tasks(context: CommandContext, began: datetime) -> Sequence[Task]:
    """The tasks that were stopped while they ran, read from the database because the relay is gone."""
    from delegate.store.offline import read_tasks_running_since  # noqa: PLC0415  the store takes long to load

    try:
        return read_tasks_running_since(context.settings, began)
    except DelegateError as problem:
        context.say(f"the outcome of the stopped tasks is not known: {problem.message}", "`delegate status` shows it")
        return []


def describe_outcome(task: Task) -> str:
    why = ": ".join(one_line(words) for words in (task.reason, task.message) if words)
    ended = f"{task.state}: {why}" if why else str(task.state)
    return f"{task.id} {NOT_ENDED.get(task.state, ended)}"


def _wait_until_gone(context: CommandContext, holder: home_files.LockHolder) -> int:
    """Wait for the end of the drain, and report what it waits for; returns the number of interrupts."""
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    reporter, answered = DrainReporter(context), 0
    began = time.monotonic()
    deadline = began + DOWN_TIMEOUT
    while home_files.is_keeper_active(context.home, holder) and time.monotonic() < deadline:
        if len(interrupts) > answered:
            answered += 1
            if answered == 1:
                context.say("still waiting for running tasks; press Ctrl-C again to stop them now")
            elif holder.is_alive:
                os.kill(holder.pid, signal.SIGQUIT)
        if time.monotonic() > began + KEEPER_NOTICE_AFTER and not reporter.has_reported:
            context.say_once(f"waiting for the keeper, process {holder.pid}, to stop")
        reporter.report()
        time.sleep(DOWN_POLL)
    return answered


class DrainReporter:
    """Reports which tasks a drain waits for, each once."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._next_report_at = time.monotonic() + FIRST_REPORT_AFTER
        self._reported: set[str] = set()

    @property
    def has_reported(self) -> bool:
        return bool(self._reported)

    def report(self) -> None:
        if time.monotonic() < self._next_report_at or home_files.live_address(self._context.home) is None:
            return
        self._next_report_at = time.monotonic() + REPORT_INTERVAL
        try:
            for task in self._running_tasks():
                self._reported.add(task["taskId"])
                self._context.say(describe_wait(task, datetime.now(UTC)))
        except DelegateError:
            return  # the relay is stopping and does not respond

    def _running_tasks(self) -> Iterable[TaskData]:
        client = self._context.client_of_running_relay()
        busy = [runner["taskId"] for runner in client.relay()["runners"] if runner["taskId"]]
        return [client.task(task_id)["task"] for task_id in busy if task_id not in self._reported]


def describe_wait(task: TaskData, now: datetime) -> str:
    began = parse_time(task["startedAt"] or task["createdAt"])
    left = max(0.0, task["timeout"] / 1000 - (now - began).total_seconds())
    ends = datetime.fromtimestamp(now.timestamp() + left, UTC).astimezone().strftime("%H:%M")
    total = format_duration(task["timeout"] / 1000)
    return f"waiting for {task['taskId']} ({task['agent']}), until {ends} at the latest (its timeout is {total})"


@click.command(epilog=examples("delegate info", "delegate info --json"))
@shared_options
@click.pass_obj
def info(context: CommandContext) -> None:
    """Show the state of the relay, its database and its runners."""
    client = context.client_of_running_relay()
    relay = client.relay()
    if context.as_json:
        context.print_json({"url": client.url, **relay})
    else:
        context.print(relay_page(client.url, relay, context.style()))


@click.command(epilog=examples("delegate serve", "delegate serve --port 4000"))
@click.option(
    "--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on. Only 127.0.0.1 is supported."
)
@click.option(
    "--port",
    type=WholeNumber(0, 65_535),
    default=0,
    metavar="PORT",
    help="Port to listen on, from 1 to 65,535; 0 chooses a free one. [default: 0]",
)
@shared_options
@click.pass_obj
def serve(context: CommandContext, host: str, port: int) -> int:
    """Run only the relay, in the foreground. It accepts tasks but runs none."""
    context.require_local("delegate serve")
    if host not in home_files.LOOPBACK:
        raise Refused(why=f"a relay listens only on this machine, not on {host}; use --host 127.0.0.1")
    lock = home_files.lock_home(context.home, timeout=1.0)
    home_files.make_token(context.home)
    with _open_listener(port) as listener:
        home_files.write_private(
            context.home.address, home_files.new_address(listener.getsockname()[1], os.getpid()).as_json()
        )
        try:
            return _serve(context, listener)
        finally:
            context.home.address.unlink(missing_ok=True)
            os.close(lock)


def _serve(context: CommandContext, listener: socket.socket) -> int:
    from delegate import log  # noqa: PLC0415  the relay takes a second to load
    from delegate.relay.__main__ import run  # noqa: PLC0415

    erase_secrets()
    log.configure(context.settings.log_level)
    context.say(f"relay at http://127.0.0.1:{listener.getsockname()[1]}; Ctrl-C stops it")
    # DELEGATE_TOKEN belongs to the relay at DELEGATE_RELAY_URL; this one accepts the token of its home.
    return run(replace(context.settings, token=""), listener, keeper=None)


def _open_listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise Refused(why=f"port {port} cannot be used: {(error.strerror or str(error)).lower()}") from error
    listener.listen(keeper.BACKLOG)
    return listener
