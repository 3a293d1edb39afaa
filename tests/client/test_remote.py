"""A relay elsewhere, behind a private authority and a proxy: the commands, the bridge and the runner all reach it, and
say the same when they cannot."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes.certificates import DAY, Authority
from tests.fakes.connect_proxy import ConnectProxy
from tests.mcp_bridge.conversation import bridge

from delegate.client.client import Client
from delegate.client.proxies import Proxy, ProxyRefused, parse_proxy, proxy_for
from delegate.config.settings import load
from delegate.errors import RelayUnreachable
from delegate.runner.upload import relay as runner_link
from delegate.runner.upload.relay import RelayLink, RelayTrust
from delegate.wire.runners import RegisterRequest, RegisterResponse

HOST = "relay.example"
TIMINGS = {"heartbeat": 1, "lease": 2, "reclaimAfter": 3}
REGISTERED = {
    str(field.alias or name): TIMINGS if name == "timings" else f"{name}-1"
    for name, field in RegisterResponse.model_fields.items()
}


class SmallRelay(BaseHTTPRequestHandler):
    """Answers the few calls of these tests."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Tests print nothing."""

    def do_GET(self) -> None:
        self._answer({"version": "0.1.0", "runners": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("/register"):
            self._answer(REGISTERED)
        else:
            result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "small"}}
            self._answer({"jsonrpc": "2.0", "id": body.get("id"), "result": result})

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class SecureServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that refuses the certificate hangs up."""


@contextmanager
def secure_relay(context: ssl.SSLContext) -> Iterator[int]:
    server = SecureServer(("127.0.0.1", 0), SmallRelay)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


# The three kinds of clients. Each returns what it says when it cannot reach the relay; empty if it does.


def by_command(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    try:
        Client(load(environ)).relay()
    except RelayUnreachable as problem:
        return f"{problem.message}; {problem.hint}"
    return ""


def by_bridge(environ: dict[str, str], _: pytest.MonkeyPatch) -> str:
    others: dict[str, Any] = {name: value for name, value in environ.items() if name != "DELEGATE_HOME"}
    with bridge(Path(environ["DELEGATE_HOME"]), **others) as client:
        answer = client.call("initialize", {})
    return str(answer["error"]["message"]) if "error" in answer else ""


def by_runner(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    settings = load(environ)
    who = RegisterRequest(slot="1", name="one", machine="lathe-1", pid=1, version="0.1.0", agents=["shell"])

    async def register() -> None:
        link = RelayLink(
            settings.relay_url,
            lambda: who,
            lambda: "secret",
            RelayTrust(ca_file=settings.ca_file, environ=environ),
        )
        try:
            await link.register()
        finally:
            await link.aclose()

    monkeypatch.setattr(runner_link, "retry_backoff", lambda _: lambda _: False)
    try:
        anyio.run(register)
    except RelayUnreachable as problem:
        return problem.message
    return ""


WAYS: list[Callable[[dict[str, str], pytest.MonkeyPatch], str]] = [by_command, by_bridge, by_runner]
every_way = pytest.mark.parametrize("reach", WAYS, ids=lambda way: way.__name__)
Reach = Callable[[dict[str, str], pytest.MonkeyPatch], str]


@pytest.fixture
def environ(tmp_path: Path, authority: Authority) -> dict[str, str]:
    return {
        "DELEGATE_HOME": str(tmp_path / "home"),
        "DELEGATE_TOKEN": "secret",
        "DELEGATE_CA_FILE": str(authority.file),
    }


@every_way
def test_a_private_authority_is_trusted_when_it_is_named(
    environ: dict[str, str], authority: Authority, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secure_relay(authority.issue("localhost").context()) as port:
        assert reach(environ | {"DELEGATE_RELAY_URL": f"https://localhost:{port}"}, monkeypatch) == ""


@every_way
def test_a_proxy_carries_everything_to_a_relay_elsewhere(
    environ: dict[str, str], authority: Authority, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secure_relay(authority.issue(HOST).context()) as port, ConnectProxy(port) as proxy:
        login = proxy.url.replace("http://", "http://ann:p%40ss@")
        said = reach(environ | {"DELEGATE_RELAY_URL": f"https://{HOST}:4443", "HTTPS_PROXY": login}, monkeypatch)

    assert said == ""
    assert proxy.asked[0].startswith(f"CONNECT {HOST}:4443 HTTP/1.1\r\n")
    expected = "basic " + base64.b64encode(b"ann:p@ss").decode().lower()
    assert f"proxy-authorization: {expected}" in proxy.asked[0].lower()


@every_way
def test_a_relay_on_this_machine_is_reached_without_the_proxy(
    environ: dict[str, str], authority: Authority, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secure_relay(authority.issue("localhost").context()) as port, ConnectProxy(port) as proxy:
        named = {"DELEGATE_RELAY_URL": f"https://localhost:{port}", "HTTPS_PROXY": proxy.url, "ALL_PROXY": proxy.url}
        assert reach(environ | named, monkeypatch) == ""

    assert proxy.asked == []


BAD_CERTIFICATES = {
    "an unknown authority": ("other", {}, "certificate of localhost is not trusted", "DELEGATE_CA_FILE"),
    "another name": ("own", {"names": ("relay.example",)}, "the certificate is not for localhost", "public URL"),
    "an expired one": (
        "own",
        {"valid": (-2 * DAY, timedelta(seconds=-1))},
        "the certificate of localhost has expired",
        "renew it",
    ),
    "one of tomorrow": ("own", {"valid": (DAY, 2 * DAY)}, "the certificate of localhost is not valid yet", "clock"),
}


@every_way
@pytest.mark.parametrize("case", BAD_CERTIFICATES.values(), ids=BAD_CERTIFICATES.keys())
def test_a_certificate_that_is_not_trusted_gives_one_line_with_what_to_do(
    environ: dict[str, str],
    tmp_path: Path,
    authority: Authority,
    reach: Reach,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[str, dict[str, Any], str, str],
) -> None:
    who, given, why, advice = case
    issuer = authority if who == "own" else Authority(tmp_path, "other")
    issued = issuer.issue(*given.get("names", ("localhost",)), valid=given.get("valid", (-DAY, 15 * DAY)))

    with secure_relay(issued.context()) as port:
        said = reach(environ | {"DELEGATE_RELAY_URL": f"https://localhost:{port}"}, monkeypatch)

    assert why in said
    assert advice in said
    assert "\n" not in said


PROXY_ANSWERS = {
    "403 Forbidden": ("refused the connection", "NO_PROXY"),
    "407 Proxy Authentication Required": ("407|wants a login", "HTTPS_PROXY|NO_PROXY"),
    "502 Bad Gateway": ("refused the connection", "NO_PROXY"),
}


@every_way
@pytest.mark.parametrize("status", PROXY_ANSWERS)
def test_a_proxy_that_refuses_gives_one_line_with_what_to_do(
    environ: dict[str, str], reach: Reach, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    with ConnectProxy(status=status) as proxy:
        named = {"DELEGATE_RELAY_URL": f"https://{HOST}", "https_proxy": proxy.url}
        said = reach(environ | named, monkeypatch)

    for wanted in PROXY_ANSWERS[status]:
        assert any(words in said for words in wanted.split("|")), said
    assert "\n" not in said


def test_a_proxy_that_is_not_there_is_named(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with ConnectProxy() as gone:
        url = gone.url

    said = by_command(environ | {"DELEGATE_RELAY_URL": f"https://{HOST}", "HTTPS_PROXY": url}, monkeypatch)

    assert f"the proxy {url.removeprefix('http://')} cannot be reached (connection refused)" in said
    assert "check HTTPS_PROXY" in said


@every_way
@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_bad_file_of_the_authority_is_named(
    environ: dict[str, str], tmp_path: Path, reach: Reach, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)

    with ConnectProxy() as anybody:
        named = {"DELEGATE_RELAY_URL": f"https://localhost:{anybody.port}", "DELEGATE_CA_FILE": str(file)}
        said = reach(environ | named, monkeypatch)

    assert f"DELEGATE_CA_FILE: {file}" in said


def test_a_login_of_the_proxy_is_in_no_message(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with ConnectProxy(status="403 Forbidden") as proxy:
        url = proxy.url.replace("http://", "http://ann:hunter2@")
        said = by_command(environ | {"DELEGATE_RELAY_URL": f"https://{HOST}", "HTTPS_PROXY": url}, monkeypatch)

    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("exceptions", "is_direct"),
    [
        ("", False),
        ("*", True),
        ("relay.example", True),
        (".example", True),
        ("*.example", True),
        ("RELAY.EXAMPLE", True),
        ("example", True),
        ("elay.example", False),
        ("relay.example:443", True),
        ("relay.example:80", False),
        ("other.test, relay.example", True),
        ("10.0.0.0/8 fd00::/8", False),
    ],
)
def test_no_proxy_is_understood_as_curl_does(exceptions: str, is_direct: bool) -> None:
    found = proxy_for(HOST, 443, {"HTTPS_PROXY": "http://proxy.test:3128", "NO_PROXY": exceptions})

    assert (found is None) == is_direct


@pytest.mark.parametrize(("host", "is_direct"), [("10.1.2.3", True), ("11.1.2.3", False), ("fd00::7", True)])
def test_no_proxy_may_name_networks(host: str, is_direct: bool) -> None:
    found = proxy_for(host, 443, {"https_proxy": "proxy.test", "no_proxy": "10.0.0.0/8,fd00::/8"})

    assert (found is None) == is_direct


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_never_goes_through_a_proxy(host: str) -> None:
    assert proxy_for(host, 443, {"HTTPS_PROXY": "http://proxy.test:3128"}) is None


@pytest.mark.parametrize(
    ("url", "name"), [("http://p.test:8080", "p.test:8080"), ("p.test", "p.test:3128"), ("http://p.test", "p.test:80")]
)
def test_the_forms_of_a_proxys_url(url: str, name: str) -> None:
    assert parse_proxy(url).name == name


@pytest.mark.parametrize("url", ["socks5://p.test:1080", "https://p.test", "http://p.test:99999", "http://"])
def test_a_proxy_that_cannot_be_used_is_explained(url: str) -> None:
    with pytest.raises(ProxyRefused, match="HTTPS_PROXY"):
        parse_proxy(url)


def test_an_endless_or_strange_answer_of_a_proxy_is_refused() -> None:
    proxy = Proxy("p.test", 1)

    assert proxy.check_answer(b"HTTP/1.1 200 OK\r\n") is False
    assert proxy.check_answer(b"HTTP/1.1 200 Connection established\r\n\r\n") is True
    for strange in (b"SSH-2.0\r\n\r\n", b"x" * 20_000):
        with pytest.raises(ProxyRefused, match="does not speak HTTP"):
            proxy.check_answer(strange)


def test_a_runner_logs_why_once(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ConnectProxy(status="403 Forbidden") as proxy, caplog.at_level(logging.WARNING):
        named = {"DELEGATE_RELAY_URL": f"https://{HOST}", "HTTPS_PROXY": proxy.url}
        by_runner(environ | named, monkeypatch)

    (line,) = caplog.records
    assert "refused the connection" in line.__dict__["why"]
