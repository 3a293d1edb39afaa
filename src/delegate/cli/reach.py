"""Prints the relay's endpoint as JSON for the bridge, which neither reads settings nor starts a relay itself."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from delegate.client.client import remote_target, unreachable
from delegate.config import home_files
from delegate.config.paths import Home
from delegate.config.settings import Settings, load
from delegate.config.values import mask_login
from delegate.errors import DelegateError, RelayUnreachable
from delegate.keeper.start import start
from delegate.mcp_bridge.endpoint import local_endpoint

CONNECT_TIMEOUT = 15.0  # seconds
RESTART_TIMEOUT = 15.0  # seconds for `delegate serve` to be started again


def reach(settings: Settings, environ: Mapping[str, str]) -> dict[str, Any]:
    """The endpoint of the configured relay; starts the local one if it does not run."""
    machine = home_files.machine_id(Home(settings.home))
    if not settings.is_local:
        return {**_remote(settings), "local": False, "machine": machine}
    home = Home(settings.home)
    if not home.served.exists():
        start(settings, runners=None, environ=environ)
    address = _wait_for_restart(settings) if home.served.exists() else home_files.live_address(home)
    if address is None:
        raise RelayUnreachable(url=settings.home, why="it ended right after it started", advice="try again")
    return local_endpoint(address.port, home_files.token_for(settings, host=None), machine)


def _wait_for_restart(settings: Settings) -> home_files.Address:
    deadline = time.monotonic() + RESTART_TIMEOUT
    while (address := home_files.live_address(Home(settings.home))) is None:
        if time.monotonic() > deadline:
            raise unreachable(settings, str(settings.home), ConnectionRefusedError("`delegate serve` is not running"))
        time.sleep(home_files.LOCK_POLL)
    return address


def _remote(settings: Settings) -> dict[str, Any]:
    """Includes the address that responded, of the relay or of the proxy: a name may have several, and a lookup may be
    slow."""
    url = mask_login(settings.relay_url)
    try:
        target, path, token = remote_target(settings)
        proxy = target.proxy
        next_hop = (target.host, target.port) if proxy is None else (proxy.host, proxy.port)
        with socket.create_connection(next_hop, CONNECT_TIMEOUT) as trial:
            address = trial.getpeername()[0]
    except OSError as error:
        raise unreachable(settings, url, error) from error
    where = {"address": address, "host": target.host, "authority": target.authority, "port": target.port}
    secure = {"secure": target.secure, "caFile": target.ca_file}
    tunnel = None if proxy is None else {"host": proxy.host, "port": proxy.port, "authorization": proxy.authorization}
    return {**where, **secure, "path": path, "token": token, "proxy": tunnel}


def main() -> int:
    try:
        found = reach(load(os.environ), os.environ)
    except DelegateError as error:
        found = error.report()
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
