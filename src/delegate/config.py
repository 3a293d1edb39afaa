"""Every setting, where it comes from, and what it may be. Standard library only: `delegate status` reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from delegate.errors import BadSetting

MINUTE_MS = 60_000
MIB = 1024 * 1024
TIMEOUT_RANGE_MS = (1_000, 86_400_000)
OUTPUT_RANGE = (1_024, 1_073_741_824)
# What may follow `acp:` in the name of an agent: a program and up to nine arguments, none of which needs a shell.
AGENT_COMMAND = r"[A-Za-z0-9._/~+-]+( [A-Za-z0-9._/=:@~+-]+){0,9}"
COMMANDS_MAX = 10  # a runner's claim names at most twenty agents
UNITS_MS = {"ms": 1, "s": 1_000, "m": MINUTE_MS, "h": 60 * MINUTE_MS}


@dataclass(frozen=True, slots=True)
class Source:
    """How a setting is read: its variables (the first one set wins), its parser, and a line of help."""

    variables: tuple[str, ...]
    parse: Callable[[str], Any]  # Any: each setting has its own type, checked by the field it fills
    help: str


def setting(default: Any, *variables: str, parse: Callable[[str], Any], help: str) -> Any:
    return field(default=default, metadata={"source": Source(variables, parse, help)})


def parse_duration_ms(text: str) -> int:
    """Milliseconds from `1500`, `90s`, `30m` or `2h`."""
    cleaned = text.strip().lower()
    number = cleaned.rstrip("hmsin")
    unit = cleaned[len(number) :] or "ms"
    if unit not in UNITS_MS or not number.isascii() or not number.isdigit():
        raise ValueError("a duration is milliseconds, or a number with s, m or h, as in 90s or 30m")
    return int(number) * UNITS_MS[unit]


def bounded(parse: Callable[[str], float], low: float, high: float) -> Callable[[str], Any]:
    def within(text: str) -> float:
        value = parse(text)
        if not low <= value <= high:
            raise ValueError(f"must be from {low:,} to {high:,}")
        return value

    return within


def parse_seconds(text: str) -> timedelta:
    seconds = float(text)
    if not 0 < seconds <= timedelta(days=3650).total_seconds():
        raise ValueError("must be a positive number of seconds")
    return timedelta(seconds=seconds)


def parse_database_url(text: str) -> str:
    if not text.startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://")
    return text


def parse_commands(text: str) -> tuple[str, ...]:
    commands = tuple(" ".join(part.split()) for part in text.split(",") if part.strip())
    if not all(re.fullmatch(AGENT_COMMAND, command) for command in commands):
        raise ValueError("must be programs with plain arguments, parted by commas")
    if len(commands) > COMMANDS_MAX:
        raise ValueError(f"must be at most {COMMANDS_MAX} commands")
    return commands


def parse_level(text: str) -> str:
    if text.lower() not in {"debug", "info", "warn", "error"}:
        raise ValueError("must be debug, info, warn or error")
    return text.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    home: Path = setting(Path("~/.delegate"), "DELEGATE_HOME", parse=Path, help="where everything on disk lives")
    relay_url: str = setting("", "DELEGATE_RELAY_URL", parse=str, help="a relay elsewhere; empty: the local one")
    token: str = setting("", "DELEGATE_TOKEN", parse=str, help="the token for that relay; empty: the one in the home")
    database_url: str = setting(
        "",
        "DELEGATE_DATABASE_URL",
        parse=parse_database_url,
        help="postgresql://… for the relay; empty: SQLite in the home",
    )
    task_timeout_ms: int = setting(
        30 * MINUTE_MS,
        "DELEGATE_TASK_TIMEOUT",
        "TASK_TIMEOUT",
        parse=bounded(parse_duration_ms, *TIMEOUT_RANGE_MS),
        help="how long an attempt may take, unless its task says otherwise",
    )
    max_output_buffer: int = setting(
        10 * MIB,
        "DELEGATE_MAX_OUTPUT_BUFFER",
        "MAX_OUTPUT_BUFFER",
        parse=bounded(int, *OUTPUT_RANGE),
        help="bytes kept of an attempt's output: the first eighth and the last seven",
    )
    log_level: str = setting("info", "DELEGATE_LOG_LEVEL", "LOG_LEVEL", parse=parse_level, help="how much is logged")
    daily_budget_usd: float | None = setting(
        None, "DELEGATE_DAILY_BUDGET_USD", parse=bounded(float, 0, 1e6), help="all paid agents together, per UTC day"
    )
    heartbeat: timedelta = setting(
        timedelta(seconds=30), "DELEGATE_HEARTBEAT", parse=parse_seconds, help="how often a runner renews its lease"
    )
    lease: timedelta = setting(
        timedelta(seconds=120), "DELEGATE_LEASE", parse=parse_seconds, help="silence after which a runner is suspect"
    )
    reclaim_after: timedelta = setting(
        timedelta(minutes=10),
        "DELEGATE_RECLAIM_AFTER",
        parse=parse_seconds,
        help="silence after which another runner may take the task",
    )
    grace: timedelta = setting(
        timedelta(seconds=10), "DELEGATE_GRACE", parse=parse_seconds, help="from TERM to KILL when an agent must stop"
    )
    no_start_after: timedelta = setting(
        timedelta(minutes=2), "DELEGATE_NO_START_AFTER", parse=parse_seconds, help="a started agent must say something"
    )
    stalled_after: timedelta = setting(
        timedelta(minutes=15), "DELEGATE_STALLED_AFTER", parse=parse_seconds, help="silence that ends an agent"
    )
    linger_after: timedelta = setting(
        timedelta(seconds=30), "DELEGATE_LINGER_AFTER", parse=parse_seconds, help="from an agent's result to its exit"
    )
    claude_command: str = setting(
        "claude", "DELEGATE_CLAUDE_COMMAND", parse=str, help="the Claude Code program: a name on PATH, or a path"
    )
    codex_command: str = setting(
        "codex", "DELEGATE_CODEX_COMMAND", parse=str, help="the Codex program: a name on PATH, or a path"
    )
    acp_agents: tuple[str, ...] = setting(
        (),
        "DELEGATE_ACP_AGENTS",
        parse=parse_commands,
        help="commands of further agents that speak the Agent Client Protocol, parted by commas",
    )
    gh_command: str = setting(
        "gh", "DELEGATE_GH_COMMAND", parse=str, help="the GitHub program: a name on PATH, or a path"
    )
    save_every: timedelta = setting(
        timedelta(minutes=5),
        "DELEGATE_SAVE_EVERY",
        parse=parse_seconds,
        help="between two saves of a worktree while an agent works in it",
    )
    retention_days: int = setting(
        90, "DELEGATE_RETENTION_DAYS", parse=bounded(int, 1, 36_500), help="ended tasks are kept this long"
    )
    retention_bytes: int = setting(
        5_000 * MIB,
        "DELEGATE_RETENTION_BYTES",
        parse=bounded(int, MIB, 1 << 50),
        help="output kept in all; the oldest ended tasks lose theirs first",
    )
    salvage_days: int = setting(
        14, "DELEGATE_SALVAGE_DAYS", parse=bounded(int, 1, 36_500), help="unpushed work is kept this long"
    )
    salvage_bytes: int = setting(
        10 * 1024 * MIB,
        "DELEGATE_SALVAGE_BYTES",
        parse=bounded(int, MIB, 1 << 50),
        help="unpushed work kept in all; the oldest goes first, nothing goes on its first day",
    )
    runner_min_free: int = setting(
        2 * 1024 * MIB,
        "DELEGATE_RUNNER_MIN_FREE",
        parse=bounded(int, 0, 1 << 50),
        help="bytes that must be free on a runner's disk before it takes a task; with an eighth of it left, it stops",
    )
    relay_min_free: int = setting(
        500 * MIB,
        "DELEGATE_RELAY_MIN_FREE",
        parse=bounded(int, 0, 1 << 50),
        help="bytes that must be free on the relay's disk before it takes a task",
    )
    backup_every: timedelta = setting(
        timedelta(hours=6), "DELEGATE_BACKUP_EVERY", parse=parse_seconds, help="between automatic backups of SQLite"
    )

    @property
    def is_local(self) -> bool:
        return not self.relay_url


def source_of(name: str) -> Source:
    source: Source = next(f.metadata["source"] for f in fields(Settings) if f.name == name)
    return source


def load(environ: Mapping[str, str]) -> Settings:
    """The settings of this process; an empty variable counts as not set."""
    values: dict[str, Any] = {}
    for entry in fields(Settings):
        source: Source = entry.metadata["source"]
        for variable in source.variables:
            if environ.get(variable):
                values[entry.name] = _parsed(source, variable, environ[variable])
                break
    loaded = Settings(**values)
    return _checked(_with_home(loaded))


def _parsed(source: Source, variable: str, text: str) -> Any:
    try:
        return source.parse(text)
    except ValueError as error:
        why = str(error) if "must" in str(error) or "duration" in str(error) else "cannot be read"
        advice = f"{variable}: {source.help}"
        raise BadSetting(name=variable, value=without_login(text), why=why, advice=advice) from error


def without_login(address: str) -> str:
    """An address may hold a password, a message may not."""
    return re.sub(r"//[^/]*@", "//…@", address)


def _with_home(settings: Settings) -> Settings:
    values = {entry.name: getattr(settings, entry.name) for entry in fields(Settings)}
    values["home"] = Path(os.path.abspath(settings.home.expanduser()))
    return Settings(**values)


def _checked(settings: Settings) -> Settings:
    if not settings.heartbeat < settings.lease <= settings.reclaim_after:
        raise BadSetting(
            name="DELEGATE_LEASE",
            value=settings.lease.total_seconds(),
            why="must be longer than DELEGATE_HEARTBEAT and no longer than DELEGATE_RECLAIM_AFTER",
            advice="set all three, or none",
        )
    return settings


@dataclass(frozen=True, slots=True)
class Home:
    """The places under DELEGATE_HOME."""

    root: Path

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
