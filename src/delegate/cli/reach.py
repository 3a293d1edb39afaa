"""Prints the relay's endpoint as JSON for the bridge, which neither reads settings nor starts a relay itself."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from delegate.client.client import remote_target
from delegate.config import home_files
from delegate.config.paths import Home
from delegate.config.settings import Settings, load
from delegate.config.values import mask_login
from delegate.errors import DelegateError, RelayUnreachable
from delegate.keeper.start import start
from delegate.mcp_bridge.endpoint import local_endpoint

CONNECT_TIMEOUT = 15.0  # seconds


def reach(settings: Settings, environ: Mapping[str, str]) -> dict[str, Any]:
    """The endpoint of the configured relay; starts the local one if it does not run."""
    machine = home_files.machine_id(Home(settings.home))
    if not settings.is_local:
        return {**_remote(settings), "local": False, "machine": machine}
    start(settings, runners=None, environ=environ)
    address = home_files.live_address(Home(settings.home))
    if address is None:
        raise RelayUnreachable(url=settings.home, why="it ended right after it started", advice="try again")
    return local_endpoint(address.port, home_files.token_for(settings, host=None), machine)


def _remote(settings: Settings) -> dict[str, Any]:
    """Includes the address that responded: a name may have several, and a lookup may be slow."""
    target, path, token = remote_target(settings)
    try:
        with socket.create_connection((target.host, target.port), CONNECT_TIMEOUT) as trial:
            address = trial.getpeername()[0]
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise RelayUnreachable(
            url=mask_login(settings.relay_url), why=why, advice="check DELEGATE_RELAY_URL"
        ) from error
    where = {"address": address, "host": target.host, "authority": target.authority, "port": target.port}
    return {**where, "path": path, "secure": target.secure, "token": token}


def main() -> int:
    try:
        found = reach(load(os.environ), os.environ)
    except DelegateError as error:
        found = error.report()
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
