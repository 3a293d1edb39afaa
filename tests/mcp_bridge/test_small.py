"""The bridge finds the relay as everybody else does, with a quarter of the modules, and speaks only the protocol."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.certificates import Authority
from tests.mcp_bridge.conversation import bridge
from tests.mcp_bridge.scripted_mcp import ScriptedMcp, kept_home

from delegate.config import home_files
from delegate.config.paths import Home
from delegate.config.settings import load
from delegate.mcp_bridge import endpoint
from delegate.mcp_bridge.stdio import LINE_MAX
from delegate.wire.basics import BODY_MAX

HEAVY = {
    "asyncio", "click", "dataclasses", "email", "http", "inspect", "logging", "pathlib", "ssl", "subprocess",
    "tempfile", "threading", "tomllib", "typing", "urllib",
}  # fmt: skip


def test_it_loads_next_to_nothing() -> None:
    program = "import sys, delegate.entry, delegate.mcp_bridge.run; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-S", "-c", program], env=_path(), capture_output=True, check=True)

    names = {name.partition(".")[0] for name in loaded.stdout.decode().split()}
    assert names & HEAVY == set()
    assert {name for name in loaded.stdout.decode().split() if name.startswith("delegate")} <= {
        "delegate",
        "delegate.entry",
        "delegate.mcp_bridge",
        "delegate.client",
        "delegate.client.http_response",
        *(f"delegate.mcp_bridge.{path.stem}" for path in Path(endpoint.__file__).parent.glob("*.py")),
    }


def _path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(endpoint.__file__).parents[2])}


def test_it_takes_every_message_that_the_relay_takes() -> None:
    assert LINE_MAX > BODY_MAX


@pytest.mark.parametrize("given", ["", "own", "~/own", "../own", "own/"])
def test_it_knows_the_same_home_as_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {"DELEGATE_HOME": given}

    assert endpoint.home_of(environ) == str(load(environ).home)


def test_it_reads_the_home_as_everybody_else_does(tmp_path: Path) -> None:
    with kept_home(tmp_path, 4321):
        found = endpoint.find_local_endpoint({"DELEGATE_HOME": str(tmp_path)})
        address = home_files.live_address(Home(tmp_path))

    assert found is not None
    assert address is not None
    assert (found.port, found.token) == (address.port, home_files.read_token(Home(tmp_path)))
    assert found.machine == home_files.machine_id(Home(tmp_path))


def test_the_address_of_a_dead_keeper_and_a_token_that_others_can_read_are_nothing(tmp_path: Path) -> None:
    environ = {"DELEGATE_HOME": str(tmp_path)}
    with kept_home(tmp_path, 4321):
        (tmp_path / "token").chmod(0o644)
        assert endpoint.find_local_endpoint(environ) is None
        (tmp_path / "token").chmod(0o600)
        assert endpoint.find_local_endpoint(environ) is not None

    assert endpoint.find_local_endpoint(environ) is None


@pytest.mark.parametrize(("words", "environment"), [((), {}), (("-v",), {}), ((), {"DELEGATE_LOG_LEVEL": "debug"})])
def test_it_tells_of_its_troubles_only_when_asked(
    tmp_path: Path, words: tuple[str, ...], environment: dict[str, Any]
) -> None:
    with kept_home(tmp_path / "home", 1) as kept, bridge(kept, *words, **environment) as client:
        client.send({"method": "notifications/initialized"})
        assert client.close() == 0
        assert client.process.stderr is not None
        said = client.process.stderr.read().decode()

    assert ("delegate mcp: relay not reachable why=connection refused" in said) == bool(words or environment)


@pytest.mark.parametrize("in_file", [False, True])
def test_a_relay_elsewhere_is_reached_with_its_own_token_over_tls(tmp_path: Path, in_file: bool) -> None:
    context, authority = _certified(tmp_path)
    script = ScriptedMcp(streams=True)
    with script.serving(context):
        url = f"https://localhost:{script.port}"
        environment: dict[str, Any] = {"DELEGATE_TOKEN": "given", "SSL_CERT_FILE": str(authority)}
        (tmp_path / "home").mkdir()
        if in_file:
            (tmp_path / "home" / "config.toml").write_text(f'relay_url = "{url}"\n')
        else:
            environment["DELEGATE_RELAY_URL"] = url
        with bridge(tmp_path / "home", **environment) as client:
            client.handshake()
            assert client.tool("One", text="x" * 300_000)["result"]["called"] == "One"
            assert client.close() == 0

    assert {one.headers["authorization"] for one in script.asked} == {"Bearer given"}
    assert {one.headers["host"] for one in script.asked} == {f"localhost:{script.port}"}
    assert "DELETE" in {one.method for one in script.asked}


def test_a_relay_with_a_certificate_of_its_own_making_is_not_trusted(tmp_path: Path) -> None:
    context, _ = _certified(tmp_path)
    script = ScriptedMcp()
    with script.serving(context):
        environment: dict[str, Any] = {
            "DELEGATE_RELAY_URL": f"https://localhost:{script.port}",
            "DELEGATE_TOKEN": "given",
        }
        with bridge(tmp_path / "home", **environment) as client:
            error = client.call("initialize", {})["error"]

    assert "certificate of localhost is not trusted" in error["message"]
    assert script.asked == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "connection refused"),
        ("http://relay.example", "must be https"),
        ("nonsense", "must look"),
    ],
)
def test_a_relay_that_cannot_be_is_explained_to_the_client(tmp_path: Path, url: str, said: str) -> None:
    with bridge(tmp_path, DELEGATE_RELAY_URL=url, DELEGATE_TOKEN="given") as client:
        error = client.call("initialize", {})["error"]

    assert error["code"] == -32000
    assert said in error["message"]


def _certified(place: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context for localhost, and the file of the authority that vouches for it."""
    authority = Authority(place)
    return authority.issue("localhost", "127.0.0.1").context(), authority.file
