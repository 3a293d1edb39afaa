"""Defines every setting and loads it. Standard library only: `delegate status` imports this module.

A command's flag overrides a variable, a variable overrides the file, and the file overrides the default.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from delegate.config.paths import DEFAULT_HOME, Home, check_home
from delegate.config.values import (
    MIB,
    MINUTE_MS,
    OUTPUT_RANGE,
    TIMEOUT_RANGE_MS,
    SettingSpec,
    mask_login,
    number_parser,
    parse_agent,
    parse_commands,
    parse_database_url,
    parse_duration_ms,
    parse_file,
    parse_host,
    parse_host_names,
    parse_level,
    parse_networks,
    parse_privacy,
    parse_public_url,
    parse_relay_url,
    parse_runners,
    parse_seconds,
)
from delegate.errors import BadData, BadSetting, LoosePermissions

# The environment of a process is readable to every program of its user, agents included: processes that stay must not
# have these in it. They get them through a pipe.
SECRET_VARIABLES = ("DELEGATE_DATABASE_URL", "DELEGATE_SECRET_KEY")
# Every command reads these again; the others are for long-running processes.
CLIENT_SETTINGS = frozenset({"home", "relay_url", "token", "ca_file"})
URL_SETTINGS = frozenset({"relay_url", "database_url"})


def setting(default: Any, *variables: str, parse: Callable[[str], Any], help: str) -> Any:
    return field(default=default, metadata={"source": SettingSpec(variables, parse, help)})


# Variables that are no settings: those of agents, of tests, and a secret that agents never get.
OTHER_VARIABLES = frozenset(
    {
        "DELEGATE_TASK_ID",
        "DELEGATE_ATTEMPT_ID",
        "DELEGATE_CONTEXT",
        "DELEGATE_FAILPOINTS",
        "DELEGATE_SECRET_KEY",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    home: Path = setting(Path(DEFAULT_HOME), "DELEGATE_HOME", parse=Path, help="where Delegate keeps its files")
    relay_url: str = setting(
        "", "DELEGATE_RELAY_URL", parse=parse_relay_url, help="the URL of a remote relay; empty: the local relay"
    )
    token: str = setting("", "DELEGATE_TOKEN", parse=str, help="the token for that relay; empty: the one in the home")
    ca_file: Path | None = setting(
        None,
        "DELEGATE_CA_FILE",
        parse=parse_file,
        help="the certificates (PEM) of the authority that signed the relay's; empty: those of the system",
    )
    serve_host: str = setting(
        "127.0.0.1", "DELEGATE_SERVE_HOST", parse=parse_host, help="the address that `delegate serve` listens on"
    )
    serve_port: int = setting(
        0,
        "DELEGATE_SERVE_PORT",
        parse=number_parser(int, 0, 65_535),
        help="the port that `delegate serve` listens on; 0 chooses a free one",
    )
    tls_cert: Path | None = setting(
        None, "DELEGATE_TLS_CERT", parse=parse_file, help="the certificate chain (PEM) of `delegate serve`"
    )
    tls_key: Path | None = setting(
        None, "DELEGATE_TLS_KEY", parse=parse_file, help="the private key (PEM) of that certificate"
    )
    trusted_proxy: tuple[str, ...] = setting(
        (),
        "DELEGATE_TRUSTED_PROXY",
        parse=parse_networks,
        help="the proxies in front of `delegate serve`, whose X-Forwarded headers it believes",
    )
    public_url: str = setting(
        "", "DELEGATE_PUBLIC_URL", parse=parse_public_url, help="the URL by which people and runners reach the relay"
    )
    allowed_host: tuple[str, ...] = setting(
        (),
        "DELEGATE_ALLOWED_HOST",
        parse=parse_host_names,
        help="further host names by which the relay may be reached",
    )
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
        parse=number_parser(parse_duration_ms, *TIMEOUT_RANGE_MS),
        help="how long an attempt may take, unless its task says otherwise",
    )
    max_output_buffer: int = setting(
        10 * MIB,
        "DELEGATE_MAX_OUTPUT_BUFFER",
        "MAX_OUTPUT_BUFFER",
        parse=number_parser(int, *OUTPUT_RANGE),
        help="bytes kept of an attempt's output: the first eighth and the end",
    )
    default_agent: str = setting(
        "claude",
        "DELEGATE_DEFAULT_AGENT",
        parse=parse_agent,
        help="the agent of a task that names none: claude, codex, shell or acp:<command>",
    )
    cpu_threshold: int = setting(
        80,
        "DELEGATE_CPU_THRESHOLD",
        "CPU_THRESHOLD",
        parse=number_parser(int, 1, 100),
        help="percent of the machine's CPU above which the pool starts no more tasks",
    )
    memory_reserve: int = setting(
        1024 * MIB,
        "DELEGATE_MEMORY_RESERVE",
        "MEMORY_RESERVE",
        parse=number_parser(int, 0, 1 << 50),
        help="bytes of memory that the pool leaves to everything else on the machine",
    )
    agent_memory: int = setting(
        1024 * MIB,
        "DELEGATE_AGENT_MEMORY",
        parse=number_parser(int, MIB, 1 << 50),
        help="bytes of memory that an agent is assumed to need until the pool has measured it",
    )
    task_memory_max: int | None = setting(
        None,
        "DELEGATE_TASK_MEMORY_MAX",
        parse=number_parser(int, 16 * MIB, 1 << 50),
        help="bytes of memory after which a task is stopped; needs cgroup v2",
    )
    max_runners: int | None = setting(
        None,
        "DELEGATE_MAX_RUNNERS",
        parse=parse_runners,
        help="the most tasks that run at once on this machine; auto: as many as it can handle",
    )
    log_level: str = setting("info", "DELEGATE_LOG_LEVEL", "LOG_LEVEL", parse=parse_level, help="how much is logged")
    privacy: str | None = setting(
        None,
        "DELEGATE_PRIVACY",
        parse=parse_privacy,
        help="what runners report: minimal, summary or full; not set: full to a relay on this machine, else summary",
    )
    daily_budget_usd: float | None = setting(
        None,
        "DELEGATE_DAILY_BUDGET_USD",
        parse=number_parser(float, 0, 1e6),
        help="US dollars per UTC day for all paid agents together",
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
    session_wait: timedelta = setting(
        timedelta(minutes=10),
        "DELEGATE_SESSION_WAIT",
        parse=parse_seconds,
        help="how long a task that continues a session waits for the runner that has it",
    )
    grace: timedelta = setting(
        timedelta(seconds=10),
        "DELEGATE_GRACE",
        parse=parse_seconds,
        help="time between TERM and KILL when an agent is stopped",
    )
    no_start_after: timedelta = setting(
        timedelta(minutes=2),
        "DELEGATE_NO_START_AFTER",
        parse=parse_seconds,
        help="time in which a started agent must print something",
    )
    stalled_after: timedelta = setting(
        timedelta(minutes=15),
        "DELEGATE_STALLED_AFTER",
        parse=parse_seconds,
        help="silence after which an agent is stopped",
    )
    linger_after: timedelta = setting(
        timedelta(seconds=60),
        "DELEGATE_LINGER_AFTER",
        parse=parse_seconds,
        help="time that an agent and its background commands have to end after the result",
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
        help="commands of other agents that speak the Agent Client Protocol, separated by commas",
    )
    gh_command: str = setting(
        "gh", "DELEGATE_GH_COMMAND", parse=str, help="the GitHub program: a name on PATH, or a path"
    )
    linear_api_url: str = setting(
        "https://api.linear.app/graphql",
        "DELEGATE_LINEAR_API_URL",
        parse=parse_relay_url,
        help="the address of Linear's API",
    )
    save_every: timedelta = setting(
        timedelta(minutes=5),
        "DELEGATE_SAVE_EVERY",
        parse=parse_seconds,
        help="time between two saves of a worktree while an agent works in it",
    )
    retention_days: int = setting(
        90, "DELEGATE_RETENTION_DAYS", parse=number_parser(int, 1, 36_500), help="days that ended tasks are kept"
    )
    retention_bytes: int = setting(
        5_000 * MIB,
        "DELEGATE_RETENTION_BYTES",
        parse=number_parser(int, MIB, 1 << 50),
        help="bytes of output kept in total; the oldest ended tasks lose theirs first",
    )
    salvage_days: int = setting(
        14, "DELEGATE_SALVAGE_DAYS", parse=number_parser(int, 1, 36_500), help="days that unpushed work is kept"
    )
    salvage_bytes: int = setting(
        10 * 1024 * MIB,
        "DELEGATE_SALVAGE_BYTES",
        parse=number_parser(int, MIB, 1 << 50),
        help="bytes of unpushed work kept in total; the oldest is removed first, nothing on its first day",
    )
    runner_min_free: int = setting(
        2 * 1024 * MIB,
        "DELEGATE_RUNNER_MIN_FREE",
        parse=number_parser(int, 0, 1 << 50),
        help="bytes a runner's disk must have free to take a task; below an eighth of it, running tasks are stopped",
    )
    relay_min_free: int = setting(
        500 * MIB,
        "DELEGATE_RELAY_MIN_FREE",
        parse=number_parser(int, 0, 1 << 50),
        help="bytes the relay's disk must have free to accept a task",
    )
    backup_every: timedelta = setting(
        timedelta(hours=6),
        "DELEGATE_BACKUP_EVERY",
        parse=parse_seconds,
        help="time between automatic backups of SQLite",
    )

    @property
    def is_local(self) -> bool:
        return not self.relay_url


def setting_specs() -> dict[str, SettingSpec]:
    return {entry.name: entry.metadata["source"] for entry in fields(Settings)}


def setting_spec(name: str) -> SettingSpec:
    return setting_specs()[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSetting:
    """The effective value of one setting, and where it comes from."""

    name: str
    value: Any  # as in Settings
    variable: str | None = None  # the variable that set it; None: the file or the default
    is_in_file: bool = False


def load(environ: Mapping[str, str]) -> Settings:
    """Load the settings of this process; an empty variable counts as not set."""
    return settings_from(resolve_settings(environ))


def settings_from(found: Sequence[ResolvedSetting]) -> Settings:
    return Settings(**{one.name: one.value for one in found})


def load_partially(environ: Mapping[str, str]) -> tuple[Settings, list[BadData]]:
    """Load the valid settings, and return a problem for each invalid one, which counts as not set."""
    home, written, problems = home_of(environ), dict[str, Any](), list[BadData]()
    try:
        check_home(home)
        written = _read_file(Home(home).config)
    except BadData as problem:
        problems.append(problem)
    values: dict[str, Any] = {}
    for entry in fields(Settings):
        try:
            values[entry.name] = _resolve_setting(entry, environ, written).value
        except BadSetting as problem:
            problems.append(problem)
    settings = Settings(**values | {"home": home})
    if not problems:
        try:
            _check(settings)
        except BadSetting as problem:
            problems.append(problem)
    return settings, problems


def resolve_settings(environ: Mapping[str, str]) -> list[ResolvedSetting]:
    """Resolve all settings. The whole file is checked, even where a variable overrides it."""
    home = home_of(environ)
    check_home(home)
    written = _read_file(Home(home).config)
    found = [_resolve_setting(entry, environ, written) for entry in fields(Settings)]
    values = {one.name: one.value for one in found} | {"home": home}
    _check(Settings(**values))
    return [replace(one, value=values[one.name]) for one in found]


def find_unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that look like settings but are none; an agent's environment has a few others."""
    known = OTHER_VARIABLES.union(*(spec.variables for spec in setting_specs().values()))
    return sorted(name for name in environ if name.startswith("DELEGATE_") and name not in known)


