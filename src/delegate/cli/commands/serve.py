"""Commands for the local relay: up, down, info, serve."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from delegate.cli.context import CommandContext, command_options, examples
from delegate.cli.render.status import relay_page
from delegate.cli.render.terminal import format_duration, one_line, parse_time
from delegate.config import home_files, values
from delegate.config.settings import Settings, erase_secrets, setting_spec
from delegate.errors import DelegateError, InvalidField, Refused
from delegate.keeper import __main__ as keeper
from delegate.keeper.runners import parse_runner_count
from delegate.keeper.start import start

if TYPE_CHECKING:
    from delegate.client.responses import TaskData
    from delegate.model import Task
    from delegate.relay.http.certificates import ServerCertificate

DOWN_POLL = 0.1
CERTIFICATE_NOTICE = timedelta(days=14)  # time to renew a certificate
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
@command_options
def up(context: CommandContext, foreground: bool, runners: str | None) -> int:
    """Start the local relay and its runners."""
    context.require_local("delegate up", "`delegate runner pair` runs its tasks on this machine")
    parse_runner_count(runners, context.settings)
    if home_files.live_address(context.home) is None:
        context.home.served.unlink(missing_ok=True)
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
@command_options
def down(context: CommandContext, now: bool) -> int:
    """Let running tasks finish, then stop the relay and its runners."""
    context.require_local(
        "delegate down", "stop it on its own machine; `delegate runner stop` stops the runners of this one"
    )
    holder = home_files.lock_holder(context.home.keeper_lock)
    if holder is None:
        context.say(f"no relay is running for {context.home.root}")
        return 0
    began = datetime.now(UTC)
    if holder.is_alive:  # else it was killed, and its relay is about to stop by itself
        # As process 1 a keeper takes TERM for the beginning of a KILL.
        os.kill(holder.pid, signal.SIGQUIT if now else signal.SIGINT)
    interrupts = wait_until_gone(context, holder)
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


def wait_until_gone(context: CommandContext, holder: home_files.LockHolder) -> int:
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
        busy = [process["taskId"] for process in client.relay()["processes"] if process["taskId"]]
        return [client.task(task_id)["task"] for task_id in busy if task_id not in self._reported]


def describe_wait(task: TaskData, now: datetime) -> str:
    began = parse_time(task["startedAt"] or task["createdAt"])
    left = max(0.0, task["timeout"] / 1000 - (now - began).total_seconds())
    ends = datetime.fromtimestamp(now.timestamp() + left, UTC).astimezone().strftime("%H:%M")
    total = format_duration(task["timeout"] / 1000)
    return f"waiting for {task['taskId']} ({task['agent']}), until {ends} at the latest (its timeout is {total})"


@click.command(epilog=examples("delegate info", "delegate info --json"))
@command_options
def info(context: CommandContext) -> None:
    """Show the state of the relay, its database and its runners."""
    client = context.client_of_running_relay()
    relay = client.relay()
    context.print_result({"url": client.url, **relay}, relay_page(client.url, relay, context.style()))


@click.command(
    epilog=examples(
        "delegate serve --port 4000",
        "delegate serve --host 0.0.0.0 --port 443 --tls-cert chain.pem --tls-key key.pem",
        "delegate serve --port 4000 --trusted-proxy 127.0.0.1 --public-url https://relay.example",
    )
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", metavar="PORT", help="Port to listen on, from 1 to 65,535; 0 chooses a free one. [default: 0]")
@click.option("--tls-cert", metavar="FILE", help="Certificate of the relay with its chain, in PEM format.")
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate.")
@click.option(
    "--trusted-proxy",
    metavar="CIDR",
    multiple=True,
    help="Address or network of a proxy in front of the relay, which encrypts for it; repeatable.",
)
@click.option("--public-url", metavar="URL", help="The URL by which people and runners reach the relay.")
@click.option("--allowed-host", metavar="NAME", multiple=True, help="Another host name of the relay; repeatable.")
@command_options
def serve(context: CommandContext, /, **given: str | tuple[str, ...] | None) -> int:
    """Run only the relay, in the foreground, for this machine or for a team. It accepts tasks but runs none."""
    context.require_local("delegate serve")
    settings = _serve_settings(context, given)
    certificate = _load_certificate(settings)
    _check_exposure(settings)
    _warn_of_certificate(context, settings, certificate)
    lock = home_files.lock_home(context.home, timeout=1.0)
    home_files.make_token(context.home)
    with ExitStack() as opened:
        opened.callback(os.close, lock)
        main = opened.enter_context(_open_listener(settings.serve_host, settings.serve_port))
        is_reached_locally = certificate is None and settings.serve_host == "127.0.0.1"
        # A listener of its own for the commands on this machine: they send the owner's token to loopback only, and
        # do not depend on the names in the certificate.
        local = main if is_reached_locally else opened.enter_context(keeper.listen_locally(context.home))
        home_files.write_private(
            context.home.address, home_files.new_address(local.getsockname()[1], os.getpid()).as_json()
        )
        opened.callback(context.home.address.unlink, missing_ok=True)
        if local is not main or settings.public_url:
            home_files.write_private(context.home.served, "")  # no command starts another relay in its place
        settings = replace(settings, public_url=settings.public_url or _public_url(main, certificate))
        context.say(f"relay at {settings.public_url or _url_of(main)}; Ctrl-C stops it")
        return _serve(settings, [(main, certificate), *([] if local is main else [(local, None)])])


def _serve_settings(context: CommandContext, given: Mapping[str, str | tuple[str, ...] | None]) -> Settings:
    """The settings, overridden by the options of the command."""
    keys = {"host": "serve_host", "port": "serve_port"}
    changed: dict[str, Any] = {}
    for option, value in given.items():
        if value:
            text = ",".join(value) if isinstance(value, tuple) else value
            key = keys.get(option, option)
            try:
                changed[key] = setting_spec(key).parse(text)
            except ValueError as error:
                raise InvalidField(field=f"--{option.replace('_', '-')}", why=str(error)) from error
    # DELEGATE_TOKEN belongs to the relay at DELEGATE_RELAY_URL; this one accepts the token of its home.
    return replace(context.settings, token="", **changed)


def _load_certificate(settings: Settings) -> ServerCertificate | None:
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    from delegate.relay.http.certificates import load_certificate  # noqa: PLC0415  TLS is slow to load

    return load_certificate(settings.tls_cert, settings.tls_key)


def _check_exposure(settings: Settings) -> None:
    """Refuse plain HTTP on the network, and a public URL that nothing serves."""
    if settings.tls_cert is not None or settings.trusted_proxy:
        return
    ways = "give it a certificate (--tls-cert and --tls-key), or name the proxy that encrypts for it (--trusted-proxy)"
    if settings.serve_host not in home_files.LOOPBACK:
        raise Refused(why=f"plain HTTP on {settings.serve_host} would expose tokens on the network; {ways}")
    if settings.public_url.startswith("https:"):
        raise Refused(why=f"nothing would answer at {settings.public_url} with TLS; {ways}")


def _warn_of_certificate(context: CommandContext, settings: Settings, certificate: ServerCertificate | None) -> None:
    host = urlsplit(settings.public_url).hostname
    if certificate is None:
        return
    if host and not certificate.covers(host):
        context.say(
            f"{settings.tls_cert} is not for {host}, so clients will refuse it",
            "it is for " + ", ".join(certificate.names),
        )
    if settings.tls_key is not None and settings.tls_key.stat().st_mode & 0o004:
        context.say(f"every user of this machine can read {settings.tls_key}", f"`chmod 600 {settings.tls_key}`")
    left = certificate.expires_at - datetime.now(UTC)
    if left < CERTIFICATE_NOTICE:
        context.say(
            f"{settings.tls_cert} expires in {left.days} days", "renew it; the relay uses the new files within seconds"
        )


def _serve(settings: Settings, sockets: Sequence[tuple[socket.socket, ServerCertificate | None]]) -> int:
    from delegate import log  # noqa: PLC0415  the relay takes a second to load
    from delegate.relay.__main__ import Listener, run  # noqa: PLC0415

    erase_secrets()
    log.configure(settings.log_level)
    return run(
        settings,
        [Listener(socket=one, tls=certificate) for one, certificate in sockets],
        keeper=None,
    )


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _public_url(listener: socket.socket, certificate: ServerCertificate | None) -> str:
    """The URL of a relay with a certificate, unless it is configured: by the first name for which it is."""
    name = next((name for name in certificate.names if "*" not in name), "") if certificate is not None else ""
    host, port = f"[{name}]" if ":" in name else name, listener.getsockname()[1]
    return f"https://{host}" + ("" if port == 443 else f":{port}") if name else ""


def _open_listener(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(
            address[:2],
            family=family,
            backlog=keeper.BACKLOG,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        where = f"port {port}" if host in home_files.LOOPBACK else f"port {port} of {host}"
        why = (error.strerror or str(error)).lower().partition(" (while")[0]
        raise Refused(why=f"{where} cannot be used: {why}") from error
