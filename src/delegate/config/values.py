"""Parses and validates the text of a setting. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

MINUTE_MS = 60_000
MIB = 1024 * 1024
TIMEOUT_RANGE_MS = (1_000, 86_400_000)
OUTPUT_RANGE = (1_024, 1_073_741_824)
# What may follow `acp:` in an agent's name: a program and up to nine arguments that need no shell quoting.
AGENT_COMMAND = r"[A-Za-z0-9._/~+-]+( [A-Za-z0-9._/=:@~+-]+){0,9}"
RUNNERS_MAX = 256
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
AGENT_PREFIX = "dat_"  # of the token that a runner makes for an attempt; its processes are known to the relay by it
# Set by git for its hooks, aliases and `rebase --exec`, or by a user: each ties git to one repository. A relay that is
# started there must not pass them on.
REPOSITORY_VARIABLES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_ATTR_SOURCE",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_CONFIG_PARAMETERS",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_QUARANTINE_PATH",
        "GIT_REFLOG_ACTION",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)
COMMANDS_MAX = 10  # a runner's claim names at most twenty agents
# Up to the last @: a password may contain one, or a slash.
LOGIN = re.compile(r"//(?:\S*|[^/]*)@")
SECRET_FIELD = re.compile(r"([?&][^=&\s]*(?:password|passwd|secret|token)[^=&\s]*=)[^&\s]+", re.IGNORECASE)
UNITS_MS = {"ms": 1, "s": 1_000, "m": MINUTE_MS, "h": 60 * MINUTE_MS}


def agent_token_prefix(machine: str) -> str:
    """Return how the tokens of attempts begin in the home with this machine id: other relays do not know them."""
    return f"{AGENT_PREFIX}{machine.rpartition('-')[2]}_"


@dataclass(frozen=True, slots=True)
class SettingSpec:
    """How a setting is parsed: its variables (the first one that is set counts), its parser, and its help text."""

    variables: tuple[str, ...]
    parse: Callable[[str], Any]  # Any: each setting has its own type, checked by the field it fills
    help: str

    @property
    def range(self) -> str:
        """The allowed values, as text to follow "must be"."""
        return self.parse.range if isinstance(self.parse, NumberParser) else RANGES[self.parse]

    @property
    def takes_lists(self) -> bool:
        return self.parse in {parse_commands, parse_host_names, parse_networks}

    @property
    def takes_numbers(self) -> bool:
        return isinstance(self.parse, NumberParser) or self.parse in {parse_seconds, parse_runners}


@dataclass(frozen=True, slots=True)
class NumberParser:
    """A number within a range."""

    parse: Callable[[str], float]
    low: float
    high: float

    def __call__(self, text: str) -> float:
        try:
            value = self.parse(text)
        except ValueError as error:
            raise error if "duration" in str(error) else ValueError(f"must be {self.range}") from error
        if not self.low <= value <= self.high:
            raise ValueError(f"must be {self.range}")
        return value

    @property
    def range(self) -> str:
        return f"from {self.low:,} to {int(self.high):,}"


def parse_duration_ms(text: str) -> int:
    """Convert `1500`, `90s`, `30m` or `2h` to milliseconds."""
    cleaned = text.strip().lower()
    number = cleaned.rstrip("hmsin")
    unit = cleaned[len(number) :] or "ms"
    if unit not in UNITS_MS or not number.isascii() or not number.isdigit():
        raise ValueError("a duration is milliseconds, or a number with s, m or h, such as 90s or 30m")
    return int(number) * UNITS_MS[unit]


def number_parser(parse: Callable[[str], float], low: float, high: float) -> Callable[[str], Any]:
    return NumberParser(parse, low, high)


def parse_seconds(text: str) -> timedelta:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= timedelta(days=3650).total_seconds():
        raise ValueError(f"must be {RANGES[parse_seconds]}")
    return timedelta(seconds=seconds)


def mask_login(text: str) -> str:
    """Hide the login and secret parameters of a URL: a message must not show them."""
    return SECRET_FIELD.sub(r"\1…", LOGIN.sub("//…@", text))


def parse_relay_url(text: str) -> str:
    if "@" in text or mask_login(text) != text:
        raise ValueError("must not contain a login; put the relay's token in DELEGATE_TOKEN")
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not _has_port(parts) or not text.isascii():
        raise ValueError("must look like https://relay.example or http://127.0.0.1:4000")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise ValueError("must be https: plain http would expose the token on the network")
    return text


def _has_port(parts: SplitResult) -> bool:
    """Whether the port is valid or absent."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def parse_public_url(text: str) -> str:
    parts = urlsplit(parse_relay_url(text))
    if parts.query or parts.fragment:
        raise ValueError("must not have a query or a fragment")
    return text.rstrip("/")


