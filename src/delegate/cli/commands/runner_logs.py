"""`delegate runner logs`: what the runners of this machine do."""

from __future__ import annotations

import heapq
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from delegate import __version__
from delegate.cli.context import CommandContext, WholeNumber, examples, shared_options
from delegate.cli.profiles import local_profile_option, paired_profiles
from delegate.cli.render.log_lines import head_line, log_line
from delegate.config.home_files import host_name
from delegate.config.pairing import profile_home, read_pairing

PATTERN = "tasks-*.jsonl"
POLL = 0.3  # seconds between two looks at the files
LINES_MAX = 10_000


@click.command(
    "logs", epilog=examples("delegate runner logs", "delegate runner logs -f", "delegate runner logs --log-format json")
)
@click.option("-f", "--follow", is_flag=True, help="Show further lines until Ctrl-C.")
@click.option("--tail", type=WholeNumber(1, LINES_MAX), default=100, metavar="N", help="Begin with the last N lines.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="How lines are printed.")
@local_profile_option
@shared_options
@click.pass_obj
def logs(context: CommandContext, follow: bool, tail: int, log_format: str, profile: str | None) -> None:
    """Show what the runners of this machine do: the tasks they claim, and each step to the result."""
    if profile is None and not any(context.home.logs.glob(PATTERN)):  # there is no local pool
        profile = next(iter(paired_profiles(context.home)), None)
    home = context.home if profile is None else profile_home(context.home, profile)
    name = host_name() if profile is None else read_pairing(home).name
    files = LogFiles(home.logs)
    is_json = context.as_json or log_format == "json"
    style = context.style()
    if not is_json:
        context.print([head_line(name, __version__, files.answered_at(), datetime.now(UTC))])
    entries = files.read_new()[-tail:]
    while True:
        for entry in entries:
            if is_json:
                context.print_json(entry)
            else:
                context.print([log_line(entry, style)])
        sys.stdout.flush()
        if not follow:
            return
        time.sleep(POLL)
        entries = files.read_new()


class LogFiles:
    """The logs of all slots, read as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def answered_at(self) -> datetime | None:
        """When a relay last answered a runner of this machine."""
        times = []
        for path in self._directory.glob(PATTERN):
            with suppress(OSError):
                times.append(path.stat().st_mtime)
        return datetime.fromtimestamp(max(times), UTC) if times else None

    def read_new(self) -> list[dict[str, Any]]:
        """The entries since the last call, by time."""
        found = [list(self._entries(path)) for path in sorted(self._directory.glob(PATTERN))]
        return list(heapq.merge(*found, key=lambda entry: str(entry["at"])))

    def _entries(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            data = path.read_bytes()
        except OSError:
            return
        start = self._read.get(path, 0)
        if start > len(data):
            start = 0  # it was renamed, and a new one was begun
        whole = data[start : data.rfind(b"\n") + 1]
        self._read[path] = start + len(whole)
        for line in whole.splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and "at" in entry:
                    yield entry
