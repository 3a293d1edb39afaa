"""Reads and writes what a paired runner must know: its relay, its identity and its token. Standard library only."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from delegate.config.home_files import explain_write_error, write_private
from delegate.config.paths import Home
from delegate.errors import BadPairing, InvalidField, LoosePermissions, NotPaired

DEFAULT_PROFILE = "default"
PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
KEYRING_SERVICE = "delegate"
MACHINE_NAME = re.compile(r"[A-Za-z0-9-]{1,100}")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    relay_url: str
    runner_id: str
    name: str
    token: str
    paired_by: str
    paired_at: str
    ca_file: str | None = None


def profile_home(base: Home, profile: str) -> Home:
    if not PROFILE_NAME.fullmatch(profile):
        raise InvalidField(field="profile", why="must be 1 to 40 letters, digits, - or _")
    return base.profile(profile)


def read_pairing(home: Home) -> Pairing:
    found = _read_file(home)
    try:
        token = _read_keyring(home, found["runnerId"]) if found["token"] is None else found["token"]
        pairing = Pairing(
            relay_url=found["relayUrl"],
            runner_id=found["runnerId"],
            name=found["name"],
            token=token,
            paired_by=found["pairedBy"],
            paired_at=found["pairedAt"],
            ca_file=found.get("caFile"),
        )
    except (KeyError, TypeError) as error:
        raise BadPairing(path=home.pairing, why="it is damaged") from error
    if not all(isinstance(value, str) and value for value in (pairing.relay_url, pairing.name, token)):
        raise BadPairing(path=home.pairing, why="it is damaged")
    return pairing


def _read_file(home: Home) -> Any:  # Any: JSON that is checked by its reader
    try:
        with home.pairing.open() as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise LoosePermissions(path=home.pairing, mode="600")
            return json.load(file)
    except FileNotFoundError as error:
        raise NotPaired(profile=home.root.name, path=home.pairing) from error
    except ValueError as error:
        raise BadPairing(path=home.pairing, why="it is damaged") from error
    except OSError as error:
        raise explain_write_error(home.pairing, error) from error


def write_pairing(home: Home, pairing: Pairing, *, uses_keyring: bool) -> bool:
    """Returns whether the token is in the system's keyring; otherwise it is in the file."""
    is_in_keyring = uses_keyring and _write_keyring(pairing)
    found = {
        "relayUrl": pairing.relay_url,
        "runnerId": pairing.runner_id,
        "name": pairing.name,
        "token": None if is_in_keyring else pairing.token,
        "pairedBy": pairing.paired_by,
        "pairedAt": pairing.paired_at,
        "caFile": pairing.ca_file,
    }
    write_private(home.pairing, json.dumps(found))
    return is_in_keyring


def rename_pairing(home: Home, name: str) -> None:
    """Note the name that the runner has at the relay, where people can change it."""
    found = _read_file(home)
    if found["name"] != name:
        write_private(home.pairing, json.dumps({**found, "name": name}))


def remove_pairing(home: Home) -> None:
    with suppress(NotPaired, BadPairing, LoosePermissions, KeyError, TypeError):
        found = _read_file(home)
        if found["token"] is None:
            with suppress(Exception):  # whatever a keyring raises; without its pairing the token has no use
                import_module("keyring").delete_password(KEYRING_SERVICE, found["runnerId"])
    home.pairing.unlink(missing_ok=True)


def _write_keyring(pairing: Pairing) -> bool:
    """Keyrings fail in many ways: only one that returns what was stored is used."""
    try:
        keyring = import_module("keyring")
        keyring.set_password(KEYRING_SERVICE, pairing.runner_id, pairing.token)
        return bool(keyring.get_password(KEYRING_SERVICE, pairing.runner_id) == pairing.token)
    except Exception:  # noqa: BLE001  the package is optional, and each system's keyring has its own errors
        return False


def _read_keyring(home: Home, runner_id: str) -> str:
    try:
        token = import_module("keyring").get_password(KEYRING_SERVICE, runner_id)
    except Exception as error:
        why = f"its token is in the system's keyring, which does not answer ({type(error).__name__})"
        raise BadPairing(path=home.pairing, why=why) from error
    if not token:
        raise BadPairing(path=home.pairing, why="its token is no longer in the system's keyring")
    return str(token)


def instance_id(home: Home) -> str:
    """Return what tells this home from a copy of it: on another machine, at another place, or in another boot."""
    found = home.root.stat()
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    parts = (boot, socket.gethostname(), str(found.st_dev), str(found.st_ino))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def check_machine(home: Home) -> None:
    """Raise BadPairing unless the machine file is whole: the relay knows a paired runner by what it says."""
    try:
        machine = home.machine.read_text().strip()
    except (OSError, ValueError) as error:
        why = "it is missing" if isinstance(error, FileNotFoundError) else "it cannot be read"
        raise BadPairing(path=home.machine, why=why) from error
    if not MACHINE_NAME.fullmatch(machine):
        raise BadPairing(path=home.machine, why="it is damaged")
