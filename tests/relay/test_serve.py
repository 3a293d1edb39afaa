"""`delegate serve` for a team: certificates, proxies, and the names by which it is reached."""

from __future__ import annotations

import json
import signal
import socket
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.certificates import DAY, Authority
from tests.fakes.serving import Served, free_port, serving
from tests.fakes.world import World, wait_until
from tests.relay.peers import problem_of

pytestmark = pytest.mark.promise("P20")

PUBLIC = "https://relay.example"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def authority(place: Path) -> Authority:
    return Authority(place)


@pytest.fixture(scope="module")
def secure(place: Path, authority: Authority) -> Iterator[Served]:
    """On all addresses, IPv4 and IPv6, with TLS."""
    options = ("--public-url", PUBLIC, "--allowed-host", "relay.lan")
    with serving(World(place / "secure"), authority, *options, host="::") as served:
        yield served


@pytest.fixture(scope="module")
def proxied(place: Path, authority: Authority) -> Iterator[Served]:
    """Plain HTTP on all addresses; the proxy is on this machine, at a second loopback address."""
    options = ("--public-url", PUBLIC, "--trusted-proxy", "127.0.0.2", "--trusted-proxy", "10.0.0.0/8")
    with serving(World(place / "proxied"), authority, *options, host="0.0.0.0") as served:
        yield served


HOSTS = ["relay.example", "relay.example:8443", "RELAY.example", "relay.lan", "127.0.0.1", "localhost:1", "[::1]:443"]


@pytest.mark.parametrize("host", HOSTS)
def test_it_answers_to_its_own_names(secure: Served, host: str) -> None:
    with secure.client() as http:
        assert http.get("/api/relay", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "relay.example.evil.example", "10.1.2.3", "0.0.0.0", "[::2]", "::"])
def test_it_answers_to_no_other_name(secure: Served, host: str) -> None:
    with secure.client() as http:
        problem = problem_of(http.get("/api/relay", headers={"host": host}), 403, "host_refused")

    assert "--allowed-host" in problem["hint"]


def test_pages_of_its_public_url_may_ask_and_no_others(secure: Served) -> None:
    with secure.client() as http:
        own = [http.get("/api/relay", headers={"origin": origin}) for origin in (PUBLIC, secure.url)]
        foreign = [
            http.get("/api/relay", headers={"origin": origin})
            for origin in ("http://relay.example", "https://relay.example.evil.example", "null")
        ]

    assert [answer.status_code for answer in own] == [200, 200]
    assert [answer.json()["type"] for answer in foreign] == ["origin_refused"] * 3


def test_it_is_reached_by_ipv6_and_names_its_public_url(secure: Served) -> None:
    port = secure.url.rpartition(":")[2]
    with secure.client() as http:
        document = http.get(f"https://[::1]:{port}/api/openapi.json").json()

    assert document["servers"] == [{"url": PUBLIC}]


def test_the_command_for_a_new_runner_has_its_public_url(secure: Served) -> None:
    """Whoever asks for it, also on the relay's own machine."""
    made = secure.world.post("/api/pairing-tokens", {"name": "marek-mbp"})

    assert made["command"].startswith(f"delegate runner pair --relay-url {PUBLIC} --pairing-token drs_pair_")
    assert f"uvx --from '{PUBLIC}/dist/delegate-" in made["installCommand"]


def test_without_a_public_url_the_certificate_names_the_relay(place: Path, authority: Authority) -> None:
    with serving(World(place / "named"), authority) as served:
        made = served.world.post("/api/pairing-tokens", {"name": "marek-mbp"})

    assert f"--relay-url https://localhost:{served.url.rpartition(':')[2]} " in made["command"]


def test_commands_on_its_machine_reach_it_without_its_certificate(secure: Served) -> None:
    info = secure.world.info()

    assert info["url"].startswith("http://127.0.0.1:")
    assert info["version"]


def test_old_tls_and_plain_http_are_not_answered(secure: Served) -> None:
    port = int(secure.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answered = plain.recv(4096)

    assert not answered.startswith(b"HTTP/")


def test_it_stops_at_once_whatever_its_idle_clients_do(place: Path, authority: Authority) -> None:
    """Idle keep-alive connections, one that never answers a TLS goodbye, and one that never began a handshake."""
    with serving(World(place / "stopping"), authority) as served, served.client() as idle:
        assert idle.get("/api/tasks").status_code == 200
        port = int(served.url.rpartition(":")[2])
        context = ssl.create_default_context(cafile=authority.file)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as silent,
            context.wrap_socket(
                socket.create_connection(("127.0.0.1", port), timeout=10), server_hostname="localhost"
            ) as deaf,
        ):
            deaf.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert deaf.recv(4096).startswith(b"HTTP/1.1 200")

            served.process.send_signal(signal.SIGTERM)

            wait_until(lambda: served.process.poll() == 0, 4)
            assert silent.recv(1) == b""
    assert "timeout graceful shutdown exceeded" not in served.log


