"""Runs a repository's setup and check commands, each under a supervisor like an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import anyio

from delegate.model import Outcome, Stream
from delegate.output_tail import CheckpointTail
from delegate.runner.agents.base import Ending, Fact, Invocation, NoProtocol, exit_code
from delegate.runner.attempt.run import AgentRun, AttemptContext, RunEnd
from delegate.runner.attempt.watchdog import TimeLimits
from delegate.runner.checks import CommandResult
from delegate.runner.disk import DiskLow
from delegate.runner.process.agent_process import Command, Exit, SpareSupervisors, launch
from delegate.runner.process.cgroups import OutOfMemory

OUTPUT_KEPT = 1024 * 1024  # bytes kept from the end of a command's output, where test runners print their counts
SHELL = "/bin/sh"


@dataclass(slots=True, kw_only=True)
class CommandReading(NoProtocol):
    """A command has no protocol: only the end of its output is kept."""

    output: bytes = b""

    def feed(self, stream: Stream, data: bytes) -> list[Fact]:  # noqa: ARG002
        self.output = (self.output + data)[-OUTPUT_KEPT:]
        return []

    def judge(self, exit: Exit, ending: Ending, now: datetime) -> Outcome:  # noqa: ARG002
        raise AssertionError("a command is judged by its exit code")


async def run_command(
    command: str,
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: timedelta,
    spares: SpareSupervisors,
    context: AttemptContext,
) -> CommandResult:
    """Run one command line to its end; its run time counts towards the attempt's time limit."""
    started_at = anyio.current_time()
    left = context.started_at + context.time_limits.total - started_at
    limit = min(timeout.total_seconds(), max(left, 0.0))
    tail = CheckpointTail(is_plain_text=False)  # not the attempt's: its output is not the agent's
    own = replace(context, time_limits=TimeLimits(total=limit), started_at=started_at, tail=tail)
    reading = CommandReading()
    argv = (SHELL, "-c", command)
    kills = context.memory_kills()
    process = await launch(await spares.take(), Command(argv=argv, cwd=cwd, env=env, cgroup=context.cgroup))
    run = AgentRun(process, reading, own)
    end = await run.run_to_end(Invocation(argv=argv, env=dict(env), initial_input=b"", keep_input_open=False))
    if end.ending is Ending.DISK_FULL:
        raise DiskLow(f"`{command}` was stopped because the runner's disk was nearly full")
    if context.memory_limit is not None and context.memory_kills() > kills:
        raise OutOfMemory(f"`{command}` was killed: {context.memory_limit.message}")
    return CommandResult(
        command=command,
        exit_code=_exit_code(end),
        output=reading.output,
        seconds=anyio.current_time() - started_at,
        timed_out=end.ending is Ending.TIMEOUT,
        is_interrupted=end.ending in (Ending.CANCELLED, Ending.INTERRUPTED),
    )


def _exit_code(end: RunEnd) -> int | None:
    return exit_code(end.exit) if end.ending in (Ending.EXITED, Ending.SUPERVISOR_LOST) else None
