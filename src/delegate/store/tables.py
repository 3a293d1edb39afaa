"""Defines the schema. `migrations/` builds it; a test checks that both are the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Table,
    Text,
    UniqueConstraint,
    false,
    literal_column,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from delegate.model import Mode, OnDependencyFailure, Role
from delegate.schedule.model import MissedRunPolicy, ScheduleState
from delegate.states import FINAL_TASK_STATES, AttemptState, TaskState

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Instant(TypeDecorator[datetime]):
    """A time as microseconds since 1970: the same order and precision in both databases."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        return None if value is None else (value - EPOCH) // MICROSECOND

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else EPOCH + value * MICROSECOND


def from_row(kind: type[T], row: Row[Any], /, **converted: object) -> T:
    """Build a dataclass from the columns with the names of its fields; `converted` has what is stored differently."""
    stored = row._asdict()
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]  # it is a dataclass
    return kind(**{**{name: stored[name] for name in names if name not in converted}, **converted})


# A missing value is SQL NULL, not JSON null.
MaybeJson = JSON(none_as_null=True)
# Compared byte by byte, so that all lanes with one beginning are next to each other.
Lane = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
# SQLite makes rowids only for INTEGER, PostgreSQL needs the eight bytes.
Serial = BigInteger().with_variant(Integer, "sqlite")


def has_state(table: Table, state: TaskState | AttemptState | ScheduleState) -> ColumnElement[bool]:
    """Compare with a literal, not a parameter: with a parameter, SQLite plans again at every execution to check whether
    a partial index applies, and PostgreSQL cannot use such an index in a cached plan."""
    return table.c.state == literal_column(f"'{state.value}'")


def is_open_child(table: FromClause) -> ColumnElement[bool]:
    """Whether an agent submitted the task and it has not ended; compared with literals for its partial index."""
    open_states: list[ColumnElement[str]] = [
        literal_column(f"'{state.value}'") for state in TaskState if state not in FINAL_TASK_STATES
    ]
    return table.c.submitted_by.isnot(None) & table.c.state.in_(open_states)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def one_of(column: str, values: type[TaskState | AttemptState | ScheduleState | Role]) -> CheckConstraint:
    allowed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({allowed})", name=column)


