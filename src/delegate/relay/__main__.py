"""`python -m delegate.relay`: runs one relay on a socket that the keeper has opened."""

from __future__ import annotations

import argparse
import asyncio  # uvicorn is built on it
import gc
import json
import logging
import os
import resource
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlsplit

import anyio
import uvicorn

from delegate import log as logs
from delegate.config import home_files
from delegate.config.encryption import KEY_VARIABLE
from delegate.config.paths import Home
from delegate.config.settings import Settings, load, public_settings, receive_secrets
from delegate.errors import DelegateError, StoreBusy, Unauthenticated
from delegate.model import OWNER
from delegate.queue.rescue import renew_leases_after_restart
from delegate.relay.app import make_app
from delegate.relay.http.certificates import ServerCertificate, follow_renewals
from delegate.relay.http.exposure import Exposure, exposure_of
from delegate.relay.http.protocol import HttpProtocol, UnknownConnections
from delegate.relay.requests import Relay
from delegate.relay.wheel import served_wheel
from delegate.store.database import Connection, is_postgres, open_database
from delegate.store.people import last_details, record_audit
from delegate.store.schema import prepare
from delegate.tokens import hash_token

log = logging.getLogger(__name__)
STOP_TIMEOUT = 5  # seconds for open requests when the relay stops
SWITCH_SECONDS = 0.0005  # requests and the writer alternate; with Python's default of 5 ms each waits too long
OPEN_FILES = 10_240  # as many as macOS allows
DATABASE_RETRY_MIN, DATABASE_RETRY_MAX = 0.2, 5.0  # seconds between two tries to reach PostgreSQL
TLS_HANDSHAKE_TIMEOUT = 10.0  # seconds, as for the headers of a request
TLS_SHUTDOWN_TIMEOUT = 1.0  # seconds for the last message of a peer, which must not delay a stop
KEEPER_GONE_GRACE = 3.0  # seconds for runners to hand back what they hold


def main() -> int:
    parser = argparse.ArgumentParser(prog="delegate.relay")
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--secrets-fd", type=int)
    parser.add_argument("--max-runners", type=int)
    arguments = parser.parse_args()
    try:
        os.environ.update(receive_secrets(arguments.secrets_fd))
        # The token in config.toml is for a remote relay; this one uses the token of its home.
        settings = replace(load(os.environ), token=os.environ.get("DELEGATE_TOKEN", ""))
        logs.configure(settings.log_level)
        keeper = KeeperFacts(pid=os.getppid(), max_runners=arguments.max_runners)
        return run(settings, [Listener(socket=socket.socket(fileno=arguments.socket_fd))], keeper=keeper)
    except DelegateError as error:
        print_json(error.report())
        return error.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperFacts:
    """What a relay knows about its keeper."""

    pid: int
    max_runners: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    socket: socket.socket
    tls: ServerCertificate | None = None  # None: plain HTTP


def run(settings: Settings, listeners: Sequence[Listener], *, keeper: KeeperFacts | None) -> int:
    """Serve until a stop signal arrives, or until the keeper closes stdin."""
    os.umask(0o077)
    home = Home(settings.home)
    prepare_when_available(home, settings.database_url, keeper=keeper is not None)
    token = settings.token or home.token.read_text().strip()
    if not token:
        raise Unauthenticated
    logs.filter_log_lines(
        logs.build_secret_filter([token, settings.database_url, urlsplit(settings.database_url).password or ""])
    )
    if keeper is None:
        served_wheel()  # before anybody upgrades the files
    allow_many_connections()
    sys.setswitchinterval(SWITCH_SECONDS)
    failure = anyio.run(_serve, settings, listeners, token, keeper, backend_options={"use_uvloop": True})
    if failure is not None:
        raise failure
    return 0


def prepare_when_available(home: Home, url: str, *, keeper: bool) -> None:
    """Prepare the database; wait for a PostgreSQL that does not respond yet, unless the keeper is gone."""
    pause = DATABASE_RETRY_MIN
    while True:
        try:
            prepare(home, url=url, now=datetime.now(UTC))
        except StoreBusy as error:
            if not is_postgres(url):
                raise
            log.warning("the database does not respond: trying again", extra={"why": error.message})
            if keeper:
                print_json({"waiting": error.message})
                if select.select([sys.stdin], [], [], pause)[0]:
                    raise
            else:
                time.sleep(pause)
            pause = min(2 * pause, DATABASE_RETRY_MAX)
        else:
            return


