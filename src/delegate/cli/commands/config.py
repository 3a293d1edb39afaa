"""Commands for settings: config show, set, path."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delegate.cli.commands.submit import TASK_DEFAULTS, is_sent
from delegate.cli.context import CommandContext, HintedUsage, command_options, examples, shared_options
from delegate.cli.render.terminal import TableRow, format_table, one_line
from delegate.cli.text_input import read_value
from delegate.config import home_files as homes
from delegate.config.file import HOME_NOT_ALLOWED, read_text, setting_hint
from delegate.config.paths import Home, check_home
from delegate.config.settings import (
    CLIENT_SETTINGS,
    ResolvedSetting,
    check_file,
    home_of,
    mask_secret,
    resolve_settings,
    setting_spec,
    setting_specs,
    to_json_value,
)
from delegate.errors import BadSetting, DelegateError, Refused

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

NONE = "none"
LOCK_TIMEOUT = 10.0  # seconds; the holder reads and writes one small file


class AppliesWhen(StrEnum):
    NOW = "now"
    NEXT_START = "next_start"  # the running relay was started with another value
    ELSEWHERE = "elsewhere"  # it applies to the relay of this home, but commands use another


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingStatus:
    """When a setting takes effect."""

    applies: AppliesWhen
    running: Any = None  # the value that the running relay uses instead, as in JSON


@click.group(epilog=examples("delegate config show", "delegate config set cpu_threshold 60", "delegate config path"))
@shared_options
def config() -> None:
    """Show and change settings."""


def _complete_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  click's own
    return [key for key in setting_specs() if key.startswith(incomplete) and (key != "home" or ctx.info_name == "show")]


@config.command(epilog=examples("delegate config show", "delegate config show cpu_threshold --json"))
@click.argument("key", required=False, shell_complete=_complete_keys)
@command_options
def show(context: CommandContext, key: str | None) -> None:
    """Show all settings, or one.

    Each is shown with its value, its origin and its range. A value that the running relay has not read yet is marked.
    """
    if key is not None:
        _check_known(key)
    running = _running_settings(context)
    found = [
        (one, _setting_status(context, one, running)) for one in context.resolved_settings if key in (None, one.name)
    ]
    if context.as_json:
        context.print_json_lines(_data(*pair) for pair in found)
        return
    context.print(
        format_table(("SETTING", "VALUE", "FROM"), "RANGE", [_entry(*pair) for pair in found], context.style())
    )
    if any(status.applies is AppliesWhen.ELSEWHERE for _, status in found):
        named = ", ".join(TASK_DEFAULTS)
        context.say(f"{context.settings.relay_url} has its own settings; yours are sent only for {named}")


def _running_settings(context: CommandContext) -> Mapping[str, object]:
    """The settings that the relay of this home read when it started; empty when none runs or it does not respond."""
    if not context.settings.is_local or homes.live_address(context.home) is None:
        return {}
    try:
        return context.client_of_running_relay().relay().get("settings", {})
    except DelegateError:
        return {}


def _setting_status(context: CommandContext, one: ResolvedSetting, running: Mapping[str, object]) -> SettingStatus:
    if one.name in CLIENT_SETTINGS or is_sent(context, one):
        return SettingStatus(applies=AppliesWhen.NOW)
    if not context.settings.is_local:
        return SettingStatus(applies=AppliesWhen.ELSEWHERE)
    if one.name not in running or running[one.name] == to_json_value(one.name, one.value):
        return SettingStatus(applies=AppliesWhen.NOW)
    return SettingStatus(applies=AppliesWhen.NEXT_START, running=running[one.name])


@config.command(epilog=examples("delegate config path", 'ls -l "$(delegate config path)"'))
@command_options
def path(context: CommandContext) -> None:
    """Print the path of the settings file, whether or not it exists."""
    file = Home(home_of(context.environ)).config
    context.print_result({"path": str(file), "exists": file.exists()}, [str(file)])


@config.command(
    "set",
    context_settings={"ignore_unknown_options": True},  # a value may begin with a dash
    epilog=examples(
        "delegate config set default_agent codex",
        "delegate config set cpu_threshold --unset",
        "delegate config set token - < token.txt",
    ),
)
@click.argument("key", shell_complete=_complete_keys)
@click.argument("value", required=False)
@click.option("--unset", is_flag=True, help="Remove the setting from the file.")
@command_options
def set_value(context: CommandContext, key: str, value: str | None, unset: bool) -> None:
    """Write a setting to the settings file. Comments in the file are kept.

    A single - reads the value from standard input, which keeps a token out of the process list.
    """
    if unset == bool(value):
        raise HintedUsage(
            "give either a value or --unset", f"`delegate config set {key} VALUE`, or --unset instead of VALUE"
        )
    if value == "-":
        value = read_value(key)
    change_settings(context, {key: value})
    _report_setting(context, key)


def change_settings(context: CommandContext, changes: Mapping[str, str | None]) -> None:
    """Write these settings to the file; None removes one."""
    home = Home(home_of(context.environ))
    check_home(home.root)
    with _lock_file(home):
        _change(context, Path(os.path.realpath(home.config)), changes)  # a symbolic link stays a link


@contextmanager
def _lock_file(home: Home) -> Iterator[None]:
    """Keep other commands from changing the file: each of them writes the whole file."""
    lock = homes.acquire_lock(home.config_lock, LOCK_TIMEOUT)
    if lock is None:
        raise Refused(why=f"another command is writing {home.config}; try again in a moment")
    try:
        yield
    finally:
        os.close(lock)


def _change(context: CommandContext, file: Path, changes: Mapping[str, str | None]) -> None:
    document = _read_document(file)
    before = document.as_string()
    for key, value in changes.items():
        _change_value(document, key, value)
    _write(context, file, before, document.as_string())


def _change_value(document: TOMLDocument, key: str, value: str | None) -> None:
    if value or key not in document:
        _check_known(key)
    if value and key == "home":
        raise BadSetting(name=key, value=value, why=HOME_NOT_ALLOWED, advice="set DELEGATE_HOME in your environment")
    if value:
        document[key] = _toml_value(key, value)
    else:
        document.pop(key, None)


def _check_known(key: str) -> None:
    if key not in setting_specs():
        raise BadSetting(name=key, value="…", why="there is no such setting", advice=setting_hint(key, setting_specs()))


def _read_document(file: Path) -> TOMLDocument:
    """The file with its comments, which only this parser keeps."""
    from tomlkit import parse  # noqa: PLC0415  slow to load, and only `set` needs it
    from tomlkit.exceptions import ParseError  # noqa: PLC0415

    text, _ = read_text(file)
    try:
        return parse(text)
    except ParseError:
        check_file(file, text)  # raises the same error as every other reader of the file
        raise


def _toml_value(key: str, text: str) -> Any:  # Any: whatever TOML has
    """The value as people write it: a number where it is one, and a duration as typed."""
    spec = setting_spec(key)
    try:
        value = spec.parse(text)
    except ValueError as error:
        shown_value = mask_secret(key, text)
        raise BadSetting(
            name=key, value=shown_value, why=str(error), advice=setting_hint(key, setting_specs())
        ) from error
    if isinstance(value, tuple):
        return list(value)
    if spec.takes_numbers and text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text) if "." in text else int(text)
    return text


def _write(context: CommandContext, file: Path, before: str, after: str) -> None:
    """Reject a change that makes a valid file invalid; an invalid file can be fixed one setting at a time."""
    problem = _problem(file, after)
    if problem is not None and _problem(file, before) is None:
        raise problem
    if after != before:
        homes.make_directory(file.parent)
        homes.write_private(file, after)
    if problem is not None:
        context.say(f"the file still has an error: {problem.message}", problem.hint)


def _problem(file: Path, text: str) -> BadSetting | None:
    try:
        check_file(file, text)
    except BadSetting as problem:
        return problem
    return None


def _report_setting(context: CommandContext, key: str) -> None:
    try:
        found = next((one for one in resolve_settings(context.environ) if one.name == key), None)
    except BadSetting:
        return  # about another setting, and reported already
    if found is None:
        return
    context.print_result(
        _data(found, _setting_status(context, found, _running_settings(context))),
        [f"{key} = {_format_value(key, to_json_value(key, found.value))} ({_origin(found)})"],
    )
    if found.variable is not None:
        context.say(f"{found.variable} is set in the environment and overrides the file")
    if key not in CLIENT_SETTINGS and homes.live_address(Home(home_of(context.environ))) is not None:
        context.say(
            "the relay and its runners read it when they start", "`delegate down` and `delegate up` restart them"
        )


def _entry(one: ResolvedSetting, status: SettingStatus) -> TableRow:
    value = one_line(_format_value(one.name, to_json_value(one.name, one.value)))
    return TableRow(
        cells=(one.name, value, _origin(one)), text=setting_spec(one.name).range, note=_note(one.name, status)
    )


def _note(key: str, status: SettingStatus) -> str:
    if status.applies is not AppliesWhen.NEXT_START:
        return ""
    return (
        f"takes effect when the relay restarts; the running relay uses {one_line(_format_value(key, status.running))}"
    )


def _data(one: ResolvedSetting, status: SettingStatus) -> dict[str, object]:
    spec = setting_spec(one.name)
    origin = "variable" if one.variable else "file" if one.is_in_file else "default"
    return {
        "key": one.name,
        "value": to_json_value(one.name, one.value),
        "from": origin,
        "variable": one.variable,
        "variables": list(spec.variables),
        "range": spec.range,
        "help": spec.help,
        "counts": status.applies,
        "running": status.running,
    }


def _origin(one: ResolvedSetting) -> str:
    return one.variable or ("file" if one.is_in_file else "default")


def _format_value(key: str, value: object) -> str:
    """A JSON value, formatted for people."""
    if isinstance(value, list):
        value = ", ".join(value)
    if value in (None, ""):
        return "auto" if key == "max_runners" else NONE
    return str(value)
