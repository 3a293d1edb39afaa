from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest

from delegate.config import MIB, Settings, load, source_of
from delegate.errors import BadSetting

BAD = [
    ("TASK_TIMEOUT", "0", "must be from 1,000 to 86,400,000"),
    ("TASK_TIMEOUT", "999", "must be from 1,000 to 86,400,000"),
    ("TASK_TIMEOUT", "25h", "must be from 1,000 to 86,400,000"),
    ("TASK_TIMEOUT", "-5m", "a duration is milliseconds, or a number with s, m or h, as in 90s or 30m"),
    ("TASK_TIMEOUT", "30min", "a duration is milliseconds"),
    ("TASK_TIMEOUT", "1.5h", "a duration is milliseconds"),
    ("TASK_TIMEOUT", "soon", "a duration is milliseconds"),
    ("TASK_TIMEOUT", "٣٠m", "a duration is milliseconds"),
    ("MAX_OUTPUT_BUFFER", "1023", "must be from 1,024 to 1,073,741,824"),
    ("MAX_OUTPUT_BUFFER", "10MB", "cannot be read"),
    ("LOG_LEVEL", "loud", "must be debug, info, warn or error"),
    ("DELEGATE_DAILY_BUDGET_USD", "-1", "must be from 0 to 1,000,000"),
    ("DELEGATE_DAILY_BUDGET_USD", "nan", "must be from 0 to 1,000,000"),
    ("DELEGATE_HEARTBEAT", "0", "must be a positive number of seconds"),
    ("DELEGATE_LEASE", "1e999", "must be a positive number of seconds"),
    ("DELEGATE_RECLAIM_AFTER", "nan", "must be a positive number of seconds"),
    ("DELEGATE_RETENTION_DAYS", "0", "must be from 1 to 36,500"),
    ("DELEGATE_RETENTION_BYTES", "1", "must be from 1,048,576"),
    ("DELEGATE_DATABASE_URL", "mysql://host/db", "must begin with postgresql://"),
    ("DELEGATE_DATABASE_URL", "/var/lib/delegate.db", "must begin with postgresql://"),
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


@pytest.mark.parametrize("variable", [name for entry in fields(Settings) for name in source_of(entry.name).variables])
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

    assert caught.value.hint == "set all three, or none"


def test_a_password_in_a_refused_address_is_not_repeated() -> None:
    with pytest.raises(BadSetting) as caught:
        load({"DELEGATE_DATABASE_URL": "mysql://me:hunter2@!@host/db"})

    assert caught.value.message == "DELEGATE_DATABASE_URL=mysql://…@host/db: must begin with postgresql://"
