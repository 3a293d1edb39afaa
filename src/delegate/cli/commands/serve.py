"""The commands about the local relay: up, down, info, serve."""

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

from delegate.cli.context import Door, examples, shared_options
from delegate.cli.render.output import relay_page
from delegate.cli.render.terminal import one_line
from delegate.cli.render.timeline import moment, span
from delegate.config import home_files, values
from delegate.errors import DelegateError, Refused
from delegate.keeper import __main__ as keeper
from delegate.keeper.scaling import size_of
from delegate.keeper.start import start

if TYPE_CHECKING:
    from delegate.client.responses import TaskData
    from delegate.model import Task

DOWN_POLL = 0.1
NOT_ENDED = {
    "queued": "is back in the queue",
    "waiting": "waits for an answer",
    "running": "was not handed back in time; what becomes of it is decided when Delegate is up again",
}
FIRST_LOOK = 0.5  # seconds; most drains need no words
LOOK_EVERY = 1.0  # seconds between questions about what is still running
# Draining ends with the last task, and a task with its timeout; the margin is for stopping its processes.
DOWN_MOST = values.TIMEOUT_RANGE_MS[1] / 1000 + 600


@click.command(epilog=examples("delegate up", "delegate up --runners 4", "delegate up --foreground"))
@click.option("--foreground", is_flag=True, help="Stay here; Ctrl-C drains, a second one stops at once.")
@click.option("--runners", metavar="N|auto", help="How many; auto is as many as the machine can bear.")
@shared_options
@click.pass_obj
def up(door: Door, foreground: bool, runners: str | None) -> int:
    """Start the relay of this machine and its runners."""
    door.require_local("delegate up")
    size_of(runners, door.settings)
    if foreground:
        return _keep_here(door, runners)
    started = start(door.settings, runners=runners, environ=door.environ)
    address = home_files.live_address(door.home)
    if door.as_json:
        door.print_json({"url": address.url if address else None, "started": started})
    elif address is not None:
        door.print([f"relay at {address.url}" + ("" if started else ", already up")])
        if not started and runners is not None:
            door.say("the number of its runners stays as it is", "`delegate down` first, then `up --runners` again")
    return 0


def _keep_here(door: Door, runners: str | None) -> int:
    from delegate import log  # noqa: PLC0415  slow to load, and only a keeper logs

    def report(told: dict[str, Any]) -> None:
        if "error" in told:
            error = told["error"]
            door.say(error["message"], error["hint"] or "")
        else:
            door.say(f"relay at {told['url']}, {told['runners']} runners; Ctrl-C drains, a second one stops at once")

    log.configure(door.settings.log_level)
    return keeper.keep(door.settings, runners=runners, report=report)


@click.command(epilog=examples("delegate down", "delegate down --now"))
@click.option("--now", is_flag=True, help="Stop running tasks now; those that may run again are queued.")
@shared_options
@click.pass_obj
def down(door: Door, now: bool) -> int:
    """Let running tasks finish, then stop the relay and its runners."""
    door.require_local("delegate down")
    holder = home_files.holder(door.home.keeper_lock)
    if holder is None:
        door.say(f"nothing runs for {door.home.root}")
        return 0
    began = datetime.now(UTC)
    if holder.is_alive:  # else it was killed, and its relay is about to stop by itself
        os.kill(holder.pid, signal.SIGQUIT if now else signal.SIGTERM)
    interrupts = _wait_until_gone(door, holder)
    left = home_files.left_by(door.home, holder)
    for one in left:
        door.say(f"process {one.pid} ({one.command}) was left: {one.why}", f"look with `ps -fp {one.pid}`")
    touched = _touched(door, began) if now or interrupts > 1 else []
    if door.as_json:
        tasks = [{"taskId": task.id, "status": task.state, "reason": task.reason} for task in touched]
        door.print_json({"stopped": True, "pid": holder.pid, "left": [asdict(one) for one in left], "tasks": tasks})
    else:
        door.print(["stopped", *map(became, touched)])
    return 0


def _touched(door: Door, began: datetime) -> Sequence[Task]:
    """The tasks that were running when they were stopped; there is no relay left to ask."""
    from delegate.store.reading import tasks_at_work_since  # noqa: PLC0415  the store takes long to load

    try:
        return tasks_at_work_since(door.settings, began)
    except DelegateError as problem:
        door.say(f"what became of running tasks cannot be told: {problem.message}", "`delegate status` shows it")
        return []


