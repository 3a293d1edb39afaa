"""Sends what waits in the outbox: in order within a session, each post once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import anyio

from delegate.errors import LinearDenied, LinearNotConnected, LinearRateLimited, LinearRefused, LinearUnreachable
from delegate.linear.client import ALREADY_EXISTS
from delegate.linear.operations import (
    CREATE_ACTIVITY,
    CREATE_COMMENT,
    LINK_PULL_REQUEST,
    LINK_URL,
    UPDATE_COMMENT,
    UPDATE_ISSUE,
    UPDATE_SESSION,
)
from delegate.linear.records import Post, PostKind
from delegate.model import EventKind, Task
from delegate.relay.linear.link import POSTED_KEY, LinearLink
from delegate.report.linear import LINEAR_NOTE
from delegate.states import FINAL_TASK_STATES
from delegate.store.database import Connection
from delegate.store.events import NewEvent, append_events
from delegate.store.linear.outbox import (
    drop_posts_of,
    drop_replaced,
    due_posts,
    has_replaced,
    is_end_posted,
    postpone_post,
    settle_post,
)
from delegate.store.linear.sessions import get_session, save_session
from delegate.store.tasks import get_task

log = logging.getLogger(__name__)
BATCH = 50
AT_ONCE = 8  # requests to Linear at the same time
BACKOFF_FIRST, BACKOFF_MAX = timedelta(seconds=1), timedelta(minutes=5)
GIVE_UP_AFTER = timedelta(days=3)  # Linear was unreachable for so long
DENIED_PAUSE = timedelta(minutes=1)
END_TIMEOUT = 2.0  # seconds that a runner waits for its end to be posted
END_POLL = 0.5  # seconds; another relay on the same database may post it
NOT_FOUND = ("not found", "could not find")


async def wait_until_end_posted(link: LinearLink, task: Task) -> bool | None:
    """Wait a little until Linear has the end of a task; False if it gets it later, None if it does not get it."""
    if not (task.is_from_linear and task.state in FINAL_TASK_STATES and link.is_posting):
        return None
    if await link.connection() is None:
        return None
    relay, deadline = link.relay, anyio.current_time() + END_TIMEOUT
    with relay.hub.subscribe(POSTED_KEY) as news:
        while True:
            is_posted = await relay.database.read(partial(is_end_posted, task_id=task.id))
            remaining = deadline - anyio.current_time()
            if is_posted is not False or remaining <= 0 or relay.hub.closing.is_set():
                return is_posted
            await news.wait(min(remaining, END_POLL))


class Outbox:
    def __init__(self, link: LinearLink) -> None:
        self.link = link
        self.relay = link.relay
        self.paused_until: datetime | None = None  # by a rate limit or a refused credential
        self._senders: dict[PostKind, Callable[[Post], Awaitable[object]]] = {
            PostKind.ACTIVITY: self._send_activity,
            PostKind.SESSION: self._send_session,
            PostKind.PLAN: self._send_session,
            PostKind.STATE: self._send_state,
            PostKind.PULL_REQUEST: self._send_pull_request,
            PostKind.COMMENT: self._send_comment,
        }

    async def send_due(self, now: datetime) -> int:
        """Send the next post of each session. Returns the number of posts that were tried."""
        if self.paused_until is not None and now < self.paused_until:
            return 0
        self.paused_until = None
        if await self.link.connection() is None:
            return 0
        database, read = self.relay.database, partial(due_posts, now=now, limit=BATCH)
        if await database.read(has_replaced):
            await database.write("linear.drop", partial(drop_replaced, now=now))
        posts = await database.read(read)
        limiter = anyio.CapacityLimiter(AT_ONCE)
        async with anyio.create_task_group() as group:
            for post in posts:
                group.start_soon(self._send, post, limiter)
        return len(posts)

    async def _send(self, post: Post, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            if self.paused_until is not None:
                return
            try:
                await self._senders[post.kind](post)
            except LinearRefused as error:
                await self._handle_refusal(post, error)
            except LinearRateLimited as error:
                self.paused_until = self.relay.now() + timedelta(seconds=error.retry_after or 60.0)
            except (LinearDenied, LinearNotConnected):
                self.paused_until = self.relay.now() + DENIED_PAUSE
            except LinearUnreachable as error:
                await self._postpone(post, error)
            else:
                await self._settle(post, "sent")

    async def _handle_refusal(self, post: Post, error: LinearRefused) -> None:
        """A refusal is permanent: a repeat would be refused, too. The task's timeline tells it."""
        if ALREADY_EXISTS in error.message.lower():
            await self._settle(post, "sent")
            return
        log.warning("Linear refused a post", extra={"kind": post.kind, "why": error.message})
        is_gone = any(words in error.message.lower() for words in NOT_FOUND) and post.kind is not PostKind.STATE
        write = partial(self._bury, post=post, why=error.message, is_gone=is_gone)
        await self.relay.database.write("linear.bury", write)

    def _bury(self, connection: Connection, post: Post, why: str, is_gone: bool) -> None:  # noqa: FBT001  # a fact
        now = self.relay.now()
        settle_post(connection, post.id, "dead", now, why)
        session = get_session(connection, post.session_id)
        if session is not None and is_gone:
            drop_posts_of(connection, session.id, why, now)
            save_session(connection, replace(session, ended_at=now))
        task = None if session is None or session.task_id is None else get_task(connection, session.task_id)
        if task is not None:
            data: dict[str, object] = {"text": f"not posted to Linear: {why}", LINEAR_NOTE: True}
            append_events(connection, [NewEvent(task_id=task.id, kind=EventKind.WARNING, at=now, data=data)])

    async def _postpone(self, post: Post, error: LinearUnreachable) -> None:
        now = self.relay.now()
        if now - post.created_at > GIVE_UP_AFTER:
            await self._settle(post, "dead", error.message)
            return
        pause = min(BACKOFF_FIRST * 2 ** min(post.tries, 10), BACKOFF_MAX)
        write = partial(postpone_post, post=post, not_before=now + pause, why=error.message)
        await self.relay.database.write("linear.postpone", write)

    async def _settle(self, post: Post, state: str, error: str | None = None) -> None:
        write = partial(settle_post, post_id=post.id, state=state, now=self.relay.now(), error=error)
        await self.relay.database.write("linear.sent", write)
        self.relay.hub.notify_key(POSTED_KEY)

    async def _send_activity(self, post: Post) -> None:
        await self.link.call(CREATE_ACTIVITY, {"input": {**post.data, "agentSessionId": post.session_id}})

    async def _send_session(self, post: Post) -> None:
        await self.link.call(UPDATE_SESSION, {"id": post.session_id, "input": post.data})

    async def _send_state(self, post: Post) -> None:
        await self.link.call(UPDATE_ISSUE, {"id": post.data["issueId"], "input": {"stateId": post.data["stateId"]}})

    async def _send_pull_request(self, post: Post) -> None:
        """Linear's GitHub integration shows more than a plain link, but a workspace need not have it."""
        target = {"issueId": post.data["issueId"], "url": post.data["url"]}
        try:
            await self.link.call(LINK_PULL_REQUEST, target)
        except LinearRefused:
            await self.link.call(LINK_URL, {**target, "title": post.data["title"]})

    async def _send_comment(self, post: Post) -> None:
        try:
            await self.link.call(UPDATE_COMMENT, {"id": post.data["id"], "input": {"body": post.data["body"]}})
        except LinearRefused:
            await self.link.call(CREATE_COMMENT, {"input": post.data})
