"""`delegate serve` in a temporary home, as a team runs it."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
from tests.fakes.certificates import Authority
from tests.fakes.world import World, wait_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    world: World
    process: subprocess.Popen[str]
    url: str
    authority: Authority

    @property
    def token(self) -> str:
        return (self.world.home / "token").read_text().strip()

    @property
    def log(self) -> str:
        return (self.world.home.parent / "serve.log").read_text()

    def client(self, token: str | None = None, **options: object) -> httpx2.Client:
        headers = {"authorization": f"Bearer {self.token if token is None else token}"}
        verify = ssl.create_default_context(cafile=self.authority.file) if self.url.startswith("https:") else False
        return httpx2.Client(base_url=self.url, headers=headers, verify=verify, trust_env=False, **options)  # type: ignore[arg-type]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as trial:
        return int(trial.getsockname()[1])


@contextmanager
def serving(
    world: World, authority: Authority, *options: str, port: int = 0, host: str = "127.0.0.1", name: str = "127.0.0.1"
) -> Iterator[Served]:
    """A relay with TLS for this name; with options of its own instead if they name a proxy."""
    port = port or free_port()
    issued = authority.issue("localhost", "127.0.0.1", "::1", "relay.example")
    is_plain = "--trusted-proxy" in options
    tls = [] if is_plain else ["--tls-cert", str(issued.cert), "--tls-key", str(issued.key)]
    words = ["serve", "--host", host, "--port", str(port), *tls, *options]
    with (world.home.parent / "serve.log").open("a") as log:
        process = world.popen(*words, stderr=log, stdout=subprocess.DEVNULL)
    url = f"{'http' if is_plain else 'https'}://{name}:{port}"
    served = Served(world=world, process=process, url=url, authority=authority)
    try:
        wait_until(lambda: is_ready(served))
        yield served
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, served.log


def is_ready(served: Served) -> bool:
    assert served.process.poll() is None, served.log
    try:
        with served.client(token="none") as http:
            return http.get("/healthz").status_code == 200
    except httpx2.TransportError:
        return False
