"""Loopback stand-in for GitHub: REST, GraphQL and git over HTTP, for the real `gh` and the real `git`.

    with GitHubStandin(directory) as hub:
        hub.add("acme/demo").seed({"README.md": "# demo\\n"}, "main", "First commit")
        env = {**os.environ, **hub.environment(home)}
        git clone https://github.com/acme/demo.git ...     # real clone, real push, into a real bare repository
        gh pr create -R acme/demo --head ... --base main   # real gh
        hub.repository("acme/demo").pulls[1].title
        hub.requests                                       # every request, in order

Most tests want the fixture `github` of tests/fakes/github.py, which does this and needs less words.

How the programs get here: gh sends every request through the Unix socket that `http_unix_socket` of its config.yml
names, as plain HTTP, and still believes in github.com. For git, a global configuration rewrites https://github.com/
and git@github.com: to http://github.com/ and names this server as the proxy for it, so that remotes keep their name.
The path of a Unix socket has room for about 100 bytes: it is made in a directory of its own under /tmp.

Pull requests are held against the bare repositories: one from a branch that was never pushed is refused as GitHub
refuses it, as is a second open one for the same head and base.

Faults: each is for the next `times` requests whose text matches a pattern. The text is `METHOD /path body`, so
"PullRequestCreate" (gh pr create), "PullRequestList" (gh pr list), "PATCH .*/pulls/1" (our edit), "git-receive-pack"
(a push) and "git-upload-pack" (a fetch) all serve.

    hub.fail("PullRequestList", times=2)                     # 502 without acting; the third one works
    hub.fail("PullRequestCreate", after_acting=True)         # it is opened, and the answer is 502
    hub.drop("git-receive-pack", after_acting=True)          # the push arrived, its answer did not
    gate = hub.hold("PullRequestCreate")                     # waits, without having acted (or after_acting=True)
    gate.reached.wait(30); ...; gate.open()
    hub.git_password = "secret"                              # git must log in, as anybody with this password

Standard library only.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, cast

from tests.fakes.github_graphql import GraphQLProblem, Json, connection, execute
from tests.fakes.github_repositories import (
    GIT_ENV,
    Pull,
    Repository,
    node_id,
    pull_answer,
    pull_view,
    repository_view,
    user,
)

GATE_BOUND = 600.0  # seconds; the test that forgot a gate has long failed
GIT_PATH = re.compile(r"/([^/]+/[^/]+?)(?:\.git)?/(info/refs|git-upload-pack|git-receive-pack)")
GH_CONFIG = 'version: "1"\ngit_protocol: https\nprompt: disabled\nhttp_unix_socket: {socket}\n'
GIT_CONFIG = """\
[url "http://github.com/"]
\tinsteadOf = https://github.com/
\tinsteadOf = git@github.com:
\tinsteadOf = ssh://git@github.com/
[http "http://github.com/"]
\tproxy = http://127.0.0.1:{port}
[user]
\tname = A Person
\temail = person@localhost
[init]
\tdefaultBranch = main
"""
Answer = tuple[int, Any]
NOT_FOUND: Answer = (404, {"message": "Not Found"})


class Gate:
    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def pass_through(self) -> None:
        self.reached.set()
        self._opened.wait(GATE_BOUND)


@dataclass(slots=True, kw_only=True)
class Fault:
    pattern: str
    times: int
    after_acting: bool
    status: int | None = None  # answered in place of the real one; None: nothing is answered
    gate: Gate | None = None  # the real answer, once it is open


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any = None
    raw: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"{self.method} {self.path} {json.dumps(self.body) if self.body is not None else ''}"


class GitHubStandin:
    def __init__(self, root: Path, *, login: str = "a-person", token: str = "test-token") -> None:
        self.root, self.login, self.token = root, login, token
        self.git_password: str | None = None
        self.requests: list[Request] = []
        self.unknown_fields: set[str] = set()
        self.lock = threading.RLock()
        self._repositories: dict[str, Repository] = {}
        self._faults: list[Fault] = []
        self._short = Path(tempfile.mkdtemp(prefix="gh-", dir="/tmp"))
        self.socket_path = self._short / "s"
        handler = type("Handler", (_Handler,), {"hub": self})
        by_port = _TcpServer(("127.0.0.1", 0), handler)
        by_path = _UnixServer(cast("Any", str(self.socket_path)), handler)  # a path where TCP has host and port
        self._servers = [by_port, by_path]
        self.port = by_port.server_address[1]

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for fault in self._faults:
            if fault.gate:
                fault.gate.open()
        for server in self._servers:
            server.shutdown()
            server.server_close()
        shutil.rmtree(self._short)

    def environment(self, directory: Path) -> dict[str, str]:
        """What gh and git need to come here instead of to GitHub; their configuration is written to the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.yml").write_text(GH_CONFIG.format(socket=self.socket_path))
        (directory / "gitconfig").write_text(GIT_CONFIG.format(port=self.port))
        return {
            "GH_CONFIG_DIR": str(directory),
            "GH_TOKEN": self.token,
            "GH_PROMPT_DISABLED": "1",
            "GH_NO_UPDATE_NOTIFIER": "1",
            "GIT_CONFIG_GLOBAL": str(directory / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "no_proxy": "",
            "NO_PROXY": "",
        }

    def add(self, full_name: str) -> Repository:
        """A repository without a commit."""
        made = Repository(full_name, self.root / f"{full_name}.git")
        self._repositories[full_name.lower()] = made
        return made

    def repository(self, full_name: str) -> Repository:
        found = self._repositories.get(full_name.lower())
        if found is None:
            raise GraphQLProblem(f"Could not resolve to a Repository with the name '{full_name}'.", "NOT_FOUND")
        return found

    def fail(self, pattern: str, *, status: int = 502, times: int = 1, after_acting: bool = False) -> None:
        self._faults.append(Fault(pattern=pattern, times=times, after_acting=after_acting, status=status))

    def drop(self, pattern: str, *, times: int = 1, after_acting: bool = False) -> None:
        self._faults.append(Fault(pattern=pattern, times=times, after_acting=after_acting))

    def hold(self, pattern: str, *, times: int = 1, after_acting: bool = False) -> Gate:
        gate = Gate()
        self._faults.append(Fault(pattern=pattern, times=times, after_acting=after_acting, gate=gate))
        return gate

    def restore(self) -> None:
        """No more faults."""
        self._faults.clear()

    def take_fault(self, request: Request) -> Fault | None:
        with self.lock:
            for fault in self._faults:
                if fault.times > 0 and re.search(fault.pattern, request.text):
                    fault.times -= 1
                    return fault
        return None

    def answer(self, request: Request) -> Answer:
        given = request.headers.get("authorization", "").split(" ")[-1]
        if given != self.token:
            return 401, {"message": "Bad credentials"}
        with self.lock:
            for repository in self._repositories.values():
                repository.refresh()
            if request.path == "/graphql":
                return 200, execute(
                    request.body, {"query": self._query(), "mutation": self._mutation()}, self.unknown_fields
                )
            return self._rest(request)

    def _query(self) -> Json:
        return {
            "__typename": "Query",
            "viewer": user(self.login),
            "repository": lambda given: repository_view(self.repository(f"{given['owner']}/{given['name']}")),
            "__type": lambda given: {"name": given["name"], "fields": [], "inputFields": [], "enumValues": []},
            "search": lambda given: {"issueCount": 0, **connection([], given)},
        }

    def _mutation(self) -> Json:
        return {
            "__typename": "Mutation",
            "createPullRequest": self._create,
            "updatePullRequest": self._changed(_update),
            "closePullRequest": self._changed(lambda _, pull, __: setattr(pull, "state", "CLOSED")),
            "reopenPullRequest": self._changed(lambda _, pull, __: setattr(pull, "state", "OPEN")),
            "mergePullRequest": self._changed(
                lambda repository, pull, data: repository.merge(pull, data["mergeMethod"])
            ),
            "markPullRequestReadyForReview": self._changed(lambda _, pull, __: setattr(pull, "is_draft", False)),
            "convertPullRequestToDraft": self._changed(_make_draft),
            "addComment": self._changed(lambda _, pull, data: pull.comments.append(data["body"])),
        }

    def _create(self, arguments: Json) -> Json:
        data = arguments["input"]
        repository = next(one for one in self._repositories.values() if one.id == data["repositoryId"])
        asked = {**data, "base": data["baseRefName"], "head": data["headRefName"]}
        return {"pullRequest": pull_view(repository, repository.open_pull(asked, self.login))}

    def _changed(self, change: Callable[[Repository, Pull, Json], None]) -> Callable[[Json], Json]:
        def run(arguments: Json) -> Json:
            data = arguments["input"]
            wanted = data.get("pullRequestId") or data.get("subjectId")
            repository, pull = self._by_node(wanted)
            change(repository, pull, data)
            view = pull_view(repository, pull)
            return {"pullRequest": view, "commentEdge": {"node": {"url": f"{pull.url}#issuecomment-1"}}}

        return run

    def _by_node(self, wanted: str) -> tuple[Repository, Pull]:
        for repository in self._repositories.values():
            for pull in repository.pulls.values():
                if node_id("PullRequest", repository.full_name, pull.number) == wanted:
                    return repository, pull
        raise GraphQLProblem(f"Could not resolve to a node with the global id of '{wanted}'", "NOT_FOUND")

    def _rest(self, request: Request) -> Answer:
        if request.path == "/":
            return 200, {"current_user_url": "https://api.github.com/user"}
        if request.path == "/user":
            return 200, {"login": self.login, "id": 1, "type": "User"}
        found = re.fullmatch(r"/repos/([^/]+/[^/]+)(/.*)?", request.path)
        try:
            return self._rest_of(self.repository(found[1]), request, found[2] or "") if found else NOT_FOUND
        except GraphQLProblem as problem:
            if problem.kind == "NOT_FOUND":
                return NOT_FOUND
            return 422, {"message": "Validation Failed", "errors": [{"message": str(problem)}]}

    def _rest_of(self, repository: Repository, request: Request, path: str) -> Answer:
        if path == "" and request.method == "GET":
            return 200, {"full_name": repository.full_name, "default_branch": repository.default_branch}
        if path == "/pulls" and request.method == "GET":
            return 200, [pull_answer(repository, pull) for pull in repository.pulls.values()]
        if path == "/pulls" and request.method == "POST":
            return 201, pull_answer(repository, repository.open_pull(request.body, self.login))
        found = re.fullmatch(r"/pulls/(\d+)", path)
        pull = repository.pulls.get(int(found[1])) if found else None
        if pull is None:
            return NOT_FOUND
        if request.method == "PATCH":
            _update(repository, pull, request.body)
        return 200, pull_answer(repository, pull)

    def serve_git(self, request: Request, full_name: str, service: str) -> tuple[int, dict[str, str], bytes]:
        login = base64.b64decode(request.headers.get("authorization", "").partition(" ")[2]).decode()
        if self.git_password is not None and login.partition(":")[2] != self.git_password:
            return 401, {"WWW-Authenticate": 'Basic realm="GitHub"'}, b""
        try:
            repository = self.repository(full_name)
        except GraphQLProblem:
            return 404, {}, b"Not Found"
        env = {
            **GIT_ENV,
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": f"/{repository.full_name}.git/{service}",
            "QUERY_STRING": urllib.parse.urlencode(request.query),
            "REQUEST_METHOD": request.method,
            "REMOTE_USER": self.login,
            "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(request.raw)),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=request.raw, capture_output=True, env=env)
        head, _, payload = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n") if ": " in line)
        return int(headers.pop("Status", "200").split()[0]), headers, payload


def _update(_: Repository, pull: Pull, data: Json) -> None:
    for key, name in (("title", "title"), ("body", "body"), ("baseRefName", "base"), ("base", "base")):
        if data.get(key) is not None:
            setattr(pull, name, data[key])
    if data.get("state"):
        pull.state = data["state"].upper()


def _make_draft(repository: Repository, pull: Pull, _: Json) -> None:
    if not repository.has_drafts:
        raise GraphQLProblem("Draft pull requests are not supported in this repository.")
    pull.is_draft = True


class _TcpServer(ThreadingHTTPServer):
    daemon_threads = True


class _UnixServer(_TcpServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "unix", 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: GitHubStandin

    def handle(self) -> None:
        with suppress(ConnectionError):  # the program was killed, which tests do
            super().handle()

    def log_message(self, *_: object) -> None:
        return

    def address_string(self) -> str:
        return "loopback"

    def _any(self) -> None:
        request = self._request()
        self.hub.requests.append(request)
        fault = self.hub.take_fault(request)
        if fault is None:
            return self._send(*self._act(request))
        if fault.gate and not fault.after_acting:
            fault.gate.pass_through()
        acted = self._act(request) if fault.gate or fault.after_acting else None
        if fault.gate:
            if fault.after_acting:
                fault.gate.pass_through()
            assert acted is not None
            return self._send(*acted)
        if fault.status is None:
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        return self._send(fault.status, {"content-type": "application/json"}, b'{"message": "Server Error"}')

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _any  # noqa: N815  # named by http.server

    def _request(self) -> Request:
        target = urllib.parse.urlsplit(self.path)  # an absolute address when we are git's proxy
        raw = self._body()
        is_json = "json" in self.headers.get("content-type", "")
        return Request(
            method=self.command,
            path=target.path,
            query=dict(urllib.parse.parse_qsl(target.query)),
            body=json.loads(raw) if raw and is_json else None,
            raw=raw,
            headers={name.lower(): value for name, value in self.headers.items()},
        )

    def _act(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        found = GIT_PATH.fullmatch(request.path)
        if found:
            return self.hub.serve_git(request, found[1], found[2])
        status, answer = self.hub.answer(request)
        headers = {"content-type": "application/json; charset=utf-8", "x-oauth-scopes": "repo, read:org"}
        return status, headers, json.dumps(answer).encode()

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _send(self, status: int, headers: dict[str, str], payload: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)
