from __future__ import annotations

import os
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path

import pytest

from delegate.config.settings import Settings, load, setting_spec
from delegate.config.values import MIB
from delegate.errors import BadSetting, BadSettingsFile, LoosePermissions

BAD = [
    ("TASK_TIMEOUT", "0", "must be from 1,000 to 86,400,000"),
    ("TASK_TIMEOUT", "999", "must be from 1,000 to 86,400,000"),
    ("TASK_TIMEOUT", "25h", "must be from 1,000 to 86,400,000"),
    ("TASK_TIMEOUT", "-5m", "a duration is milliseconds, or a number with s, m or h, such as 90s or 30m"),
    ("TASK_TIMEOUT", "30min", "a duration is milliseconds"),
    ("TASK_TIMEOUT", "1.5h", "a duration is milliseconds"),
    ("TASK_TIMEOUT", "soon", "a duration is milliseconds"),
    ("TASK_TIMEOUT", "٣٠m", "a duration is milliseconds"),
    ("TASK_TIMEOUT", "-1", "a duration is milliseconds"),
    ("TASK_TIMEOUT", "1e9 h", "a duration is milliseconds"),
    ("DELEGATE_MAX_RUNNERS", "-1", "must be auto or a number from 0 to 256"),
    ("DELEGATE_MAX_RUNNERS", "1000000", "must be auto or a number from 0 to 256"),
    ("DELEGATE_TASK_MEMORY_MAX", "1", "must be from 16,777,216 to 1,125,899,906,842,624"),
    ("MEMORY_RESERVE", "-1", "must be from 0 to 1,125,899,906,842,624"),
    ("CPU_THRESHOLD", "0", "must be from 1 to 100"),
    ("CPU_THRESHOLD", "101", "must be from 1 to 100"),
    ("DELEGATE_DEFAULT_AGENT", "gpt", "must be claude, codex, shell or acp:<command>"),
    ("MAX_OUTPUT_BUFFER", "1023", "must be from 1,024 to 1,073,741,824"),
    ("MAX_OUTPUT_BUFFER", "10MB", "must be from 1,024 to 1,073,741,824"),
    ("LOG_LEVEL", "loud", "must be debug, info, warn or error"),
    ("DELEGATE_DAILY_BUDGET_USD", "-1", "must be from 0 to 1,000,000"),
    ("DELEGATE_DAILY_BUDGET_USD", "nan", "must be from 0 to 1,000,000"),
    ("DELEGATE_HEARTBEAT", "0", "must be a positive number of seconds"),
    ("DELEGATE_LEASE", "1e999", "must be a positive number of seconds"),
    ("DELEGATE_RECLAIM_AFTER", "nan", "must be a positive number of seconds"),
    ("DELEGATE_RETENTION_DAYS", "0", "must be from 1 to 36,500"),
    ("DELEGATE_RETENTION_BYTES", "1", "must be from 1,048,576"),
    ("DELEGATE_DATABASE_URL", "mysql://host/db", "must be a URL that starts with postgresql://"),
    ("DELEGATE_DATABASE_URL", "/var/lib/delegate.db", "must be a URL that starts with postgresql://"),
]


def test_without_any_variable_everything_has_a_default_that_works() -> None:
    settings = load({})

    assert settings.home == Path.home() / ".delegate"
    assert (settings.task_timeout_ms, settings.max_output_buffer) == (30 * 60_000, 10 * MIB)
    assert (settings.heartbeat, settings.lease) == (timedelta(seconds=30), timedelta(seconds=120))
    assert settings.reclaim_after == timedelta(minutes=10)
    assert (settings.daily_budget_usd, settings.is_local) == (None, True)


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("1500", 1500), ("90s", 90_000), (" 30M ", 1_800_000), ("2h", 7_200_000)]
)
def test_a_duration_is_milliseconds_or_has_a_unit(text: str, milliseconds: int) -> None:
    assert load({"TASK_TIMEOUT": text}).task_timeout_ms == milliseconds


