"""A proxy that opens tunnels, as a company has one: every host is the test's own server."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    upstream: int = 0  # the port on this machine to which every tunnel leads
    status: str = "200 OK"
    asked: list[str] = field(default_factory=list)  # the heads of all requests

    def __enter__(self) -> ConnectProxy:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(4096)
                if not piece:
                    return
                head += piece
            self.asked.append(head.decode())
            client.sendall(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
            if self.status.startswith("200"):
                with socket.create_connection(("127.0.0.1", self.upstream)) as server:
                    copy_both_ways(client, server)


def copy_both_ways(one: socket.socket, other: socket.socket) -> None:
    while True:
        readable, _, _ = select.select([one, other], [], [])
        for source in readable:
            data = source.recv(65_536)
            if not data:
                return
            (other if source is one else one).sendall(data)
