"""Names the files and directories under DELEGATE_HOME, and checks that they are the user's own."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from delegate.errors import UnsafeHome

DEFAULT_HOME = "~/.delegate"
PROFILES = "profiles"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Home:
    root: Path

    @property
    def profiles(self) -> Path:
        """One home per paired runner: any number of them may be in one home, next to its local pool."""
        return self.root / PROFILES

    def profile(self, name: str) -> Home:
        return Home(self.profiles / name)

    def is_profile(self) -> bool:
        return self.root.parent.name == PROFILES and self.pairing.exists()

    @property
    def config(self) -> Path:
        """The user's settings, as TOML; profiles share those of the home that they are in."""
        return (self.root.parents[1] if self.is_profile() else self.root) / "config.toml"

    @property
    def config_lock(self) -> Path:
        """Held while a command reads, changes and writes the settings."""
        return self.root / "config.lock"

    @property
    def pairing(self) -> Path:
        """The relay that a profile's runner is paired with, and its token there: JSON."""
        return self.root / "pairing.json"

    @property
    def policy(self) -> Path:
        """What a paired runner accepts, as TOML."""
        return self.root / "policy.toml"

    @property
    def runner_state(self) -> Path:
        """What a paired runner does now, or why it stopped: JSON, written by its keeper."""
        return self.root / "runner.json"

    @property
    def heartbeat_lock(self) -> Path:
        """Held by the process that sends the heartbeats of a paired runner."""
        return self.root / "heartbeat.lock"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def secret_key(self) -> Path:
        """Encrypts the secrets in the database, unless DELEGATE_SECRET_KEY is set."""
        return self.root / "secret-key"

    @property
    def machine(self) -> Path:
        """The id of the machine; its paired runners have the same, because they see the same directories."""
        return (self.root.parents[1] if self.root.parent.name == PROFILES else self.root) / "machine"

    @property
    def address(self) -> Path:
        """Where the local relay listens: JSON with url, pid and version, written when it is ready."""
        return self.root / "relay.json"

    @property
    def served(self) -> Path:
        """Exists when the relay of this home is for a team: `delegate serve` runs it, and no command starts it."""
        return self.root / "served"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper and, through it, by the relay: one keeper per home."""
        return self.root / "keeper.lock"

    @property
    def start_lock(self) -> Path:
        """Held while a client starts the keeper, so that concurrent clients start only one."""
        return self.root / "start.lock"

    @property
    def database(self) -> Path:
        return self.root / "delegate.db"

    @property
    def ballast(self) -> Path:
        """A file that the relay deletes to make space for its last writes when the disk is full."""
        return self.root / "ballast"

    @property
    def backups(self) -> Path:
        return self.root / "backups"

    @property
    def relay_clock(self) -> Path:
        """The times that the relay has observed, for its deletions."""
        return self.root / "relay-clock.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def runners(self) -> Path:
        """One directory per runner slot: its identity, its lock and its spool."""
        return self.root / "runners"

    @property
    def records(self) -> Path:
        """The runners' own records of attempts, one directory per lineage."""
        return self.root / "records"

    @property
    def agents(self) -> Path:
        """What the runners of this home know about agent programs: JSON, with a lock next to it."""
        return self.root / "agents.json"

    @property
    def mirrors(self) -> Path:
        """One bare clone per repository, with its lock: a cache shared by all runners of this home."""
        return self.root / "mirrors"

    @property
    def remotes(self) -> Path:
        """One file per checkout whose remote was changed during a task in place, until the user accepts the change."""
        return self.root / "remotes"

    @property
    def workspaces(self) -> Path:
        """One directory per active lineage."""
        return self.root / "workspaces"

    @property
    def salvage(self) -> Path:
        """Unpushed work, one directory per lineage."""
        return self.root / "salvage"


def check_home(root: Path) -> None:
    """Refuse a home that another user can change or could have filled, before anything in it is read.

    The bridge has its own version of this check (`mcp_bridge/endpoint.py`).
    """
    trusted = {0, os.geteuid(), os.stat("/").st_uid}  # noqa: PTH116  in a user namespace, root may have another id
    home, homes = Home(root), {root, Path(os.path.realpath(root))}
    parents = {parent for path in homes for parent in path.parents}
    for path in (*homes, *parents, home.config, home.token, home.pairing, home.address, home.keeper_lock):
        with suppress(OSError):  # it does not exist yet, or whoever opens it reports the problem
            found = path.lstat()
            if found.st_uid not in trusted:
                advice = "set DELEGATE_HOME to a directory of your own"
                raise UnsafeHome(home=root, path=path, why=f"belongs to user {found.st_uid}", advice=advice)
            is_shared = stat.S_ISDIR(found.st_mode) and found.st_mode & OTHERS_WRITE
            # In a sticky directory such as /tmp, only its owner can replace an entry.
            if is_shared and (path in homes or not found.st_mode & stat.S_ISVTX):
                advice = f"run: chmod go-w {path}"
                raise UnsafeHome(home=root, path=path, why="can be written by other users", advice=advice)
