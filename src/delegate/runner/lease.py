"""Renews the lease on one attempt in the background and receives the relay's instructions for it."""

from __future__ import annotations

import logging
import random

import anyio

from delegate.config.observed_time import sleep_counting_clock
from delegate.runner.assignment import Assignment
from delegate.runner.keeper_link import KeeperLink
from delegate.runner.upload.relay import RelayLink
from delegate.runner.wakeup import Wakeup
from delegate.wire.runners import Control, MessageView, RenewRequest

log = logging.getLogger(__name__)

SLEEP_CHECK_INTERVAL = 1.0  # seconds between two readings of the clock that counts sleep
SLEEP_THRESHOLD = 2.0  # a reading this late means that the process or the machine was suspended
FIRST_RENEWAL_DELAY = 0.05  # seconds; the claim counts as a renewal, and the agent's start needs the CPU
EFFECT_SHARE = 6  # a sixth of the lease must remain when an external effect starts
HEARTBEAT_JITTER = 0.1  # spreads the heartbeats of many runners
ASKED_HEARTBEAT = 2.0  # seconds; after a question the relay does not hold renewals, and the agent ends soon


class Lease:
    """Renewing raises StaleFence when another runner holds the attempt; without an answer the agent keeps running."""

    def __init__(
        self, link: RelayLink, attempt: Assignment, wakeup: Wakeup, keeper_link: KeeperLink | None = None
    ) -> None:
        self._link = link
        self._keeper_link = keeper_link or KeeperLink()
        self._attempt = attempt
        self._wakeup = wakeup
        self._renewed = Wakeup()
        self._seen = Wakeup()
        self._renewed_at = sleep_counting_clock()  # when the last successful renewal was sent
        self._renewal_scope = anyio.CancelScope()
        self._is_urgent = False
        self._messages: list[MessageView] = []
        self._last_message = 0
        self.messages_seen = 0  # the last message that the agent has received
        self.cancel_reason: str | None = None
        self.asked_at: float | None = None  # when the relay reported that the agent asked a question
        self.renewals = 0
        self._has_children = False

    async def keep_renewed(self) -> None:
        """Renew the lease until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._renew_periodically)
            group.start_soon(self._notice_sleep)

    async def ensure_fresh(self, margin: float = 0.0) -> None:
        """Returns when the lease is valid for at least `margin` more seconds; nothing is sent on an expired one."""
        while sleep_counting_clock() - self._renewed_at >= self._link.timings.lease - margin:
            self._renew_now()
            await self._renewed.wait()

    async def ensure_fresh_for_effect(self) -> None:
        """The same, with the margin that an external effect needs; call it directly before the effect."""
        await self.ensure_fresh(self._link.timings.lease / EFFECT_SHARE)

    async def refresh(self) -> None:
        """Returns when a renewal sent after this call was answered; the one that the relay holds continues."""
        sent_at = sleep_counting_clock()
        self._note_renewal(sent_at, await self._link.renew(self._attempt, self._request(wait=0.0)))

    def apply_control(self, control: Control) -> None:
        """Apply the instructions in a response about this attempt."""
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
        """Put back messages that could not be delivered, before those that arrived since."""
        self._messages = messages + self._messages

    def mark_seen(self, message: MessageView) -> None:
        """The agent has received the message; the next renewal reports it."""
        self.messages_seen = message.id
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
                # An early answer means news: renew again once it is handled, not at once.
                with anyio.move_on_after(next_beat - anyio.current_time()):
                    await self._seen.wait()

    async def _renew(self, wait: float) -> bool:
        """Send one renewal, which the relay may hold for `wait` seconds until it has news; False if cancelled."""
        sent_at = sleep_counting_clock()
        with anyio.CancelScope() as self._renewal_scope:
            control = await self._link.renew(self._attempt, self._request(wait))
        if self._renewal_scope.cancelled_caught:
            return False
        self._note_renewal(sent_at, control)
        return True

    def _request(self, wait: float) -> RenewRequest:
        return RenewRequest(fence=self._attempt.fence, messages_seen=self.messages_seen, wait=wait)

    def _note_renewal(self, sent_at: float, control: Control) -> None:
        self._renewed_at = max(self._renewed_at, sent_at)
        self.renewals += 1
        self.apply_control(control)
        if control.has_children is not self._has_children:
            self._has_children = control.has_children
            self._keeper_link.report_waiting(waits=control.has_children)
        self._renewed.send()

    async def _notice_sleep(self) -> None:
        """Renew at once after a suspension: the connection may be dead, or another runner may hold the attempt."""
        while True:
            before = sleep_counting_clock()
            await anyio.sleep(SLEEP_CHECK_INTERVAL)
            missed = sleep_counting_clock() - before - SLEEP_CHECK_INTERVAL
            if missed > SLEEP_THRESHOLD:
                log.info(
                    "resumed after a suspension",
                    extra={"attempt_id": self._attempt.attempt_id, "seconds": round(missed, 1)},
                )
                self._renew_now()

    def _renew_now(self) -> None:
        self._is_urgent = True
        self._renewal_scope.cancel()
        self._seen.send()