@pytest.mark.parametrize(("variable", "value", "why"), BAD)
def test_a_bad_value_is_refused_with_its_name_and_what_it_may_be(variable: str, value: str, why: str) -> None:
    with pytest.raises(BadSetting) as caught:
        load({variable: value})

    assert caught.value.message.startswith(f"{variable}={value}: {why}")
    assert caught.value.hint.startswith(f"{variable}: ")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "variable", [name for entry in fields(Settings) for name in setting_spec(entry.name).variables]
)
def test_an_empty_variable_counts_as_not_set(variable: str) -> None:
    assert load({variable: ""}) == load({})


def test_the_name_of_our_own_wins_over_the_general_one() -> None:
    assert load({"TASK_TIMEOUT": "1m", "DELEGATE_TASK_TIMEOUT": "2m"}).task_timeout_ms == 120_000
    assert load({"TASK_TIMEOUT": "1m", "DELEGATE_TASK_TIMEOUT": ""}).task_timeout_ms == 60_000


def test_the_home_is_an_absolute_path_whatever_was_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    assert load({"DELEGATE_HOME": "here"}).home == tmp_path / "here"
    assert load({"DELEGATE_HOME": "~/there"}).home == Path.home() / "there"


@pytest.mark.parametrize(
    ("heartbeat", "lease", "reclaim"), [("30", "30", "60"), ("10", "61", "60"), ("200", "120", "600")]
)
def test_heartbeat_lease_and_reclaim_must_fit_together(heartbeat: str, lease: str, reclaim: str) -> None:
    environ = {"DELEGATE_HEARTBEAT": heartbeat, "DELEGATE_LEASE": lease, "DELEGATE_RECLAIM_AFTER": reclaim}

    with pytest.raises(BadSetting, match="must be longer than DELEGATE_HEARTBEAT") as caught:
        load(environ)

    assert caught.value.hint.startswith("to shorten, set heartbeat first")


def test_a_password_in_a_refused_address_is_not_repeated() -> None:
    with pytest.raises(BadSetting) as caught:
        load({"DELEGATE_DATABASE_URL": "mysql://me:hunter2@!@host/db"})

    assert (
        caught.value.message == "DELEGATE_DATABASE_URL=mysql://…@host/db: must be a URL that starts with postgresql://"
    )


# The file.

NO_SUCH = "there is no such setting"
BAD_FILES: list[tuple[str, bytes, str, str]] = [
    ("not UTF-8", b'log_level = "info"\nclaude_command = "\xff"\n', ", line 2: is not UTF-8", "fix or remove"),
    ("not TOML", b"log_level: info\n", ": is not valid TOML: ", "fix or remove"),
    ("twice the same key", b"lease = 1\nlease = 2\n", ": is not valid TOML: ", "fix or remove"),
    ("nested too deeply", b"lease = " + b"[" * 5_000, ": is nested too deeply", "fix or remove"),
    ("too large", b"#" * 70_000, ": is larger than 64 KiB", "fix or remove"),
    ("an unknown key", b"\ncpu_treshold = 90\n", f", line 2: cpu_treshold: {NO_SUCH}", "did you mean cpu_threshold?"),
    ("the name of a variable", b"MEMORY_RESERVE = 1\n", f": {NO_SUCH}", "did you mean memory_reserve?"),
    ("nothing like a setting", b"colour = 1\n", f": {NO_SUCH}", "`delegate config show` lists all settings"),
    ("a table", b"[pool]\nlease = 5\n", f", line 1: pool: {NO_SUCH}", "`delegate config show` lists all settings"),
    (
        "a truth for a number",
        b"cpu_threshold = true\n",
        "cpu_threshold: must be from 1 to 100",
        "cpu_threshold: percent",
    ),
    ("a list for a number", b"cpu_threshold = [1]\n", "cpu_threshold: must be from 1 to 100", "cpu_threshold: percent"),
    ("a number for text", b"log_level = 5\n", "must be debug, info, warn or error, in quotes", "log_level: how much"),
    ("a moment", b"lease = 2026-01-01\n", "lease: must be a positive number of seconds", "lease: silence"),
    ("out of range", b"# mine\n\tcpu_threshold = 900\n", ", line 2: cpu_threshold: must be from 1 to 100", "percent"),
    ("not a number", b"lease = nan\n", "lease: must be a positive number of seconds", "lease: silence"),
    ("the home", b'home = "/tmp"\n', "cannot set it; use DELEGATE_HOME", "home: where"),
]