task = Table(
    "task",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("trigger_key", Text, unique=True),
    Column("state", Text, nullable=False),
    Column("lane", Lane, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("agent", Text, nullable=False),
    Column("model", Text),
    Column("effort", Text),
    Column("permission_mode", Text),
    Column("prompt", Text, nullable=False),
    Column("working_directory", Text),
    Column("machine", Text, nullable=False),
    Column("timeout_ms", BigInteger, nullable=False),
    Column("max_output", BigInteger, nullable=False),
    Column("max_budget_usd", Float),
    Column("max_turns", Integer),
    Column("rerun", Boolean, nullable=False),
    Column("mode", Text, nullable=False, server_default=Mode.IN_PLACE),
    Column("repository", Text),
    Column("base", Text),
    Column("title", Text),
    Column("issue", MaybeJson),
    Column("context", Text),
    Column("choices", JSON, nullable=False, server_default="[]"),
    Column("depends_on", JSON, nullable=False, server_default="[]"),
    Column("on_dependency_failure", Text, nullable=False, server_default=OnDependencyFailure.CANCEL),
    Column("depth", Integer, nullable=False, server_default="0"),
    Column("continue_from", Text),
    Column("schedule_id", Text),
    Column("questions", JSON, nullable=False, server_default="[]"),
    Column("lineage", Text),  # the first task of its lineage; NULL if this is the first
    Column("result", MaybeJson),
    Column("reason", Text),
    Column("message", Text),
    Column("exit_code", Integer),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("created_at", Instant, nullable=False),
    Column("not_before", Instant),
    Column("claimable_at", Instant),  # when it last became claimable; NULL if that was when it was created
    Column("started_at", Instant),
    Column("finished_at", Instant),
    Column("cancel_requested_at", Instant),
    Column("cancel_reason", Text),
    Column("retry_of", Text),
    Column("parent_task_id", Text),
    Column("retry_count", Integer, nullable=False, server_default="0"),
    Column("session_id", Text),
    Column("submitted_by", Text),  # the task whose agent submitted it
    Column("root_id", Text),
    Column("generation", Integer, nullable=False, server_default="0"),
    Column("created_by", Text),  # a person; NULL for the relay's owner
    Column("is_from_linear", Boolean, nullable=False, server_default=false()),
    Column("runner", Text),
    Column("tags", JSON, nullable=False, server_default="[]"),
    Column("prefers", Text),
    Column("blockers", MaybeJson),  # NULL: it waits for no issue
    Column("purged_at", Instant),
    Column("usage", JSON, nullable=False, server_default="{}"),
    one_of("state", TaskState),
    sqlite_autoincrement=True,
)
# The claim reads the head of each lane; its cost must not grow with the queue.
Index(
    "ix_task_queued",
    task.c.lane,
    task.c.priority,
    task.c.seq,
    sqlite_where=has_state(task, TaskState.QUEUED),
    postgresql_where=has_state(task, TaskState.QUEUED),
)
WAITS_FOR_RUNNER = has_state(task, TaskState.QUEUED) & task.c.prefers.isnot(None)
Index("ix_task_prefers", task.c.seq, sqlite_where=WAITS_FOR_RUNNER, postgresql_where=WAITS_FOR_RUNNER)
WAITS_FOR_ISSUE = has_state(task, TaskState.BLOCKED) & task.c.blockers.isnot(None)
Index("ix_task_blockers", task.c.seq, sqlite_where=WAITS_FOR_ISSUE, postgresql_where=WAITS_FOR_ISSUE)
Index("ix_task_state", task.c.state, task.c.seq)
Index("ix_task_finished_at", task.c.finished_at)
CONTINUES = task.c.lineage.isnot(None)
Index("ix_task_lineage", task.c.lineage, sqlite_where=CONTINUES, postgresql_where=CONTINUES)
IS_OPEN_CHILD, HAS_ROOT = is_open_child(task), task.c.root_id.isnot(None)
Index("ix_task_open_child", task.c.submitted_by, sqlite_where=IS_OPEN_CHILD, postgresql_where=IS_OPEN_CHILD)
Index("ix_task_root", task.c.root_id, sqlite_where=HAS_ROOT, postgresql_where=HAS_ROOT)

attempt = Table(
    "attempt",
    metadata,
    Column("id", Text, primary_key=True),
    Column("task_id", Text, ForeignKey("task.id", ondelete="CASCADE"), nullable=False),
    Column("slot_id", Text, nullable=False),
    Column("runner_id", Text),  # NULL: ended before runners had slots
    Column("claim_id", Text, nullable=False, unique=True),
    Column("fence", BigInteger, nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("renewed_at", Instant, nullable=False),
    Column(
        "is_extended", Boolean, nullable=False, server_default=false()
    ),  # the relay, not the runner, renewed it last
    Column("ask_hash", Text),  # of the token with which the agent of this attempt asks questions
    Column("finished_at", Instant),
    Column("next_seq", BigInteger, nullable=False, server_default="0"),
    Column("messages_seen", BigInteger, nullable=False, server_default="0"),
    Column("budget_usd", Float),
    Column("cost_usd", Float, nullable=False, server_default="0"),
    Column("reason", Text),
    Column("message", Text),
    Column("exit_code", Integer),
    Column("session_id", Text),
    Column("output_bytes", BigInteger, nullable=False, server_default="0"),
    Column("truncated_bytes", BigInteger, nullable=False, server_default="0"),
    Column("usage", JSON, nullable=False, server_default="{}"),
    Column("purged_at", Instant),
    one_of("state", AttemptState),
    UniqueConstraint("task_id", "fence"),
)
RUNNING_ATTEMPT = has_state(attempt, AttemptState.RUNNING)
# The database also enforces one holder per task.
Index(
    "uq_attempt_holder", attempt.c.task_id, unique=True, sqlite_where=RUNNING_ATTEMPT, postgresql_where=RUNNING_ATTEMPT
)
Index("ix_attempt_lease", attempt.c.renewed_at, sqlite_where=RUNNING_ATTEMPT, postgresql_where=RUNNING_ATTEMPT)
Index("ix_attempt_slot", attempt.c.slot_id, sqlite_where=RUNNING_ATTEMPT, postgresql_where=RUNNING_ATTEMPT)
Index("ix_attempt_finished_at", attempt.c.finished_at)
ENDED_ATTEMPT = attempt.c.finished_at.isnot(None)
Index(
    "ix_attempt_last",
    attempt.c.runner_id,
    attempt.c.finished_at,
    sqlite_where=ENDED_ATTEMPT,
    postgresql_where=ENDED_ATTEMPT,
)

ASKING = attempt.c.ask_hash.isnot(None)
Index("ix_attempt_ask", attempt.c.ask_hash, sqlite_where=ASKING, postgresql_where=ASKING)

# The same data as task.depends_on, indexed by dependency.
dependency = Table(
    "dependency",
    metadata,
    Column("task_id", Text, ForeignKey("task.id", ondelete="CASCADE"), primary_key=True),
    Column("depends_on", Text, primary_key=True),
)
Index("ix_dependency_depends_on", dependency.c.depends_on)

schedule = Table(
    "schedule",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("trigger_key", Text, unique=True),
    Column("state", Text, nullable=False),
    Column("cron", Text),  # NULL for a one-time schedule
    Column("at", Instant),
    Column("timezone", Text, nullable=False),
    Column("missed_run_policy", Text, nullable=False, server_default=MissedRunPolicy.SKIP),
    Column("max_runs", BigInteger),
    Column("expires_at", Instant),
    Column("after_id", Text),
    Column("delay_ms", BigInteger, nullable=False, server_default="0"),
    Column("pipeline", Text),  # the first schedule of its pipeline
    Column("request", JSON, nullable=False),  # the submit request of its tasks, with the version of its format
    Column("runs", BigInteger, nullable=False, server_default="0"),
    Column("next_run_at", Instant),
    Column("reckoned_at", Instant, nullable=False),  # when next_run_at was computed
    Column("last_run_at", Instant),
    Column("last_task_id", Text),
    Column("created_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("message", Text),
    Column("reopens_as", Text),  # its state before a missed run or its expiry ended it
    Column("created_by", Text),
    one_of("state", ScheduleState),
    sqlite_autoincrement=True,
)
ACTIVE_SCHEDULE = has_state(schedule, ScheduleState.ACTIVE)
# Includes the state, although it is constant: without statistics SQLite would sort all active schedules instead.
Index(
    "ix_schedule_due",
    schedule.c.state,
    schedule.c.next_run_at,
    sqlite_where=ACTIVE_SCHEDULE,
    postgresql_where=ACTIVE_SCHEDULE,
)
Index("ix_schedule_state", schedule.c.state, schedule.c.seq)
FOLLOWS = schedule.c.after_id.isnot(None)
Index("ix_schedule_after", schedule.c.after_id, sqlite_where=FOLLOWS, postgresql_where=FOLLOWS)

schedule_run = Table(
    "schedule_run",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("schedule_id", Text, ForeignKey("schedule.id", ondelete="CASCADE"), nullable=False),
    Column("occurrence", Instant, nullable=False),
    Column("at", Instant, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("missed", BigInteger, nullable=False, server_default="0"),
    Column("task_id", Text),
    Column("reason", Text),
    Column("message", Text),
    Column("finished_at", Instant),
    UniqueConstraint("schedule_id", "occurrence"),
    sqlite_autoincrement=True,
)
Index("ix_schedule_run_at", schedule_run.c.at)
RUN_OF_TASK = schedule_run.c.task_id.isnot(None)
Index("ix_schedule_run_task", schedule_run.c.task_id, sqlite_where=RUN_OF_TASK, postgresql_where=RUN_OF_TASK)

event_table = Table(
    "event",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("task_id", Text, ForeignKey("task.id", ondelete="CASCADE"), nullable=False),
    Column("attempt_id", Text),
    Column("seq", BigInteger),  # assigned by the runner; NULL for events of the relay
    Column("kind", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("data", JSON, nullable=False),
    UniqueConstraint("attempt_id", "seq"),
    sqlite_autoincrement=True,
)
Index("ix_event_task", event_table.c.task_id, event_table.c.id)

output = Table(
    "output",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("task_id", Text, ForeignKey("task.id", ondelete="CASCADE"), nullable=False),
    Column("attempt_id", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("stream", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("attempt_id", "offset"),
    sqlite_autoincrement=True,
)
Index("ix_output_task", output.c.task_id, output.c.id)

# One row per try, to keep every commit that a try meant to push; the newest row has the current state.
effect = Table(
    "effect",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("task_id", Text, ForeignKey("task.id", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("expected", Text),
    Column("external_id", Text),
    UniqueConstraint("task_id", "kind", "target", "fence"),
    sqlite_autoincrement=True,
)

checkpoint = Table(
    "checkpoint",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("task_id", Text, ForeignKey("task.id", ondelete="CASCADE"), nullable=False),
    Column("attempt_id", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("data", JSON, nullable=False),
    sqlite_autoincrement=True,
)
Index("ix_checkpoint_task", checkpoint.c.task_id, checkpoint.c.id)

change = Table(
    "change",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("task_id", Text, ForeignKey("task.id", ondelete="CASCADE"), nullable=False),
    Column("attempt_id", Text, nullable=False),
    Column("base_commit", Text, nullable=False),
    Column("commit", Text, nullable=False),
    Column("patch", Text, nullable=False),
    Column("is_cut", Boolean, nullable=False),
    sqlite_autoincrement=True,
)
Index("ix_change_task", change.c.task_id, change.c.id)

runner = Table(
    "runner",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("machine", Text, nullable=False),
    Column("token_hash", Text, unique=True),  # NULL: the pool of a keeper
    Column("os", Text),
    Column("architecture", Text),
    Column("version", Text, nullable=False),
    Column("agents", JSON, nullable=False, server_default="[]"),
    Column("policy", MaybeJson),  # NULL: it takes every task
    Column("tags", JSON, nullable=False, server_default="[]"),
    Column("privacy", Text),
    Column("paired_by", Text),
    Column("paired_at", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),
    Column("draining_at", Instant),
    Column("revoked_at", Instant),
    Column("slots", Integer, nullable=False, server_default="1"),
    Column("problem", Text),
)
NOT_REVOKED, IS_POOL = runner.c.revoked_at.is_(None), runner.c.token_hash.is_(None)
Index("uq_runner_name", runner.c.name, unique=True, sqlite_where=NOT_REVOKED, postgresql_where=NOT_REVOKED)
Index("uq_runner_pool", runner.c.machine, unique=True, sqlite_where=IS_POOL, postgresql_where=IS_POOL)

runner_slot = Table(
    "runner_slot",
    metadata,
    Column("id", Text, primary_key=True),
    Column("runner_id", Text, ForeignKey("runner.id", ondelete="CASCADE"), nullable=False),
    Column("token_hash", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    Column("agents", JSON, nullable=False),
    Column("parked", JSON, nullable=False, server_default="{}"),
    Column("problem", Text),
    Column("instance", Text),
    Column("registered_at", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),
)
Index("ix_runner_slot_runner", runner_slot.c.runner_id)

pairing_token = Table(
    "pairing_token",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("created_by", Text),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("used_at", Instant),
    Column("runner_id", Text),
)

message = Table(
    "message",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("task_id", Text, ForeignKey("task.id", ondelete="CASCADE"), nullable=False),
    Column("trigger_key", Text, unique=True),
    Column("text", Text, nullable=False),
    Column("at", Instant, nullable=False),
    sqlite_autoincrement=True,
)
Index("ix_message_task", message.c.task_id, message.c.id)

# When a relay was last alive: leases that were valid then are renewed after a restart.
relay = Table("relay", metadata, Column("name", Text, primary_key=True), Column("seen_at", Instant, nullable=False))

person = Table(
    "person",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("email", Text, unique=True),
    Column("role", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("disabled_at", Instant),
    one_of("role", Role),
)

access_token = Table(
    "access_token",
    metadata,
    Column("id", Text, primary_key=True),
    Column("person_id", Text, ForeignKey("person.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("token_hash", Text, nullable=False, unique=True),
    Column("prefix", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant),
    Column("revoked_at", Instant),
    Column("last_used_at", Instant),
)
Index("ix_access_token_person", access_token.c.person_id, access_token.c.created_at)

# Rows are only added and, when they are old, deleted; a trigger refuses updates.
audit = Table(
    "audit",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("at", Instant, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("details", JSON, nullable=False),
    sqlite_autoincrement=True,
)
Index("ix_audit_at", audit.c.at)
