"""A TLS connection to a remote relay."""

from __future__ import annotations

import select
import ssl

from delegate.mcp_bridge.connection import READ_SIZE, Connection
from delegate.mcp_bridge.endpoint import Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from delegate.mcp_bridge.endpoint import Endpoint


class SecureConnection(Connection):
    __slots__ = ("_host", "_wants")

    def __init__(self, endpoint: Endpoint) -> None:
        self._host = endpoint.host
        self._wants = 0  # the events that TLS waits for
        super().__init__(endpoint)

    @property
    def mask(self) -> int:
        return self._wants or super().mask

    def _finish_connect(self) -> bool:
        if not isinstance(self.socket, ssl.SSLSocket):
            super()._finish_connect()
            self._is_open = False
            context = ssl.create_default_context()
            self.socket = context.wrap_socket(self.socket, server_hostname=self._host, do_handshake_on_connect=False)
        try:
            self.socket.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            self._wants = _poll_mask(error)
            return False
        except ssl.SSLCertVerificationError as error:
            message = f"the certificate of {self._host} is not trusted ({error.verify_message})"
            raise Unreachable(
                "relay_unreachable", message, "set SSL_CERT_FILE to the certificate of its authority"
            ) from error
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


def _poll_mask(error: ssl.SSLError) -> int:
    return select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT
