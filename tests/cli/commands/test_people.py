"""A team from the command line: users, tokens, login, and who did what."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.relay.peers import TOKEN, RelayProcess, running_relay

from delegate.cli.main import main
from delegate.model import TOKEN_DAYS_MAX


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with running_relay(tmp_path_factory.mktemp("relay")) as started:
        yield started


class Desk:
    """A machine whose user types commands."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self._patch, self._capsys = home, monkeypatch, capsys

    def run(self, *words: str, stdin: str = "", **environ: str) -> tuple[int, str, str]:
        with self._patch.context() as patch:
            for name in [name for name in os.environ if name.startswith("DELEGATE_")]:
                patch.delenv(name)
            for name, value in {"DELEGATE_HOME": str(self.home), "COLUMNS": "160", **environ}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            code = main(words)
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def ok(self, *words: str, stdin: str = "", **environ: str) -> str:
        code, out, err = self.run(*words, stdin=stdin, **environ)
        assert code == 0, err
        return out


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path / "home", monkeypatch, capsys)


@pytest.fixture
def as_owner(relay: RelayProcess) -> dict[str, str]:
    return {"DELEGATE_RELAY_URL": relay.url, "DELEGATE_TOKEN": TOKEN}


def test_a_person_is_added_logs_in_works_and_is_named(
    relay: RelayProcess, desk: Desk, as_owner: dict[str, str]
) -> None:
    token = desk.ok("user", "add", "marek", "--role", "admin", **as_owner).strip()
    assert re.fullmatch(r"dlg_[A-Za-z0-9_-]{43}", token)

    assert desk.ok("login", relay.url, stdin=f"{token}\n") == f"logged in to {relay.url} as marek (admin)\n"
    file = desk.home / "config.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    who = desk.ok("whoami")
    submitted = desk.ok("run", "-a", "shell", "true").strip()
    desk.ok("cancel", submitted, "wrong branch")
    page = desk.ok("status", submitted)
    listed = [json.loads(line) for line in desk.ok("audit", "--json").splitlines()]
    assert who.startswith(f"marek (admin) at {relay.url}, token first of marek ends ")
    assert "submitted by marek" in page
    assert "cancel requested by marek: wrong branch" in page
    mine = [(one["actor"], one["action"]) for one in listed if one["subject"] == submitted]
    assert mine == [("marek", "cancel"), ("marek", "submit")]
    assert submitted in desk.ok("audit", "--limit", "5")

    code, out, err = desk.run("purge", submitted)
    assert (code, out) == (0, f"{submitted} purged\n"), err
    assert desk.ok("logout") == "logged out\n"
    assert token not in file.read_text()
    assert desk.ok("logout") == "you were not logged in\n"


def test_tokens_are_created_listed_and_revoked(desk: Desk, as_owner: dict[str, str]) -> None:
    desk.ok("user", "add", "ana", "--email", "ana@example.com", **as_owner)
    made = json.loads(desk.ok("token", "create", "ci", "--user", "ana", "--no-expiry", "--json", **as_owner))

    listed = desk.ok("token", "list", "--user", "ana", **as_owner)
    assert desk.ok("token", "revoke", made["tokenId"], **as_owner) == f"{made['tokenId']} revoked\n"
    code, _, err = desk.run("whoami", **{**as_owner, "DELEGATE_TOKEN": made["token"]})

    row = next(line for line in listed.splitlines() if made["tokenId"] in line)
    assert row.split() == [made["tokenId"], "valid", "ana", f"{made['token'][:10]}…", "never", "never", "ci"]
    assert (code, err.splitlines()[0]) == (4, "delegate: the relay does not accept this token")
    assert "delegate login URL" in err


def test_a_user_is_disabled_enabled_and_given_another_role(desk: Desk, as_owner: dict[str, str]) -> None:
    token = desk.ok("user", "add", "eve", **as_owner).strip()
    as_eve = {**as_owner, "DELEGATE_TOKEN": token}

    desk.ok("schedule", "create", "-a", "shell", "--cron", "0 0 29 2 *", "--", "true", **as_eve)
    code, out, err = desk.run("user", "disable", "eve", **as_owner)
    assert (code, out) == (0, "eve disabled\n")
    assert err == "schedules that start nothing: 1; `delegate schedule cancel ID` ends one\n"
    assert desk.run("status", **as_eve)[0] == 4
    assert desk.ok("user", "enable", "eve", **as_owner) == "eve member\n"
    assert desk.ok("user", "role", "eve", "viewer", **as_owner) == "eve viewer\n"
    code, _, err = desk.run("run", "-a", "shell", "true", **as_eve)
    assert (code, err.splitlines()[0]) == (
        4,
        "delegate: this token does not give access to this; it is for members and admins",
    )
    assert re.search(r"^eve +viewer", desk.ok("user", "list", **as_owner), re.MULTILINE)


def test_a_login_that_the_relay_refuses_stores_nothing(relay: RelayProcess, desk: Desk) -> None:
    code, _, err = desk.run("login", relay.url, stdin="dlg_wrong\n")

    assert (code, err.splitlines()[0]) == (4, "delegate: the relay does not accept this token")
    assert not (desk.home / "config.toml").exists()
    assert desk.run("login", "http://relay.example.com", stdin="dlg_x\n")[0] == 2
    assert desk.run("login", relay.url, stdin="two words\n")[0] == 2


def test_the_longest_life_of_a_token_is_that_of_the_relay(desk: Desk, as_owner: dict[str, str]) -> None:
    code, _, err = desk.run("token", "create", "x", "--days", str(TOKEN_DAYS_MAX + 1), **as_owner)

    assert code == 2
    assert f"{TOKEN_DAYS_MAX:,}" in err
