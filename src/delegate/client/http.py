"""One HTTP/1.1 exchange over a socket, without `http.client`, whose import slows down every command."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from delegate.client.http_response import NotHttp, Response, describe_error
from delegate.client.proxies import Proxy, ProxyRefused, explain_certificate

READ_SIZE = 64 * 1024
NOTICE_AFTER = 1.4  # seconds without a response after which the caller is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    host: str
    port: int
    secure: bool = False
    ca_file: str | None = None  # the certificates to trust; None: those of the system
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def request_bytes(target: Target, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {target.authority}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def ignore_delay() -> None:
    """Wait in silence."""


class HttpExchange:
    """A request that was sent, and its response. A `read` that times out can be repeated without losing data."""

    def __init__(
        self, target: Target, request: bytes, timeout: float, on_delay: Callable[[], None] = ignore_delay
    ) -> None:
        self._socket = _connect(target, timeout)
        self._response = Response()
        self._early_body = b""  # the part of the body that arrived with the head
        try:
            self._exchange(memoryview(request), time.monotonic() + timeout, on_delay)
            self._socket.settimeout(timeout)
        except BaseException:
            self._socket.close()
            raise

    def _exchange(self, unsent: memoryview, deadline: float, on_delay: Callable[[], None]) -> None:
        self._socket.settimeout(min(NOTICE_AFTER, deadline - time.monotonic()))
        while not self._response.status:
            try:
                if unsent:
                    unsent = unsent[self._socket.send(unsent) :]
                else:
                    self._early_body = self._receive()
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
                on_delay()

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def certificate_end(self) -> str | None:
        """When the relay's certificate expires, as `ssl.cert_time_to_seconds` reads it; None without TLS."""
        read = getattr(self._socket, "getpeercert", None)
        return None if read is None else read()["notAfter"]

    def __enter__(self) -> HttpExchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def set_timeout(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def read(self) -> bytes:
        """Return the next piece of the body; empty at its end."""
        piece, self._early_body = self._early_body, b""
        while not piece and not self._response.is_complete:
            piece = self._receive()
        return piece

    def read_all(self, limit: int) -> bytes:
        pieces, size = [], 0
        while piece := self.read():
            size += len(piece)
            if size > limit:
                raise NotHttp(f"its response is larger than {limit:,} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def _receive(self) -> bytes:
        data = self._socket.recv(READ_SIZE)
        if data:
            return self._response.feed(data)
        self._response.end()
        return b""


class Untrusted(NotHttp):
    """The relay's certificate, or the file with that of its authority, cannot be used."""


def _connect(target: Target, timeout: float) -> socket.socket:
    plain = _connect_plain(target, timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.proxy is not None:
            _open_tunnel(plain, target.proxy, target)
        return _secure(plain, target) if target.secure else plain
    except BaseException:
        plain.close()
        raise


def _secure(plain: socket.socket, target: Target) -> socket.socket:
    import ssl  # noqa: PLC0415  only a remote relay needs it, and it is slow to import

    try:
        context = ssl.create_default_context(cafile=target.ca_file)
    except OSError as error:  # ssl's own errors are among them
        why = "is not a certificate in PEM format" if isinstance(error, ssl.SSLError) else describe_error(error)
        raise Untrusted(f"DELEGATE_CA_FILE: {target.ca_file}: {why}") from error
    try:
        return context.wrap_socket(plain, server_hostname=target.host)
    except ssl.SSLCertVerificationError as error:
        raise Untrusted(explain_certificate(target.host, error.verify_code, error.verify_message)) from error


def _open_tunnel(plain: socket.socket, proxy: Proxy, target: Target) -> None:
    plain.sendall(proxy.connect_request(target.host, target.port))
    received = b""
    while not proxy.check_answer(received):
        piece = plain.recv(1)  # what follows belongs to the relay
        if not piece:
            raise ProxyRefused(f"the proxy {proxy.name} closed the connection; check HTTPS_PROXY")
        received += piece


def _connect_plain(target: Target, timeout: float) -> socket.socket:
    if target.proxy is not None:
        try:
            return socket.create_connection((target.proxy.host, target.proxy.port), timeout)
        except OSError as error:
            why = describe_error(error)
            raise ProxyRefused(f"the proxy {target.proxy.name} cannot be reached ({why}); check HTTPS_PROXY") from error
    if target.host != "127.0.0.1":
        return socket.create_connection((target.host, target.port), timeout)
    local = socket.socket()  # resolving a name would load the IDNA tables first
    local.settimeout(timeout)
    try:
        local.connect((target.host, target.port))
    except BaseException:
        local.close()
        raise
    return local
