"""The commands about settings: config show, set, path."""

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
from delegate.cli.context import Door, HintedUsage, examples, shared_options
from delegate.cli.render.output import Entry, listing
from delegate.cli.render.terminal import one_line
from delegate.cli.text_input import read_value
from delegate.config import home_files as homes
from delegate.config.file import HOME_WHY, about, read_text
from delegate.config.paths import Home
from delegate.config.settings import (
    OF_CLIENTS,
    Settled,
    check_file,
    home_of,
    masked,
    plain,
    settled,
    source_of,
    sources,
)
from delegate.errors import BadSetting, DelegateError, Refused

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

NONE = "none"
PATIENCE = 10.0  # seconds; whoever holds the lock reads a small file and writes it


class Counts(StrEnum):
    NOW = "now"
    NEXT_START = "next_start"  # the relay that runs was started with another value
    ELSEWHERE = "elsewhere"  # it is for a relay of this home, and commands speak to another


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Since when a setting counts."""

    counts: Counts
    running: Any = None  # what the running relay has instead, as JSON has it


@click.group(epilog=examples("delegate config show", "delegate config set cpu_threshold 60", "delegate config path"))
@shared_options
def config() -> None:
    """What is set, and by whom; and to set it in the file of this home."""


def _keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  click's own
    return [key for key in sources() if key.startswith(incomplete) and (key != "home" or ctx.info_name == "show")]


@config.command(epilog=examples("delegate config show", "delegate config show cpu_threshold --json"))
@click.argument("key", required=False, shell_complete=_keys)
@shared_options
@click.pass_obj
def show(door: Door, key: str | None) -> None:
    """Every setting, or one: its value, where that comes from, and what it may be.

    What the running relay has not read yet is told as such.
    """
    if key is not None:
        _check_known(key)
    running = _running(door)
    found = [(one, _standing(door, one, running)) for one in door.settled if key in (None, one.name)]
    if door.as_json:
        door.print_json_lines(_data(*pair) for pair in found)
        return
    door.print(listing(("SETTING", "VALUE", "FROM"), "RANGE", [_entry(*pair) for pair in found], door.look()))
    if any(standing.counts is Counts.ELSEWHERE for _, standing in found):
        named = ", ".join(TASK_DEFAULTS)
        door.say(f"{door.settings.relay_url} has its own settings; of yours it is sent what you set of {named}")


def _running(door: Door) -> Mapping[str, object]:
    """What the relay of this home has read when it started; nothing when none runs, or when it cannot be asked."""
    if not door.settings.is_local or homes.live_address(door.home) is None:
        return {}
    try:
        return door.client_of_running_relay().relay().get("settings", {})
    except DelegateError:
        return {}


def _standing(door: Door, one: Settled, running: Mapping[str, object]) -> Standing:
    if one.name in OF_CLIENTS or is_sent(door, one):
        return Standing(counts=Counts.NOW)
    if not door.settings.is_local:
        return Standing(counts=Counts.ELSEWHERE)
    if one.name not in running or running[one.name] == plain(one.name, one.value):
        return Standing(counts=Counts.NOW)
    return Standing(counts=Counts.NEXT_START, running=running[one.name])


@config.command(epilog=examples("delegate config path", 'ls -l "$(delegate config path)"'))
@shared_options
@click.pass_obj
def path(door: Door) -> None:
    """Where the file of this home is, or would be."""
    place = Home(home_of(door.environ)).config
    if door.as_json:
        door.print_json({"path": str(place), "exists": place.exists()})
    else:
        door.print([str(place)])


@config.command(
    "set",
    context_settings={"ignore_unknown_options": True},  # a value may begin with a dash
    epilog=examples(
        "delegate config set default_agent codex",
        "delegate config set cpu_threshold --unset",
        "delegate config set token - < token.txt",
    ),
)
@click.argument("key", shell_complete=_keys)
@click.argument("value", required=False)
@click.option("--unset", is_flag=True, help="Take it out of the file.")
@shared_options
@click.pass_obj
def set_value(door: Door, key: str, value: str | None, unset: bool) -> None:
    """Write a setting into the file of this home; comments in it stay.

    A single - reads the value from standard input, so that a token stands in no list of processes.
    """
    if unset == bool(value):
        raise HintedUsage("either a value or --unset", f"`delegate config set {key} VALUE`, or --unset in its place")
    if value == "-":
        value = read_value(key)
    home = Home(home_of(door.environ))
    with _alone(home):
        _change(door, Path(os.path.realpath(home.config)), key, value)  # where people link theirs, the file itself
    _tell(door, key)


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """No other command changes the file meanwhile: each writes all of it."""
    lock = homes.hold(home.config_lock, PATIENCE)
    if lock is None:
        raise Refused(why=f"another command is writing {home.config}; try again when it has ended")
    try:
        yield
    finally:
        os.close(lock)


def _change(door: Door, place: Path, key: str, value: str | None) -> None:
    document = _document(place)
    before = document.as_string()
    if value or key not in document:
        _check_known(key)
    if value and key == "home":
        raise BadSetting(name=key, value=value, why=HOME_WHY, advice="set DELEGATE_HOME in your environment")
    if value:
        document[key] = _toml(key, value)
    else:
        document.pop(key, None)
    _write(door, place, before, document.as_string())


def _check_known(key: str) -> None:
    if key not in sources():
        raise BadSetting(name=key, value="…", why="there is no such setting", advice=about(key, sources()))


def _document(place: Path) -> TOMLDocument:
    """The file with its comments, which only this reader keeps."""
    from tomlkit import parse  # noqa: PLC0415  takes longer than all the rest, and only `set` needs it
    from tomlkit.exceptions import ParseError  # noqa: PLC0415

    text, _ = read_text(place)
    try:
        return parse(text)
    except ParseError:
        check_file(place, text)  # says it with the words of everybody who reads the file
        raise


def _toml(key: str, text: str) -> Any:  # Any: whatever TOML has
    """The value as people would write it: a number where it is one, and their own words for a duration."""
    source = source_of(key)
    try:
        value = source.parse(text)
    except ValueError as error:
        told = masked(key, text)
        raise BadSetting(name=key, value=told, why=str(error), advice=about(key, sources())) from error
    if isinstance(value, tuple):
        return list(value)
    if source.takes_numbers and text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text) if "." in text else int(text)
    return text


def _write(door: Door, place: Path, before: str, after: str) -> None:
    """What was right must not become wrong; a file that was wrong is mended one setting at a time."""
    problem = _problem(place, after)
    if problem is not None and _problem(place, before) is None:
        raise problem
    if after != before:
        homes.make_directory(place.parent)
        homes.write_private(place, after)
    if problem is not None:
        door.say(f"the file still has a mistake: {problem.message}", problem.hint)


def _problem(place: Path, text: str) -> BadSetting | None:
    try:
        check_file(place, text)
    except BadSetting as problem:
        return problem
    return None


def _tell(door: Door, key: str) -> None:
    try:
        found = next((one for one in settled(door.environ) if one.name == key), None)
    except BadSetting:
        return  # of another setting, and told
    if found is None:
        return
    if door.as_json:
        door.print_json(_data(found, _standing(door, found, _running(door))))
    else:
        door.print([f"{key} = {_words(key, plain(key, found.value))} ({_origin(found)})"])
    if found.variable is not None:
        door.say(f"{found.variable} is set in the environment and wins over the file")
    if key not in OF_CLIENTS and homes.live_address(Home(home_of(door.environ))) is not None:
        door.say("relay and runners read it when they start", "`delegate down` and `delegate up` start them again")


def _entry(one: Settled, standing: Standing) -> Entry:
    value = one_line(_words(one.name, plain(one.name, one.value)))
    return Entry(cells=(one.name, value, _origin(one)), words=source_of(one.name).range, note=_note(one.name, standing))


def _note(key: str, standing: Standing) -> str:
    if standing.counts is not Counts.NEXT_START:
        return ""
    return f"from the next start of the relay; the one that runs has {one_line(_words(key, standing.running))}"


def _data(one: Settled, standing: Standing) -> dict[str, object]:
    source = source_of(one.name)
    origin = "variable" if one.variable else "file" if one.is_in_file else "default"
    return {
        "key": one.name,
        "value": plain(one.name, one.value),
        "from": origin,
        "variable": one.variable,
        "variables": list(source.variables),
        "range": source.range,
        "help": source.help,
        "counts": standing.counts,
        "running": standing.running,
    }


def _origin(one: Settled) -> str:
    return one.variable or ("file" if one.is_in_file else "default")


def _words(key: str, value: object) -> str:
    """A value as JSON has it, for people."""
    if isinstance(value, list):
        value = ", ".join(value)
    if value in (None, ""):
        return "auto" if key == "max_runners" else NONE
    return str(value)