def written(home: Path, text: str | bytes, mode: int = 0o600) -> dict[str, str]:
    """The environment of a home with this file."""
    file = home / "config.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    file.chmod(mode)
    return {"DELEGATE_HOME": str(home)}


def test_the_file_decides_what_no_variable_does(tmp_path: Path) -> None:
    environ = written(
        tmp_path,
        """
        # tabs and comments are fine
        \tcpu_threshold = 60
        task_timeout_ms = "2h"
        lease = 90.5
        memory_reserve = 2_000_000_000
        max_runners = "auto"
        acp_agents = ["gemini --acp", "goose acp"]
        "log_level" = "DEBUG"
        gh_command = ""
        """,
    )

    settings = load({**environ, "CPU_THRESHOLD": "70", "DELEGATE_LOG_LEVEL": ""})

    assert (settings.cpu_threshold, settings.log_level, settings.gh_command) == (70, "debug", "gh")
    assert (settings.task_timeout_ms, settings.lease, settings.max_runners) == (
        7_200_000,
        timedelta(seconds=90.5),
        None,
    )
    assert (settings.memory_reserve, settings.acp_agents) == (2_000_000_000, ("gemini --acp", "goose acp"))
    assert settings.home == tmp_path


@pytest.mark.parametrize("text", [b"", b"\n", b"# nothing yet\n", b"\xef\xbb\xbf# from an editor\r\n"])
def test_an_empty_file_decides_nothing(tmp_path: Path, text: bytes) -> None:
    assert load(written(tmp_path, text)) == replace(load({}), home=tmp_path)


@pytest.mark.parametrize(
    ("text", "message", "hint"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES]
)
def test_a_file_with_a_mistake_is_refused_with_its_line_and_what_was_meant(
    tmp_path: Path, text: bytes, message: str, hint: str
) -> None:
    with pytest.raises(BadSettingsFile) as caught:
        load(written(tmp_path, text))

    assert caught.value.message.startswith(f"{tmp_path / 'config.toml'}")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert (caught.value.code, caught.value.exit_code) == ("bad_setting", 3)


def test_what_is_not_a_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "config.toml"
    place.mkdir()
    with pytest.raises(BadSettingsFile, match="is not a regular file"):
        load({"DELEGATE_HOME": str(tmp_path)})

    place.rmdir()
    os.mkfifo(place)
    with pytest.raises(BadSettingsFile, match="is not a regular file"):
        load({"DELEGATE_HOME": str(tmp_path)})


def test_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    environ = written(tmp_path, "")
    os.truncate(tmp_path / "config.toml", 1 << 30)

    with pytest.raises(BadSettingsFile, match="is larger than 64 KiB"):
        load(environ)


@pytest.mark.parametrize("secret", ['token = "t"', 'database_url = "postgresql://me:hunter2@host/db"'])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, secret: str, mode: int) -> None:
    with pytest.raises(LoosePermissions, match=r"config.toml can be read by other users"):
        load(written(tmp_path, secret, mode))

    assert load(written(tmp_path, secret)).is_local
    assert load(written(tmp_path, "cpu_threshold = 50", mode)).cpu_threshold == 50


def test_a_secret_in_a_file_is_not_repeated_by_a_message(tmp_path: Path) -> None:
    for text in ('tokn = "hunter2"', 'database_url = "mysql://me:hunter2@host/db"', "token = [1, 'hunter2']"):
        with pytest.raises(BadSettingsFile) as caught:
            load(written(tmp_path, text))

        assert "hunter2" not in caught.value.message + caught.value.hint


def test_every_setting_says_what_it_may_be() -> None:
    ranges = {entry.name: setting_spec(entry.name).range for entry in fields(Settings)}

    assert "" not in ranges.values()
    assert (ranges["cpu_threshold"], ranges["log_level"]) == ("from 1 to 100", "debug, info, warn or error")


def test_a_key_is_its_variable_in_small_letters() -> None:
    """As docs/configuration.md says."""
    keys = {
        entry.name: setting_spec(entry.name).variables[0].removeprefix("DELEGATE_").lower()
        for entry in fields(Settings)
    }

    assert {name: key for name, key in keys.items() if name != key} == {"task_timeout_ms": "task_timeout"}
