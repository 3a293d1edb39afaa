"""The requests and responses about runners as a whole: their list, their heartbeat, and orders for them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from delegate.states import Reason
from delegate.wire.basics import Line, RunnerName, Wire
from delegate.wire.runners import PairRequest, PolicyView, RunnerAgentView

RunnerStateName = Literal["claiming", "running", "online", "silent", "idle", "offline", "draining", "revoked"]


class HeartbeatRequest(PairRequest):
    """What a paired runner reports about itself, at least once a minute."""

    problem: Line | None = None  # why it takes no work


class HeartbeatResponse(Wire):
    state: RunnerStateName
    drain: bool  # finish what runs, and claim nothing
    name: str
    relay_version: str


class OrderRequest(Wire):
    """An order needs nothing but its path."""


class RenameRequest(Wire):
    name: RunnerName


class SlotCountsView(Wire):
    busy: int
    total: int


class RunnerTaskView(Wire):
    """A task that a runner works on."""

    task_id: str
    agent: str
    title: str
    started_at: datetime


class LastResultView(Wire):
    """The attempt of a runner that ended last."""

    task_id: str
    state: str
    reason: Reason | None = None
    finished_at: datetime


class RunnerView(Wire):
    runner_id: str
    name: str
    state: RunnerStateName
    seen_at: datetime
    machine: str
    is_paired: bool  # false: the pool of the relay's own machine
    os: str | None = None
    architecture: str | None = None
    version: str
    upgrade_available: bool
    agents: list[RunnerAgentView]
    slots: SlotCountsView
    tasks: list[RunnerTaskView]
    last_result: LastResultView | None = None
    policy: PolicyView | None = None  # null: it accepts everything
    tags: list[str]
    privacy: str | None = None
    problem: str | None = None
    paired_by: str
    paired_at: datetime


class RunnerCountsView(Wire):
    online: int
    claiming: int
    idle: int  # online and free
    total: int


class RunnerListView(Wire):
    runners: list[RunnerView]
    next: str | None = None
    counts: RunnerCountsView
