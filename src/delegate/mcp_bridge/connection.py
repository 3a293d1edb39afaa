"""A non-blocking connection to the relay: call `advance` when `poll` reports it ready."""

from __future__ import annotations

import errno
import os
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from delegate.mcp_bridge.endpoint import Endpoint

READ_SIZE = 64 * 1024


class Connection:
    __slots__ = ("_is_open", "_unsent", "endpoint", "socket")

    def __init__(self, endpoint: Endpoint) -> None:
        self._is_open = False
        self._unsent = b""
        self.endpoint = endpoint
        family = socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not endpoint.is_local:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        port = endpoint.port if endpoint.proxy is None else int(endpoint.proxy["port"])
        problem = self.socket.connect_ex((endpoint.address, port))
        if problem not in {0, errno.EINPROGRESS}:
            self.close()
            raise OSError(problem, os.strerror(problem))

    @property
    def descriptor(self) -> int:
        return self.socket.fileno()

    @property
    def has_sent(self) -> bool:
        """Whether the relay may have received the whole request."""
        return self._is_open and not self._unsent

    @property
    def mask(self) -> int:
        """The events to wait for."""
        if not self._is_open:
            return select.POLLOUT
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def send(self, request: bytes) -> None:
        self._unsent += request
        if self._is_open:
            self._flush()

    def advance(self) -> bytes | None:
        """Return what has arrived; None if the relay has closed the connection."""
        if not self._is_open and not self._finish_connect():
            return b""
        self._flush()
        return self._receive()

    def close(self) -> None:
        self.socket.close()

    def _finish_connect(self) -> bool:
        problem = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, os.strerror(problem))
        self._is_open = True
        return True

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            pass

    def _receive(self) -> bytes | None:
        try:
            return self.socket.recv(READ_SIZE) or None
        except BlockingIOError:
            return b""
