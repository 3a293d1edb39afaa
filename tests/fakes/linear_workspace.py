"""The data of the Linear stand-in, and what people do to it in the app. Every change emits its webhooks."""

from __future__ import annotations

import random
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tests.fakes.linear_deliveries import (
    AGENT_SCOPES,
    DEFAULT_STATES,
    FIRST_ACTIVITY_SECONDS,
    PRIORITIES,
    SILENCE_SECONDS,
    STATE_AFTER,
    Clock,
    Entity,
    Json,
    Refused,
    forbidden,
    invalid,
    iso,
    not_found,
    slug,
)


class Workspace:
    """Linear's data and what people do to it in the app. Every change emits its webhooks."""

    def __init__(self, clock: Clock, seed: int | None, *, name: str, app_name: str):
        self.clock, self.lock = clock, threading.RLock()
        self.random = random.Random(seed)
        self.rows: dict[str, Entity] = {}
        self.tables: dict[str, dict[str, Entity]] = defaultdict(dict)
        self.journal: list[tuple[float, str, str, str]] = []  # time, issue id, session id, text
        self.guidance: list[tuple[str, Entity | None]] = []
        self.repository_suggestions: dict[str, list[tuple[str, float]]] = {}
        self.app_scopes: tuple[str, ...] = AGENT_SCOPES
        self.oauth_client_id = self.new_id()
        self.app_actor_type = "oauthClient"  # ASSUMED actor of the app's own changes; or "user"
        self.github_integration = True
        self.organization = self._add("Organization", name=name, urlKey=slug(name))
        handle = slug(app_name)
        self.app_user = self._add(
            "User",
            name=app_name,
            displayName=handle,
            app=True,
            active=True,
            admin=False,
            email=f"{self.oauth_client_id}@oauthapp.linear.app",
            avatarUrl=None,
            guest=False,
        )
        self.people: list[Entity] = []
        self.github = Entity("Integration", id=self.new_id(), name="GitHub", service="github")

    def emit(self, event: str, action: str, body: Json, team_id: str | None = None) -> None:
        raise NotImplementedError

    # -- rows ------------------------------------------------------------------------------------
    def new_id(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def _add(self, kind: str, row_id: str | None = None, **fields: Any) -> Entity:
        now = iso(self.clock())
        row = Entity(kind, id=row_id or self.new_id(), createdAt=now, updatedAt=now, archivedAt=None, **fields)
        row["_seq"] = len(self.rows)
        self.rows[row.id] = self.tables[kind][row.id] = row
        return row

    def client_id(self, given: str | None, kind: str) -> str | None:
        """Check an id that the caller chose. Linear does not document what a repeat does; ASSUMED:
        it is refused as an input error and nothing changes."""
        if given is None:
            return None
        try:
            wanted = str(uuid.UUID(given))
        except ValueError:
            raise invalid("id must be a UUID.") from None
        if wanted in self.rows:
            raise Refused(f"Entity already exists: {kind}", f"{kind} with id {wanted} already exists.")
        return wanted

    def get(self, kind: str, key: Entity | str) -> Entity:
        if isinstance(key, Entity):
            return key
        row = self.tables[kind].get(key)
        if row is None and kind == "Issue":
            row = next((i for i in self.tables[kind].values() if i["identifier"] == key.upper()), None)
        if row is None and kind in ("User", "Team", "Project", "WorkflowState"):
            row = next(
                (r for r in self.tables[kind].values() if key in (r["name"], r.get("key"), r.get("displayName"))), None
            )
        if row is None:
            raise not_found(kind)
        return row

    def person(self, by: Entity | str | None) -> Entity:
        return self.get("User", by) if by is not None else self.people[0]

    def note(self, issue_id: str, text: str, session_id: str = "") -> None:
        self.journal.append((self.clock(), issue_id, session_id, text))

    # -- what exists before the story starts -------------------------------------------------------
    def add_user(self, name: str, *, email: str = "", admin: bool = False) -> Entity:
        user = self._add(
            "User",
            name=name,
            displayName=slug(name),
            app=False,
            active=True,
            admin=admin,
            email=email or f"{slug(name)}@example.com",
            avatarUrl=None,
            guest=False,
        )
        self.people.append(user)
        return user

    def add_team(self, key: str, name: str) -> Entity:
        team = self._add("Team", key=key, name=name, displayName=name, parentId=None, private=False)
        for position, (state, kind) in enumerate(DEFAULT_STATES):
            self._add(
                "WorkflowState", name=state, type=kind, position=float(position * 1000), color="#e2e2e2", teamId=team.id
            )
        return team

    def add_project(self, name: str, team: Entity | str | None = None) -> Entity:
        owner = self.get("Team", team) if team else next(iter(self.tables["Team"].values()))
        return self._add("Project", name=name, description="", slugId=slug(name), _team_ids=[owner.id])

    def add_guidance(self, text: str, team: Entity | str | None = None) -> None:
        self.guidance.append((text, self.get("Team", team) if team else None))

    def set_git_automation(self, event: str, state: str, team: Entity | str | None = None) -> Entity:
        owner = self.get("Team", team) if team else next(iter(self.tables["Team"].values()))
        return self._add("GitAutomationState", event=event, teamId=owner.id, stateId=self.state(owner, state).id)

    def state(self, team: Entity, name_or_type: str) -> Entity:
        rows = sorted(
            (
                s
                for s in self.tables["WorkflowState"].values()
                if s["teamId"] == team.id and name_or_type in (s["name"], s["type"])
            ),
            key=lambda s: s["position"],
        )
        if not rows:
            raise not_found("WorkflowState")
        return rows[0]

    def label(self, name: str, group: str | None = None, by: Entity | None = None) -> Entity:
        """The label of that name, made when it does not exist yet, in a group when one is named."""
        parent = self.label(group) if group else None
        if parent:
            parent["isGroup"] = True
        for row in self.tables["IssueLabel"].values():
            if row["name"] == name and row["parentId"] == (parent.id if parent else None):
                return row
        return self.create_label(by or self.people[0], name=name, parentId=parent.id if parent else None)

    def create_label(self, by: Entity, **fields: Any) -> Entity:
        row = self._add(
            "IssueLabel",
            fields.pop("id", None),
            **(
                {
                    "color": "#95a2b3",
                    "description": None,
                    "isGroup": False,
                    "parentId": None,
                    "teamId": None,
                    "retiredAt": None,
                    "creatorId": by.id,
                }
                | fields
            ),
        )
        keys = (
            "id",
            "createdAt",
            "updatedAt",
            "archivedAt",
            "color",
            "creatorId",
            "description",
            "isGroup",
            "name",
            "parentId",
            "teamId",
        )
        self._emit_data("IssueLabel", "create", {k: row[k] for k in keys}, by, row["teamId"])
        return row

    # -- issues ------------------------------------------------------------------------------------
    def add_issue(
        self,
        title: str,
        *,
        description: str = "",
        team: Entity | str | None = None,
        labels: Iterable[str] = (),
        by: Entity | str | None = None,
        number: int | None = None,
        blocked_by: Iterable[Entity | str] = (),
        **fields: Any,
    ) -> Entity:
        """Other fields as in IssueCreateInput: projectId, parentId, assigneeId, priority, stateId."""
        with self.lock:
            owner = self.get("Team", team) if team else next(iter(self.tables["Team"].values()))
            fields["labelIds"] = [self.label(name).id for name in labels]
            issue = self.create_issue(
                self.person(by), owner, title=title, description=description, number=number, **fields
            )
            for blocker in blocked_by:
                self.relate(self.get("Issue", blocker), issue, "blocks")
            return issue

    def create_issue(self, by: Entity, team: Entity, *, number: int | None = None, **fields: Any) -> Entity:
        taken = [i["number"] for i in self.tables["Issue"].values() if i["teamId"] == team.id]
        number = number or max(taken, default=0) + 1
        now = iso(self.clock())
        defaults: Json = {
            "title": "",
            "description": None,
            "priority": 0,
            "labelIds": [],
            "projectId": None,
            "assigneeId": None,
            "delegateId": None,
            "parentId": None,
            "estimate": None,
            "dueDate": None,
            "cycleId": None,
            "startedAt": None,
            "completedAt": None,
            "canceledAt": None,
            "trashed": None,
            "stateId": self.state(team, "unstarted").id,
            "sortOrder": -float(number),
            "slaType": "all",
            "prioritySortOrder": -float(number),
            "previousIdentifiers": [],
            "subscriberIds": [by.id],
            "addedToTeamAt": now,
        }
        given = {k: v for k, v in fields.items() if v is not None}
        issue = self._add(
            "Issue",
            given.pop("id", None),
            number=number,
            teamId=team.id,
            creatorId=by.id,
            identifier=f"{team['key']}-{number}",
            **(defaults | given),
        )
        self.check_labels(issue["labelIds"])
        self.note(issue.id, f"{by['name']} created the issue")
        self._emit_data("Issue", "create", self.issue_data(issue), by, team.id, url=self.issue_url(issue))
        return issue

    def relate(self, issue: Entity, related: Entity, kind: str, row_id: str | None = None) -> Entity:
        return self._add("IssueRelation", row_id, issueId=issue.id, relatedIssueId=related.id, type=kind)

    def check_labels(self, label_ids: Iterable[str]) -> None:
        parents: set[str] = set()
        for label_id in label_ids:
            row = self.tables["IssueLabel"].get(label_id)
            if row is None:
                raise Refused("Entity not found: IssueLabel: labelIds contained an entry that could not be found.")
            if row["isGroup"]:
                raise invalid(f"The label '{row['name']}' is a group and cannot be assigned to an issue.")
            if row["parentId"] in parents:  # SEEN: a group is exclusive
                raise Refused(
                    "labelIds not exclusive child labels", "Only one label in a group can be applied to an issue."
                )
            if row["parentId"]:
                parents.add(row["parentId"])

    def update_issue(self, issue: Entity, by: Entity, changes: Json) -> None:
        """Apply changes, emit Issue.update with the old values, and notify the app where it is concerned."""
        if "stateId" in changes:
            kind = self.get("WorkflowState", changes["stateId"])["type"]
            now = iso(self.clock())
            changes |= {
                "startedAt": issue["startedAt"] or (now if kind == "started" else None),
                "completedAt": now if kind == "completed" else None,
                "canceledAt": now if kind in ("canceled", "duplicate") else None,
            }
        before = {k: issue.get(k) for k, v in changes.items() if issue.get(k) != v}
        if not before:
            return
        before["updatedAt"] = issue["updatedAt"]
        issue.update({k: changes[k] for k in before if k != "updatedAt"}, updatedAt=iso(self.clock()))
        self._note_update(issue, by, before)
        known = list(before["labelIds"] or ()) if "labelIds" in before else issue["labelIds"]
        added = [one for one in issue["labelIds"] if one not in known]
        actor = by.id if by.kind == "User" else None
        self._add("IssueHistory", issueId=issue.id, actorId=actor, addedLabelIds=added or None)
        self._emit_data(
            "Issue",
            "update",
            self.issue_data(issue),
            by,
            issue["teamId"],
            url=self.issue_url(issue),
            updatedFrom=before,
        )
        if by is self.app_user:
            return
        if "delegateId" in before and self.app_user.id in (before["delegateId"], issue["delegateId"]):
            mine = issue["delegateId"] == self.app_user.id
            self.notify("issueAssignedToYou" if mine else "issueUnassignedFromYou", issue, by)
            if mine:
                self.open_session(issue, creator=by, comment=self._session_root(issue))
        if "stateId" in before and issue["delegateId"] == self.app_user.id:
            self.notify("issueStatusChanged", issue, by)

    def _note_update(self, issue: Entity, by: Entity, before: Json) -> None:
        if "stateId" in before:
            self.note(issue.id, f"{by['name']} moved it to {self.rows[issue['stateId']]['name']}")
        if "delegateId" in before:
            who = self.rows[issue["delegateId"]]["name"] if issue["delegateId"] else None
            self.note(issue.id, f"{by['name']} " + (f"delegated it to {who}" if who else "removed the delegate"))
        if "labelIds" in before:
            for sign, ids in (
                ("added", set(issue["labelIds"]) - set(before["labelIds"])),
                ("removed", set(before["labelIds"]) - set(issue["labelIds"])),
            ):
                for name in sorted(self.rows[i]["name"] for i in ids):
                    self.note(issue.id, f"{by['name']} {sign} label {name}")

    def add_label(
        self, issue: Entity | str, name: str, *, group: str | None = None, by: Entity | str | None = None
    ) -> Entity:
        """Add a label as the app's menu does: a second label of one group replaces the first."""
        with self.lock:
            row, label = self.get("Issue", issue), self.label(name, group)
            kept = [
                i
                for i in row["labelIds"]
                if i != label.id and not (label["parentId"] and self.rows[i]["parentId"] == label["parentId"])
            ]
            self.update_issue(row, self.person(by), {"labelIds": [*kept, label.id]})
            return label

    def remove_label(self, issue: Entity | str, name: str, *, by: Entity | str | None = None) -> None:
        with self.lock:
            row = self.get("Issue", issue)
            kept = [i for i in row["labelIds"] if self.rows[i]["name"] != name]
            self.update_issue(row, self.person(by), {"labelIds": kept})

    def edit_issue(self, issue: Entity | str, *, by: Entity | str | None = None, **changes: Any) -> None:
        with self.lock:
            self.update_issue(self.get("Issue", issue), self.person(by), changes)

    def move_issue(self, issue: Entity | str, state: str, *, by: Entity | str | None = None) -> None:
        with self.lock:
            row = self.get("Issue", issue)
            target = self.state(self.rows[row["teamId"]], state)
            self.update_issue(row, self.person(by), {"stateId": target.id})

    def close_issue(self, issue: Entity | str, *, by: Entity | str | None = None, canceled: bool = False) -> None:
        self.move_issue(issue, "canceled" if canceled else "completed", by=by)

    # -- comments, reactions, notifications --------------------------------------------------------
    def comment(
        self, issue: Entity | str, text: str, *, by: Entity | str | None = None, parent: Entity | None = None
    ) -> Entity:
        with self.lock:
            return self.create_comment(self.get("Issue", issue), text, self.person(by), parent=parent)

    def create_comment(
        self,
        issue: Entity,
        body: str,
        by: Entity,
        *,
        parent: Entity | None = None,
        row_id: str | None = None,
        artificial: bool = False,
    ) -> Entity:
        row = self._add(
            "Comment",
            row_id,
            body=body,
            issueId=issue.id,
            userId=by.id,
            editedAt=None,
            parentId=parent.id if parent else None,
            resolvedAt=None,
            quotedText=None,
            isArtificialAgentSessionRoot=artificial,
        )
        if not artificial:
            self._emit_data("Comment", "create", self.comment_data(row), by, issue["teamId"], url=self.comment_url(row))
            if by is not self.app_user and issue["delegateId"] == self.app_user.id:
                self.notify("issueNewComment", issue, by, comment=row)
        return row

    def notify(self, kind: str, issue: Entity, by: Entity, comment: Entity | None = None, **extra: Any) -> None:
        now = iso(self.clock())
        person = by if by.kind == "User" else None
        body: Json = {
            "id": self.new_id(),
            "type": kind,
            "userId": self.app_user.id,
            "actorId": person.id if person else None,
            "externalUserActorId": None,
            "actor": self.user_child(person) if person else None,
            "issueId": issue.id,
            "issue": self.issue_child(issue, described=True),
            "archivedAt": None,
            "createdAt": now,
            "updatedAt": now,
            **extra,
        }
        if comment is not None:
            parent = self.rows.get(comment["parentId"] or "")
            body |= {
                "commentId": comment.id,
                "comment": self.comment_child(comment),
                "parentCommentId": comment["parentId"],
                "parentComment": self.comment_child(parent) if parent else None,
            }
        self.emit("AppUserNotification", kind, {"notification": body})

    # -- agent sessions ----------------------------------------------------------------------------
    def delegate_issue(self, issue: Entity | str, *, by: Entity | str | None = None) -> Entity:
        """Delegate to the app. DOC: the delegate is set, the assignee stays, a session is created."""
        with self.lock:
            if "app:assignable" not in self.app_scopes:
                raise forbidden("The app cannot be delegated issues: scope `app:assignable` is missing")
            row = self.get("Issue", issue)
            if row["delegateId"] == self.app_user.id:
                self.undelegate(row, by=by)
            self.update_issue(row, self.person(by), {"delegateId": self.app_user.id})
            return self.sessions[-1]

    def undelegate(self, issue: Entity | str, *, by: Entity | str | None = None) -> None:
        """ASSUMED: removing the delegate notifies the app and leaves its session as it is."""
        with self.lock:
            self.update_issue(self.get("Issue", issue), self.person(by), {"delegateId": None})

    def mention(
        self, issue: Entity | str, text: str, *, by: Entity | str | None = None, parent: Entity | None = None
    ) -> Entity:
        """Mention the app in a comment. DOC: this creates a session on the comment's thread."""
        with self.lock:
            if "app:mentionable" not in self.app_scopes:
                raise forbidden("The app cannot be mentioned: scope `app:mentionable` is missing")
            row, who = self.get("Issue", issue), self.person(by)
            source = self.create_comment(row, f"@{self.app_user['displayName']} {text}", who, parent=parent)
            self.note(row.id, f"{who['name']} mentioned {self.app_user['name']}: {text}")
            self.notify("issueCommentMention", row, who, comment=source)
            return self.open_session(row, creator=who, comment=parent or source, source=source)

    def _session_root(self, issue: Entity) -> Entity:
        text = f"This thread is for an agent session with {self.app_user['displayName']}."
        return self.create_comment(issue, text, self.app_user, artificial=True)

    def open_session(
        self,
        issue: Entity,
        *,
        creator: Entity | None,
        comment: Entity,
        source: Entity | None = None,
        announce: bool = True,
    ) -> Entity:
        session = self._add(
            "AgentSession",
            issueId=issue.id,
            commentId=comment.id,
            creatorId=creator.id if creator else None,
            sourceCommentId=source.id if source else None,
            appUserId=self.app_user.id,
            startedAt=None,
            endedAt=None,
            summary=None,
            plan=None,
            externalLinks=[],
            type="commentThread",
            sourceMetadata=None,
            dismissedAt=None,
            context={},
            _state="pending",
            _touched=self.clock(),
        )
        session["slugId"] = session.id[:8]
        session["url"] = f"{self.issue_url(issue)}#agent-session-{session.id[:8]}"
        self.note(issue.id, "session created", session.id)
        if announce:
            thread = [c for c in self.tables["Comment"].values() if comment.id in (c.id, c["parentId"])]
            self.emit(
                "AgentSessionEvent",
                "created",
                {
                    "agentSession": self.session_data(session),
                    "agentActivity": None,
                    "previousComments": [self.comment_child(c) for c in thread] if source else None,
                    "guidance": [self._guidance_rule(*rule) for rule in self.guidance] or None,
                    "promptContext": self.prompt_context(issue, source),
                },
            )
        return session

    def session_status(self, session: Entity) -> str:
        """DOC: derived from the last activity; silence makes a pending or active session stale."""
        quiet, state = self.clock() - session["_touched"], session["_state"]
        unanswered = state == "pending" and not session["externalLinks"]
        if (unanswered and quiet > FIRST_ACTIVITY_SECONDS) or (
            state in ("pending", "active") and quiet > SILENCE_SECONDS
        ):
            return "stale"
        return str(state)

    def add_activity(
        self,
        session: Entity,
        user: Entity,
        content: Json,
        *,
        row_id: str | None = None,
        ephemeral: bool = False,
        signal: str | None = None,
        metadata: Json | None = None,
        source: Entity | None = None,
    ) -> Entity:
        now = iso(self.clock())
        for earlier in self.all_activities(session):
            if earlier["ephemeral"] and user is self.app_user:
                earlier["_replaced"] = True  # DOC: an ephemeral activity gives way to the next one
        if content["type"] in ("elicitation", "response", "error"):  # DOC: shown as a comment too
            source = self.create_comment(
                self.rows[session["issueId"]], content["body"], user, parent=self.rows[session["commentId"]]
            )
        row = self._add(
            "AgentActivity",
            row_id,
            agentSessionId=session.id,
            userId=user.id,
            ephemeral=ephemeral,
            signal=signal,
            signalMetadata=metadata,
            sourceCommentId=source.id if source else None,
            queued=False,
            sentAt=now,
            _content=content,
            _replaced=False,
        )
        session.update(_state=STATE_AFTER[content["type"]], _touched=self.clock(), updatedAt=now)
        if user is self.app_user:
            session["startedAt"] = session["startedAt"] or now
            session["endedAt"] = now if content["type"] in ("response", "error") else None
        return row

    def reply(
        self, session: Entity | str, text: str, signal: str | None = None, *, by: Entity | str | None = None
    ) -> Entity:
        """A person writes into the session: a prompt activity and a `prompted` event."""
        with self.lock:
            row, who = self.get("AgentSession", session), self.person(by)
            issue, payload = self.rows[row["issueId"]], self.session_data(row)
            source = None
            if signal is None:
                source = self.create_comment(issue, text, who, parent=self.rows[row["commentId"]])
            activity = self.add_activity(row, who, {"type": "prompt", "body": text}, signal=signal, source=source)
            data = {
                k: activity[k]
                for k in (
                    "id",
                    "agentSessionId",
                    "signal",
                    "signalMetadata",
                    "archivedAt",
                    "sourceCommentId",
                    "userId",
                    "createdAt",
                    "updatedAt",
                )
            }
            data |= {"content": activity["_content"], "user": self.user_child(who)}
            self.emit("AgentSessionEvent", "prompted", {"agentSession": payload, "agentActivity": data})
            return activity

    def send_stop(self, session: Entity | str, *, by: Entity | str | None = None) -> Entity:
        """DOC: a prompt with the signal `stop`. ASSUMED: the text of that prompt."""
        return self.reply(session, "Stop", "stop", by=by)

    @property
    def sessions(self) -> list[Entity]:
        return list(self.tables["AgentSession"].values())

    def all_activities(self, session: Entity | str) -> list[Entity]:
        wanted = self.get("AgentSession", session).id
        return [a for a in self.tables["AgentActivity"].values() if a["agentSessionId"] == wanted]

    def activities(self, session: Entity | str) -> list[Json]:
        """What a person sees, oldest first: type and content fields, signal, who, ephemeral."""
        return [
            {
                **a["_content"],
                "id": a.id,
                "signal": a["signal"],
                "ephemeral": a["ephemeral"],
                "by": self.rows[a["userId"]]["name"],
            }
            for a in self.all_activities(session)
            if not a["_replaced"]
        ]

    def suggest_repository(self, issue: Entity | str, repository: str, confidence: float) -> None:
        known = self.repository_suggestions.setdefault(self.get("Issue", issue).id, [])
        known.append((repository, confidence))

    def transcript(self, session: Entity | str) -> str:
        """Linear's side of a session as text: issue history, activities, plan, links, attachments."""
        row = self.get("AgentSession", session)
        issue = self.rows[row["issueId"]]
        events = [
            (at, text)
            for at, issue_id, session_id, text in self.journal
            if issue_id == issue.id and session_id in ("", row.id)
        ]
        for activity in self.all_activities(row):
            at = datetime.fromisoformat(activity["createdAt"]).timestamp()
            events.append((at, self._activity_line(activity)))
        events.sort(key=lambda event: event[0])
        start = next(at for at, _, session_id, _ in self.journal if session_id == row.id)
        lines = [
            f"{issue['identifier']}  {issue['title']}",
            f"state {self.rows[issue['stateId']]['name']}, session {self.session_status(row)}",
        ]
        for at, text in events:
            seconds = round(at - start)
            clock = f"{'-' if seconds < 0 else ''}{abs(seconds) // 60:02d}:{abs(seconds) % 60:02d}"
            lines.append(f"{clock:>7}  " + text.replace("\n", "\n" + " " * 9))
        return "\n".join(lines)

    def _activity_line(self, activity: Entity) -> str:
        content = activity["_content"]
        text = content.get("body") or " ".join(
            filter(None, (content.get("action"), content.get("parameter"), content.get("result")))
        )
        marks = [m for m, on in (("ephemeral", activity["ephemeral"]), (activity["signal"], activity["signal"])) if on]
        options = (activity["signalMetadata"] or {}).get("options", [])
        text += "".join(f"\n  - {o.get('label') or o['value']}" for o in options)
        who = "" if activity["userId"] == self.app_user.id else f"{self.rows[activity['userId']]['name']}: "
        return f"{content['type']}{' (' + ', '.join(marks) + ')' if marks else ''}: {who}{text}"

    # -- webhook payloads, in the shape of the schema's *WebhookPayload types ------------------------
    def _emit_data(self, event: str, action: str, data: Json, by: Entity, team_id: str | None, **extra: Any) -> None:
        actor: Json = {"id": by.id, "type": "integration", "service": by.get("service")}
        if by is self.app_user and self.app_actor_type == "oauthClient":
            actor = {"id": self.oauth_client_id, "name": by["name"], "type": "oauthClient"}
        elif by.kind == "User":
            actor = {**self.user_child(by), "type": "user"}
        self.emit(event, action, {"actor": actor, "data": data, **extra}, team_id)

    def issue_url(self, issue: Entity) -> str:
        return f"https://linear.app/{self.organization['urlKey']}/issue/{issue['identifier']}/{slug(issue['title'])}"

    def branch_name(self, issue: Entity) -> str:
        return f"{self.rows[issue['creatorId']]['displayName']}/{slug(issue['identifier'] + ' ' + issue['title'])}"

    def comment_url(self, comment: Entity) -> str:
        return f"{self.issue_url(self.rows[comment['issueId']])}#comment-{comment.id[:8]}"

    def user_url(self, user: Entity) -> str:
        return f"https://linear.app/{self.organization['urlKey']}/profiles/{user['displayName']}"

    def user_child(self, user: Entity) -> Json:
        return {**{k: user[k] for k in ("id", "name", "email", "avatarUrl")}, "url": self.user_url(user)}

    def comment_child(self, comment: Entity) -> Json:
        return {
            **{k: comment[k] for k in ("id", "body", "issueId", "userId")},
            "documentContentId": None,
            "initiativeId": None,
            "initiativeUpdateId": None,
            "projectId": None,
            "projectUpdateId": None,
        }

    def issue_child(self, issue: Entity, *, described: bool = False) -> Json:
        team = self.rows[issue["teamId"]]
        keys = ("id", "identifier", "title", "teamId") + (("description",) if described else ())
        return {
            **{k: issue[k] for k in keys},
            "url": self.issue_url(issue),
            "team": {k: team[k] for k in ("id", "key", "name")},
        }

    def issue_data(self, issue: Entity) -> Json:
        def child(key: str, *fields: str) -> Json | None:
            row = self.rows.get(issue[key] or "")
            return {k: row[k] for k in fields} if row else None

        people = {
            k: self.user_child(self.rows[issue[f"{k}Id"]]) if issue[f"{k}Id"] else None
            for k in ("assignee", "delegate", "creator")
        }
        project = self.rows.get(issue["projectId"] or "")
        labels = [self.rows[i] for i in issue["labelIds"]]
        return {
            **{k: v for k, v in issue.items() if k[0] != "_"},
            **people,
            "url": self.issue_url(issue),
            "team": child("teamId", "id", "key", "name"),
            "reactionData": [],
            "state": child("stateId", "id", "name", "color", "type"),
            "priorityLabel": PRIORITIES[int(issue["priority"])],
            "project": {"id": project.id, "name": project["name"], "url": self.project_url(project)}
            if project
            else None,
            "labels": [{k: row[k] for k in ("id", "name", "color", "parentId")} for row in labels],
        }

    def project_url(self, project: Entity) -> str:
        return f"https://linear.app/{self.organization['urlKey']}/project/{project['slugId']}"

    def comment_data(self, comment: Entity) -> Json:
        parent = self.rows.get(comment["parentId"] or "")
        keys = (
            "id",
            "body",
            "issueId",
            "parentId",
            "userId",
            "quotedText",
            "editedAt",
            "resolvedAt",
            "archivedAt",
            "createdAt",
            "updatedAt",
        )
        return {
            **{k: comment[k] for k in keys},
            "issue": self.issue_child(self.rows[comment["issueId"]]),
            "user": self.user_child(self.rows[comment["userId"]]),
            "reactionData": [],
            "parent": self.comment_child(parent) if parent else None,
            "botActor": None,
            "externalUserId": None,
        }

    def session_data(self, session: Entity) -> Json:
        keys = (
            "id",
            "appUserId",
            "creatorId",
            "issueId",
            "commentId",
            "sourceCommentId",
            "sourceMetadata",
            "type",
            "summary",
            "startedAt",
            "endedAt",
            "archivedAt",
            "createdAt",
            "updatedAt",
            "url",
        )
        creator = self.rows.get(session["creatorId"] or "")
        return {
            **{k: session[k] for k in keys},
            "organizationId": self.organization.id,
            "status": self.session_status(session),
            "creator": self.user_child(creator) if creator else None,
            "issue": self.issue_child(self.rows[session["issueId"]], described=True),
            "comment": self.comment_child(self.rows[session["commentId"]]),
        }

    def _guidance_rule(self, text: str, team: Entity | None) -> Json:
        origin: Json = {"type": "Organization"}
        if team:
            keys = ("id", "key", "name", "displayName", "parentId")
            origin = {"type": "Team", "team": {k: team[k] for k in keys}}
        return {"body": text, "origin": origin}

    def prompt_context(self, issue: Entity, source: Entity | None) -> str:
        """DOC: a formatted string whose layout is Linear's to change; clients treat it as opaque."""
        labels = "".join(f"<label>{self.rows[i]['name']}</label>\n" for i in issue["labelIds"])
        rules = "".join(f"<guidance-rule>{text}</guidance-rule>\n" for text, _ in self.guidance)
        thread = (
            f'<primary-directive-thread comment-id="{source.id}">{source["body"]}</primary-directive-thread>\n'
            if source
            else ""
        )
        return (
            f'<issue identifier="{issue["identifier"]}">\n<title>{issue["title"]}</title>\n'
            f"<description>{issue['description'] or ''}</description>\n"
            f'<team name="{self.rows[issue["teamId"]]["name"]}"/>\n{labels}</issue>\n'
            f"<guidance>\n{rules}</guidance>\n{thread}"
        )
