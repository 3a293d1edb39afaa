"""An agent's work onto its branch: looked at, committed, told and pushed as the runner does it, beside plain git."""

from __future__ import annotations

import time
from pathlib import Path

import anyio

from bench.attempts import Bench, bench_of
from bench.measure import Row, beside, progress
from bench.origins import MEDIUM, SMALL, Origin, in_memory, origin, work_in

REPEATS = {SMALL: 25, MEDIUM: 15}
MOST = 1.6


def rows() -> list[Row]:
    return [anyio.run(publish, files) for files in (SMALL, MEDIUM)]


async def publish(files: int) -> Row:
    progress(f"publish: {files:,} files")
    ours: list[float] = []
    plain: list[float] = []
    with in_memory() as place, origin(place / "origin", files) as source:
        bench = await bench_of(source)
        await publish_ours(bench, 0)
        for number in range(1, REPEATS[files] + 1):
            if number % 2:
                ours.append(await publish_ours(bench, number))
            plain.append(await anyio.to_thread.run_sync(publish_plainly, source, number))
            if not number % 2:
                ours.append(await publish_ours(bench, number))
    return beside(f"publish, {files:,} files", ours, plain, "add -A + commit + push", MOST)


async def publish_ours(bench: Bench, number: int) -> float:
    workspace = await bench.prepared(number)
    work_in(workspace.tree, number)
    began = time.perf_counter()
    pushed = await bench.published(workspace)
    took = time.perf_counter() - began
    await bench.closed(workspace, pushed)
    return took


def publish_plainly(source: Origin, number: int) -> float:
    name = f"plain-{number}"
    tree: Path = source.add_worktree(name)
    work_in(tree, number)
    began = time.perf_counter()
    source.git("add", "-A", cwd=tree)
    source.git("commit", "-q", "-m", "Work", cwd=tree)
    source.git("push", "-q", "origin", f"HEAD:refs/heads/{name}", cwd=tree)
    took = time.perf_counter() - began
    source.drop_branch(name)
    source.drop_worktree(name)
    return took
