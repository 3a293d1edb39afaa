"""Acts on stored webhooks. What Linear says now counts, not what the webhook said when it was sent."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from delegate.errors import (
    DelegateError,
    LinearDenied,
    LinearNotConnected,
    LinearRateLimited,
    LinearRefused,
    Unavailable,
)
from delegate.intake import conversation
from delegate.intake.issues import (
    IssueStart,
    StartedIssue,
    begin_task,
    find_blockers,
    find_refusal,
    new_session,
    queue_posts,
    start_issue,
)
from delegate.linear.issues import AgentSession, TrackedIssue, read_issue, read_session, read_user
from delegate.linear.operations import CREATE_SESSION, ISSUE, PERSON, SESSION
from delegate.linear.payloads import STOP_SIGNAL, PromptActivity, Webhook, WebhookKind, parse_webhook
from delegate.linear.posts import activity, stable_id
from delegate.linear.records import InboxEntry, IssueSession, LinearConnection
from delegate.linear.tags import find_trigger
from delegate.queue.cascade import Transition
from delegate.relay.linear.link import OUTBOX_KEY, LinearLink
from delegate.relay.linear.repositories import suggest_repository
from delegate.relay.notify import notify
from delegate.store.database import Connection
from delegate.store.linear.connections import set_problem
from delegate.store.linear.inbox import due_deliveries, postpone_delivery, settle_delivery
from delegate.store.linear.sessions import (
    get_session,
    insert_session,
    lock_session,
    open_sessions,
    sessions_of_issue,
)

log = logging.getLogger(__name__)
BATCH = 50
BACKOFF_FIRST, BACKOFF_MAX = timedelta(seconds=1), timedelta(minutes=5)
TRIES_MAX = 100  # about eight hours; Linear was then unreachable for most of them
EDITED = frozenset({"title", "description"})


class Inbox:
    """Processes deliveries one after another, in the order in which they arrived."""

    def __init__(self, link: LinearLink) -> None:
        self.link = link
        self.relay = link.relay
        self._actions: dict[WebhookKind, Callable[[Webhook, int], Awaitable[str | None]]] = {
            WebhookKind.SESSION_CREATED: self._start_session,
            WebhookKind.SESSION_PROMPTED: self._hear,
            WebhookKind.ISSUE_UPDATED: self._follow_issue,
            WebhookKind.COMMENT_CREATED: self._hear_comment,
            WebhookKind.UNASSIGNED: self._check_delegation,
            WebhookKind.APP_REVOKED: self._note_revocation,
        }

    async def process_due(self, now: datetime) -> int:
        """Process what is due. Returns the number of deliveries that were tried."""
        if await self.link.connection() is None:
            return 0
        entries = await self.relay.database.read(partial(due_deliveries, now=now, limit=BATCH))
        for entry in entries:
            await self._process(entry)
        if entries:
            self.relay.hub.notify_key(OUTBOX_KEY)
        return len(entries)

    async def _process(self, entry: InboxEntry) -> None:
        try:
            await self.act(parse_webhook(entry.body), entry.id)
        except LinearRefused as error:
            await self._settle(entry.id, f"refused: {error.message}")
        except (Unavailable, LinearDenied, LinearNotConnected) as error:
            await self._postpone(entry, error)
        except Exception:
            log.exception("webhook not processed", extra={"entry": entry.id})
            await self._settle(entry.id, "failed: see the log of the relay")

    async def act(self, webhook: Webhook, entry_id: int) -> None:
        """Act on one event. `entry_id` is settled in the transaction that writes what it caused."""
        assert webhook.kind is not None
        outcome = await self._actions[webhook.kind](webhook, entry_id)
        if outcome is not None:
            await self._settle(entry_id, outcome)

    async def _settle(self, entry_id: int, outcome: str) -> None:
        write = partial(settle_delivery, entry_id=entry_id, outcome=outcome[:500], now=self.relay.now())
        await self.relay.database.write("linear.settle", write)

    async def _postpone(self, entry: InboxEntry, error: DelegateError) -> None:
        if entry.tries >= TRIES_MAX:
            await self._settle(entry.id, f"given up: {error.message}")
            return
        pause = min(BACKOFF_FIRST * 2 ** min(entry.tries, 10), BACKOFF_MAX)
        if isinstance(error, LinearRateLimited) and error.retry_after is not None:
            pause = timedelta(seconds=error.retry_after)
        until = self.relay.now() + pause
        write = partial(postpone_delivery, entry=entry, not_before=until, why=error.message)
        await self.relay.database.write("linear.postpone", write)

    # A session begins.

    async def _start_session(self, webhook: Webhook, entry_id: int) -> str | None:
        assert webhook.session_id is not None
        if await self._known(webhook.session_id) is not None:
            return "known session"
        session = read_session(await self.link.call(SESSION, {"id": webhook.session_id}))
        if session.issue is None:
            return "the session has no issue"
        if session.has_ended or session.issue.is_closed:
            return "the session has ended, or the issue is closed"
        return await self._start(session, session.issue, webhook, entry_id)

    async def _start(self, session: AgentSession, issue: TrackedIssue, webhook: Webhook, entry_id: int) -> str | None:
        connection = await self.link.require()
        refusal = find_refusal(session.creator, connection)
        start = IssueStart(
            session_id=session.id,
            issue=issue,
            creator=session.creator.name if session.creator else "someone",
            email=session.creator.email if session.creator else "",
            is_delegated=session.source_comment is None,
            request=_join(session.source_comment, webhook.activity),
            guidance=webhook.guidance,
        )
        if refusal is not None:
            await self.relay.database.write("linear.refuse", partial(self._refuse, start=start, why=refusal))
            return f"refused: {refusal}"
        await self._begin(start, entry_id)
        return None

    def _refuse(self, connection: Connection, start: IssueStart, why: str) -> None:
        """Keep the session, so that its redelivery is recognised, and say why nothing happens."""
        now = self.relay.now()
        session = replace(new_session(start, now), ended_at=now)
        if get_session(connection, session.id) is None:
            insert_session(connection, session)
            queue_posts(connection, session, [activity(session, "start", "error", why)], now)

    async def _begin(self, start: IssueStart, entry_id: int | None) -> None:
        known = await suggest_repository(self.link, start)
        relay = self.relay
        started = await start_issue(
            relay.database, known, relay.settings, relay.rules, entry_id=entry_id, now=relay.now()
        )
        if started is not None and started.task is not None:
            notify(relay.hub, Transition(task=started.task))

    async def _known(self, session_id: str) -> IssueSession | None:
        return await self.relay.database.read(partial(get_session, session_id=session_id))

    # People write.

    async def _hear(self, webhook: Webhook, entry_id: int) -> str | None:
        assert webhook.session_id is not None
        if webhook.activity is None:
            return "nothing was said"
        session = await self._known(webhook.session_id)
        if session is None:  # this came before the event that created the session, or instead of it
            return await self._start_session(webhook, entry_id)
        return await self._pass_on(session, webhook.activity, webhook, entry_id)

    async def _pass_on(
        self, session: IssueSession, said: PromptActivity, webhook: Webhook, entry_id: int
    ) -> str | None:
        relay = self.relay
        if said.signal == STOP_SIGNAL:
            stopped = await conversation.stop(relay.database, session.id, said, entry_id=entry_id, now=relay.now())
            self._notify(stopped)
            return None
        if session.question is not None and session.task_id is None:
            return await self._answer_question(session, said, webhook, entry_id)
        heard = await conversation.reply(relay.database, session.id, said, entry_id=entry_id, now=relay.now())
        self._notify(heard)
        return None

    async def _answer_question(
        self, session: IssueSession, said: PromptActivity, webhook: Webhook, entry_id: int
    ) -> str | None:
        """Try again to understand the issue, with what the person wrote."""
        issue = read_issue((await self.link.call(ISSUE, {"id": session.issue_id}))["issue"])
        start = IssueStart(
            session_id=session.id,
            issue=issue,
            creator=session.creator,
            email=session.email,
            is_delegated=session.is_delegated,
            is_comment=session.is_comment,
            request=said.body,
            guidance=webhook.guidance,
            ignores_blockers=bool(session.question and session.question.blockers),
        )
        known = await suggest_repository(self.link, start)
        started = await self.relay.database.write(
            "linear.answer", partial(self._begin_answered, start=known, said=said, entry_id=entry_id)
        )
        if started is not None and started.task is not None:
            notify(self.relay.hub, Transition(task=started.task))
        return None

    async def _release_blocked(self, closed: TrackedIssue) -> None:
        """Start what waits for this issue, if nothing else blocks it."""
        waiting = [
            session
            for session in await self.relay.database.read(open_sessions)
            if session.question is not None and closed.id in session.question.blockers
        ]
        for session in waiting:
            issue = read_issue((await self.link.call(ISSUE, {"id": session.issue_id}))["issue"])
            if find_blockers(issue) is not None:
                continue
            start = IssueStart(
                session_id=session.id,
                issue=issue,
                creator=session.creator,
                email=session.email,
                is_delegated=session.is_delegated,
                is_comment=session.is_comment,
            )
            known = await suggest_repository(self.link, start)
            started = await self.relay.database.write(
                "linear.release", partial(self._begin_answered, start=known, said=None, entry_id=None)
            )
            if started is not None and started.task is not None:
                notify(self.relay.hub, Transition(task=started.task))

    def _begin_answered(
        self, connection: Connection, start: IssueStart, said: PromptActivity | None, entry_id: int | None
    ) -> StartedIssue | None:
        relay, now = self.relay, self.relay.now()
        session = lock_session(connection, start.session_id)
        if entry_id is not None:
            settle_delivery(connection, entry_id, "answered", now)
        if session is None or session.task_id is not None:
            return None
        if said is not None and conversation.is_about_repository(session.question):
            conversation.remember_repository(connection, session, said.body)
        return begin_task(connection, session, start, relay.settings, relay.rules, now)

    async def _hear_comment(self, webhook: Webhook, entry_id: int) -> str | None:
        """With an API key, replies are comments on the issue."""
        connection = await self.link.require()
        if connection.has_sessions or webhook.comment is None or webhook.issue_id is None:
            return "comments reach sessions in another way"
        issue_id = webhook.issue_id
        sessions = await self.relay.database.read(lambda one: sessions_of_issue(one, issue_id))
        if not sessions:
            return "no session"
        return await self._pass_on(sessions[-1], webhook.comment, webhook, entry_id)

    # The issue changes.

    async def _follow_issue(self, webhook: Webhook, entry_id: int) -> str | None:
        assert webhook.issue_id is not None
        if not webhook.changed & {"labelIds", "delegateId", "stateId", *EDITED}:
            return "no change that matters"
        issue = read_issue((await self.link.call(ISSUE, {"id": webhook.issue_id}))["issue"])
        connection = await self.link.require()
        if "stateId" in webhook.changed and issue.is_closed:
            await self._release_blocked(issue)
            return await self._withdraw(issue, f"{issue.key} was closed", entry_id, delegated_only=False)
        if "delegateId" in webhook.changed and issue.delegate_id != connection.user_id:
            return await self._withdraw(issue, f"{issue.key} is no longer delegated", entry_id, delegated_only=True)
        if "labelIds" in webhook.changed and issue.delegate_id != connection.user_id:
            return await self._start_by_label(issue, webhook, connection, entry_id)
        if webhook.changed & EDITED:
            text = f"The issue was edited.\n\n{issue.title}\n\n{issue.description}"
            told = await conversation.tell_edit(
                self.relay.database, issue.id, text, webhook.key, entry_id=entry_id, now=self.relay.now()
            )
            self._notify(told)
            return None
        return "no change that matters"

    async def _check_delegation(self, webhook: Webhook, entry_id: int) -> str | None:
        if webhook.issue_id is None:
            return "no issue"
        issue = read_issue((await self.link.call(ISSUE, {"id": webhook.issue_id}))["issue"])
        if issue.delegate_id == (await self.link.require()).user_id:
            return "delegated again"
        return await self._withdraw(issue, f"{issue.key} is no longer delegated", entry_id, delegated_only=True)

    async def _withdraw(self, issue: TrackedIssue, reason: str, entry_id: int, *, delegated_only: bool) -> str | None:
        relay = self.relay
        ended = await conversation.withdraw(
            relay.database, issue.id, reason, delegated_only=delegated_only, entry_id=entry_id, now=relay.now()
        )
        for transition in ended:
            notify(relay.hub, transition)
        return None

    async def _start_by_label(
        self, issue: TrackedIssue, webhook: Webhook, connection: LinearConnection, entry_id: int
    ) -> str | None:
        """A label that names Delegate starts work on an issue that has none."""
        label = find_trigger(issue.labels, webhook.old_label_ids)
        if label is None or issue.is_closed:
            return "no label for Delegate was added"
        sessions = await self.relay.database.read(lambda one: sessions_of_issue(one, issue.id))
        if any(session.ended_at is None for session in sessions):
            return "the issue is in work"
        actors = [read_user((await self.link.call(PERSON, {"id": one}))["user"]) for one in webhook.actor_ids]
        creator = actors[0] if actors else None
        refusal = find_refusal(creator, connection)
        if refusal is not None or creator is None:
            return f"refused: {refusal}"
        start = IssueStart(
            session_id=await self._open_session(issue, webhook, connection),
            issue=issue,
            creator=creator.name,
            email=creator.email,
            is_delegated=False,
            is_comment=not connection.has_sessions,
            label=label.name,
        )
        await self._begin(start, entry_id)
        return None

    async def _open_session(self, issue: TrackedIssue, webhook: Webhook, connection: LinearConnection) -> str:
        if not connection.has_sessions:
            return stable_id("label", webhook.key)
        answer = await self.link.call(CREATE_SESSION, {"input": {"issueId": issue.id}})
        return str(answer["agentSessionCreateOnIssue"]["agentSession"]["id"])

    async def _note_revocation(self, _webhook: Webhook, _entry_id: int) -> str | None:
        problem = "the app was removed from the workspace"
        await self.relay.database.write("linear.problem", partial(set_problem, problem=problem))
        await self.link.reload()
        return "revoked"

    def _notify(self, transition: Transition | None) -> None:
        if transition is not None:
            notify(self.relay.hub, transition)


def _join(comment: str | None, said: PromptActivity | None) -> str | None:
    """What asks for the work: the comment that mentions the app, and what was said before the session was known."""
    texts = [text for text in (comment, said.body if said else None) if text]
    return "\n\n".join(texts) or None
