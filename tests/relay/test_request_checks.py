"""Who is let in at all: tokens, hosts, pages of other origins, and bytes that are hardly HTTP."""

from __future__ import annotations

import json
import resource
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import uvicorn
from fastapi import FastAPI, Request
from tests.fakes.world import wait_until
from tests.relay.peers import (
    ADDRESS,
    TOKEN,
    WAIT,
    RelayProcess,
    Runner,
    client,
    fact,
    listener,
    problem_of,
    raw_exchange,
    read_answer,
    relay_in_process,
    request_bytes,
    runner_of,
    running_relay,
    task,
)

from delegate.relay.api import tasks
from delegate.relay.app import make_app
from delegate.relay.auth import mark_known, require_access
from delegate.relay.http import protocol
from delegate.relay.http.protocol import HEAD_MAX, HttpProtocol
from delegate.relay.requests import check_query

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P20")]


async def test_the_token_of_a_deleted_runner_opens_nothing_at_once(relay: RelayProcess, runner: Runner) -> None:
    with closing(sqlite3.connect(relay.database, timeout=WAIT)) as connection, connection:
        connection.execute("DELETE FROM runner_slot WHERE id = ?", (runner.id,))

    response = await runner.http.get("/api/runners/attempts")

    assert problem_of(response, 401, "unauthenticated")["detail"] == "the relay does not accept this token"


async def test_a_runner_cannot_touch_the_attempt_of_another(runner: Runner) -> None:
    attempt = await runner.take()

    async with runner_of(runner.owner, runner.machine) as rival:
        attempt.runner = rival
        bodies: dict[str, dict[str, Any]] = {
            "renew": {},
            "record": {"items": [fact(0)]},
            "finish": {"nextSeq": 0, "outcome": "completed", "reason": "done"},
            "release": {"reason": "handed_back"},
        }
        for verb, body in bodies.items():
            problem = problem_of(await attempt.tell(verb, **body), 403, "forbidden")
            assert problem["detail"].endswith("an attempt of another runner")


@pytest.mark.parametrize("line", [f"Authorization: bearer {TOKEN}", f"authorization: BEARER {TOKEN}"])
async def test_the_name_of_the_scheme_may_be_written_in_any_case(relay: RelayProcess, line: str) -> None:
    answer = raw_exchange(relay, request_bytes(relay, "GET", "/api/relay").replace(auth(), line.encode()))

    assert answer.startswith(b"HTTP/1.1 200")


def auth() -> bytes:
    return f"Authorization: Bearer {TOKEN}".encode()


BAD_AUTHORIZATIONS = {
    "two spaces": f"Authorization: bearer  {TOKEN}",
    "no scheme": f"Authorization: {TOKEN}",
    "basic": f"Authorization: Basic {TOKEN}",
    "twice": f"Authorization: Bearer {TOKEN}\r\nAuthorization: Bearer {TOKEN}",
    "twice, one wrong": f"Authorization: Bearer x\r\nAuthorization: Bearer {TOKEN}",
    "a space in it": f"Authorization: Bearer {TOKEN[:5]} {TOKEN[5:]}",
    "latin-1 in it": f"Authorization: Bearer {TOKEN}\xe9",
    "10,000 characters": f"Authorization: Bearer {'x' * 10_000}",
    "empty": "Authorization: Bearer ",
}


@pytest.mark.parametrize("lines", BAD_AUTHORIZATIONS.values(), ids=BAD_AUTHORIZATIONS.keys())
async def test_a_token_that_is_not_exactly_given_is_refused(relay: RelayProcess, lines: str) -> None:
    answer = raw_exchange(relay, request_bytes(relay, "GET", "/api/relay").replace(auth(), lines.encode("latin-1")))

    assert answer.startswith(b"HTTP/1.1 401")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "unauthenticated"


@pytest.mark.parametrize("name", ["token", "access_token", "authorization"])
async def test_a_token_in_the_query_authenticates_nobody_and_is_not_logged(relay: RelayProcess, name: str) -> None:
    path = f"/api/relay?{name}={TOKEN}"

    answer = raw_exchange(relay, request_bytes(relay, "GET", path).replace(auth() + b"\r\n", b""))

    assert answer.startswith(b"HTTP/1.1 401")
    assert TOKEN.encode() not in answer
    assert TOKEN not in relay.log