def parse_host(text: str) -> str:
    """Return an address or a host name to listen on; an IPv6 address may be in brackets."""
    name = text.removeprefix("[").removesuffix("]")
    if not re.fullmatch(r"[A-Za-z0-9_.:%-]{1,253}", name):
        raise ValueError(f"must be {RANGES[parse_host]}")
    return name


def parse_host_names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if not all(re.fullmatch(r"[a-z0-9_.-]{1,253}|\[[0-9a-f:.]+\]", name) for name in names):
        raise ValueError(f"must be {RANGES[parse_host_names]}")
    return names


def parse_networks(text: str) -> tuple[str, ...]:
    from ipaddress import ip_network  # noqa: PLC0415  only a relay behind a proxy needs it

    try:
        return tuple(str(ip_network(part.strip())) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"must be {RANGES[parse_networks]}") from None


def parse_file(text: str) -> Path:
    return Path(os.path.abspath(Path(text).expanduser()))


def parse_database_url(text: str) -> str:
    if not text.startswith(("postgresql://", "postgres://")):
        raise ValueError(f"must be {RANGES[parse_database_url]}")
    return text


def parse_commands(text: str) -> tuple[str, ...]:
    commands = tuple(" ".join(part.split()) for part in text.split(",") if part.strip())
    if not all(re.fullmatch(AGENT_COMMAND, command) for command in commands):
        raise ValueError(f"must be {RANGES[parse_commands]}")
    if len(commands) > COMMANDS_MAX:
        raise ValueError(f"must be {RANGES[parse_commands]}")
    return commands


def parse_agent(text: str) -> str:
    if text not in {"claude", "codex", "shell"} and not re.fullmatch(f"acp:{AGENT_COMMAND}", text):
        raise ValueError(f"must be {RANGES[parse_agent]}")
    return text


def parse_runners(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or int(text) > RUNNERS_MAX:
        raise ValueError(f"must be {RANGES[parse_runners]}")
    return int(text)


def parse_level(text: str) -> str:
    if text.lower() not in {"debug", "info", "warn", "error"}:
        raise ValueError(f"must be {RANGES[parse_level]}")
    return text.lower()


def parse_privacy(text: str) -> str:
    if text.lower() not in {"minimal", "summary", "full"}:
        raise ValueError(f"must be {RANGES[parse_privacy]}")
    return text.lower()


RANGES: dict[Callable[[str], Any], str] = {
    parse_seconds: "a positive number of seconds",
    parse_relay_url: "an https URL without a login, or http on this machine",
    parse_public_url: "an https URL without a login, or http on this machine",
    parse_host: "an address or a host name",
    parse_host_names: "host names without ports, separated by commas",
    parse_networks: "addresses or networks such as 10.0.0.0/8, separated by commas",
    parse_file: "a file",
    parse_database_url: "a URL that starts with postgresql://",
    parse_commands: f"at most {COMMANDS_MAX} programs with plain arguments, separated by commas",
    parse_agent: "claude, codex, shell or acp:<command>",
    parse_runners: f"auto or a number from 0 to {RUNNERS_MAX}",
    parse_privacy: "minimal, summary or full",
    parse_level: "debug, info, warn or error",
    str: "text",
    Path: "a directory",
}
