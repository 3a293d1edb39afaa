"""Who in this relay should know that a task has moved: its followers, its holder, and runners that wait for work."""

from __future__ import annotations

from delegate.queue.ending import Moved
from delegate.relay.live import CLOCK
from delegate.relay.state import Relay
from delegate.states import FINAL_TASK_STATES, TaskState


def tell(relay: Relay, moved: Moved) -> None:
    for task in (moved.task, *moved.others):
        if task.state is TaskState.QUEUED and task.not_before is None:
            relay.hub.wake(task.lane)
        if task.schedule_id is not None and task.state in FINAL_TASK_STATES:
            relay.hub.call(CLOCK)  # another schedule may have waited for this end
        relay.hub.alert(task.id)
