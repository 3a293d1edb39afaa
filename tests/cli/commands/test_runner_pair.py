"""`delegate runner pair` against a relay that answers what a test tells it to."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from tests.cli.scripted_relay import Asked, ScriptedRelay, answer, problem

from delegate import __version__
from delegate.cli.main import main
from delegate.config.home_files import machine_id
from delegate.config.pairing import read_pairing
from delegate.config.paths import Home

TOKEN = "drs_pair_0123456789"
PAIRED = {
    "runnerId": "runner-1",
    "name": "studio",
    "token": "drs_secret",
    "pairedBy": "marek",
    "relayVersion": __version__,
}
Pair = Callable[..., tuple[int, list[Asked]]]


def health(version: str = __version__, at: datetime | None = None) -> bytes:
    body = json.dumps({"status": "ok", "version": version}).encode()
    date = format_datetime(at or datetime.now(UTC), usegmt=True)
    return f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").profile("default")


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pair:
    """The command on a machine whose service manager is a program that succeeds; nothing is started."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("systemctl", "loginctl"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $@" >> {tmp_path}/managed\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("DELEGATE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def pair(answers: list[bytes], *words: str, token: str = TOKEN) -> tuple[int, list[Asked]]:
        with ScriptedRelay(answers) as relay:
            given = ("--relay-url", relay.url, "--pairing-token", token, "--install-service")
            return main(("runner", "pair", *given, *words)), relay.asked

    return pair


def test_pairing_stores_the_token_privately_and_writes_a_narrow_policy(
    pair: Pair, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    code, asked = pair([health(), answer(PAIRED, "201 Created")], "--repository", "git@github.com:Acme/Shop.git")

    assert code == 0
    assert asked[1].line == "POST /api/runners/pair HTTP/1.1"
    assert asked[1].headers["authorization"] == f"Bearer {TOKEN}"
    sent = json.loads(asked[1].body)
    assert sent["machine"] == machine_id(home)
    assert sent["version"] == __version__
    assert sent["policy"] == {
        "repositories": ["github.com/acme/shop"],
        "directories": [],
        "agents": ["claude", "codex"],
        "acceptFrom": ["me"],
        "inPlace": False,
        "shell": False,
    }
    assert {"os", "architecture", "agents", "slots"} <= set(sent)
    assert read_pairing(home).token == "drs_secret"
    assert stat.S_IMODE(home.pairing.stat().st_mode) == 0o600
    shown = capsys.readouterr().out
    assert "paired as studio" in shown
    assert 'repositories = ["github.com/acme/shop"]' in shown
    assert 'accept_from = ["me"]' in shown
    assert "drs_secret" not in shown


def test_without_a_repository_the_command_says_what_to_add(
    pair: Pair, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = pair([health(), answer(PAIRED, "201 Created")])

    assert code == 0
    assert f'add one to {home.policy}: repositories = ["github.com/acme/shop"]' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        (("410 Gone", "pairing_token_used"), "this pairing token was already used"),
        (("410 Gone", "pairing_token_expired"), "this pairing token has expired: it is valid for 15 minutes"),
        (("401 Unauthorized", "unauthenticated"), "it is incomplete, or from another relay"),
        (("409 Conflict", "version_mismatch"), "told by the relay"),
    ],
)
def test_a_token_that_is_refused_is_explained_in_one_line(
    pair: Pair, home: Home, capsys: pytest.CaptureFixture[str], refusal: tuple[str, str], line: str
) -> None:
    code, _ = pair([health(), problem(*refusal, "told by the relay")])

    assert code in {4, 5}
    error = capsys.readouterr().err
    assert line in error.splitlines()[0]
    assert not home.pairing.exists()


def test_a_server_that_is_no_relay_is_told_apart(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert pair([b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope"])[0] == 6
    assert pair([answer({"status": "ok"})])[0] == 6
    lines = capsys.readouterr().err.splitlines()

    assert ["not a Delegate relay" in line for line in lines if line.startswith("delegate:")] == [True, True]


def test_an_unknown_host_is_told_at_once(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(("runner", "pair", "--relay-url", "https://relay.invalid", "--pairing-token", TOKEN))

    assert code == 6
    assert "there is no such host" in capsys.readouterr().err


def test_plain_http_to_another_machine_is_refused(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(("runner", "pair", "--relay-url", "http://relay.example", "--pairing-token", TOKEN))

    assert code == 2
    assert "plain http would expose the token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--privacy", "none"), "--privacy: must be one of minimal, summary, full"),
        (("--accept-from", "all"), "--accept-from: must be one of me, members, linear, schedules"),
        (("--runners", "0"), "--runners: must be at least 1"),
        (("--profile", "../x"), "profile: must be 1 to 40 letters"),
        (("--ca-file", "/missing.pem"), "--ca-file: /missing.pem does not exist"),
    ],
)
def test_a_wrong_option_is_refused_before_the_token_is_used(
    pair: Pair, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
) -> None:
    code, asked = pair([], *words)

    assert (code, asked) == (2, [])
    assert line in capsys.readouterr().err


def test_a_clock_that_differs_is_told(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = pair([health(at=datetime.now(UTC) + timedelta(hours=3, minutes=1)), answer(PAIRED, "201 Created")])

    assert code == 0
    assert "this machine's clock is 3h" in capsys.readouterr().err


def test_a_paired_profile_is_not_paired_again(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair([health(), answer(PAIRED, "201 Created")])
    code, asked = pair([])

    assert (code, asked) == (5, [])
    assert "profile default is already paired: it is studio at http://127.0.0.1:" in capsys.readouterr().err


def test_pairing_again_after_a_revocation_keeps_the_former_policy(pair: Pair, home: Home) -> None:
    pair([health(), answer(PAIRED, "201 Created")], "--all-repositories")
    state = {"pid": 1, "since": "", "slots": 1, "tasks": [], "problem": "revoked", "hint": "", "draining": False}
    home.runner_state.write_text(json.dumps({**state, "code": "runner_revoked"}))
    code, _ = pair([health(), answer({**PAIRED, "token": "drs_new"}, "201 Created")])

    assert code == 0
    assert read_pairing(home).token == "drs_new"
    assert 'repositories = "*"' in home.policy.with_name("policy.toml.1").read_text()
    assert "repositories = []" in home.policy.read_text()


def test_a_copied_home_gets_a_machine_id_of_its_own_when_it_is_paired(pair: Pair, home: Home) -> None:
    pair([health(), answer(PAIRED, "201 Created")])
    before = machine_id(home)
    state = {"pid": 1, "since": "", "slots": 1, "tasks": [], "problem": "copy", "hint": "", "draining": False}
    home.runner_state.write_text(json.dumps({**state, "code": "runner_in_use"}))
    _, asked = pair([health(), answer(PAIRED, "201 Created")])

    assert json.loads(asked[1].body)["machine"] == machine_id(home) != before


def test_the_service_starts_with_the_machine(pair: Pair, tmp_path: Path) -> None:
    pair([health(), answer(PAIRED, "201 Created")], "--profile", "second")

    assert (tmp_path / "managed").read_text().splitlines() == [
        "systemctl --user daemon-reload",
        "systemctl --user enable --now delegate-runner-second.service",
        "loginctl enable-linger",
    ]
    unit = tmp_path / ".config" / "systemd" / "user" / "delegate-runner-second.service"
    assert "--foreground" in unit.read_text()


def test_a_working_keyring_holds_the_token_instead_of_the_file(
    pair: Pair, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service may start before anybody has logged in and opened the keyring: it uses the file."""
    package = tmp_path / "packages" / "keyring.py"
    package.parent.mkdir()
    package.write_text(
        "from pathlib import Path\n"
        "def set_password(service, name, value): Path(__file__).with_name(f'{service}-{name}').write_text(value)\n"
        "def get_password(service, name): return Path(__file__).with_name(f'{service}-{name}').read_text()\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    with ScriptedRelay([health(), answer(PAIRED, "201 Created")]) as relay:
        words = ("--relay-url", relay.url, "--pairing-token", TOKEN, "--json")
        assert main(("runner", "pair", *words)) == 0
    main(("runner", "stop", "--now"))

    assert "drs_secret" not in home.pairing.read_text()
    assert read_pairing(home).token == "drs_secret"


def test_on_a_terminal_the_command_asks_for_repositories(pair: Pair, home: Home, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with ScriptedRelay([health(), answer(PAIRED, "201 Created")]) as relay:
        words = ("runner", "pair", "--relay-url", relay.url, "--pairing-token", TOKEN, "--install-service")
        asking = subprocess.Popen(
            [sys.executable, "-m", "delegate", *words], stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs
        )
        os.close(theirs)
        os.write(ours, b"acme/shop acme/web\n")
        assert asking.wait(30) == 0
    os.close(ours)

    assert 'repositories = ["github.com/acme/shop", "github.com/acme/web"]' in home.policy.read_text()


def test_a_relay_that_does_not_answer_is_told(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    code = main(("runner", "pair", "--relay-url", url, "--pairing-token", TOKEN))

    assert code == 6
    assert f"cannot reach the relay at {url}: connection refused" in capsys.readouterr().err
