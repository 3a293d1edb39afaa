"""Parses DELEGATE_HOME/config.toml. Loaded only when the file exists: most homes have none, and tomllib takes time.

Users edit the file by hand, so every error names the file and the line.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from delegate.config.values import SettingSpec
from delegate.errors import BadSettingsFile

SIZE_MAX = 64 * 1024  # bytes; every setting with a page of comment takes less
HOME_NOT_ALLOWED = "the file is inside the home directory and cannot set it; use DELEGATE_HOME"
ADVICE = "fix or remove the file; docs/configuration.md lists all settings"


def parse_values(path: Path, text: str, specs: Mapping[str, SettingSpec]) -> dict[str, Any]:
    """Parse the settings in this text. Raises BadSettingsFile at the first mistake."""
    values: dict[str, Any] = {}
    for key, value in _parse_toml(path, text).items():
        try:
            text_value = value_text(key, value, specs)
            if text_value:  # as with variables, empty means not set
                values[key] = specs[key].parse(text_value)
        except ValueError as error:
            place = f", line {line_of(key, text)}: {key}"
            raise BadSettingsFile(path=path, place=place, why=str(error), advice=setting_hint(key, specs)) from error
    return values


def value_text(key: str, value: object, specs: Mapping[str, SettingSpec]) -> str:
    """Convert a TOML value to the text a variable would hold; ValueError when it is invalid for this setting."""
    if key not in specs:
        raise ValueError("there is no such setting")
    if key == "home":
        raise ValueError(HOME_NOT_ALLOWED)
    spec = specs[key]
    if isinstance(value, list) and spec.takes_lists:
        return ", ".join(map(str, value))
    if isinstance(value, str):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not spec.takes_numbers:
        raise ValueError(f"must be {spec.range}" + ("" if spec.takes_numbers else ", in quotes"))
    return str(value)


def setting_hint(key: str, specs: Mapping[str, SettingSpec]) -> str:
    """Return a hint for a wrong key or value."""
    if key in specs:
        return f"{key}: {specs[key].help}"
    near = closest_setting(key, specs)
    return f"did you mean {near}?" if near else "`delegate config show` lists all settings"


def closest_setting(key: str, specs: Mapping[str, SettingSpec]) -> str | None:
    """Find the setting that was probably meant, by its name or by a variable's name."""
    known = {name.casefold(): key for key, spec in specs.items() for name in (key, *spec.variables)}
    found = get_close_matches(key.casefold(), known, n=1)
    return known[found[0]] if found else None


def read_text(path: Path) -> tuple[str, bool]:
    """Return the text of a regular file and whether it is private; empty text for a missing file."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return "", True
    except OSError as error:
        raise _file_error(path, (error.strerror or str(error)).lower()) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _file_error(path, "is not a regular file")
        data = os.read(descriptor, SIZE_MAX + 1)
    finally:
        os.close(descriptor)
    if len(data) > SIZE_MAX:
        raise _file_error(path, f"is larger than {SIZE_MAX // 1024} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _file_error(path, "is not UTF-8", data[: error.start].count(b"\n") + 1) from error
    return text, not stat.S_IMODE(found.st_mode) & 0o077


def _parse_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise _file_error(path, f"is not valid TOML: {error}") from error
    except RecursionError as error:
        raise _file_error(path, "is nested too deeply") from error


def line_of(key: str, text: str) -> int:
    """Find the line of a top-level key; tomllib does not report it."""
    written = rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[].=]"""
    lines = enumerate(text.splitlines(), start=1)
    return next((number for number, line in lines if re.match(written, line)), 1)


def _file_error(path: Path, why: str, line: int | None = None) -> BadSettingsFile:
    place = "" if line is None else f", line {line}"
    return BadSettingsFile(path=path, place=place, why=why, advice=ADVICE)
