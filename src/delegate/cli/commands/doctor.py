"""`delegate doctor`: checks everything that a task needs."""

from __future__ import annotations

import os
import re
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delegate.cli.context import CommandContext, command_options, examples
from delegate.cli.render.terminal import OutputStyle, one_line, pad
from delegate.config.pairing import profile_home
from delegate.config.settings import load_partially
from delegate.errors import BadData, NotPaired, UnsafeHome

if TYPE_CHECKING:
    from delegate.runner.doctor.findings import Finding

COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}
LEVEL_WIDTH = 7
SUBJECT_MAX = 14  # a longer one, such as an agent's command, gets its own line
TEXT_MIN = 36  # columns; with fewer for its text, every finding becomes a block
FILE = "config.toml"
COMMAND = re.compile(r"`[^`]+`")
GLUE = "\x00"  # cannot be part of a text that goes to a terminal
EXIT_PROBLEM = 1


@click.command(epilog=examples("delegate doctor", "delegate doctor --json | jq 'select(.level == \"problem\")'"))
@click.option("--profile", metavar="NAME", help="Check the paired runner of this profile instead.")
@command_options
def doctor(context: CommandContext, profile: str | None) -> int:
    """Check what a task needs on this machine, and say what to fix. It starts no relay and calls no model."""
    return _check(context) if profile is None else _check_profile(context, profile)


def _check_profile(context: CommandContext, profile: str) -> int:
    """The same for a paired runner, with the environment that its service gives it, if it has one."""
    from delegate.cli.profiles import profile_context  # noqa: PLC0415  most uses need none
    from delegate.cli.service import read_environment  # noqa: PLC0415

    home = profile_home(context.home, profile)
    if not home.pairing.exists():
        raise NotPaired(profile=profile, path=home.pairing)
    given = read_environment(context.environ, profile)
    if given is not None:
        context.say(f"checking with the environment of the service of profile {profile}")
        user = {name: context.environ[name] for name in ("HOME", "USER", "LOGNAME") if name in context.environ}
        context = replace(context, environ={**user, **given})
    return _check(profile_context(context, profile))


def _check(context: CommandContext) -> int:
    from delegate.runner.doctor.findings import first_problem  # noqa: PLC0415  the runner takes long to load

    findings = _findings(context)
    first = first_problem(findings)
    if context.as_json:
        context.print_json_lines(map(_as_data, findings))
    else:
        context.print(format_findings(findings, context.style()))
        context.print(["", *_conclusion(findings, first, context.style())])
    return 0 if first is None else EXIT_PROBLEM


def _findings(context: CommandContext) -> list[Finding]:
    import anyio  # noqa: PLC0415  the runner takes long to load

    from delegate.runner.doctor.context import DoctorContext  # noqa: PLC0415
    from delegate.runner.doctor.examine import examine  # noqa: PLC0415
    from delegate.runner.doctor.findings import DoctorSection  # noqa: PLC0415

    settings, problems = load_partially(context.environ)
    unread = list(map(_settings_finding, problems))
    if any(isinstance(problem, UnsafeHome) for problem in problems):
        return unread  # nothing in the home can be believed
    try:
        with tempfile.TemporaryDirectory(prefix="delegate-doctor-") as scratch:
            case = DoctorContext(
                settings=settings,
                environ=context.environ,
                directory=_current_directory(),
                scratch=Path(scratch),
                now=context.style().now,
                is_root=os.geteuid() == 0,
            )
            return [*unread, *anyio.run(examine, case)]
    except FileNotFoundError as problem:  # tempfile found no writable directory
        fix = "free some disk space, or set TMPDIR to a writable directory"
        return [*unread, DoctorSection.SETTINGS.problem("TMPDIR", str(problem.strerror or problem).lower(), fix)]


def _settings_finding(problem: BadData) -> Finding:
    from delegate.runner.doctor.findings import DoctorSection  # noqa: PLC0415

    if isinstance(problem, UnsafeHome):
        return DoctorSection.HOME.problem("home", problem.message, problem.hint)
    name = str(problem.data.get("name", FILE))  # the name of the variable
    return DoctorSection.SETTINGS.problem(name, problem.message.removeprefix(f"{name}="), problem.hint)


def _current_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/")


def _as_data(finding: Finding) -> dict[str, str]:
    return {
        "level": finding.level,
        "part": finding.section,
        "subject": finding.subject,
        "message": finding.message,
        "fix": finding.fix,
    }


def format_findings(findings: Sequence[Finding], style: OutputStyle) -> list[str]:
    """The findings, grouped and aligned; on a narrow screen one below the other."""
    subjects = [len(one.subject) for one in findings if len(one.subject) <= SUBJECT_MAX]
    indent = 2 + LEVEL_WIDTH + 2 + max(subjects, default=0) + 2
    is_wide = style.width - indent >= TEXT_MIN
    lines: list[str] = []
    for part, ones in groupby(findings, key=lambda one: one.section):
        lines += ["", style.paint(part, "bold")] if lines else [style.paint(part, "bold")]
        for one in ones:
            lines += _row(one, indent, style) if is_wide else _block(one, style)
    return lines


def _row(one: Finding, indent: int, style: OutputStyle) -> list[str]:
    subject = one_line(one.subject)
    head = f"  {style.paint(pad(one.level, LEVEL_WIDTH), COLOURS[one.level])}  {subject}"
    taken = 2 + LEVEL_WIDTH + 2 + len(subject)
    words = [*_wrap(one.message, style.width - indent), *_fix(one, style.width - indent, style)]
    below = [f"{' ' * indent}{line}" for line in words]
    if taken + 2 <= indent:
        return [f"{head}{' ' * (indent - taken)}{words[0]}", *below[1:]]
    return [head, *below]


def _block(one: Finding, style: OutputStyle) -> list[str]:
    head = f"{style.paint(one.level, COLOURS[one.level])} {one_line(one.subject)}"
    taken = len(one.level) + 1 + len(one_line(one.subject))
    words = [*_wrap(one.message, style.width - 2), *_fix(one, style.width - 2, style)]
    if len(words) == 1 and taken + 2 + len(words[0]) <= style.width:
        return [f"{head}  {words[0]}"]
    return [head, *(f"  {line}" for line in words)]


def _fix(one: Finding, width: int, style: OutputStyle) -> Iterator[str]:
    if one.fix:
        yield from (style.paint(line, "dim") for line in _wrap(f"fix: {one.fix}", width))


def _wrap(text: str, width: int) -> list[str]:
    """Wrap text, but keep a command on one line if it fits, so that people can copy it."""

    def glue(command: re.Match[str]) -> str:
        return command[0].replace(" ", GLUE) if len(command[0]) <= width else command[0]

    glued = COMMAND.sub(glue, one_line(text))
    lines = textwrap.wrap(glued, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return [line.replace(GLUE, " ") for line in lines] or [""]


def _conclusion(findings: Iterable[Finding], first: Finding | None, style: OutputStyle) -> list[str]:
    if first is not None:
        words = f"fix first: {first.subject} {first.message}" + (f"; {first.fix}" if first.fix else "")
        return [style.paint(line, "bold") for line in _wrap(words, style.width)]
    warnings = sum(one.level == "warning" for one in findings)
    warning_text = {0: "", 1: "; 1 warning"}.get(warnings, f"; {warnings} warnings")
    return _wrap(f"nothing found that would make a task fail{warning_text}", style.width)