async def _serve(
    settings: Settings,
    listeners: Sequence[Listener],
    token: str,
    keeper: KeeperFacts | None,
) -> DelegateError | None:
    """Return the error that prevented the start, if any; raised here, it would be wrapped in an exception group."""
    async with open_database(path=Home(settings.home).database, url=settings.database_url) as database:
        relay = Relay(
            settings=settings,
            database=database,
            token_hash=hash_token(token),
            started_at=datetime.now(UTC),
            redact=partial(_redact, settings),
            exposure=exposure_of(settings) if keeper is None else Exposure(),
            machine=home_files.machine_id(Home(settings.home)) if keeper else None,
            keeper_pid=None if keeper is None else keeper.pid,
            max_runners=settings.max_runners if keeper is None else keeper.max_runners,
            secret_key=os.environ.get(KEY_VARIABLE, ""),
        )
        try:
            await relay.clock.sync(database)
            await renew_leases_after_restart(database, relay.rules, relay.now())
            if keeper is None:
                await database.write("settings", partial(_audit_settings, settings=settings, now=relay.now()))
        except DelegateError as error:
            return error
        config = uvicorn.Config(
            make_app(relay),
            http=HttpProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # `Exposure` decides what to believe
            lifespan="on",
            timeout_graceful_shutdown=STOP_TIMEOUT,
            timeout_keep_alive=75,
            server_header=False,
            date_header=False,
        )
        server = Server(config, relay, listeners, keeper=keeper is not None)
        async with anyio.create_task_group() as group:
            if keeper is not None:
                group.start_soon(_stop_with_keeper, server)
            for listener in listeners:
                if listener.tls is not None:
                    group.start_soon(follow_renewals, listener.tls)
            # uvicorn raises the signal that stopped it again when it is done: it must not end this process before
            # the database is closed.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            await server.serve(sockets=[])  # it opens its listeners itself, each with or without TLS
            group.cancel_scope.cancel()
    return None


def _audit_settings(connection: Connection, settings: Settings, now: datetime) -> None:
    """Record the settings that differ from the defaults, unless the last relay had the same."""
    usual = public_settings(Settings())
    chosen = {key: value for key, value in public_settings(settings).items() if value != usual[key]}
    if last_details(connection, "settings") != chosen:
        record_audit(connection, OWNER, "settings", "relay", now=now, details=chosen)


def _redact(settings: Settings, text: str) -> str:
    """Remove the secrets that this machine knows. Questions are rare, so nothing is kept in memory for them."""
    from delegate.runner.secrets.sources import Secrets  # noqa: PLC0415  # most relays never need it

    return Secrets(settings, os.environ).redactor().text(text)


class Server(uvicorn.Server):
    """A uvicorn server that tells the keeper when it is ready, and wakes waiting requests before it stops."""

    def __init__(self, config: uvicorn.Config, relay: Relay, listeners: Sequence[Listener], *, keeper: bool) -> None:
        super().__init__(config)
        self.relay, self.listeners, self.keeper = relay, listeners, keeper
        self.unknown = UnknownConnections()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.servers = [await self._open(listener) for listener in self.listeners]
            gc.collect()
            gc.freeze()  # loaded modules stay; exclude them from garbage collection
            if self.keeper:
                print_json({"ready": True})
            log.info("relay ready", extra={"pid": os.getpid()})

    async def _open(self, listener: Listener) -> asyncio.Server:
        def make_protocol() -> HttpProtocol:
            return HttpProtocol(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                unknown=self.unknown,
            )

        is_secure = listener.tls is not None
        return await asyncio.get_running_loop().create_server(
            make_protocol,
            sock=listener.socket,
            ssl=None if listener.tls is None else listener.tls.context,
            backlog=self.config.backlog,
            ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT if is_secure else None,
            ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT if is_secure else None,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.relay.hub.close()
        await super().shutdown(sockets)


async def _stop_with_keeper(server: Server) -> None:
    if not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        return
    await anyio.wait_readable(sys.stdin.fileno())
    log.warning("the keeper is gone: stopping")
    server.relay.hub.is_keeper_gone = True
    await anyio.sleep(KEEPER_GONE_GRACE)
    server.should_exit = True


def allow_many_connections() -> None:
    """Raise the limit of open files, so that idle connections do not use up those of the database."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def print_json(message: dict[str, object]) -> None:
    with suppress(BrokenPipeError):  # the keeper is gone, which `_stop_with_keeper` notices
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
