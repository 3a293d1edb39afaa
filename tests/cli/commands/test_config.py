"""`delegate config`: what counts and why, and a file that stays the user's own."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.world import PATIENCE

from delegate.cli.main import main
from delegate.config import home_files as homes
from delegate.config.paths import Home
from delegate.config.settings import Settings, load

OURS = """\
# of this machine

cpu_threshold = 60  # it is small
task_timeout_ms = "2h"
"""


class Desk:
    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self._capsys = home, capsys

    @property
    def file(self) -> Path:
        return self.home / "config.toml"

    def run(self, *words: str) -> tuple[int, str, str]:
        code = main(["config", *words])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def said(self) -> str:
        """Since the last call."""
        return "".join(self._capsys.readouterr())

    def ok(self, *words: str) -> str:
        code, out, err = self.run(*words)
        assert (code, err) == (0, "")
        return out

    def shown(self, key: str) -> dict[str, Any]:
        return dict(json.loads(self.ok("show", key, "--json")))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    for name in [name for name in os.environ if name.startswith("DELEGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DELEGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "300")
    return Desk(tmp_path / "home", capsys)


def write(desk: Desk, text: str) -> None:
    homes.make_directory(desk.home)
    homes.write_private(desk.file, text)


def test_each_value_is_shown_with_its_origin_and_its_range(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    write(desk, OURS + "memory_reserve = 0\n")
    monkeypatch.setenv("MEMORY_RESERVE", "5")

    lines = desk.ok("show").splitlines()

    assert lines[0].split() == ["SETTING", "VALUE", "FROM", "RANGE"]
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in lines[1:]}
    assert set(rows) == set(Settings.__slots__)
    assert rows["cpu_threshold"] == ["60", "file", "from 1 to 100"]
    assert rows["memory_reserve"] == ["5", "MEMORY_RESERVE", "from 0 to 1,125,899,906,842,624"]
    assert rows["daily_budget_usd"] == ["none", "default", "from 0 to 1,000,000"]
    assert rows["max_runners"] == ["auto", "default", "auto or a number from 0 to 256"]


def test_as_json_each_setting_is_a_line(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    write(desk, OURS)
    monkeypatch.setenv("CPU_THRESHOLD", "70")

    lines = [json.loads(line) for line in desk.ok("show", "--json").splitlines()]

    assert {line["key"] for line in lines} == set(Settings.__slots__)
    assert desk.shown("cpu_threshold") == {
        "key": "cpu_threshold",
        "value": 70,
        "from": "variable",
        "variable": "CPU_THRESHOLD",
        "variables": ["DELEGATE_CPU_THRESHOLD", "CPU_THRESHOLD"],
        "range": "from 1 to 100",
        "help": "percent of the machine's CPU above which the pool starts no more tasks",
        "counts": "now",
        "running": None,
    }
    assert (desk.shown("task_timeout_ms")["value"], desk.shown("task_timeout_ms")["from"]) == (7_200_000, "file")


def test_secrets_are_not_shown(desk: Desk) -> None:
    write(desk, 'token = "hunter2"\ndatabase_url = "postgresql://me:hunter2@host/db"\n')

    shown = desk.ok("show") + desk.ok("show", "--json") + desk.ok("set", "token", "hunter22", "--json")

    assert "hunter2" not in shown
    assert "postgresql://…@host/db" in shown


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://host/db?user=me&password=hunter2", "postgresql://host/db?user=me&password=…"),
        ("postgresql://host/db?sslPassword=hunter2&user=me", "postgresql://host/db?sslPassword=…&user=me"),
        ("postgresql://me:hun/hunter2@host/db", "postgresql://…@host/db"),
    ],
)
def test_a_password_is_not_shown_wherever_it_stands_in_an_address(desk: Desk, address: str, shown: str) -> None:
    write(desk, f'database_url = "{address}"\n')

    assert desk.shown("database_url")["value"] == shown

    desk.file.chmod(0o644)
    code, out, err = desk.run("show")
    assert (code, out) == (3, "")
    assert "can be read by other users" in err


def test_a_login_is_refused_in_the_address_of_a_relay_and_not_repeated(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = "must not contain a login; put the relay's token in DELEGATE_TOKEN"

    for address in (
        "https://me:hunter2@relay.example",
        "me:hunter2@relay.example",
        "https://relay.example?token=hunter2",
    ):
        code, out, err = desk.run("set", "relay_url", address)
        assert (code, out, desk.file.exists()) == (3, "", False)
        assert advice in err
        assert "hunter2" not in err
    monkeypatch.setenv("DELEGATE_RELAY_URL", "https://me:hun/hunter2@relay.example")
    for command in (["status"], ["mcp", "config"]):
        assert main(command) == 3
        said = desk.said()
        assert advice in said
        assert "hunter2" not in said


def test_an_address_that_no_client_would_use_is_refused_when_it_is_set_and_where_it_is_found(desk: Desk) -> None:
    code, out, err = desk.run("set", "relay_url", "http://relay.example")
    assert (code, out, desk.file.exists()) == (3, "", False)
    assert err.startswith("delegate: relay_url=http://relay.example: must be https")

    write(desk, 'relay_url = "http://relay.example"\n')
    assert main(["status"]) == 3
    assert desk.said().startswith(f"delegate: {desk.file}, line 1: relay_url: must be https")
    desk.ok("set", "relay_url", "--unset")


def test_settings_that_belong_together_are_set_in_the_order_that_the_error_names(desk: Desk) -> None:
    code, _, err = desk.run("set", "lease", "10")
    assert (code, "to shorten, set heartbeat first, then lease" in err) == (3, True)
    desk.ok("set", "heartbeat", "3")
    desk.ok("set", "lease", "10")

    code, _, err = desk.run("set", "lease", "100000")
    assert (code, "to lengthen, set reclaim_after first, then lease" in err) == (3, True)
    desk.ok("set", "reclaim_after", "100000")
    desk.ok("set", "lease", "100000")


def test_the_home_cannot_be_set_in_the_file(desk: Desk) -> None:
    code, out, err = desk.run("set", "home", "elsewhere")

    assert (code, out, desk.file.exists()) == (3, "", False)
    assert err == (
        "delegate: home=elsewhere: the file is inside the home directory and cannot set it; use DELEGATE_HOME\n"
        "hint: set DELEGATE_HOME in your environment\n"
    )


def test_a_value_can_come_from_standard_input(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, typed, kept in (("token", "hunter2\n", "hunter2"), ("claude_command", " my claude \r\n", " my claude ")):
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(typed.encode())))
        desk.ok("set", key, "-")
        assert getattr(load({"DELEGATE_HOME": str(desk.home)}), key) == kept


@pytest.mark.parametrize(("typed", "said"), [(b"\n", "token: is empty"), (b"\xff", "token: is not UTF-8 text")])
def test_standard_input_that_is_not_a_value_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, typed: bytes, said: str
) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(typed)))

    code, out, err = desk.run("set", "token", "-")

    assert (code, out, desk.file.exists()) == (2, "", False)
    assert said in err


def test_settings_that_are_made_at_the_same_time_are_all_kept(desk: Desk) -> None:
    wanted = {"cpu_threshold": 50, "memory_reserve": 5, "retention_days": 7, "salvage_days": 3, "grace": 4}
    command = [sys.executable, "-m", "delegate", "config", "set"]

    started = [
        subprocess.Popen([*command, key, str(value)], stdout=subprocess.DEVNULL) for key, value in wanted.items()
    ]

    assert [process.wait(PATIENCE) for process in started] == [0] * len(wanted)
    assert {line.split(" = ")[0] for line in desk.file.read_text().splitlines()} == set(wanted)


def test_the_wait_for_a_file_that_another_process_locks_is_limited(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delegate.cli.commands.config.LOCK_TIMEOUT", 0.0)
    lock = homes.acquire_lock(Home(desk.home).config_lock, timeout=1.0)
    assert lock is not None

    code, _, err = desk.run("set", "cpu_threshold", "50")

    os.close(lock)
    assert code == 2
    assert f"another command is writing {desk.file}" in err


def test_a_setting_is_written_among_the_comments_for_this_user_alone(desk: Desk) -> None:
    assert desk.ok("set", "cpu_threshold", "50") == "cpu_threshold = 50 (file)\n"
    assert desk.file.read_text() == "cpu_threshold = 50\n"
    write(desk, OURS)

    for key, value in (("cpu_threshold", "75"), ("lease", "90.5"), ("acp_agents", "gemini --acp, goose")):
        desk.ok("set", key, value)
    desk.ok("set", "task_timeout_ms", "45m")

    changed = OURS.replace("60", "75").replace("2h", "45m")
    assert desk.file.read_text() == changed + 'lease = 90.5\nacp_agents = ["gemini --acp", "goose"]\n'
    assert stat.S_IMODE(desk.file.stat().st_mode) == 0o600
    assert load({"DELEGATE_HOME": str(desk.home)}).acp_agents == ("gemini --acp", "goose")


def test_unset_takes_a_setting_out_and_leaves_the_rest(desk: Desk) -> None:
    write(desk, OURS)

    assert desk.ok("set", "cpu_threshold", "--unset") == "cpu_threshold = 80 (default)\n"
    assert desk.ok("set", "cpu_threshold", "--unset") == "cpu_threshold = 80 (default)\n"
    assert desk.file.read_text() == '# of this machine\n\ntask_timeout_ms = "2h"\n'


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("cpu_treshold", "50"), 3, "cpu_treshold=…: there is no such setting\nhint: did you mean cpu_threshold?"),
        (("CPU_THRESHOLD", "50"), 3, "there is no such setting\nhint: did you mean cpu_threshold?"),
        (("colour", "--unset"), 3, "there is no such setting\nhint: `delegate config show` lists all settings"),
        (("cpu_threshold", "900"), 3, "cpu_threshold=900: must be from 1 to 100\nhint: cpu_threshold: percent"),
        (("cpu_threshold", "-1"), 3, "cpu_threshold=-1: must be from 1 to 100"),
        (("database_url", "mysql://me:hunter2@host/db"), 3, "mysql://…@host/db: must be a URL that starts with"),
        (("home", "/tmp"), 3, "the file is inside the home directory and cannot set it; use DELEGATE_HOME"),
        (("lease", "700"), 3, "DELEGATE_LEASE=700.0: must be longer than DELEGATE_HEARTBEAT and no longer than"),
        (("cpu_threshold",), 2, "either a value or --unset"),
        (("cpu_threshold", ""), 2, "either a value or --unset"),
        (("cpu_threshold", "50", "--unset"), 2, "either a value or --unset"),
    ],
)
def test_what_cannot_be_set_is_refused_and_the_file_stays(
    desk: Desk, words: tuple[str, ...], code: int, said: str
) -> None:
    write(desk, OURS)

    done = desk.run("set", *words)

    assert (done[0], done[1]) == (code, "")
    assert said in done[2]
    assert "hunter2" not in done[2]
    assert desk.file.read_text() == OURS


def test_a_file_with_mistakes_can_be_fixed_one_by_one(desk: Desk) -> None:
    write(desk, "colour = 1\ncpu_threshold = 900\n")
    assert desk.run("show")[0] == 3

    first = desk.run("set", "cpu_threshold", "90")
    second = desk.run("set", "colour", "--unset")

    assert first[0] == 0
    assert "the file still has an error" in first[2]
    assert "line 1: colour: there is no such setting" in first[2]
    assert (second, desk.file.read_text()) == ((0, "", ""), "cpu_threshold = 90\n")


def test_a_file_that_is_not_toml_is_left_for_its_owner_to_fix(desk: Desk) -> None:
    write(desk, "log_level: info\n")

    code, _, err = desk.run("set", "log_level", "debug")

    assert code == 3
    assert f"{desk.file}: is not valid TOML: " in err
    assert desk.file.read_text() == "log_level: info\n"


def test_a_linked_file_stays_a_link(desk: Desk, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.toml"
    kept.write_text(OURS)
    homes.make_directory(desk.home)
    desk.file.symlink_to(kept)

    desk.ok("set", "cpu_threshold", "50")

    assert desk.file.is_symlink()
    assert kept.read_text() == OURS.replace("60", "50")


def test_a_setting_that_is_overridden_elsewhere_is_reported(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_THRESHOLD", "70")

    with relay_up(desk):
        overruled = desk.run("set", "cpu_threshold", "50")
        of_clients = desk.run("set", "relay_url", "https://relay.example")

    assert overruled[1] == "cpu_threshold = 70 (CPU_THRESHOLD)\n"
    assert "CPU_THRESHOLD is set in the environment and overrides the file\n" in overruled[2]
    assert "the relay and its runners read it when they start\nhint: `delegate down` and `delegate up`" in overruled[2]
    assert of_clients[2] == ""


@contextmanager
def relay_up(desk: Desk) -> Iterator[None]:
    """As a keeper marks it."""
    lock = homes.lock_home(Home(desk.home), timeout=1.0)
    homes.write_private(desk.home / "relay.json", homes.new_address(1, 1).as_json())
    yield
    os.close(lock)


def test_the_path_is_printed_whether_the_file_exists_or_not(desk: Desk) -> None:
    assert desk.ok("path") == f"{desk.file}\n"
    assert json.loads(desk.ok("path", "--json")) == {"path": str(desk.file), "exists": False}
    write(desk, "nonsense")
    assert json.loads(desk.ok("path", "--json"))["exists"] is True