def test_no_command_starts_another_relay_while_it_restarts(place: Path, authority: Authority) -> None:
    world = World(place / "restarted")
    with serving(world, authority):
        pass
    waiting = world.popen("status")
    log = world.home / "logs" / "keeper.log"

    with serving(world, authority):
        _, said = waiting.communicate(timeout=60)
    down = world.run("info")
    world.ok("up", "--runners", "0")
    world.ok("down")

    assert waiting.returncode == 0, said
    assert log.read_text().count("child started child=relay") == 1  # that of `up`
    assert down.returncode == 6
    assert "start `delegate serve` again" in down.stderr
    assert not (world.home / "served").exists()


PROXY = {"host": "relay.example", "x-forwarded-for": "203.0.113.7", "x-forwarded-proto": "https"}


def as_proxy(served: Served, token: str | None = None) -> httpx2.Client:
    """A client whose connections come from the proxy's address."""
    return served.client(token, transport=httpx2.HTTPTransport(local_address="127.0.0.2"))


def test_a_proxy_is_believed_and_others_are_not(proxied: Served) -> None:
    with as_proxy(proxied) as proxy, proxied.client() as direct:
        forwarded = proxy.get("/api/relay", headers=PROXY)
        unencrypted = proxy.get("/api/relay", headers={**PROXY, "x-forwarded-proto": "http"})
        unbelieved = direct.get("/api/relay", headers={**PROXY, "x-forwarded-proto": "http"})

    assert forwarded.status_code == 200
    assert PUBLIC in problem_of(unencrypted, 403, "https_required")["hint"]
    assert unbelieved.status_code == 200  # it came over loopback


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"cert": "missing.crt"}, "missing.crt: no such file or directory"),
        ({"key": "missing.key"}, "missing.key: no such file or directory"),
        ({"key": "folder"}, "folder: is a directory"),
        ({"cert": "text.pem"}, "text.pem: this file or "),
        ({"key": "other.key"}, "belongs to another certificate"),
        ({"key": "locked.key", "cert": "locked.crt"}, "has a password"),
        ({"key": "expired.key", "cert": "expired.crt"}, "it has expired"),
        ({"key": "future.key", "cert": "future.crt"}, "it is not valid yet"),
    ],
)
def test_a_bad_certificate_is_explained_in_one_line(
    tmp_path: Path, authority: Authority, names: dict[str, str], said: str
) -> None:
    world = World(tmp_path / "home")
    (tmp_path / "text.pem").write_text("hello")
    (tmp_path / "folder").mkdir()
    made = {
        "good": authority.issue("localhost"),
        "other": authority.issue("localhost"),
        "locked": authority.issue("localhost", password="sesame"),
        "expired": authority.issue("localhost", valid=(-2 * DAY, timedelta(seconds=-1))),
        "future": authority.issue("localhost", valid=(DAY, 2 * DAY)),
    }
    for name, issued in made.items():
        issued.cert.rename(tmp_path / f"{name}.crt")
        issued.key.rename(tmp_path / f"{name}.key")
    files = {"cert": "good.crt", "key": "good.key", **names}

    done = world.run(
        "serve", "--tls-cert", str(tmp_path / files["cert"]), "--tls-key", str(tmp_path / files["key"]), timeout=20
    )

    assert (done.returncode, done.stdout) == (3, "")
    assert said in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr
    assert not (world.home / "relay.json").exists()


def test_one_of_the_two_files_is_not_enough(tmp_path: Path, authority: Authority) -> None:
    done = World(tmp_path / "home").run("serve", "--tls-cert", str(authority.issue("localhost").cert))

    assert (done.returncode, "it needs --tls-key too" in done.stderr) == (3, True)


def test_settings_do_what_the_options_do(tmp_path: Path, authority: Authority) -> None:
    world = World(tmp_path / "home", DELEGATE_TRUSTED_PROXY="127.0.0.2", DELEGATE_SERVE_HOST="0.0.0.0")
    world.ok("config", "set", "allowed_host", "relay.lan, relay.test")
    world.ok("config", "set", "public_url", PUBLIC)

    with serving(world, authority, "--trusted-proxy", "127.0.0.3") as served, served.client() as http:
        answers = [http.get("/healthz", headers={"host": h}) for h in ("relay.lan", "relay.test", "relay.example")]

    assert [answer.status_code for answer in answers] == [200] * 3