NO_HTTP = {
    "a token with a newline": b"GET /api/relay HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer x\ny\r\n\r\n",
    "a token with NUL": b"GET /api/relay HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer x\x00y\r\n\r\n",
    "a token of a megabyte": b"GET / HTTP/1.1\r\nAuthorization: Bearer " + b"x" * 1_000_000 + b"\r\n\r\n",
    "an address of a megabyte": b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "headers without end": b"GET / HTTP/1.1\r\n" + b"X-Header: value\r\n" * (HEAD_MAX // 10),
    "two lengths": b"POST /api/tasks HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": b"POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "a length of words": b"POST / HTTP/1.1\r\nContent-Length: two\r\n\r\n{}",
    "a length of 30 digits": b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n",
    "chunks of words": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
    "a connection to elsewhere": b"CONNECT example.com:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "no address": b"GET HTTP/1.1\r\n\r\n",
    "a client of TLS": bytes.fromhex("16030100a5010000a10303") + b"\x00" * 100,
    "noise": b"\xff\xfe\x00\x01" * 100 + b"\r\n\r\n",
}


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP.keys())
async def test_a_malformed_request_gets_a_400_and_is_cut_off(relay: RelayProcess, data: bytes) -> None:
    with socket.create_connection((ADDRESS, relay.port), timeout=WAIT) as connection:
        try:
            connection.sendall(data)
            answer = read_answer(connection)
        except ConnectionError:  # it stopped listening before everything was sent
            answer = b"HTTP/1.1 400"

    assert answer.startswith(b"HTTP/1.1 400")


def problem_in(answer: bytes, code: str) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    problem = json.loads(body)
    assert (problem["type"], head.split(b" ")[1].decode()) == (code, str(problem["status"]))
    return str(problem["detail"])


async def test_what_the_parser_refuses_is_a_problem_document(relay: RelayProcess) -> None:
    answer = raw_exchange(relay, NO_HTTP["a space before the colon"])

    assert problem_in(answer, "malformed_request").startswith("this is not a valid HTTP/1.1 request: ")
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize(("size", "status"), [(HEAD_MAX, b"200"), (HEAD_MAX + 1, b"400")])
async def test_the_stated_limit_of_headers_is_the_enforced_one(relay: RelayProcess, size: int, status: bytes) -> None:
    request = request_bytes(relay, "GET", "/api/relay", "X-Long: ")
    request = request.replace(b"X-Long: ", b"X-Long: " + b"x" * (size - len(request)))

    answer = raw_exchange(relay, request)

    assert len(request) == size
    assert answer.startswith(b"HTTP/1.1 " + status)
    if status == b"400":
        assert "have more than 65,536 bytes" in problem_in(answer, "malformed_request")


async def test_a_token_in_the_trailer_of_a_body_authenticates_nobody(relay: RelayProcess) -> None:
    body = json.dumps(task()).encode()
    chunks = b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(body), body, auth())
    lines = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    request = request_bytes(relay, "POST", "/api/tasks", *lines).replace(auth() + b"\r\n", b"") + chunks

    assert problem_in(raw_exchange(relay, request), "unauthenticated")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "[::2]"])
async def test_an_absolute_target_of_another_host_is_refused(relay: RelayProcess, host: str) -> None:
    own = raw_exchange(relay, request_bytes(relay, "GET", f"http://{ADDRESS}:{relay.port}/api/relay"))
    foreign = raw_exchange(relay, request_bytes(relay, "GET", f"http://{host}/api/relay"))

    assert own.startswith(b"HTTP/1.1 200")
    assert host in problem_in(foreign, "host_refused")


QUERIES = {
    "/api/tasks?limt=5": ("limt", "is not a known query parameter; known parameters: status, limit, cursor"),
    "/api/tasks?limit=5&limit=6": ("limit", "is given more than once"),
    "/api/schedules?cursr=s1": ("cursr", "is not a known query parameter"),
    "/api/relay?verbose=1": ("verbose", "this route takes none"),
}


@pytest.mark.parametrize("path", QUERIES)
async def test_unknown_and_repeated_query_parameters_are_refused(owner: httpx2.AsyncClient, path: str) -> None:
    problem = problem_of(await owner.get(path), 422, "invalid_field")

    field, why = QUERIES[path]
    assert problem["field"] == field
    assert why in problem["detail"]


