"""Clients that submit one task after the other, in a process of their own: `python -m bench.load URL CLIENTS COUNT`.

Reads the token and the body of the request from stdin, a line each; prints one line of JSON.
"""

from __future__ import annotations

import json
import selectors
import statistics
import sys
import time

from bench.product import Connection

TIME_LIMIT = 60.0  # seconds


def main() -> None:
    url, clients, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    token, body = sys.stdin.readline().strip(), json.loads(sys.stdin.readline())
    selector = selectors.DefaultSelector()
    for _ in range(clients):
        connection = Connection(url, token)
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    latencies = submit(selector, body, count)
    print(json.dumps({"rate": len(latencies) / sum(latencies) * clients, "mean": statistics.fmean(latencies)}))


def submit(selector: selectors.BaseSelector, body: object, count: int) -> list[float]:
    """Each client waits for the answer to its last submit before it sends the next."""
    sent: dict[Connection, float] = {}
    latencies: list[float] = []
    started = 0
    deadline = time.perf_counter() + TIME_LIMIT
    idle = [key.data for key in selector.get_map().values()]
    while len(latencies) < count and time.perf_counter() < deadline:
        for connection in idle:
            if started < count:
                started += 1
                sent[connection] = time.perf_counter()
                connection.send("POST", "/api/tasks", body)
        idle = []
        for key, _ in selector.select(TIME_LIMIT):
            key.data.receive()
            latencies.append(time.perf_counter() - sent[key.data])
            idle.append(key.data)
    return latencies


if __name__ == "__main__":
    main()
