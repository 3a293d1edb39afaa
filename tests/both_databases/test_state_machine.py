"""Anything may happen in any order: the product and a model of a hundred lines must agree on every state."""

from __future__ import annotations

import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select
from tests.both_databases.reference import FINAL, Reference, Try
from tests.both_databases.scene import GONE, HANDED_BACK, NOON, Scene, fact, output, parked_until, put_process, runner
from tests.databases import Place

from delegate.errors import DelegateError
from delegate.model import ANY_MACHINE, Outcome, Priority, RunnerSlot, Task
from delegate.queue.claim import ClaimedTask
from delegate.queue.limits import QueueRules
from delegate.queue.questions import answer, ask
from delegate.queue.rescue import renew_leases_after_restart
from delegate.report.record import ReportItem
from delegate.states import AttemptState, Reason
from delegate.store.database import Connection, Database, open_database
from delegate.store.runners import delete_silent_runners
from delegate.store.tables import attempt, event_table, task
from delegate.store.tables import output as output_table

T = TypeVar("T")
RULES = QueueRules(lease=timedelta(minutes=2), reclaim_after=timedelta(minutes=4))
MINUTE = timedelta(minutes=1)
RUNNERS = [runner("anna"), runner("eve"), runner("otto", machine="attic"), runner("ida", agents=["claude"])]
OUTCOMES = [
    Outcome(state=AttemptState.COMPLETED, reason=Reason.DONE, message="", exit_code=0),
    Outcome(state=AttemptState.FAILED, reason=Reason.COMMAND_FAILED, message="", exit_code=1),
    Outcome(state=AttemptState.CANCELLED, reason=Reason.CANCELLED, message=""),
]


@dataclass(frozen=True, slots=True)
class Hand:
    """An attempt as its runner knows it, and as the model does."""

    held: ClaimedTask
    model: Try
    claim_id: str
    by: RunnerSlot


def item(seq: int) -> ReportItem:
    return fact(seq, text=str(seq)) if seq % 2 else output(seq, b"%d\n" % seq)


def end_of(outcome: Outcome) -> tuple[str, str | None, int | None]:
    return (outcome.state, outcome.reason, outcome.exit_code)