def became(task: Task) -> str:
    why = ": ".join(one_line(words) for words in (task.reason, task.message) if words)
    ended = f"{task.state}: {why}" if why else str(task.state)
    return f"{task.id} {NOT_ENDED.get(task.state, ended)}"


def _wait_until_gone(door: Door, holder: home_files.Holder) -> int:
    """Wait for the end of the drain, saying what it waits for; returns how often it was interrupted."""
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    waits, answered = Waits(door), 0
    deadline = time.monotonic() + DOWN_MOST
    while home_files.is_kept(door.home, holder) and time.monotonic() < deadline:
        if len(interrupts) > answered:
            answered += 1
            if answered == 1:
                door.say("still draining; Ctrl-C again stops the running tasks now")
            elif holder.is_alive:
                os.kill(holder.pid, signal.SIGQUIT)
        waits.tell()
        time.sleep(DOWN_POLL)
    return answered


class Waits:
    """Says which tasks a drain waits for, each once."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._next_look = time.monotonic() + FIRST_LOOK
        self._told: set[str] = set()

    def tell(self) -> None:
        if time.monotonic() < self._next_look or home_files.live_address(self._door.home) is None:
            return
        self._next_look = time.monotonic() + LOOK_EVERY
        try:
            for task in self._running():
                self._told.add(task["taskId"])
                self._door.say(waits_for(task, datetime.now(UTC)))
        except DelegateError:
            return  # it is stopping; there is nobody left to ask

    def _running(self) -> Iterable[TaskData]:
        client = self._door.client_of_running_relay()
        busy = [runner["taskId"] for runner in client.relay()["runners"] if runner["taskId"]]
        return [client.task(task_id)["task"] for task_id in busy if task_id not in self._told]


def waits_for(task: TaskData, now: datetime) -> str:
    began = moment(task["startedAt"] or task["createdAt"])
    left = max(0.0, task["timeout"] / 1000 - (now - began).total_seconds())
    ends = datetime.fromtimestamp(now.timestamp() + left, UTC).astimezone().strftime("%H:%M")
    return (
        f"waiting for {task['taskId']} ({task['agent']}), until {ends} at most ({span(task['timeout'] / 1000)} in all)"
    )


@click.command(epilog=examples("delegate info", "delegate info --json"))
@shared_options
@click.pass_obj
def info(door: Door) -> None:
    """Show the relay, its database and its runners."""
    client = door.client_of_running_relay()
    relay = client.relay()
    if door.as_json:
        door.print_json({"url": client.url, **relay})
    else:
        door.print(relay_page(client.url, relay, door.look()))


@click.command(epilog=examples("delegate serve", "delegate serve --port 4000"))
@click.option("--host", default="127.0.0.1", help="Only this machine for now: 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Any free one if not set.")
@shared_options
@click.pass_obj
def serve(door: Door, host: str, port: int) -> int:
    """Run the relay alone in the foreground: it takes tasks, and executes nothing."""
    door.require_local("delegate serve")
    if host not in home_files.LOOPBACK:
        raise Refused(why=f"a relay answers only on this machine for now, not on {host}; use --host 127.0.0.1")
    lock = home_files.own(door.home, patience=1.0)
    home_files.make_token(door.home)
    with _listening(port) as listener:
        home_files.write_private(
            door.home.address, home_files.new_address(listener.getsockname()[1], os.getpid()).as_json()
        )
        try:
            return _serve(door, listener)
        finally:
            door.home.address.unlink(missing_ok=True)
            os.close(lock)


def _serve(door: Door, listener: socket.socket) -> int:
    from delegate import log  # noqa: PLC0415  the relay takes a second to load
    from delegate.relay.__main__ import run  # noqa: PLC0415

    log.configure(door.settings.log_level)
    door.say(f"relay at http://127.0.0.1:{listener.getsockname()[1]}; Ctrl-C stops it")
    # DELEGATE_TOKEN is for a relay that is named by its address; this one is opened by the token of its home.
    return run(replace(door.settings, token=""), listener, keeper=False)


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise Refused(why=f"port {port} cannot be used: {(error.strerror or str(error)).lower()}") from error
    listener.listen(keeper.BACKLOG)
    return listener
