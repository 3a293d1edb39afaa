"""A home that another user can write to, or could have made, is refused before anything in it is believed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.mcp_bridge.conversation import bridge
from tests.mcp_bridge.scripted_mcp import ScriptedMcp, kept_home

from delegate.config.paths import check_home
from delegate.errors import UnsafeHome
from delegate.mcp_bridge import endpoint

STRANGER = 54_321
only_root_may_chown = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


def chown(path: Path) -> None:
    os.chown(path, STRANGER, -1, follow_symlinks=False)


SPOILED: dict[str, Callable[[Path], object]] = {
    "the home can be written by all": lambda home: home.chmod(0o777),
    "by its group": lambda home: home.chmod(0o770),
    "by all, although sticky": lambda home: home.chmod(0o1777),
    "its parent can be written by all": lambda home: home.parent.chmod(0o777),
    "the parent of its parent": lambda home: home.parent.parent.chmod(0o775),
}
FOREIGN: dict[str, Callable[[Path], object]] = {
    "the home is somebody else's": chown,
    "its parent": lambda home: chown(home.parent),
    "its settings": lambda home: chown(home / "config.toml"),
    "its address": lambda home: chown(home / "relay.json"),
    "its token": lambda home: chown(home / "token"),
    "its lock": lambda home: chown(home / "keeper.lock"),
}
BOTH = [
    *(pytest.param(spoil, id=name) for name, spoil in SPOILED.items()),
    *(pytest.param(spoil, id=name, marks=only_root_may_chown) for name, spoil in FOREIGN.items()),
]


def make_home(tmp_path: Path) -> Path:
    home = tmp_path / "above" / "parent" / "home"
    home.mkdir(parents=True)
    for name in ("config.toml", "relay.json", "token", "keeper.lock"):
        (home / name).touch(0o600)
    return home


@pytest.mark.promise("P20")
@pytest.mark.parametrize("spoil", BOTH)
def test_a_home_that_is_not_the_users_own_is_refused(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    home = make_home(tmp_path)
    check_home(home)
    assert endpoint.is_safe(str(home))

    spoil(home)

    with pytest.raises(UnsafeHome):
        check_home(home)
    assert not endpoint.is_safe(str(home))


def test_a_link_is_as_safe_as_the_way_to_it_and_the_way_behind_it(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    link = tmp_path / "links" / "home"
    link.parent.mkdir()
    link.symlink_to(home)

    check_home(link)
    for way in (link.parent, home.parent):
        way.chmod(0o777)
        with pytest.raises(UnsafeHome) as caught:
            check_home(link)
        assert caught.value.hint == f"run: chmod go-w {way}"
        assert not endpoint.is_safe(str(link))
        way.chmod(0o755)


def test_a_home_that_does_not_exist_yet_needs_parents_that_nobody_else_can_write(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)  # as /tmp is: nobody can replace the files of others
    check_home(shared / "new" / "home")

    shared.chmod(0o777)

    with pytest.raises(UnsafeHome):
        check_home(shared / "new" / "home")


@pytest.mark.promise("P20")
@pytest.mark.parametrize(
    "words",
    [
        ("-m", "delegate", "status"),
        ("-m", "delegate", "up"),
        ("-m", "delegate", "doctor"),
        ("-m", "delegate", "config", "set", "token", "mine"),
        ("-m", "delegate.keeper", "--report-fd", "1"),
        ("-m", "delegate.runner", "--slot", "1", "--relay-url", "http://127.0.0.1:{port}"),
    ],
    ids=" ".join,
)
def test_no_program_sends_the_token_to_a_false_relay_in_a_home_that_all_can_write(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    with ScriptedMcp().serving() as false_relay, kept_home(tmp_path / "home", false_relay.port) as home:
        home.chmod(0o777)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("DELEGATE_")} | {"DELEGATE_HOME": str(home)}
        command = [sys.executable, *(word.format(port=false_relay.port) for word in words)]
        done = subprocess.run(command, env=environ, text=True, capture_output=True, timeout=60, check=False)

        assert f"{home} can be written by other users" in " ".join((done.stdout + done.stderr).split())
        assert done.returncode == (1 if "doctor" in words else 3)
        assert not (home / "config.toml").exists()
    assert false_relay.asked == []


@pytest.mark.promise("P20")
def test_the_bridge_sends_nothing_to_a_false_relay_in_a_home_that_all_can_write(tmp_path: Path) -> None:
    with ScriptedMcp().serving() as false_relay, kept_home(tmp_path / "home", false_relay.port) as home:
        home.chmod(0o777)
        with bridge(home) as client:
            answer = client.call("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}})

        assert f"chmod go-w {home}" in str(answer["error"])
    assert false_relay.asked == []
