"""Acts on stored webhooks. What Linear says now counts, not what the webhook said when it was sent."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import anyio

from delegate.errors import (
    DelegateError,
    LinearDenied,
    LinearNotConnected,
    LinearRateLimited,
    LinearRefused,
    LinearUnreachable,
    Unavailable,
)
from delegate.intake import conversation
from delegate.intake.issues import (
    IssueStart,
    begin_task,
    find_refusal,
    new_session,
    open_blockers,
    queue_posts,
    start_issue,
)
from delegate.intake.sub_issues import SubIssue, begin_graph
from delegate.linear.issues import AgentSession, LinearUser, TrackedIssue, read_issue, read_session, read_user
from delegate.linear.operations import CREATE_SESSION, ISSUE, PERSON, SESSION, SESSIONS
from delegate.linear.payloads import BLOCKERS, EDITED, STOP_SIGNAL, PromptActivity, Webhook, WebhookKind, parse_webhook
from delegate.linear.posts import activity, comment_id, read_scope, stable_id
from delegate.linear.records import InboxEntry, IssueSession, LinearConnection, Scope
from delegate.linear.tags import find_trigger
from delegate.model import Blocker, Task, TaskId
from delegate.queue.cascade import Transition, drop_blockers
from delegate.relay.linear.link import OUTBOX_KEY, LinearLink
from delegate.relay.linear.repositories import suggest_repository
from delegate.relay.notify import notify
from delegate.store.database import Connection
from delegate.store.linear.connections import set_problem
from delegate.store.linear.inbox import (
    due_deliveries,
    is_opening,
    mark_opening,
    postpone_delivery,
    settle_delivery,
)
from delegate.store.linear.sessions import (
    get_session,
    insert_session,
    lock_session,
    sessions_of_issue,
)

log = logging.getLogger(__name__)
BATCH = 50
AT_ONCE = 8  # issues whose deliveries are processed at the same time
BACKOFF_FIRST, BACKOFF_MAX = timedelta(seconds=1), timedelta(minutes=5)
# Changes that may start work, or release it. Others of an unknown issue must not use up the requests of the hour.
CONCERNS_ANY_ISSUE = frozenset({"labelIds", "stateId", BLOCKERS})
GIVE_UP_AFTER = timedelta(days=6)  # before the text of the delivery is dropped


class Inbox:
    """Processes deliveries: those of one issue one after another, in the order in which they arrived."""

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
        by_issue: dict[str, list[tuple[InboxEntry, Webhook]]] = {}
        for entry in entries:
            webhook = parse_webhook(entry.body)
            if "stateId" in webhook.changed:  # it may release an issue whose delegation is before it
                await self._process_together(by_issue)
                by_issue = {}
            by_issue.setdefault(webhook.subject or webhook.key, []).append((entry, webhook))
        await self._process_together(by_issue)
        return len(entries)

    async def _process_together(self, by_issue: dict[str, list[tuple[InboxEntry, Webhook]]]) -> None:
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def process_all(deliveries: list[tuple[InboxEntry, Webhook]]) -> None:
            async with limiter:
                for entry, webhook in deliveries:
                    await self._process(entry, webhook)

        async with anyio.create_task_group() as group:
            for deliveries in by_issue.values():
                group.start_soon(process_all, deliveries)

    async def _process(self, entry: InboxEntry, webhook: Webhook) -> None:
        try:
            await self.act(webhook, entry.id)
        except LinearRefused as error:
            await self._settle(entry.id, f"refused: {error.message}")
        except (Unavailable, LinearDenied, LinearNotConnected) as error:
            await self._postpone(entry, error)
        except Exception:
            log.exception("webhook not processed", extra={"entry": entry.id})
            await self._settle(entry.id, "failed: see the log of the relay")
        self.relay.hub.notify_key(OUTBOX_KEY)

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
        if self.relay.now() - entry.received_at > GIVE_UP_AFTER:
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
        if session.creator is None and await self.relay.database.read(is_opening):
            raise LinearUnreachable(why="the session may be one that Delegate has opened")
        return await self._start(session, session.issue, webhook, entry_id)

    async def _start(self, session: AgentSession, issue: TrackedIssue, webhook: Webhook, entry_id: int) -> str | None:
        connection = await self.link.require()
        said = webhook.activity
        if said is not None and find_refusal(await self._find_person(said.user_id), connection) is not None:
            said = None
        start = IssueStart(
            session_id=session.id,
            issue=issue,
            creator=session.creator.name if session.creator else "someone",
            email=session.creator.email if session.creator else "",
            is_delegated=session.source_comment is None,
            request=_join(session.source_comment, said),
            guidance=webhook.guidance,
        )
        refusal, withdrawal = find_refusal(session.creator, connection), None
        if webhook.activity is not None and webhook.activity.signal == STOP_SIGNAL:
            withdrawal = "Stopped before it began."
        elif start.is_delegated and issue.delegate_id != connection.user_id:
            withdrawal = f"{issue.key} is no longer delegated."
        if refusal is None and withdrawal is None:
            await self._begin(start, entry_id)
            return None
        kind, why = ("error", refusal) if refusal else ("response", withdrawal or "")
        await self.relay.database.write("linear.refuse", partial(self._refuse, start=start, kind=kind, why=why))
        return f"refused: {why}"

    def _refuse(self, connection: Connection, start: IssueStart, kind: str, why: str) -> None:
        """Keep the session, so that its redelivery is recognised, and say why nothing happens."""
        now = self.relay.now()
        session = replace(new_session(start, now), ended_at=now)
        if get_session(connection, session.id) is None:
            insert_session(connection, session)
            queue_posts(connection, session, [activity(session, "start", kind, why)], now)

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
        speaker = await self._find_person(said.user_id)
        refusal = find_refusal(speaker, await self.link.require())
        if refusal is not None:
            await conversation.refuse_reply(
                relay.database, session.id, said, refusal, entry_id=entry_id, now=relay.now()
            )
            return None
        if said.signal == STOP_SIGNAL:
            self._notify(*await conversation.stop(relay.database, session.id, said, entry_id=entry_id, now=relay.now()))
            return None
        if session.question is not None and session.task_id is None:
            return await self._answer_question(session, said, webhook, entry_id)
        heard = conversation.reply(relay.database, session.id, said, speaker, entry_id=entry_id, now=relay.now())
        self._notify(await heard)
        return None

    async def _find_person(self, user_id: str | None) -> LinearUser | None:
        return None if user_id is None else read_user((await self.link.call(PERSON, {"id": user_id}))["user"])

    async def _read_issue(self, issue_id: str) -> TrackedIssue:
        return read_issue((await self.link.call(ISSUE, {"id": issue_id}))["issue"])

    async def _answer_question(
        self, session: IssueSession, said: PromptActivity, webhook: Webhook, entry_id: int
    ) -> str | None:
        """Try again to understand the issue, with what the person wrote."""
        scope = session.question.scope if session.question else None
        is_scope = scope is Scope.ASKED
        start = IssueStart(
            session_id=session.id,
            issue=await self._read_issue(session.issue_id),
            creator=session.creator,
            email=session.email,
            is_delegated=session.is_delegated,
            is_comment=session.is_comment,
            request=None if is_scope else said.body,
            guidance=webhook.guidance,
            scope=read_scope(said.body) if is_scope else scope,
        )
        known = await suggest_repository(self.link, start)
        children = await self._gather_children(start, entry_id) if start.scope is Scope.ALL else []
        begin = partial(self._begin_answered, start=known, children=children, said=said, entry_id=entry_id)
        self._notify_all(await self.relay.database.write("linear.answer", begin))
        return None

    async def _gather_children(self, start: IssueStart, entry_id: int) -> list[SubIssue]:
        """Read the open sub-issues, and open sessions on those that have none."""
        children = []
        for child in start.issue.children:
            if child.is_open:
                issue = await self._read_issue(child.id)
                known = await self.relay.database.read(partial(sessions_of_issue, issue_id=issue.id))
                open_ids = [session.id for session in known if session.ended_at is None]
                key = f"{start.session_id}/{issue.id}"
                session_id = open_ids[-1] if open_ids else await self._open_session(issue, key, entry_id)
                children.append(SubIssue(session_id=session_id, issue=issue))
        return children

    async def _refresh_blockers(self, issue: TrackedIssue) -> None:
        """Drop what no longer blocks this issue: it was closed, or the relation was removed."""
        sessions = await self.relay.database.read(partial(sessions_of_issue, issue_id=issue.id))
        mine = {session.task_id for session in sessions}
        left = {blocker.id for blocker in open_blockers(issue)}
        await self._drop_blockers(lambda task_id, blocker: task_id in mine and blocker.id not in left)

    async def _drop_blockers(self, is_gone: Callable[[TaskId, Blocker], bool]) -> None:
        write = partial(drop_blockers, is_gone=is_gone, now=self.relay.now())
        self._notify_all(await self.relay.database.write("linear.release", write))

    def _begin_answered(
        self,
        connection: Connection,
        start: IssueStart,
        children: Sequence[SubIssue],
        said: PromptActivity,
        entry_id: int,
    ) -> list[Task]:
        relay, now = self.relay, self.relay.now()
        session = lock_session(connection, start.session_id)
        settle_delivery(connection, entry_id, "answered", now)
        if session is None or session.task_id is not None or session.question is None:
            return []
        if conversation.is_about_repository(session.question):
            conversation.remember_repository(connection, session, said.body)
        if children:
            return begin_graph(connection, session, start, children, relay.settings, relay.rules, now)
        started = begin_task(connection, session, start, relay.settings, relay.rules, now)
        return [] if started.task is None else [started.task]

    async def _hear_comment(self, webhook: Webhook, entry_id: int) -> str | None:
        """With an API key, replies are comments on the issue."""
        connection = await self.link.require()
        if connection.has_sessions or webhook.comment is None or webhook.issue_id is None:
            return "comments reach sessions in another way"
        issue_id = webhook.issue_id
        sessions = await self.relay.database.read(partial(sessions_of_issue, issue_id=issue_id))
        if not sessions:
            return "no session"
        own = {comment_id(session.id) for session in sessions}
        if webhook.comment.id in own:
            return "Delegate's own comment"
        if sessions[-1].ended_at is not None and webhook.comment.parent_id not in own:
            return "not a reply to Delegate"
        return await self._pass_on(sessions[-1], webhook.comment, webhook, entry_id)

    # The issue changes.

    async def _follow_issue(self, webhook: Webhook, entry_id: int) -> str | None:
        assert webhook.issue_id is not None
        known = partial(sessions_of_issue, issue_id=webhook.issue_id)
        if not webhook.changed & CONCERNS_ANY_ISSUE and not await self.relay.database.read(known):
            return "the issue is not in work"
        issue = await self._read_issue(webhook.issue_id)
        connection = await self.link.require()
        if "stateId" in webhook.changed and issue.is_closed:
            await self._drop_blockers(lambda _, blocker: blocker.id == issue.id)
            return await self._withdraw(issue, f"{issue.key} was closed", entry_id, delegated_only=False)
        if BLOCKERS in webhook.changed:
            await self._refresh_blockers(issue)
        if "delegateId" in webhook.changed and issue.delegate_id != connection.user_id:
            return await self._withdraw(issue, f"{issue.key} is no longer delegated", entry_id, delegated_only=True)
        if "labelIds" in webhook.changed and issue.delegate_id != connection.user_id:
            return await self._start_by_label(issue, webhook, connection, entry_id)
        if webhook.changed & EDITED:
            self._notify(
                await conversation.tell_edit(self.relay.database, issue, entry_id=entry_id, now=self.relay.now())
            )
            return None
        return "no change that matters"

    async def _check_delegation(self, webhook: Webhook, entry_id: int) -> str | None:
        assert webhook.issue_id is not None
        issue = await self._read_issue(webhook.issue_id)
        if issue.delegate_id == (await self.link.require()).user_id:
            return "delegated again"
        return await self._withdraw(issue, f"{issue.key} is no longer delegated", entry_id, delegated_only=True)

    async def _withdraw(self, issue: TrackedIssue, reason: str, entry_id: int, *, delegated_only: bool) -> str | None:
        relay = self.relay
        ended = await conversation.withdraw(
            relay.database, issue.id, reason, delegated_only=delegated_only, entry_id=entry_id, now=relay.now()
        )
        self._notify(*ended)
        return None

    async def _start_by_label(
        self, issue: TrackedIssue, webhook: Webhook, connection: LinearConnection, entry_id: int
    ) -> str | None:
        """A label that names Delegate starts work on an issue that has none."""
        label = find_trigger(issue.labels, webhook.old_label_ids)
        if label is None or issue.is_closed:
            return "no label for Delegate was added"
        sessions = await self.relay.database.read(partial(sessions_of_issue, issue_id=issue.id))
        if any(session.ended_at is None for session in sessions):
            return "the issue is in work"
        if webhook.changed_at is not None and any(session.created_at > webhook.changed_at for session in sessions):
            return "known label"  # a late delivery: the relay found the label itself
        creator = await self._find_person(next(iter(webhook.actor_ids), None))
        refusal = find_refusal(creator, connection)
        if refusal is not None or creator is None:
            return f"refused: {refusal}"
        start = IssueStart(
            session_id=await self._open_session(issue, webhook.key, entry_id),
            issue=issue,
            creator=creator.name,
            email=creator.email,
            is_delegated=False,
            is_comment=not connection.has_sessions,
            label=label.name,
        )
        await self._begin(start, entry_id)
        return None

    async def _open_session(self, issue: TrackedIssue, key: str, entry_id: int) -> str:
        """Open a session on an issue, or find the one that an earlier try of this delivery opened."""
        connection = await self.link.require()
        if not connection.has_sessions:
            return stable_id("label", key)
        if await self.relay.database.write("linear.open", partial(mark_opening, entry_id=entry_id)):
            for node in (await self.link.call(SESSIONS))["agentSessions"]["nodes"]:
                is_own = node["appUser"]["id"] == connection.user_id and node.get("creator") is None
                is_here = (node.get("issue") or {}).get("id") == issue.id
                if is_own and is_here and await self._known(node["id"]) is None:
                    return str(node["id"])
        answer = await self.link.call(CREATE_SESSION, {"input": {"issueId": issue.id}})
        return str(answer["agentSessionCreateOnIssue"]["agentSession"]["id"])

    async def _note_revocation(self, _webhook: Webhook, _entry_id: int) -> str | None:
        problem = "the app was removed from the workspace"
        await self.relay.database.write("linear.problem", partial(set_problem, problem=problem))
        await self.link.reload()
        return "revoked"

    def _notify(self, *transitions: Transition | None) -> None:
        for transition in transitions:
            if transition is not None:
                notify(self.relay.hub, transition)

    def _notify_all(self, tasks: Sequence[Task]) -> None:
        self._notify(*(Transition(task=task) for task in tasks))


def _join(comment: str | None, said: PromptActivity | None) -> str | None:
    """What asks for the work: the comment that mentions the app, and what was said before the session was known."""
    texts = [text for text in (comment, said.body if said else None) if text]
    return "\n\n".join(texts) or None
