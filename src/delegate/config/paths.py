"""The paths of the files and directories under DELEGATE_HOME."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOME = "~/.delegate"


@dataclass(frozen=True, slots=True)
class Home:
    """The places under DELEGATE_HOME."""

    root: Path

    @property
    def config(self) -> Path:
        """Settings that people keep, as TOML."""
        return self.root / "config.toml"

    @property
    def config_lock(self) -> Path:
        """Held while a command reads the settings, changes one and writes them."""
        return self.root / "config.lock"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def machine(self) -> Path:
        return self.root / "machine"

    @property
    def address(self) -> Path:
        """Where the local relay listens: JSON with url, pid and version, written when it is ready."""
        return self.root / "relay.json"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper and, through it, by the relay: one of them per home."""
        return self.root / "keeper.lock"

    @property
    def start_lock(self) -> Path:
        """Held while a client starts the keeper, so that ten clients start one."""
        return self.root / "start.lock"

    @property
    def database(self) -> Path:
        return self.root / "delegate.db"

    @property
    def ballast(self) -> Path:
        """A file that makes room for the last words of the relay when the disk is full."""
        return self.root / "ballast"

    @property
    def backups(self) -> Path:
        return self.root / "backups"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def runners(self) -> Path:
        """One directory per runner slot: its identity, its lock and its spool."""
        return self.root / "runners"

    @property
    def agents(self) -> Path:
        """What the runners of this home have found out about agents' programs: JSON, and a lock beside it."""
        return self.root / "agents.json"

    @property
    def mirrors(self) -> Path:
        """One bare copy per repository, and its lock: a cache that all runners of this home share."""
        return self.root / "mirrors"

    @property
    def workspaces(self) -> Path:
        """One directory per lineage that is being worked on."""
        return self.root / "workspaces"

    @property
    def salvage(self) -> Path:
        """Work that was not pushed, one directory per lineage."""
        return self.root / "salvage"