class QueueMachine(RuleBasedStateMachine):
    tasks = Bundle("tasks")
    hands = Bundle("hands")

    def __init__(self, place: Place, sample: Path) -> None:
        super().__init__()
        place.empty_again(sample)
        self.portal_manager = start_blocking_portal("asyncio")
        self.portal = self.portal_manager.__enter__()
        opening = self.portal.wrap_async_context_manager(open_database(path=place.home.database, url=place.url))
        self.opening = opening
        database: Database = opening.__enter__()
        self.scene = Scene(database, rules=RULES)
        self.model = Reference(rules=RULES, now=NOON)
        self.ended: dict[str, tuple[Any, ...]] = {}
        self.fences: dict[str, int] = defaultdict(int)

    def teardown(self) -> None:
        self.opening.__exit__(None, None, None)
        self.portal_manager.__exit__(None, None, None)

    def ask(self, work: Callable[[], Awaitable[T]], expected: str | None = None) -> T | None:
        """Do it, and insist on the error that the model foresees."""
        if expected is None:
            return self.portal.call(work)
        with pytest.raises(DelegateError) as caught:
            self.portal.call(work)
        assert type(caught.value).__name__ == expected
        return None

    @initialize()
    def everybody_registers(self) -> None:
        for one in RUNNERS:
            self.register(one)

    def register(self, by: RunnerSlot) -> None:
        if by.id not in self.model.known:
            self.model.known.add(by.id)
            self.portal.call(self.scene.register, by)

    @rule(
        target=tasks,
        agent=st.sampled_from(["shell", "claude"]),
        machine=st.sampled_from(["desk", "attic", ANY_MACHINE]),
        priority=st.sampled_from(Priority),
        rerun=st.booleans(),
    )
    def submit(self, agent: str, machine: str, priority: Priority, rerun: bool) -> Task:
        fields = {"agent": agent, "machine": machine, "priority": priority, "rerun": rerun}
        made = self.portal.call(lambda: self.scene.submit("true", **fields))
        self.model.add(made.id, f"{machine}/{agent}", agent, rerun=rerun, priority=priority)
        return made

    @rule(target=tasks, old=tasks)
    def retry(self, old: Task) -> Any:
        job = self.model.jobs[old.id]
        made = self.ask(lambda: self.scene.retry(old), None if job.state in FINAL else "IllegalMove")
        if made is None:
            return multiple()
        self.model.add(made.id, job.lane, job.agent, rerun=job.rerun, priority=job.priority)
        return made

    @rule(target=hands, by=st.sampled_from(RUNNERS))
    def claim(self, by: RunnerSlot) -> Any:
        self.register(by)
        claim_id = secrets.token_hex(8)
        lanes = {f"{machine}/{agent}" for machine in (by.runner.machine, ANY_MACHINE) for agent in by.agents}
        expected = self.model.claim(claim_id, by.id, lanes)
        held = self.portal.call(self.scene.claim, by, claim_id)
        if expected is None or held is None:
            assert (held, expected) == (None, None)
            return multiple()
        expected.machine = by.runner.machine
        assert self.model.jobs[held.task.id] is expected.task
        assert (held.attempt.fence, held.attempt.number) == (expected.fence, expected.number)
        return Hand(held, expected, claim_id, by)

    @rule(hand=hands, same=st.booleans())
    def claim_again(self, hand: Hand, same: bool) -> None:
        by = hand.by if same else RUNNERS[(RUNNERS.index(hand.by) + 1) % len(RUNNERS)]
        expected = self.model.claim(hand.claim_id, by.id, set())

        held = self.portal.call(self.scene.claim, by, hand.claim_id)

        assert (held and held.attempt.id) == (hand.held.attempt.id if expected else None)

    @rule(hand=hands)
    def renew(self, hand: Hand) -> None:
        standing = self.ask(lambda: self.scene.renew(hand.held), self.model.renew(hand.model))
        if standing is not None:
            assert standing.next_seq == hand.model.next_seq
            assert (standing.cancel is not None) == hand.model.task.cancelled

    @rule(hand=hands, back=st.integers(0, 3), ahead=st.sampled_from([0, 0, 0, 1]), count=st.integers(1, 3))
    def record(self, hand: Hand, back: int, ahead: int, count: int) -> None:
        first = max(0, hand.model.next_seq - back) + (back + ahead if ahead else 0)
        items = [item(seq) for seq in range(first, first + count)]

        standing = self.ask(lambda: self.scene.record(hand.held, *items), self.model.record(hand.model, first, count))

        assert standing is None or standing.next_seq == hand.model.next_seq

    @rule(hand=hands, outcome=st.sampled_from(OUTCOMES), missing=st.sampled_from([0, 0, 0, 1, None]))
    def finish(self, hand: Hand, outcome: Outcome, missing: int | None) -> None:
        next_seq = None if missing is None else hand.model.next_seq + missing
        expected = self.model.finish(hand.model, end_of(outcome), next_seq)
        self.ask(lambda: self.scene.finish(hand.held, outcome, next_seq=next_seq), expected)

    @rule(hand=hands, minutes=st.integers(0, 9))
    def park(self, hand: Hand, minutes: int) -> None:
        outcome = parked_until(self.scene.now + minutes * MINUTE)
        expected = self.model.give_back(hand.model, end_of(outcome), outcome.not_before)
        self.ask(lambda: self.scene.finish(hand.held, outcome, next_seq=None), expected)

    @rule(hand=hands)
    def hand_back(self, hand: Hand) -> None:
        expected = self.model.give_back(hand.model, end_of(HANDED_BACK), None)
        self.ask(lambda: self.scene.release(hand.held, HANDED_BACK), expected)

    @rule(hand=hands)
    def lose(self, hand: Hand) -> None:
        self.ask(lambda: self.scene.release(hand.held, GONE), self.model.lose(hand.model))

    @rule(hand=hands)
    def ask_a_person(self, hand: Hand) -> None:
        database, attempt_id = self.scene.database, hand.held.attempt.id
        self.ask(lambda: ask(database, attempt_id, "Which?", (), self.scene.now), self.model.ask(hand.model))

    @rule(which=tasks)
    def answer(self, which: Task) -> None:
        database, expected = self.scene.database, self.model.answer(self.model.jobs[which.id])
        self.ask(lambda: answer(database, which.id, "This.", request_key=None, now=self.scene.now), expected)

    @rule(which=tasks)
    def cancel(self, which: Task) -> None:
        expected = self.model.cancel(self.model.jobs[which.id])
        self.ask(lambda: self.scene.cancel(which, "enough"), expected)

    @rule(minutes=st.integers(1, 6))
    def live(self, minutes: int) -> None:
        """Time passes while the relay looks around every minute."""
        for _ in range(minutes):
            self.step(MINUTE)
            self.tick()

    @rule(span=st.sampled_from([timedelta(seconds=10), 3 * MINUTE, 5 * MINUTE, timedelta(hours=25), -MINUTE]))
    def step(self, span: timedelta) -> None:
        """The clock moves unnoticed: the relay sleeps, or the clock is set."""
        self.scene.now += span
        self.model.now += span

    @rule()
    def tick(self) -> None:
        self.model.tick()
        self.portal.call(self.scene.tick)

    @rule()
    def restart(self) -> None:
        self.model.restart()
        self.portal.call(renew_leases_after_restart, self.scene.database, RULES, self.scene.now)

    @rule(by=st.sampled_from(RUNNERS))
    def forget(self, by: RunnerSlot) -> None:
        self.model.known.discard(by.id)

        def forget_one(connection: Connection) -> None:
            delete_silent_runners(connection, silent_since=NOON + timedelta(days=10_000))
            for one in RUNNERS:
                if one.id in self.model.known:
                    put_process(connection, one)

        self.portal.call(self.scene.database.write, "forget", forget_one)

    @invariant()
    def both_agree_on_everything(self) -> None:
        tasks, attempts, sequences, ends = self.portal.call(self.scene.database.read, snapshot)
        for task_id, row in tasks.items():
            job = self.model.jobs[task_id]
            expected = (job.state, job.reason, job.fence, job.attempts, job.not_before, job.cancelled)
            assert row == expected, task_id
            found = [(one["fence"], one["state"], one["next_seq"], one["renewed_at"]) for one in attempts[task_id]]
            assert found == [(one.fence, one.state, one.next_seq, one.renewed) for one in job.tries]
            self.nothing_impossible(task_id, row, found)
            assert ends[task_id] == (1 if job.state in FINAL else 0)
            for one in attempts[task_id]:
                assert sequences[one["id"]] == list(range(one["next_seq"]))
        assert len(tasks) == len(self.model.jobs)

    def nothing_impossible(self, task_id: str, row: tuple[Any, ...], attempts: list[tuple[Any, ...]]) -> None:
        """What must hold whatever the model says."""
        state, fence = row[0], row[2]
        running = [one for one in attempts if one[1] == "running"]
        assert state in FINAL or len(running) == (1 if state == "running" else 0)
        assert [one[0] for one in attempts] == list(range(1, fence + 1))
        assert self.fences[task_id] <= fence
        self.fences[task_id] = fence
        if state in FINAL:
            assert not running
            assert self.ended.setdefault(task_id, row) == row


def snapshot(connection: Connection) -> tuple[Any, ...]:
    tasks = {
        row.id: (row.state, row.reason, row.fence, row.attempts, row.not_before, row.cancel_requested_at is not None)
        for row in connection.execute(select(task))
    }
    attempts = defaultdict(list)
    for row in connection.execute(select(attempt).order_by(attempt.c.fence)):
        attempts[row.task_id].append(row._mapping)
    sequences = defaultdict(list)
    numbered = select(event_table.c.attempt_id, event_table.c.seq).where(event_table.c.seq.is_not(None))
    for attempt_id, seq in connection.execute(
        numbered.union_all(select(output_table.c.attempt_id, output_table.c.seq)).order_by("seq")
    ):
        sequences[attempt_id].append(seq)
    finished = select(event_table.c.task_id).where(event_table.c.kind == "finished")
    return tasks, attempts, sequences, Counter(connection.execute(finished).scalars())


def run(place: Place, sample: Path, **effort: Any) -> None:
    if not place.url:
        shutil.copyfile(place.home.database, sample)
    chosen = settings(
        stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, **effort
    )
    machine: Any = partial(QueueMachine, place, sample)  # it may be a factory, though its type says a class
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.slow
@pytest.mark.promise("P1")
@pytest.mark.promise("P3")
def test_the_queue_and_its_model_agree_whatever_happens(place: Place, tmp_path: Path) -> None:
    run(place, tmp_path / "sample.db", max_examples=30 if place.url else 50, derandomize=True, database=None)


@pytest.mark.soak
def test_they_agree_in_a_thousand_stories(place: Place, tmp_path: Path) -> None:
    run(place, tmp_path / "sample.db", max_examples=1000)
