"""Runners are pairings whose slots are processes; one-time tokens that pair a machine."""

import re

import sqlalchemy as sa
from alembic import op

from delegate.placement import Origin, Placement, lane_of, repository_key

revision = "0008"
down_revision = "0007"


def create_runner() -> None:
    op.create_table(
        "runner",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=True),
        sa.Column("os", sa.Text(), nullable=True),
        sa.Column("architecture", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("agents", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("policy", sa.JSON(), nullable=True),
        sa.Column("tags", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("privacy", sa.Text(), nullable=True),
        sa.Column("paired_by", sa.Text(), nullable=True),
        sa.Column("paired_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("draining_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("slots", sa.Integer(), server_default="1", nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runner")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_runner_token_hash")),
    )
    known, pool = sa.text("revoked_at IS NULL"), sa.text("token_hash IS NULL")
    op.create_index("uq_runner_name", "runner", ["name"], unique=True, sqlite_where=known, postgresql_where=known)
    op.create_index("uq_runner_pool", "runner", ["machine"], unique=True, sqlite_where=pool, postgresql_where=pool)


def create_runner_slot() -> None:
    op.create_table(
        "runner_slot",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("runner_id", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("agents", sa.JSON(), nullable=False),
        sa.Column("parked", sa.JSON(), server_default="{}", nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("instance", sa.Text(), nullable=True),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["runner_id"], ["runner.id"], name=op.f("fk_runner_slot_runner_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runner_slot")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_runner_slot_token_hash")),
    )
    op.create_index("ix_runner_slot_runner", "runner_slot", ["runner_id"])


def create_pairing_token() -> None:
    op.create_table(
        "pairing_token",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.Column("runner_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_pairing_token")),
    )


def extend_attempt() -> None:
    op.drop_index("ix_attempt_runner", "attempt")
    op.execute("ALTER TABLE attempt RENAME COLUMN runner_id TO slot_id")
    op.add_column("attempt", sa.Column("runner_id", sa.Text(), nullable=True))
    running, ended = sa.text("state = 'running'"), sa.text("finished_at IS NOT NULL")
    op.create_index("ix_attempt_slot", "attempt", ["slot_id"], sqlite_where=running, postgresql_where=running)
    op.create_index(
        "ix_attempt_last", "attempt", ["runner_id", "finished_at"], sqlite_where=ended, postgresql_where=ended
    )


def move_processes() -> None:
    """Make each known process the slot of its machine's pool, under the id with which it registers next."""
    connection = op.get_bind()
    pools: dict[str, str] = {}
    names: set[str] = set()
    processes = connection.execute(sa.text("SELECT * FROM old_runner ORDER BY seen_at DESC")).mappings().all()
    for process in processes:
        found = re.fullmatch(r"(.+)-([0-9]+)", process["name"])
        host, slot = found.groups() if found else (process["name"], "1")
        machine = process["machine"]
        if machine not in pools:
            name = host if host not in names else machine
            names.add(name)
            pools[machine] = process["id"]
            connection.execute(
                sa.text(
                    "INSERT INTO runner (id, name, machine, version, paired_at, seen_at)"
                    " VALUES (:id, :name, :machine, :version, :registered_at, :seen_at)"
                ),
                {**process, "name": name},
            )
        slot_id = f"{pools[machine]}-{slot}"
        values = {"old": process["id"], "slot": slot_id, "runner": pools[machine]}
        connection.execute(
            sa.text("UPDATE attempt SET slot_id = :slot, runner_id = :runner WHERE slot_id = :old AND state='running'"),
            values,
        )


def extend_task() -> None:
    op.add_column("task", sa.Column("runner", sa.Text(), nullable=True))
    op.add_column("task", sa.Column("tags", sa.JSON(), server_default="[]", nullable=False))
    op.add_column("task", sa.Column("prefers", sa.Text(), nullable=True))
    if op.get_bind().dialect.name == "postgresql":
        op.execute('ALTER TABLE task ALTER COLUMN lane TYPE text COLLATE "C"')
    waits = sa.text("state = 'queued' AND prefers IS NOT NULL")
    op.create_index("ix_task_prefers", "task", ["seq"], sqlite_where=waits, postgresql_where=waits)


def rename_lanes() -> None:
    """Put the tasks that have not ended into lanes of the new form."""
    connection = op.get_bind()
    rows = connection.execute(
        sa.text(
            "SELECT seq, agent, machine, mode, repository, created_by, schedule_id FROM task"
            " WHERE state IN ('blocked', 'queued', 'running', 'waiting')"
        )
    )
    lanes = [
        {
            "seq": row.seq,
            "lane": lane_of(
                Placement(
                    agent=row.agent,
                    machine=row.machine,
                    in_place=row.mode == "in_place",
                    repository=row.repository and repository_key(row.repository),
                    person=row.created_by,
                    origin=Origin.SCHEDULE if row.schedule_id else Origin.PERSON,
                )
            ),
        }
        for row in rows
    ]
    if lanes:
        connection.execute(sa.text("UPDATE task SET lane = :lane WHERE seq = :seq"), lanes)


def upgrade() -> None:
    op.execute("ALTER TABLE runner RENAME TO old_runner")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE old_runner RENAME CONSTRAINT pk_runner TO pk_old_runner")
        op.execute("ALTER TABLE old_runner RENAME CONSTRAINT uq_runner_token_hash TO uq_old_runner_token_hash")
    create_runner()
    create_runner_slot()
    create_pairing_token()
    extend_attempt()
    move_processes()
    extend_task()
    rename_lanes()
    op.drop_table("old_runner")
