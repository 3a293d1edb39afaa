"""A TLS connection to a remote relay."""

from __future__ import annotations

import select
import ssl

from delegate.client.http_response import describe_error
from delegate.client.proxies import Proxy, ProxyRefused, explain_certificate
from delegate.mcp_bridge.connection import READ_SIZE, Connection
from delegate.mcp_bridge.endpoint import Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from delegate.mcp_bridge.endpoint import Endpoint


class SecureConnection(Connection):
    __slots__ = ("_host", "_tunnel", "_wants")

    def __init__(self, endpoint: Endpoint) -> None:
        self._host = endpoint.host
        self._wants = 0  # the events that TLS waits for
        self._tunnel = None if endpoint.proxy is None else Tunnel(endpoint)
        super().__init__(endpoint)

    @property
    def mask(self) -> int:
        return self._wants or super().mask

    def _finish_connect(self) -> bool:
        if not isinstance(self.socket, ssl.SSLSocket):
            super()._finish_connect()
            self._is_open = False
            if self._tunnel is not None and not self._tunnel.advance(self.socket):
                self._wants = select.POLLIN
                return False
            context = self.endpoint.tls_context = self.endpoint.tls_context or load_context(self.endpoint)
            self.socket = context.wrap_socket(self.socket, server_hostname=self._host, do_handshake_on_connect=False)
        try:
            self.socket.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            self._wants = _poll_mask(error)
            return False
        except ssl.SSLCertVerificationError as error:
            raise _unreachable(explain_certificate(self._host, error.verify_code, error.verify_message)) from error
        self._wants = 0
        self._is_open = True
        return True

    def _flush(self) -> None:
        try:
            super()._flush()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            self._wants = _poll_mask(error) | select.POLLIN
        else:
            self._wants = 0

    def _receive(self) -> bytes | None:
        """Read all decrypted data: `poll` does not report what stays in the TLS buffer."""
        pieces = []
        try:
            while piece := self.socket.recv(READ_SIZE):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            return b"".join(pieces)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        return b"".join(pieces) or None


class Tunnel:
    """The way through a proxy, before TLS begins."""

    __slots__ = ("_proxy", "_received", "_unsent")

    def __init__(self, endpoint: Endpoint) -> None:
        given = endpoint.proxy or {}
        self._proxy = Proxy(given["host"], given["port"], given["authorization"])
        self._unsent = self._proxy.connect_request(endpoint.host, endpoint.port)
        self._received = b""

    def advance(self, plain: socket.socket) -> bool:
        """Return whether the tunnel is open."""
        try:
            while self._unsent:
                self._unsent = self._unsent[plain.send(self._unsent) :]
            while not self._proxy.check_answer(self._received):
                piece = plain.recv(1)  # what follows belongs to the relay
                if not piece:
                    raise ConnectionResetError(f"the proxy {self._proxy.name} closed the connection")
                self._received += piece
        except BlockingIOError:
            return False
        except ProxyRefused as error:
            raise _unreachable(str(error)) from error
        return True


def load_context(endpoint: Endpoint) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=endpoint.ca_file)
    except OSError as error:
        why = "is not a certificate in PEM format" if isinstance(error, ssl.SSLError) else describe_error(error)
        raise _unreachable(f"DELEGATE_CA_FILE: {endpoint.ca_file}: {why}") from error


def _unreachable(text: str) -> Unreachable:
    why, _, advice = text.partition("; ")
    return Unreachable("relay_unreachable", f"cannot reach the relay: {why}", advice)


def _poll_mask(error: ssl.SSLError) -> int:
    return select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT
