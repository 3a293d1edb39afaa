"""A plain model of the queue: no database, no concurrency, one dictionary of tasks.

Every verb returns what the product should answer, or the name of the error it should raise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from delegate.queue.claim import AGEING
from delegate.queue.limits import QueueRules
from delegate.queue.rescue import ABANDONED_AFTER

FINAL = {"completed", "failed", "cancelled"}


@dataclass(slots=True)
class Try:
    task: Job
    runner: str
    fence: int
    number: int
    renewed: datetime
    is_extended: bool = False  # by the relay, since the runner renewed it
    state: str = "running"
    end: tuple[str, str | None, int | None] | None = None  # state, reason and exit code of its end
    next_seq: int = 0
    machine: str = ""  # of its runner
    has_asked: bool = False

    def meant(self, end: tuple[str, str | None, int | None]) -> tuple[str, str | None, int | None]:
        """Who has asked has not ended the task, unless it was cancelled or lost."""
        has_asked = self.has_asked if self.state == "running" else self.end is not None and self.end[1] == "question"
        return ("released", "question", end[2]) if has_asked and end[0] not in ("cancelled", "lost") else end


@dataclass(slots=True)
class Job:
    order: int
    lane: str
    agent: str
    rerun: bool
    priority: int
    claimable: datetime  # since when
    state: str = "queued"
    reason: str | None = None
    fence: int = 0
    attempts: int = 0
    not_before: datetime | None = None
    cancelled: bool = False
    is_open: bool = False  # an unanswered question
    tries: list[Try] = field(default_factory=list)

    def end(self, state: str, reason: str) -> None:
        assert self.state not in FINAL
        self.state, self.reason, self.not_before = state, reason, None

    def queue(self, *, counted: bool, not_before: datetime | None = None) -> None:
        if self.cancelled:
            self.end("cancelled", "cancelled")
            return
        self.state, self.not_before, self.claimable = "queued", not_before, not_before or self.claimable
        self.attempts -= 0 if counted else 1


@dataclass(slots=True)
class Reference:
    rules: QueueRules
    now: datetime
    jobs: dict[str, Job] = field(default_factory=dict)
    claims: dict[str, Try] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)  # runners
    seen: datetime | None = None  # when a relay was last alive

    def running(self) -> list[Try]:
        return [one for job in self.jobs.values() for one in job.tries if one.state == "running"]

    def add(self, task_id: str, lane: str, agent: str, *, rerun: bool, priority: int) -> None:
        self.jobs[task_id] = Job(len(self.jobs), lane, agent, rerun, priority, self.now)

    def claim(self, claim_id: str, runner: str, lanes: set[str]) -> Try | None:
        if (earlier := self.claims.get(claim_id)) is not None:
            return earlier if earlier.runner == runner and earlier.state == "running" else None
        self.stay_fair()
        for one in self.running():
            if one.task.lane in lanes and one.renewed <= self.now - self.rules.reclaim_after:
                self.lose(one)
        ready = [job for job in self.jobs.values() if job.state == "queued" and job.lane in lanes]
        ready = [job for job in ready if job.not_before is None or job.not_before <= self.now]
        if not ready:
            return None
        heads = {(job.lane, job.priority): job for job in reversed(ready)}.values()  # the oldest of each
        job = min(heads, key=lambda job: (job.priority > 0, job.claimable + job.priority * AGEING, job.order))
        job.state, job.fence, job.attempts, job.not_before = "running", job.fence + 1, job.attempts + 1, None
        job.is_open = False
        held = Try(task=job, runner=runner, fence=job.fence, number=job.attempts, renewed=self.now)
        job.tries.append(held)
        self.claims[claim_id] = held
        return held

    def renew(self, held: Try) -> str | None:
        if held.state != "running":
            return "StaleFence"
        held.renewed, held.is_extended = self.now, False
        return None

    def record(self, held: Try, first: int, count: int) -> str | None:
        if held.state != "running":
            return "StaleFence"
        if first > held.next_seq:
            return "SequenceGap"
        held.next_seq = max(held.next_seq, first + count)
        held.renewed, held.is_extended = self.now, False
        return None

    def finish(self, held: Try, end: tuple[str, str | None, int | None], next_seq: int | None) -> str | None:
        end = held.meant(end)
        if held.state != "running":
            return None if held.end == end else "StaleFence"
        if next_seq not in (None, held.next_seq):
            return "SequenceGap"
        if end[1] == "question":
            return self.set_aside(held, end)
        held.state, held.end = end[0], end
        held.task.end(end[0], str(end[1]))
        return None

    def set_aside(self, held: Try, end: tuple[str, str | None, int | None]) -> str | None:
        held.state, held.end, job = "released", end, held.task
        if not job.cancelled and held.runner in self.known:
            job.lane = f"{held.machine}/{job.agent}"
        job.queue(counted=False)
        if job.is_open and job.state == "queued":
            job.state = "waiting"
        return None

    def ask(self, held: Try) -> str | None:
        if held.state != "running":
            return "StaleFence"
        if held.task.agent == "shell":
            return "Refused"
        held.task.is_open = held.task.is_open or not held.has_asked
        held.has_asked = True
        return None

    def answer(self, job: Job) -> str | None:
        if job.state in FINAL or not job.is_open:
            return "NoQuestion"
        job.is_open = False
        if job.state == "waiting":
            job.state, job.claimable = "queued", self.now
        return None

    def give_back(self, held: Try, end: tuple[str, str | None, int | None], until: datetime | None) -> str | None:
        end = held.meant(end)
        if held.state != "running":
            return None if held.end == end else "StaleFence"
        if end[1] == "question":
            return self.set_aside(held, end)
        held.state, held.end = "released", end
        held.task.queue(counted=False, not_before=until)
        return None

    def lose(self, held: Try) -> str | None:
        end = ("lost", "lost_runner", None)
        if held.state != "running":
            return None if held.end == end else "StaleFence"
        held.state, held.end, job = "lost", end, held.task
        if job.cancelled or (job.attempts < 3 and (job.agent != "shell" or job.rerun)):
            job.queue(counted=True)
        else:
            job.end("failed", "poison" if job.attempts >= 3 else "lost_runner")
        return None

    def cancel(self, job: Job) -> str | None:
        if job.state in FINAL and job.state != "cancelled" and not job.cancelled:
            return "IllegalMove"
        if job.state in ("queued", "waiting"):
            job.end("cancelled", "cancelled")
        elif job.state == "running":
            job.cancelled = True
        return None

    def tick(self) -> None:
        self.stay_fair()
        for one in self.running():
            silent = self.now - one.renewed
            is_left = one.runner not in self.known or one.task.cancelled
            if silent >= ABANDONED_AFTER or (silent >= self.rules.reclaim_after and is_left):
                self.lose(one)

    def restart(self) -> None:
        if self.seen is not None:
            self.forgive(self.seen)
        self.seen = self.now

    def stay_fair(self) -> None:
        if self.seen is not None and self.now < self.seen:
            for one in self.running():
                one.renewed = min(one.renewed, self.now)
        if self.seen is not None and self.now - self.seen > self.rules.lease:
            self.forgive(self.seen)
        if self.seen is None or not timedelta() <= self.now - self.seen < self.rules.lease / 4:
            self.seen = self.now

    def forgive(self, seen: datetime) -> None:
        for one in self.running():
            if one.is_extended:
                one.renewed += max(self.now - seen - self.rules.lease, timedelta())
            elif one.renewed >= seen - self.rules.lease:
                one.renewed, one.is_extended = self.now, True
