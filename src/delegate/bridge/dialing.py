"""Opens a plain or a TLS connection, as the endpoint requires."""

from __future__ import annotations

from delegate.bridge.connection import Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from delegate.bridge.endpoint import Endpoint


def connect(endpoint: Endpoint) -> Connection:
    if not endpoint.is_secure:
        return Connection(endpoint)
    from delegate.bridge.secure import SecureConnection  # noqa: PLC0415  ssl takes more memory than all the rest

    return SecureConnection(endpoint)
