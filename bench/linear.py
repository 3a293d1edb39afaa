"""A webhook of Linear: until its answer, until the first thought, and until the agent's program runs.

Linear is the stand-in of `delegate demo --linear`, in this process; the time that it takes itself is subtracted.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from bench.measure import Row, median_ms, spread_ms
from bench.product import PATIENCE, PYTHON, ROOT, Product, running_in, wait_until, workplace
from bench.start import Bell
from delegate.cli.demo.linear_standin import CLIENT_ID, CLIENT_SECRET, WEBHOOK_SECRET, LinearStandin
from delegate.cli.demo.work import git_environment
from delegate.linear.payloads import sign

RATE, SECONDS, ROUNDS = 200, 2, 5  # deliveries a second, in turn to the relay and to the bare endpoint
SENDERS = 16
MOST_TIMES_BARE = 3.0
STARTS = 15
MOST_THOUGHT_MS, MOST_START_MS = 1000.0, 100.0
REPOSITORY, PROJECT = "acme/shop", "shop"
AGENT = """#!/bin/sh
case "$*" in *--version*) echo "0.0.0 (bench)"; exit;; esac
{ring}
exec '{python}' -c '{script}'
"""
SCRIPT = 'import json,sys;sys.stdin.readline();print(json.dumps({"type":"result","is_error":False,"result":"Done."}))'


class TimedLinear(LinearStandin):
    """Notes when the first thought of a session arrives, and how long its own answers took until then."""

    def __init__(self) -> None:
        super().__init__(key="PER-1", title="A", description="B", project=PROJECT, labels=("delegate:claude",))
        self.first_thought, self.own = 0.0, 0.0

    def renew(self, number: int) -> None:
        self.session_id, self.first_thought, self.own, self.final = str(uuid4()), 0.0, 0.0, None
        self._issue |= {"id": f"issue-{uuid4()}", "identifier": f"PER-{number}", "delegate": None}

    def answer(self, query: str, given: Mapping[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        answer = super().answer(query, given)
        if not self.first_thought:
            self.own += time.perf_counter() - began
            if "CreateActivity" in query:
                self.first_thought = time.perf_counter()
        return answer


def rows() -> list[Row]:
    with workplace() as place, TimedLinear() as linear:
        bell = Bell(place)
        with connected(place, linear, bell) as product:
            return [answers(product, linear), *starts(product, linear, bell)]


@contextmanager
def connected(place: Path, linear: TimedLinear, bell: Bell) -> Iterator[Product]:
    agent = place / "claude"
    agent.write_text(AGENT.format(ring=bell.ring, python=PYTHON, script=SCRIPT))
    agent.chmod(0o700)
    remote = make_remote(place)
    names = git_environment({f"url.{remote}.insteadOf": f"https://github.com/{REPOSITORY}.git"})
    settings = {**names, "DELEGATE_LINEAR_API_URL": linear.url, "DELEGATE_CLAUDE_COMMAND": str(agent)}
    with running_in(place, 1, **settings) as product:
        linear.webhook_url = f"{product.info()['url']}/webhooks/linear"
        credentials = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "webhookSecret": WEBHOOK_SECRET}
        relay = product.connect()
        relay.call("POST", "/api/linear/connect", {"kind": "client_credentials", **credentials})
        relay.call("POST", "/api/linear/map", {"project": PROJECT, "repository": REPOSITORY})
        yield product


def make_remote(place: Path) -> Path:
    work, remote = place / "shop", place / "shop.git"
    run_git("init", "--quiet", "--initial-branch=main", str(work))
    (work / "shop.py").write_text("price = 1\n")
    run_git("-C", str(work), "add", ".")
    run_git("-C", str(work), "-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--message=first")
    run_git("clone", "--quiet", "--bare", str(work), str(remote))
    return remote


def run_git(*words: str) -> None:
    subprocess.run(["git", *words], check=True, capture_output=True, timeout=PATIENCE)


def answers(product: Product, linear: LinearStandin) -> Row:
    """At a constant rate, whatever the answers take."""
    ours: list[float] = []
    bare: list[float] = []
    with bare_endpoint(product.home.parent) as url:
        deliver(linear.webhook_url, 20)
        deliver(url, 20)
        for _ in range(ROUNDS):
            ours += deliver(linear.webhook_url, RATE * SECONDS)
            bare += deliver(url, RATE * SECONDS)
    ratio = p99(ours) / p99(bare)
    return Row(
        claim=f"webhook to 200, {RATE} a second, p99",
        ours=f"{p99(ours) * 1000:.1f} ms (median {median_ms(ours):.1f})",
        against=f"bare endpoint with the same flush {p99(bare) * 1000:.1f} ms (median {median_ms(bare):.1f})",
        ratio=f"{ratio:.2f}",
        target=f"at most {MOST_TIMES_BARE:.0f}",
        met=ratio <= MOST_TIMES_BARE,
    )


@contextmanager
def bare_endpoint(place: Path) -> Iterator[str]:
    command = [PYTHON, "-m", "bench.bare_webhook", str(place / "bare.db")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/"
        finally:
            server.terminate()


def deliver(url: str, count: int) -> list[float]:
    """Send so many webhooks about issues, each at its time, and return what each answer took from then on."""
    began = time.perf_counter() + 0.1

    def send(numbers: range) -> list[float]:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
        taken = []
        for number in numbers:
            body, headers = issue_update()
            due = began + number / RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.request("POST", urlsplit(url).path, body, headers)
            response = connection.getresponse()
            response.read()
            taken.append(time.perf_counter() - due)
            if response.status != 200:
                raise RuntimeError(f"status {response.status}")
        connection.close()
        return taken

    with ThreadPoolExecutor(SENDERS) as pool:
        parts = pool.map(send, (range(first, count, SENDERS) for first in range(SENDERS)))
        return [one for part in parts for one in part]


def issue_update() -> tuple[bytes, dict[str, str]]:
    now = time.time_ns()
    data = {"id": str(uuid4()), "updatedAt": f"2026-01-01T00:00:00.{now % 1000:03}Z"}
    event = {"type": "Issue", "action": "update", "organizationId": "demo", "data": data, "updatedFrom": {"title": "x"}}
    body = json.dumps({**event, "webhookTimestamp": now // 1_000_000}).encode()
    headers = {"Content-Type": "application/json", "Linear-Signature": sign(body, WEBHOOK_SECRET)}
    return body, {**headers, "Linear-Delivery": str(uuid4())}


def p99(samples: list[float]) -> float:
    return sorted(samples)[int(len(samples) * 0.99)]


def starts(product: Product, linear: TimedLinear, bell: Bell) -> list[Row]:
    thoughts, begun, floor = [], [], []
    wait_until(lambda: not product.connect().call("GET", "/api/linear")["inboxWaiting"])
    for number in range(2, STARTS + 3):
        floor.append(worktree_and_spawn(product, bell, number))
        linear.renew(number)
        began = time.perf_counter()
        linear.delegate_issue()
        begun.append(bell.wait() - began - linear.own)
        wait_until(lambda: linear.final is not None)
        thoughts.append(linear.first_thought - began - linear.own)
        product.wait_for_idle(1)
        time.sleep(0.5)
    thoughts, begun, floor = thoughts[1:], begun[1:], floor[1:]  # the first one clones the repository
    above = median_ms(begun) - median_ms(floor)
    return [
        Row(
            claim="webhook to first thought, beyond Linear's answers",
            ours=spread_ms(thoughts),
            target=f"under {MOST_THOUGHT_MS:.0f} ms",
            met=median_ms(thoughts) < MOST_THOUGHT_MS,
        ),
        Row(
            claim="webhook to start of the agent, beyond Linear's answers",
            ours=spread_ms(begun),
            against=f"fetch, worktree and spawn {spread_ms(floor)}",
            ratio=f"+{above:.1f} ms",
            target=f"at most +{MOST_START_MS:.0f} ms",
            met=above <= MOST_START_MS,
        ),
    ]


def worktree_and_spawn(product: Product, bell: Bell, number: int) -> float:
    place = product.home.parent
    mirror, tree = place / "mirror.git", place / f"tree-{number}"
    if not mirror.exists():
        run_git("clone", "--quiet", "--bare", str(place / "shop.git"), str(mirror))
    began = time.perf_counter()
    run_git("-C", str(mirror), "fetch", "--quiet", "origin", "main")
    run_git("-C", str(mirror), "worktree", "add", "--quiet", "-b", f"b-{number}", str(tree), "main")
    subprocess.Popen(["/bin/sh", "-c", bell.ring], cwd=tree, stdin=subprocess.DEVNULL).wait()
    return bell.wait() - began


if __name__ == "__main__":
    sys.exit("use python -m bench linear")
