"""What must be true of a Delegate home after any storm: the invariants, read from its database and from /proc."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from pathlib import Path

from sqlalchemy import Connection, create_engine, text

FINAL = {"completed", "failed", "cancelled"}
# A workspace is named after its lineage, with a number when another attempt held that name.
WORKSPACE = re.compile(r"^(task-[0-9a-z]+)-[0-9]{1,2}$")
# What the end of a task tells of each kind of effect.
EFFECT_FIELDS = {"push": "commit", "pull_request": "pull_request"}


def database_faults(url: str) -> list[str]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return [
                *_task_faults(connection),
                *_fence_faults(connection),
                *_sequence_faults(connection),
                *_effect_faults(connection),
                *_integrity_faults(connection),
            ]
    finally:
        engine.dispose()


def _task_faults(connection: Connection) -> list[str]:
    """Every task that ended has exactly one end in its timeline; every other one has an owner or can be claimed."""
    faults = []
    ends: dict[str, int] = defaultdict(int)
    for (task_id,) in connection.execute(text("SELECT task_id FROM event WHERE kind = 'finished'")):
        ends[task_id] += 1
    running: dict[str, int] = defaultdict(int)
    for (task_id,) in connection.execute(text("SELECT task_id FROM attempt WHERE state = 'running'")):
        running[task_id] += 1
    for task_id, state in connection.execute(text("SELECT id, state FROM task")):
        if ends[task_id] != (1 if state in FINAL else 0):
            faults.append(f"{task_id} is {state} with {ends[task_id]} ends in its timeline")
        if running[task_id] != (1 if state == "running" else 0):
            faults.append(f"{task_id} is {state} with {running[task_id]} running attempts")
    return faults


def _fence_faults(connection: Connection) -> list[str]:
    faults = []
    fences: dict[str, list[int]] = defaultdict(list)
    rows = connection.execute(text("SELECT task_id, fence FROM attempt ORDER BY started_at, fence"))
    for task_id, fence in rows:
        fences[task_id].append(fence)
    for task_id, seen in fences.items():
        if seen != list(range(1, len(seen) + 1)):
            faults.append(f"{task_id} had the fences {seen}")
    return faults


def _sequence_faults(connection: Connection) -> list[str]:
    """Events and output of an attempt are numbered without a gap, and the relay expects the number after the last."""
    covered: dict[str, set[int]] = defaultdict(set)
    thinned: set[str] = set()  # a stretch of their numbers is missing on purpose, and said so
    events = text("SELECT attempt_id, seq, kind FROM event WHERE seq IS NOT NULL")
    for attempt_id, seq, kind in connection.execute(events):
        covered[attempt_id].add(seq)
        if kind == "skipped":
            thinned.add(attempt_id)
    for attempt_id, seq in connection.execute(text("SELECT attempt_id, seq FROM output")):
        covered[attempt_id].add(seq)
    cut = "SELECT id, next_seq, truncated_bytes FROM attempt"
    return [
        f"{attempt_id} expects {next_seq} but has {len(covered[attempt_id])} entries"
        for attempt_id, next_seq, truncated in connection.execute(text(cut))
        if not truncated and attempt_id not in thinned and covered[attempt_id] != set(range(next_seq))
    ]


def _effect_faults(connection: Connection) -> list[str]:
    """What a completed task tells of is what was done outside, and no more; nothing was announced and left open."""
    faults = []
    newest: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    pulls: dict[str, set[str]] = defaultdict(set)
    effects = text("SELECT task_id, kind, state, external_id FROM effect ORDER BY fence, id")
    for task_id, kind, state, made in connection.execute(effects):
        newest[task_id][kind] = (state, made)
        if kind == "pull_request" and state == "done":
            pulls[task_id].add(made)
    for task_id, found in connection.execute(text("SELECT id, result FROM task WHERE state = 'completed'")):
        result = json.loads(found) if isinstance(found, str) else found or {}
        reported = {kind: ("done", result[field]) for kind, field in EFFECT_FIELDS.items() if result.get(field)}
        left = {kind: seen for kind, seen in newest[task_id].items() if seen[0] != "abandoned"}
        if reported != left:
            faults.append(f"{task_id} tells of {reported}, but its effects are {left}")
    faults += [f"{task_id} made the pull requests {sorted(made)}" for task_id, made in pulls.items() if len(made) > 1]
    return faults


def _integrity_faults(connection: Connection) -> list[str]:
    if connection.dialect.name != "sqlite":
        return []
    verdict = connection.execute(text("PRAGMA integrity_check")).scalar_one()
    return [] if verdict == "ok" else [f"integrity_check: {verdict}"]


def workspace_faults(home: Path, url: str) -> list[str]:
    """Every directory in which agents work belongs to a task that is not over."""
    found = sorted(path.name for path in (home / "workspaces").glob("*"))
    if not found:
        return []
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            states = connection.execute(text("SELECT lineage, state FROM task")).all()
    finally:
        engine.dispose()
    live = {lineage for lineage, state in states if state not in FINAL}
    return [f"the workspace {name} is left" for name in found if WORKSPACE.sub(r"\1", name) not in live]


def strays(home: Path) -> list[str]:
    """Processes that still carry a marker of this home's attempts, or whose environment names this home."""
    needle = f"DELEGATE_HOME={home}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes() + b"\0"
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if needle in environment and state != "Z":
            found.append(f"{entry.name} {command[:120]}")
    return found
