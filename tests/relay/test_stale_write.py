"""The fence decides who may write: whoever has another one is refused, and nothing at all changes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from tests.relay.peers import WAIT, Attempt, RelayProcess, Runner, chunk, client, fact, runner_of

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P3")]

WRITES: dict[str, list[dict[str, Any]]] = {
    "renew": [{}, {"messagesSeen": 5, "wait": 0.1}],
    "record": [{"items": [fact(1), chunk(2, b"late")]}, {"items": [fact(0, text="first")]}],
    "finish": [
        {"nextSeq": 1, "outcome": "completed", "reason": "done", "exitCode": 0},
        {"nextSeq": 9, "outputIncomplete": True, "outcome": "failed", "reason": "crashed"},
        {"nextSeq": 1, "outcome": "parked", "reason": "usage_limit", "notBefore": "2030-01-01T00:00:00Z"},
    ],
    "release": [{"reason": "handed_back"}, {"reason": "lost_runner", "message": "gone"}],
}


def dump(relay: RelayProcess) -> list[str]:
    """Everything in the database but the relay's own sign of life, which it renews by itself."""
    with closing(sqlite3.connect(f"file:{relay.database}?mode=ro", uri=True, timeout=WAIT)) as connection:
        return [line for line in connection.iterdump() if not line.startswith('INSERT INTO "relay"')]


async def refusals(attempt: Attempt) -> set[tuple[int, str]]:
    answers = [await attempt.tell(verb, **body) for verb, bodies in WRITES.items() for body in bodies]
    return {(answer.status_code, answer.json()["type"]) for answer in answers}


async def second_attempt(runner: Runner) -> Attempt:
    """A task on its second fence, with something recorded."""
    first = await runner.take(agent="claude")
    await first.tell("release", reason="lost_runner")
    assignment = await runner.ask()
    assert assignment is not None
    attempt = Attempt(runner=runner, id=assignment["attemptId"], task_id=first.task_id, fence=assignment["fence"])
    await attempt.record(fact(0, text="first"))
    return attempt


async def test_a_write_with_another_fence_or_by_another_runner_changes_nothing(own_relay: RelayProcess) -> None:
    async with client(own_relay.url) as owner, runner_of(owner) as runner, runner_of(owner, runner.machine) as rival:
        attempt = await second_attempt(runner)
        (past,) = [entry for entry in (await attempt.detail())["attempts"] if entry["attemptId"] != attempt.id]
        before = dump(own_relay)

        answers = {
            "fence - 1": await refusals(Attempt(runner=runner, id=attempt.id, task_id=attempt.task_id, fence=1)),
            "fence + 1": await refusals(Attempt(runner=runner, id=attempt.id, task_id=attempt.task_id, fence=3)),
            "far fence": await refusals(Attempt(runner=runner, id=attempt.id, task_id=attempt.task_id, fence=2**62)),
            "rival": await refusals(Attempt(runner=rival, id=attempt.id, task_id=attempt.task_id, fence=2)),
            "past attempt": await refusals(
                Attempt(runner=runner, id=past["attemptId"], task_id=attempt.task_id, fence=2)
            ),
            "nobody's": await refusals(Attempt(runner=runner, id="att-none", task_id=attempt.task_id, fence=2)),
        }

        assert answers == {
            "fence - 1": {(409, "stale_fence")},
            "fence + 1": {(409, "stale_fence")},
            "far fence": {(409, "stale_fence")},
            "rival": {(403, "forbidden")},
            "past attempt": {(409, "stale_fence")},
            "nobody's": {(404, "no_such_attempt")},
        }
        assert dump(own_relay) == before
        assert (await attempt.renew())["nextSeq"] == 1


async def test_what_was_refused_for_its_numbers_changes_nothing_either(own_relay: RelayProcess) -> None:
    async with client(own_relay.url) as owner, runner_of(owner) as runner:
        attempt = await second_attempt(runner)
        before = dump(own_relay)

        answers = [
            await attempt.tell("record", items=[fact(1), fact(3)]),
            await attempt.tell("record", items=[fact(0, text="other"), fact(1)]),
            await attempt.tell("finish", nextSeq=7, outcome="completed", reason="done"),
        ]

        assert [answer.json()["type"] for answer in answers] == [
            "gap_expected_seq",
            "event_conflict",
            "gap_expected_seq",
        ]
        assert dump(own_relay) == before


async def test_the_holder_of_an_ended_task_changes_nothing_any_more(own_relay: RelayProcess) -> None:
    async with client(own_relay.url) as owner, runner_of(owner) as runner:
        attempt = await second_attempt(runner)
        await attempt.finish(1, outcome="failed", reason="agent_error")
        before = dump(own_relay)

        assert await refusals(attempt) == {(409, "stale_fence")}
        assert dump(own_relay) == before