def doctor(served: Served, **environment: str) -> dict[str, dict[str, str]]:
    """What `delegate doctor` finds about this relay, from another home."""
    home = served.world.home.parent / "elsewhere"
    remote = World(home, **{"DELEGATE_RELAY_URL": served.url, "DELEGATE_TOKEN": served.token, **environment})
    lines = [json.loads(line) for line in remote.run("doctor", "--json").stdout.splitlines()]
    return {one["subject"]: one for one in lines if one["part"] == "relay"}


def test_doctor_examines_a_relay_elsewhere(secure: Served) -> None:
    found = doctor(secure, DELEGATE_CA_FILE=str(secure.authority.file))
    untrusted = doctor(secure)
    wrong = doctor(secure, DELEGATE_CA_FILE=str(secure.authority.file), DELEGATE_TOKEN="wrong")

    assert {subject: found[subject]["level"] for subject in ("relay", "TLS", "clock", "token")} == dict.fromkeys(
        ("relay", "TLS", "clock", "token"), "ok"
    )
    assert secure.url in found["relay"]["message"]
    assert "its certificate is valid until" in found["TLS"]["message"]
    assert "delegate runner" in found["runners"]["fix"]
    assert "is not trusted" in untrusted["relay"]["message"]
    assert untrusted["relay"]["fix"] == "set DELEGATE_CA_FILE to that of its authority, or log in with --ca-file"
    assert wrong["token"]["level"] == "problem"


def test_login_stores_the_private_authority_too(secure: Served, tmp_path: Path) -> None:
    person = World(tmp_path / "home")

    refused = person.run("login", secure.url, stdin=secure.token)
    done = person.run("login", secure.url, "--ca-file", str(secure.authority.file), stdin=secure.token)

    assert (refused.returncode, refused.stdout) == (6, "")
    assert "set DELEGATE_CA_FILE" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert person.ok("whoami").startswith("owner (admin) at https://")
    assert person.run("up").stderr.rstrip().endswith("`delegate runner pair` runs its tasks on this machine")


def served_until(served: Served) -> str:
    """When the certificate of a new connection expires."""
    trusting = ssl.create_default_context(cafile=served.authority.file)
    address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
    with socket.create_connection(address) as plain, trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        return str((secure.getpeercert() or {})["notAfter"])


def test_a_renewed_certificate_is_used_without_a_restart_and_a_bad_one_is_not(
    tmp_path: Path, authority: Authority
) -> None:
    names = ("127.0.0.1", "localhost")
    first, renewed = authority.issue(*names), authority.issue(*names, valid=(-DAY, 20 * DAY))
    tls = ("--tls-cert", str(first.cert), "--tls-key", str(first.key))
    first.key.chmod(0o644)
    with serving(World(tmp_path / "home"), authority, *tls) as served, served.client() as kept:
        before = served_until(served)
        assert f"every user of this machine can read {first.key}" in served.log
        assert kept.get("/api/relay").status_code == 200
        first.cert.write_bytes(renewed.cert.read_bytes())  # its key follows later
        wait_until(lambda: "certificate not renewed" in served.log)
        assert served_until(served) == before

        first.key.write_bytes(renewed.key.read_bytes())
        wait_until(lambda: "certificate renewed" in served.log)

        assert served_until(served) != before
        assert kept.get("/api/relay").status_code == 200
        assert served.log.count("relay ready") == 1


def test_settings_that_were_changed_are_in_the_audit_log_of_the_next_start(
    tmp_path: Path, authority: Authority
) -> None:
    issued, port, entries = authority.issue("127.0.0.1"), free_port(), list[dict[str, Any]]()
    tls = ("--tls-cert", str(issued.cert), "--tls-key", str(issued.key))
    for options in ((), ("--public-url", PUBLIC), ("--public-url", PUBLIC)):
        with (
            serving(World(tmp_path / "home"), authority, *tls, *options, port=port) as served,
            served.client() as http,
        ):
            entries = http.get("/api/audit").json()["entries"]

    assert [(entry["actor"], entry["action"], entry["details"]["public_url"]) for entry in entries] == [
        ("owner", "settings", PUBLIC),
        ("owner", "settings", f"https://127.0.0.1:{port}"),
    ]
