"""Which process calls: closed connections, and what a runner's own connections look like while it starts a program."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from delegate.relay.http import caller_process
from delegate.relay.http.caller_process import OUTSIDE, UNKNOWN, CallingProcess, Peer, find_caller

pytestmark = pytest.mark.promise("P22")


@contextmanager
def connection() -> Iterator[tuple[socket.socket, Peer]]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", port))) as client, closing(server.accept()[0]):
            yield client, Peer(address="127.0.0.1", port=client.getsockname()[1], relay_port=port)


@pytest.mark.parametrize("user", [os.geteuid(), os.geteuid() + 1, 0])
def test_a_closed_connection_is_not_one_of_another_user(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    monkeypatch.setattr(caller_process, "_ask_kernel", lambda _: (user, 0))

    assert find_caller(Peer(address="127.0.0.1", port=1, relay_port=2), os.getppid()) == UNKNOWN


def test_a_connection_of_another_user_is_none_of_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_process, "_ask_kernel", lambda _: (os.geteuid() + 1, 4711))

    assert find_caller(Peer(address="127.0.0.1", port=1, relay_port=2), os.getppid()) == OUTSIDE


@pytest.mark.parametrize("is_runner", [True, False])
def test_a_program_that_holds_the_runners_connection_is_the_runner(
    monkeypatch: pytest.MonkeyPatch, is_runner: bool
) -> None:
    """This process plays the runner and its parent the keeper; between fork and exec a child holds all its files."""
    monkeypatch.setattr(caller_process, "_is_own_program", lambda pid: is_runner and pid == os.getpid())
    monkeypatch.setattr(caller_process, "_has_agents", lambda _: True)
    with connection() as (client, peer):
        child = subprocess.Popen(["sleep", "60"], pass_fds=[client.fileno()])
        try:
            found = find_caller(peer, os.getppid())
        finally:
            child.kill()
            child.wait()

    assert found == (OUTSIDE if is_runner else CallingProcess(is_in_attempt=True, runner=os.getpid()))


def test_a_connection_of_an_agent_alone_is_one_of_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_process, "_is_own_program", lambda pid: pid == os.getpid())
    monkeypatch.setattr(caller_process, "_has_agents", lambda _: True)
    with connection() as (client, peer):
        child = subprocess.Popen(["sleep", "60"], pass_fds=[client.fileno()])
        client.close()
        try:
            found = find_caller(peer, os.getppid())
        finally:
            child.kill()
            child.wait()

    assert found == CallingProcess(is_in_attempt=True, runner=os.getpid())
