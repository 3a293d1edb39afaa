"""Who may do what: one table of all routes and all MCP tools, for HTTP, MCP and pages.

What is not in the tables is refused. An agent is limited further, to its own task and those below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from delegate.errors import Forbidden


class Holder(StrEnum):
    """The kind of a valid token; a person's is the role of that person."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"
    OWNER = "owner"  # of the relay: the token in its home
    PAIRING = "pairing token"
    RUNNER = "runner"
    SLOT = "runner slot"  # one process of a runner
    AGENT = "agent"  # of a running attempt


Access = frozenset[Holder]
ADMINS: Access = frozenset({Holder.ADMIN, Holder.OWNER})
MEMBERS: Access = ADMINS | {Holder.MEMBER}
READERS: Access = MEMBERS | {Holder.VIEWER}
SLOTS: Access = frozenset({Holder.SLOT})
WITH_AGENTS: Access = frozenset({Holder.AGENT})
AUDIENCES = {
    ADMINS: "admins",
    MEMBERS: "members and admins",
    READERS: "people",
    frozenset({Holder.OWNER}): "the relay's owner",
}

# The webhook is authenticated by its signature.
PUBLIC_ROUTES = frozenset(
    {"GET /api/openapi.json", "GET /dist/{name}", "GET /healthz", "GET /readyz", "POST /webhooks/linear"}
)
ROUTES: Mapping[str, Access] = {
    "POST /api/tasks": MEMBERS | WITH_AGENTS,
    "POST /api/tasks/batch": MEMBERS,
    "GET /api/tasks": READERS,
    "GET /api/tasks/{task_id}": READERS | WITH_AGENTS,
    "GET /api/tasks/{task_id}/graph": READERS,
    "POST /api/tasks/{task_id}/cancel": MEMBERS | WITH_AGENTS,
    "POST /api/tasks/{task_id}/retry": MEMBERS,
    "POST /api/tasks/{task_id}/resume": MEMBERS,
    "POST /api/tasks/{task_id}/messages": MEMBERS,
    "POST /api/tasks/{task_id}/answer": MEMBERS,
    "POST /api/tasks/{task_id}/purge": ADMINS,
    "GET /api/tasks/{task_id}/output": READERS | WITH_AGENTS,
    "GET /api/tasks/{task_id}/output/raw": READERS | WITH_AGENTS,
    "GET /api/tasks/{task_id}/diff": READERS | WITH_AGENTS,
    "GET /api/tasks/{task_id}/prompt": READERS | WITH_AGENTS,
    "GET /api/tasks/{task_id}/stream": READERS | WITH_AGENTS,
    "GET /api/events": READERS,
    "GET /api/relay": READERS,
    "POST /api/schedules": MEMBERS,
    "POST /api/pipelines": MEMBERS,
    "GET /api/schedules": READERS,
    "GET /api/schedules/{schedule_id}": READERS,
    "POST /api/schedules/{schedule_id}/pause": MEMBERS,
    "POST /api/schedules/{schedule_id}/resume": MEMBERS,
    "POST /api/schedules/{schedule_id}/cancel": MEMBERS,
    "GET /api/linear": READERS,
    "POST /api/linear/connect": ADMINS,
    "POST /api/linear/disconnect": ADMINS,
    "POST /api/linear/test": ADMINS,
    "POST /api/linear/map": ADMINS,
    "POST /api/linear/labels": ADMINS,
    "GET /api/me": READERS | SLOTS | WITH_AGENTS | {Holder.RUNNER},
    "GET /api/people": ADMINS,
    "POST /api/people": ADMINS,
    "POST /api/people/{person}/disable": ADMINS,
    "POST /api/people/{person}/enable": ADMINS,
    "POST /api/people/{person}/role": ADMINS,
    "GET /api/tokens": READERS,
    "POST /api/tokens": READERS,
    "POST /api/tokens/{token_id}/revoke": READERS,
    "GET /api/audit": ADMINS,
    "POST /api/pairing-tokens": MEMBERS,
    "GET /api/runners": READERS,
    "POST /api/runners/{runner_id}/drain": MEMBERS,
    "POST /api/runners/{runner_id}/resume": MEMBERS,
    "POST /api/runners/{runner_id}/rename": MEMBERS,
    "POST /api/runners/{runner_id}/revoke": MEMBERS,
    "POST /api/runners/heartbeat": frozenset({Holder.RUNNER}),
    "POST /api/runners/unpair": frozenset({Holder.RUNNER}),
    "POST /api/runners/pair": frozenset({Holder.PAIRING}),
    "POST /api/runners/register": frozenset({Holder.OWNER, Holder.RUNNER}),
    "POST /api/runners/leave": SLOTS,
    "POST /api/runners/claim": SLOTS,
    "GET /api/runners/attempts": SLOTS,
    "POST /api/runners/attempts/{attempt_id}/renew": SLOTS,
    "POST /api/runners/attempts/{attempt_id}/record": SLOTS,
    "POST /api/runners/attempts/{attempt_id}/finish": SLOTS,
    "POST /api/runners/attempts/{attempt_id}/release": SLOTS,
    "POST /api/runners/attempts/{attempt_id}/effect": SLOTS,
    "GET /api/runners/tasks/{task_id}/effects": SLOTS,
    "POST /mcp": READERS | WITH_AGENTS,
    "GET /mcp": READERS | WITH_AGENTS,
    "DELETE /mcp": READERS | WITH_AGENTS,
}
TOOLS: Mapping[str, Access] = {
    "DelegateTask": MEMBERS | WITH_AGENTS,
    "TaskStatus": READERS | WITH_AGENTS,
    "TaskLogs": READERS | WITH_AGENTS,
    "CancelTask": MEMBERS | WITH_AGENTS,
    "RetryTask": MEMBERS,
    "ResumeTask": MEMBERS,
    "AnswerTask": MEMBERS,
    "ScheduleTask": MEMBERS,
    "ListSchedules": READERS,
    "GetSchedule": READERS,
    "PauseSchedule": MEMBERS,
    "ResumeSchedule": MEMBERS,
    "CancelSchedule": MEMBERS,
    "CreatePipeline": MEMBERS,
    "ask_user": WITH_AGENTS,
}


def check_access(table: Mapping[str, Access], name: str, holder: Holder) -> None:
    """Raise Forbidden unless the table allows this route or tool to the holder."""
    allowed = table.get(name, frozenset())
    if holder not in allowed:
        raise Forbidden(what=f"this; it is for {_describe(allowed)}")


def _describe(allowed: Access) -> str:
    audience = AUDIENCES.get(allowed & READERS)
    return audience or " and ".join(f"{holder}s" for holder in Holder if holder in allowed) or "no one"