async def test_a_submit_with_a_query_is_refused(owner: httpx2.AsyncClient) -> None:
    problem = problem_of(await owner.post("/api/tasks?dryRun=1", json=task()), 422, "invalid_field")
    assert "dryRun" in problem["detail"]


@pytest.mark.parametrize(
    "body", ['{"prompt": "a", "prompt": "b"}', '{"prompt": "a", "issue": {"key": "A-1", "key": 1}}']
)
async def test_a_body_with_a_key_twice_is_refused(owner: httpx2.AsyncClient, body: str) -> None:
    response = await owner.post("/api/tasks", content=body, headers={"content-type": "application/json"})

    assert "more than once" in problem_of(response, 400, "malformed_json")["detail"]


async def test_full_memory_is_reported_as_temporary(tmp_path: Path) -> None:
    async with relay_in_process(tmp_path) as relay:
        app = make_app(relay)

        @app.get("/exhausting")
        async def exhaust() -> None:
            raise MemoryError

        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            response = await http.get("/exhausting")

    assert problem_of(response, 503, "memory_full")["retry_after"] == 1.0


HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example:80",
    "0.0.0.0",
    "127.0.0.1@evil.example",
    "::1",
]


@pytest.mark.parametrize("host", HOSTS)
async def test_a_foreign_host_name_is_refused_before_anything_else(runner: Runner, host: str) -> None:
    response = await runner.owner.post("/api/tasks", json=task(machine=runner.machine), headers={"host": host})

    problem_of(response, 403, "host_refused")
    assert await runner.ask() is None


@pytest.mark.parametrize("lines", ["", "Host:", "Host: 127.0.0.1\r\nHost: evil.example", "X-Forwarded-Host: 127.0.0.1"])
async def test_no_host_and_two_hosts_are_refused(relay: RelayProcess, lines: str) -> None:
    request = f"GET /healthz HTTP/1.1\r\n{lines}\r\n\r\n" if lines else "GET /healthz HTTP/1.1\r\n\r\n"

    assert raw_exchange(relay, request.encode()).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "localhost:9"])
async def test_every_name_of_this_machine_is_answered_whatever_port_a_tunnel_has(
    owner: httpx2.AsyncClient, host: str
) -> None:
    assert (await owner.get("/api/relay", headers={"host": host})).status_code == 200


ORIGINS = ["null", "http://evil.example", "http://127.0.0.1.evil.example:{port}", "http://127.0.0.1:1", "https://{own}"]


@pytest.mark.parametrize("origin", [*ORIGINS, "http://{own}.evil.example", "http://[", "", "{own}", "http://{own}/"])
async def test_a_page_of_another_origin_is_refused_and_changes_nothing(
    relay: RelayProcess, runner: Runner, origin: str
) -> None:
    headers = {"origin": origin.format(port=relay.port, own=f"{ADDRESS}:{relay.port}")}

    response = await runner.owner.post("/api/tasks", json=task(machine=runner.machine), headers=headers)

    problem_of(response, 403, "origin_refused")
    assert await runner.ask() is None


async def test_a_page_of_the_relay_itself_may_ask(relay: RelayProcess, owner: httpx2.AsyncClient) -> None:
    response = await owner.get("/api/relay", headers={"origin": relay.url})

    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


CONTENT_TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "text/json"]


@pytest.mark.parametrize("kind", [*CONTENT_TYPES, "application/jsonx", "text/plain; application/json"])
async def test_the_form_of_a_web_page_is_refused(runner: Runner, kind: str) -> None:
    body = json.dumps(task(machine=runner.machine))

    response = await runner.owner.post("/api/tasks", content=body, headers={"content-type": kind})

    problem_of(response, 415, "unsupported_media")
    assert await runner.ask() is None


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON", "application/json; charset=utf-8"])
async def test_json_is_recognised_by_any_of_its_spellings(runner: Runner, kind: str) -> None:
    body = json.dumps(task(machine=runner.machine))

    response = await runner.owner.post("/api/tasks", content=body, headers={"content-type": kind})

    assert response.status_code == 201


