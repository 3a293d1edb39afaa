"""Random graphs with failures, cancels, retries and losses: the product and a small model of it must agree."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from tests.both_databases.scene import DONE, GONE, HANDED_BACK, Scene, runner
from tests.databases import Place

from delegate.config.settings import Settings
from delegate.errors import DelegateError
from delegate.intake.batch import BatchItem, submit_batch
from delegate.intake.submit import Request
from delegate.model import OnDependencyFailure, Outcome, Priority, Task, TaskId
from delegate.queue.claim import ClaimedTask
from delegate.states import AttemptState, Reason
from delegate.store.database import Connection, open_database
from delegate.store.tables import event_table, task

NODES = 60
BAD = {"failed", "cancelled"}
FINAL = {"completed", *BAD}
FAILED = Outcome(state=AttemptState.FAILED, reason=Reason.COMMAND_FAILED, message="exit code 1", exit_code=1)
VERBS = ["claim", "claim", "claim", "finish", "finish", "finish", "fail", "hand back", "lose", "cancel", "retry", "add"]
POLICIES = st.sampled_from([OnDependencyFailure.CANCEL, OnDependencyFailure.CANCEL, OnDependencyFailure.RUN])


@dataclass(slots=True)
class Node:
    made: Task
    needs: list[TaskId]
    chain: list[TaskId]  # it and its retries, in order
    state: str = "blocked"
    reason: str | None = None
    has_run: bool = False
    is_unwanted: bool = False  # it was cancelled while it ran

    def end(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason

    def give_back(self, state: str, reason: str | None) -> None:
        self.state, self.reason = ("cancelled", "cancelled") if self.is_unwanted else (state, reason)


@dataclass(slots=True)
class Model:
    nodes: dict[TaskId, Node] = field(default_factory=dict)

    def is_spoilt(self, needs: list[TaskId], policy: str) -> bool:
        return policy == "cancel" and any(self.nodes[one].state in BAD for one in needs)

    def settle(self) -> None:
        """Again and again until nothing moves any more."""
        before: list[str] = []
        while before != (now := [node.state for node in self.nodes.values()]):
            before = now
            for node in self.nodes.values():
                if node.state != "blocked":
                    continue
                if self.is_spoilt(node.needs, node.made.on_dependency_failure):
                    node.end("cancelled", "dependency_failed")
                elif all(self.nodes[one].state in FINAL for one in node.needs):
                    node.state = "queued"

    def needs_again(self, node: Node) -> list[TaskId]:
        """One that never ran waits for the retries of what failed."""
        if node.has_run:
            return node.needs
        latest = [self.nodes[one].chain[-1] if self.nodes[one].state in BAD else one for one in node.needs]
        return list(dict.fromkeys(latest))


class Story:
    """One graph on a machine of its own: all stories share a database."""

    def __init__(self, scene: Scene, portal: BlockingPortal) -> None:
        self.scene, self.portal = scene, portal
        self.runner = runner("anna", machine=secrets.token_hex(8), agents=["shell"])
        self.model = Model()
        self.hands: list[ClaimedTask] = []

    def begin(self, graph: list[tuple[set[int], OnDependencyFailure, Priority]]) -> None:
        entries = []
        for place, (back, policy, priority) in enumerate(graph):
            needs = tuple(TaskId(str(place - one)) for one in back if one <= place)
            entries.append(BatchItem(name=str(place), request=self.request(needs, policy, priority)))
        for one in self.portal.call(submit_batch, self.scene.database, entries, Settings(), self.scene.now):
            self.know(one.task, [])
        self.model.settle()
        self.agree()

    def request(self, needs: tuple[TaskId, ...], policy: OnDependencyFailure, priority: Priority) -> Request:
        return Request(
            prompt="true",
            agent="shell",
            machine=self.runner.runner.machine,
            working_directory="/",
            priority=priority,
            depends_on=needs,
            on_dependency_failure=policy,
        )

    def know(self, made: Task, chain: list[TaskId]) -> Node:
        chain.append(made.id)
        self.model.nodes[made.id] = node = Node(made, list(made.depends_on), chain)
        return node

    def apply(self, verb: str, choice: int) -> None:
        nodes = list(self.model.nodes.values())
        match verb:
            case "claim":
                self.claim()
            case "add":
                self.add(nodes, choice)
            case "cancel":
                self.cancel(nodes[choice % len(nodes)])
            case "retry":
                self.retry(nodes[choice % len(nodes)])
            case _ if self.hands:
                self.let_go(verb, self.hands.pop(choice % len(self.hands)))
        self.model.settle()
        self.agree()

    def ask(self, work: Callable[[], Awaitable[Task]], error: str | None) -> Task | None:
        if error is None:
            return self.portal.call(work)
        with pytest.raises(DelegateError) as caught:
            self.portal.call(work)
        assert type(caught.value).__name__ == error
        return None

    def claim(self) -> None:
        held = self.portal.call(self.scene.claim, self.runner)
        queued = [node for node in self.model.nodes.values() if node.state == "queued"]
        if held is None:
            assert not queued
            return
        node = self.model.nodes[held.task.id]
        assert node in queued
        assert node.made.priority == min(one.made.priority for one in queued)
        needed = {self.model.nodes[one].state for one in node.needs}
        assert needed <= (FINAL if node.made.on_dependency_failure == "run" else {"completed"})
        node.state, node.has_run = "running", True
        self.hands.append(held)

    def let_go(self, verb: str, held: ClaimedTask) -> None:
        node = self.model.nodes[held.task.id]
        if verb in ("finish", "fail"):
            self.portal.call(self.scene.finish, held, DONE if verb == "finish" else FAILED)
            node.end(*(("completed", "done") if verb == "finish" else ("failed", "command_failed")))
        else:
            self.portal.call(self.scene.release, held, HANDED_BACK if verb == "hand back" else GONE)
            node.give_back(*(("queued", None) if verb == "hand back" else ("failed", "lost_runner")))

    def cancel(self, node: Node) -> None:
        is_over = node.state in ("completed", "failed") and not node.is_unwanted
        self.ask(lambda: self.scene.cancel(node.made), "IllegalMove" if is_over else None)
        if node.state == "running":
            node.is_unwanted = True
        elif node.state not in FINAL:
            node.end("cancelled", "cancelled")

    def retry(self, node: Node) -> None:
        needs = self.model.needs_again(node)
        is_spoilt = not node.has_run and self.model.is_spoilt(needs, node.made.on_dependency_failure)
        error = "IllegalMove" if node.state not in FINAL else "DependencyFailed" if is_spoilt else None
        made = self.ask(lambda: self.scene.retry(node.made), error)
        if made is not None:
            again = self.know(made, [] if node.state == "completed" else node.chain)
            again.needs, again.has_run = needs, node.has_run
            again.state = "queued" if node.has_run else "blocked"

    def add(self, nodes: list[Node], choice: int) -> None:
        needs = list({nodes[choice % len(nodes)].made.id: None, nodes[choice // 7 % len(nodes)].made.id: None})
        policy = OnDependencyFailure.CANCEL if choice % 3 else OnDependencyFailure.RUN
        wanted: dict[str, Any] = {
            "depends_on": tuple(needs),
            "on_dependency_failure": policy,
            "machine": self.runner.runner.machine,
        }
        error = "DependencyFailed" if self.model.is_spoilt(needs, policy) else None
        made = self.ask(lambda: self.scene.submit(**wanted), error)
        if made is not None:
            self.know(made, [])

    def agree(self) -> None:
        rows, changes = self.portal.call(self.scene.database.read, self.snapshot)
        assert rows == {task_id: (node.state, node.reason) for task_id, node in self.model.nodes.items()}
        for task_id, node in self.model.nodes.items():
            assert changes[task_id, "finished"] == (node.state in FINAL)
            assert changes[task_id, "ready"] <= 1

    def snapshot(self, connection: Connection) -> tuple[dict[str, tuple[str, str | None]], Counter[tuple[str, str]]]:
        states = connection.execute(
            select(task.c.id, task.c.state, task.c.reason).where(task.c.id.in_(self.model.nodes))
        )
        moves = select(event_table.c.task_id, event_table.c.kind).where(event_table.c.task_id.in_(self.model.nodes))
        changes = connection.execute(moves.where(event_table.c.kind.in_(["ready", "finished"])))
        return {row.id: (row.state, row.reason) for row in states}, Counter((row[0], row[1]) for row in changes)

    def all_are_known(self) -> None:
        """No move has made a task that it did not tell of; this looks at the tasks of all stories."""
        mine = select(task.c.id).where(task.c.machine == self.runner.runner.machine)
        found = self.portal.call(self.scene.database.read, lambda connection: set(connection.execute(mine).scalars()))
        assert found == set(self.model.nodes)


NEEDS = st.sets(st.integers(1, NODES // 4), max_size=4)  # how many places before it each of them stands
GRAPHS = st.lists(st.tuples(NEEDS, POLICIES, st.sampled_from(Priority)), min_size=1, max_size=NODES)
STORIES = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 10_000)), max_size=40)


def run(place: Place, **effort: Any) -> None:
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(open_database(path=place.home.database, url=place.url)) as database,
    ):

        @settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, **effort)
        @given(graph=GRAPHS, moves=STORIES)
        def agrees(graph: Any, moves: list[tuple[str, int]]) -> None:
            story = Story(Scene(database), portal)
            story.begin(graph)
            for verb, choice in moves:
                story.apply(verb, choice)
            story.all_are_known()

        agrees()


@pytest.mark.slow
@pytest.mark.promise("P16")
def test_graphs_and_their_model_agree_whatever_happens(place: Place) -> None:
    run(place, max_examples=500, derandomize=True, database=None)


@pytest.mark.soak
@pytest.mark.promise("P16")
def test_they_agree_in_thousands_of_graphs(place: Place) -> None:
    run(place, max_examples=20_000)