def send_secrets(environ: Mapping[str, str]) -> int:
    """Return a descriptor from which a child process reads its secret variables."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)  # the text fits into the pipe; anything longer is not a setting
        os.write(writing, json.dumps({name: environ[name] for name in SECRET_VARIABLES if name in environ}).encode())
    finally:
        os.close(writing)
    return reading


def receive_secrets(descriptor: int | None) -> dict[str, str]:
    if descriptor is None:
        return {}
    with os.fdopen(descriptor) as pipe:
        return {str(name): str(value) for name, value in json.load(pipe).items()}


def erase_secrets() -> None:
    """Remove secret variables from what other programs can read of this process; `os.environ` keeps them."""
    secrets = {*SECRET_VARIABLES, "DELEGATE_TOKEN"}
    if secrets.isdisjoint(os.environ) or sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415  needed only here

    entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    for address in itertools.takewhile(bool, (entries[number] for number in itertools.count())):
        text = ctypes.string_at(address)
        name = text.partition(b"=")[0]
        if name.decode(errors="replace") in secrets:
            ctypes.memset(address + len(name) + 1, 0, len(text) - len(name) - 1)


def home_of(environ: Mapping[str, str]) -> Path:
    """Return the home. The file cannot set it, because the file is inside it."""
    named = Path(environ.get("DELEGATE_HOME") or DEFAULT_HOME)
    return Path(os.path.abspath(named.expanduser()))


def _resolve_setting(entry: Field[Any], environ: Mapping[str, str], written: Mapping[str, Any]) -> ResolvedSetting:
    source: SettingSpec = entry.metadata["source"]
    is_in_file = entry.name in written
    for variable in source.variables:
        if environ.get(variable):
            value = _parse_variable(entry.name, variable, environ[variable])
            return ResolvedSetting(name=entry.name, value=value, variable=variable, is_in_file=is_in_file)
    return ResolvedSetting(name=entry.name, value=written.get(entry.name, entry.default), is_in_file=is_in_file)


def _parse_variable(key: str, variable: str, text: str) -> Any:
    source = setting_spec(key)
    try:
        return source.parse(text)
    except ValueError as error:
        advice = f"{variable}: {source.help}"
        raise BadSetting(name=variable, value=mask_secret(key, text), why=str(error), advice=advice) from error


def _read_file(path: Path) -> dict[str, Any]:
    if not os.path.exists(path):  # noqa: PTH110  an inaccessible home is reported elsewhere
        return {}
    from delegate.config.file import parse_values, read_text  # noqa: PLC0415  most homes have none, and TOML is slow

    text, is_private = read_text(path)
    values = parse_values(path, text, setting_specs())
    if not is_private and any(is_secret(key, str(value)) for key, value in values.items()):
        raise LoosePermissions(path=path, mode="600")
    return values


def check_file(path: Path, text: str) -> None:
    """Raise BadSetting when this text would not be a valid settings file."""
    from delegate.config.file import parse_values  # noqa: PLC0415  needed only to write the file

    _check(Settings(**parse_values(path, text, setting_specs())))


def is_secret(key: str, value: str) -> bool:
    """Whether the value must be hidden from other users."""
    return bool(value) and (key == "token" or mask_login(value) != value)


def mask_secret(key: str, value: str) -> str:
    if key == "token" and value:
        return "…"
    if key in URL_SETTINGS and "@" in value and "//" not in value:
        return "…@" + value.rpartition("@")[2]
    return mask_login(value)


def to_json_value(key: str, value: Any) -> int | float | str | list[str] | None:  # Any: as in Settings
    """Convert a value to JSON, with secrets masked."""
    match value:
        case timedelta():
            seconds = value.total_seconds()
            return int(seconds) if seconds.is_integer() else seconds
        case tuple():
            return list(value)
        case None | int() | float():
            return value
        case _:
            return mask_secret(key, str(value))


def public_settings(settings: Settings) -> dict[str, object]:
    """Return the settings of a running process, with secrets masked."""
    return {key: to_json_value(key, getattr(settings, key)) for key in setting_specs() if key not in CLIENT_SETTINGS}


def _check(settings: Settings) -> None:
    if not settings.heartbeat < settings.lease <= settings.reclaim_after:
        raise BadSetting(
            name="DELEGATE_LEASE",
            value=settings.lease.total_seconds(),
            why="must be longer than DELEGATE_HEARTBEAT and no longer than DELEGATE_RECLAIM_AFTER",
            advice="to shorten, set heartbeat first, then lease; to lengthen, set reclaim_after first, then lease",
        )