@pytest.mark.parametrize("method", ["HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
async def test_other_methods_are_refused_and_the_right_one_is_named(relay: RelayProcess, method: str) -> None:
    request = request_bytes(relay, method, "/api/runners/claim", "Content-Type: application/json", "Content-Length: 0")

    with socket.create_connection((ADDRESS, relay.port), timeout=WAIT) as connection:
        connection.sendall(request)
        head = connection.recv(65536)

    assert head.startswith(b"HTTP/1.1 405")
    assert b"allow: POST" in head


async def test_the_methods_of_all_routes_at_an_address_are_named(owner: httpx2.AsyncClient) -> None:
    response = await owner.delete("/api/tasks")

    problem_of(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET, POST"


async def test_the_method_cannot_be_overridden(runner: Runner) -> None:
    headers = {"x-http-method-override": "POST", "x-method-override": "POST", "x-http-method": "POST"}

    response = await runner.owner.request("GET", "/api/tasks", json=task(machine=runner.machine), headers=headers)

    assert response.status_code == 200
    assert await runner.ask() is None


async def test_an_address_with_a_slash_too_many_is_not_redirected(owner: httpx2.AsyncClient) -> None:
    response = await owner.get("/api/tasks/")

    assert problem_of(response, 404, "no_such_route")["detail"] == "no route GET /api/tasks/"


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/api", "/api/tasks/x/y", "/%00", "/%ff", "//evil.example", "/api/../x"]
)
async def test_an_unknown_address_is_not_found(relay: RelayProcess, path: str) -> None:
    answer = raw_exchange(relay, request_bytes(relay, "GET", path))

    assert answer.startswith(b"HTTP/1.1 404")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "no_such_route"


async def test_an_upgrade_to_websocket_is_answered_as_plain_http(relay: RelayProcess) -> None:
    lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA")

    answer = raw_exchange(relay, request_bytes(relay, "GET", "/api/relay", *lines))

    assert answer.startswith(b"HTTP/1.1 200")


PARTIAL = {
    "half of its length": ("Content-Length: 1000", b'{"prompt": "x"'),
    "a chunk without end": ("Transfer-Encoding: chunked", b'ff\r\n{"prompt": "x"'),
}


@pytest.mark.parametrize(("line", "body"), PARTIAL.values(), ids=PARTIAL.keys())
async def test_a_body_that_breaks_off_makes_no_task_and_no_noise(
    relay: RelayProcess, runner: Runner, line: str, body: bytes
) -> None:
    request = request_bytes(relay, "POST", "/api/tasks", "Content-Type: application/json", line, body=body)
    with socket.create_connection((ADDRESS, relay.port), timeout=WAIT) as connection:
        connection.sendall(request)

    assert (await runner.owner.get("/readyz")).status_code == 200
    assert "Traceback" not in relay.log


async def test_what_follows_a_body_beyond_its_length_is_not_taken_for_a_request(relay: RelayProcess) -> None:
    body = json.dumps(task()).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")

    with socket.create_connection((ADDRESS, relay.port), timeout=WAIT) as connection:
        connection.sendall(request_bytes(relay, "POST", "/api/tasks", *lines, body=body))
        first = read_answer(connection)
        connection.sendall(b"and more\r\n\r\n")
        second = read_answer(connection)

    assert first.startswith(b"HTTP/1.1 201")
    assert second.startswith(b"HTTP/1.1 400")


async def test_hundreds_of_idle_connections_keep_no_client_out(relay: RelayProcess, owner: httpx2.AsyncClient) -> None:
    most = min(2_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)

    with ExitStack() as idle:
        for number in range(most):
            connection = idle.enter_context(socket.create_connection((ADDRESS, relay.port), timeout=WAIT))
            if number % 2:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        answers = [await owner.post("/api/tasks", json=task()) for _ in range(5)]

    assert [answer.status_code for answer in answers] == [201] * 5


async def test_clients_without_a_token_cannot_use_up_the_descriptors(tmp_path: Path) -> None:
    few = ["prlimit", "--nofile=256:256"]
    with running_relay(tmp_path, prefix=few) as crowded, ExitStack() as idle:
        for _ in range(400):
            connection = idle.enter_context(socket.create_connection((ADDRESS, crowded.port), timeout=WAIT))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with client(crowded.url) as known:
            answers = [await known.post("/api/tasks", json=task()) for _ in range(5)]

        assert [answer.status_code for answer in answers] == [201] * 5
        assert crowded.log.count("too many connections without a token") == 1
        assert psutil.Process(crowded.process.pid).num_fds() < 128


async def test_a_peer_with_a_token_keeps_its_connection_in_a_crowd(tmp_path: Path) -> None:
    few = ["prlimit", "--nofile=256:256"]
    with running_relay(tmp_path, prefix=few) as crowded, ExitStack() as idle:
        known = idle.enter_context(socket.create_connection((ADDRESS, crowded.port), timeout=WAIT))
        known.sendall(request_bytes(crowded, "GET", "/api/tasks"))
        assert read_answer(known).startswith(b"HTTP/1.1 200")
        for _ in range(200):
            idle.enter_context(socket.create_connection((ADDRESS, crowded.port), timeout=WAIT))
        wait_until(lambda: "too many connections without a token" in crowded.log)

        known.sendall(request_bytes(crowded, "GET", "/api/tasks"))
        assert read_answer(known).startswith(b"HTTP/1.1 200")


def test_an_idle_connection_is_closed_soon_unless_it_has_shown_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNKNOWN_KEEP_ALIVE", 0.2)
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n%s\r\nhi"
    with hurried_server() as port, ExitStack() as opened:
        known, unknown = (
            opened.enter_context(socket.create_connection((ADDRESS, port), timeout=WAIT)) for _ in range(2)
        )
        for connection, header in ((known, b"Authorization: Bearer x\r\n"), (unknown, b"")):
            connection.sendall(request % header)
            assert read_answer(connection).startswith(b"HTTP/1.1 200")

        assert unknown.recv(1) == b""
        known.sendall(request % b"")
        assert read_answer(known).startswith(b"HTTP/1.1 200")


class HurriedProtocol(HttpProtocol):
    head_timeout = 0.2
    body_timeout = 0.2


@contextmanager
def hurried_server() -> Iterator[int]:
    """The relay's protocol with little patience, before an application that reads bodies."""
    app = FastAPI()

    @app.post("/")
    async def read(request: Request) -> int:
        if "authorization" in request.headers:
            mark_known(request)
        return len(await request.body())

    listening = listener()
    server = uvicorn.Server(
        uvicorn.Config(app, http=HurriedProtocol, log_config=None, lifespan="off", timeout_keep_alive=3600)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


UNFINISHED = {
    "nothing": b"",
    "half a head": b"POST / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    "half a body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf",
    "half a head after a good request": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhiPOST /",
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whoever_sends_too_slowly_is_cut_off() -> None:
    with hurried_server() as port:
        for name, sent in UNFINISHED.items():
            with socket.create_connection((ADDRESS, port), timeout=WAIT) as connection:
                connection.sendall(sent)
                received = b"".join(iter(lambda: connection.recv(65536), b""))

            assert received.count(b"HTTP/1.1 200") == name.endswith("a good request"), (name, received)
            assert received.count(b'"type":"request_timed_out"') == (name in {"half a head", "half a body"}), received


def test_whoever_is_quick_is_not() -> None:
    with hurried_server() as port, httpx2.Client(base_url=f"http://{ADDRESS}:{port}", trust_env=False) as http:
        assert [http.post("/", content=b"x" * 100_000).json() for _ in range(20)] == [100_000] * 20


async def test_forged_forwarding_headers_change_nothing(relay: RelayProcess) -> None:
    headers = {"x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "https", "forwarded": "for=127.0.0.1;host=x"}

    async with client(relay.url, "wrong") as stranger:
        response = await stranger.get("/api/relay", headers=headers)

    assert problem_of(response, 401, "unauthenticated")["detail"] == "the relay does not accept this token"


async def test_the_quick_way_to_submit_has_the_guards_of_the_documented_one(relay: RelayProcess) -> None:
    """Both lead to the same function; a guard that is added to the router must be added to the quick way, too."""
    guards = [dependency.dependency for dependency in tasks.router.dependencies]

    assert guards == [require_access, check_query]
    async with client(relay.url, token="wrong") as stranger:
        problem_of(await stranger.post("/api/tasks", json=task()), 401, "unauthenticated")
