"""The right to work on one attempt: renewed in the background, and the ear for what the relay wants of it."""

from __future__ import annotations

import logging
import random
import time

import anyio

from delegate.runner.upload.relay import RelayLink
from delegate.runner.wakeup import Wakeup
from delegate.wire.runners import Assignment, Control, MessageView, RenewRequest

log = logging.getLogger(__name__)

SLEEP_CHECK_INTERVAL = 1.0  # seconds between two looks at the clock that counts sleep
SLEEP_THRESHOLD = 2.0  # a look that comes this much too late means that we, or the machine, were stopped
FIRST_RENEWAL_DELAY = (
    0.05  # seconds; the claim was a renewal too, and the launch of the agent should not have to share the CPU
)
EFFECT_SHARE = 6  # of a lease, one part must be left when something outside is begun
HEARTBEAT_JITTER = 0.1  # heartbeats of many runners must not fall together
ASKED_HEARTBEAT = 2.0  # seconds; the relay does not hold renewals of an attempt that asked, and its agent ends soon
# Counts the time the machine sleeps, unlike the clock that timeouts run on.
SLEEP_COUNTING = time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC


def sleep_counting_clock() -> float:
    return time.clock_gettime(SLEEP_COUNTING)


class Lease:
    """Renewing raises StaleFence when the attempt is somebody else's; no answer is no news, and the agent goes on."""

    def __init__(self, link: RelayLink, attempt: Assignment, wakeup: Wakeup) -> None:
        self._link = link
        self._attempt = attempt
        self._wakeup = wakeup
        self._renewed = Wakeup()
        self._seen = Wakeup()
        self._renewed_at = sleep_counting_clock()  # when the renewal that was answered had been sent
        self._renewal_scope = anyio.CancelScope()
        self._is_urgent = False
        self._messages: list[MessageView] = []
        self._last_message = 0
        self._messages_seen = 0
        self.cancel_reason: str | None = None
        self.asked_at: float | None = None  # when we heard that the agent has asked a person something
        self.renewals = 0

    async def keep_renewed(self) -> None:
        """Renew until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._renew_periodically)
            group.start_soon(self._notice_sleep)

    async def ensure_fresh(self, margin: float = 0.0) -> None:
        """Returns when a renewal is known that is good for `margin` more seconds: nothing is sent on an old one."""
        while sleep_counting_clock() - self._renewed_at >= self._link.timings.lease - margin:
            self._renew_now()
            await self._renewed.wait()

    async def ensure_fresh_for_effect(self) -> None:
        """The same directly before something is done outside, which takes a while."""
        await self.ensure_fresh(self._link.timings.lease / EFFECT_SHARE)

    async def refresh(self) -> None:
        """Returns when the relay has told all that it knew at the moment of the call."""
        since = sleep_counting_clock()
        while self._renewed_at < since:
            self._renew_now()
            await self._renewed.wait()

    def apply_control(self, control: Control) -> None:
        """Take in what came with an answer about this attempt."""
        new = [message for message in control.messages if message.id > self._last_message]
        if new:
            self._last_message = new[-1].id
            self._messages += new
        if control.cancel is not None and self.cancel_reason is None:
            self.cancel_reason = control.cancel
        if control.asked and self.asked_at is None:
            self.asked_at = anyio.current_time()
        self._wakeup.send()

    def take_messages(self) -> list[MessageView]:
        taken, self._messages = self._messages, []
        return taken

    def put_back(self, messages: list[MessageView]) -> None:
        """These were taken and could not be handed on; they stand before what came meanwhile."""
        self._messages = messages + self._messages

    def mark_seen(self, message: MessageView) -> None:
        """The agent has the message; the next renewal says so."""
        self._messages_seen = message.id
        self._seen.send()

    async def _renew_periodically(self) -> None:
        await anyio.sleep(FIRST_RENEWAL_DELAY)
        while True:
            has_asked = self.asked_at is not None
            beat = min(self._link.timings.heartbeat, ASKED_HEARTBEAT) if has_asked else self._link.timings.heartbeat
            beat *= random.uniform(1 - HEARTBEAT_JITTER, 1 + HEARTBEAT_JITTER)  # noqa: S311
            next_beat = anyio.current_time() + beat
            is_urgent, self._is_urgent = self._is_urgent, False
            is_answered = await self._renew(0.0 if is_urgent or has_asked or self.cancel_reason is not None else beat)
            if is_answered and not is_urgent:
                # Answered early means that there is news: ask again when it is dealt with, not at once for the same.
                with anyio.move_on_after(next_beat - anyio.current_time()):
                    await self._seen.wait()

    async def _renew(self, wait: float) -> bool:
        """One renewal, which the relay may hold for `wait` seconds until it has news; False: broken off."""
        request = RenewRequest(fence=self._attempt.fence, messages_seen=self._messages_seen, wait=wait)
        sent_at = sleep_counting_clock()
        with anyio.CancelScope() as self._renewal_scope:
            control = await self._link.renew(self._attempt, request)
        if self._renewal_scope.cancelled_caught:
            return False
        self._renewed_at = sent_at
        self.renewals += 1
        self.apply_control(control)
        self._renewed.send()
        return True

    async def _notice_sleep(self) -> None:
        """A connection may be dead after a sleep and the attempt somebody else's: ask before anything is sent."""
        while True:
            before = sleep_counting_clock()
            await anyio.sleep(SLEEP_CHECK_INTERVAL)
            missed = sleep_counting_clock() - before - SLEEP_CHECK_INTERVAL
            if missed > SLEEP_THRESHOLD:
                log.info("woke up", extra={"attempt_id": self._attempt.attempt_id, "seconds": round(missed, 1)})
                self._renew_now()

    def _renew_now(self) -> None:
        self._is_urgent = True
        self._renewal_scope.cancel()
        self._seen.send()
