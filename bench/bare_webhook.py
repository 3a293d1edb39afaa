"""An endpoint that stores each body in SQLite, flushed, before it answers: `python -m bench.bare_webhook FILE`."""

from __future__ import annotations

import socket
import sqlite3
import sys

import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.types import Receive, Scope, Send


class Endpoint:
    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("CREATE TABLE body (data BLOB)")
        self._one = CapacityLimiter(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = (await receive())["body"]
        await to_thread.run_sync(self._database.execute, "INSERT INTO body VALUES (?)", (body,), limiter=self._one)
        headers = [(b"content-length", b"2"), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(Endpoint(sys.argv[1]), lifespan="off", log_level="error", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
