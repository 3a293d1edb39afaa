"""The commands about settings: config show, set, path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delegate import home as homes
from delegate.cli.door import Door, HintedUsage, examples, shared_options
from delegate.cli.output import Entry, listing
from delegate.cli.terminal import one_line
from delegate.cli.words import read_value
from delegate.config import Home, Settled, check_file, home_of, masked, settled, source_of, sources
from delegate.errors import BadSetting, Refused
from delegate.settings_file import HOME_WHY, about, read_text

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

OF_CLIENTS = frozenset({"relay_url", "token"})  # every command reads them anew; the others are the relay's and runners'
NONE = "none"
PATIENCE = 10.0  # seconds; whoever holds the lock reads a small file and writes it


@click.group(epilog=examples("delegate config show", "delegate config set cpu_threshold 60", "delegate config path"))
@shared_options
def config() -> None:
    """What is set, and by whom; and to set it in the file of this home."""


@config.command(epilog=examples("delegate config show", "delegate config show cpu_threshold --json"))
@click.argument("key", required=False)
@shared_options
@click.pass_obj
def show(door: Door, key: str | None) -> None:
    """Every setting, or one: its value, where that comes from, and what it may be."""
    if key is not None:
        _check_known(key)
    found = [one for one in settled(door.environ) if key in (None, one.name)]
    if door.as_json:
        door.print_json_lines(map(_data, found))
    else:
        door.print(listing(("SETTING", "VALUE", "FROM"), "RANGE", [_entry(one) for one in found], door.look()))


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
@click.argument("key")
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
        door.print_json(_data(found))
    else:
        door.print([f"{key} = {_words(found)} ({_origin(found)})"])
    if found.variable is not None:
        door.say(f"{found.variable} is set in the environment and wins over the file")
    if key not in OF_CLIENTS and homes.live_address(Home(home_of(door.environ))) is not None:
        door.say("relay and runners read it when they start", "`delegate down` and `delegate up` start them again")


def _entry(one: Settled) -> Entry:
    source = source_of(one.name)
    return Entry(cells=(one.name, one_line(_words(one)), _origin(one)), words=source.range, note="")


def _data(one: Settled) -> dict[str, object]:
    source = source_of(one.name)
    origin = "variable" if one.variable else "file" if one.is_in_file else "default"
    return {
        "key": one.name,
        "value": _plain(one),
        "from": origin,
        "variable": one.variable,
        "variables": list(source.variables),
        "range": source.range,
        "help": source.help,
    }


def _origin(one: Settled) -> str:
    return one.variable or ("file" if one.is_in_file else "default")


def _words(one: Settled) -> str:
    value = _plain(one)
    if isinstance(value, list):
        value = ", ".join(value)
    if value in (None, ""):
        return "auto" if one.name == "max_runners" else NONE
    return str(value)


def _plain(one: Settled) -> int | float | str | list[str] | None:
    """As JSON has it, without what must stay secret."""
    match one.value:
        case timedelta():
            seconds = one.value.total_seconds()
            return int(seconds) if seconds.is_integer() else seconds
        case tuple():
            return list(one.value)
        case None | int() | float():
            return one.value
        case _:
            return masked(one.name, str(one.value))
