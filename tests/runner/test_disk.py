from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from delegate.config.disk import describe_shortage, format_bytes, free_bytes
from delegate.config.settings import Settings
from delegate.runner.attempt.attempt import run_attempt
from delegate.runner.disk import DiskLow, RunnerDisk, disk_of, is_disk_full
from delegate.runner.loop import RunnerLoop
from delegate.states import AttemptState, Reason

if TYPE_CHECKING:
    from tests.runner.conftest import Stage

pytestmark = pytest.mark.anyio
TOO_MUCH = 1 << 60


@dataclass(slots=True)
class ScriptedDisk:
    """A disk of which a test says how full it is."""

    problem: str | None = None
    is_full: bool = False

    def shortage_to_start(self) -> str | None:
        return self.problem

    def shortage_to_continue(self) -> str | None:
        return "full" if self.is_full else None


def test_a_place_that_does_not_exist_yet_is_on_the_disk_of_the_one_above(tmp_path: Path) -> None:
    assert abs((free_bytes(tmp_path / "a" / "b") or 0) - (free_bytes(tmp_path) or 0)) < 1 << 30


def test_a_directory_that_cannot_be_examined_is_not_called_full(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    assert describe_shortage([loop], TOO_MUCH) is None


def test_a_shortage_is_a_sentence_with_the_place_and_both_numbers(tmp_path: Path) -> None:
    why = describe_shortage([tmp_path], TOO_MUCH)

    assert why is not None
    assert why.startswith("only ")
    assert why.endswith(f"are free on the disk of {tmp_path}, and 1048576.0 TiB are needed")


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (2 << 30, "2.0 GiB")]
)
def test_sizes_are_spoken_in_the_unit_that_fits(size: int, words: str) -> None:
    assert format_bytes(size) == words


def test_to_continue_takes_an_eighth_of_what_it_takes_to_start(tmp_path: Path) -> None:
    free = free_bytes(tmp_path)
    assert free is not None

    assert RunnerDisk(paths=(tmp_path,), floor=2 * free).shortage_to_start() is not None
    assert RunnerDisk(paths=(tmp_path,), floor=2 * free).shortage_to_continue() is None
    assert RunnerDisk(paths=(tmp_path,), floor=9 * free).shortage_to_continue() is not None
    assert RunnerDisk(paths=(tmp_path,), floor=0).shortage_to_start() is None


def test_the_places_of_a_runner_are_those_it_writes_to(tmp_path: Path) -> None:
    disk = disk_of(Settings(home=tmp_path, runner_min_free=7))

    assert disk == RunnerDisk(paths=(tmp_path / "runners", tmp_path / "workspaces", tmp_path / "mirrors"), floor=7)


@pytest.mark.parametrize(
    ("problem", "is_full"),
    [
        (DiskLow("stopped"), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (ValueError("fatal: write error: No space left on device"), True),
        (ValueError("fatal: not a git repository"), False),
    ],
)
def test_a_full_disk_is_known_by_number_or_by_words(problem: Exception, is_full: bool) -> None:
    assert is_disk_full(problem) is is_full


@pytest.mark.slow
@pytest.mark.promise("P13")
async def test_a_runner_without_disk_space_claims_nothing_says_so_and_resumes_by_itself(stage: Stage) -> None:
    problem = "only 3 bytes are free on the disk of /x, and 4 bytes are needed"
    scripted = ScriptedDisk(problem=problem)
    equipment = replace(stage.equipment(), disk=cast("Any", scripted))
    task_id = await stage.submit("echo done")

    async with anyio.create_task_group() as group:
        group.start_soon(RunnerLoop(equipment).work)
        with anyio.fail_after(5):
            while problem not in ((await stage.detail(task_id)).task.why or ""):
                pass
        before = (await stage.detail(task_id)).task
        scripted.problem = None
        with anyio.fail_after(10):
            ended = await stage.ended(task_id)
        equipment.shutdown.drain()

    assert before.status == "queued"
    assert before.why == "no runner is accepting work: only 3 bytes are free on the disk of /x, and 4 bytes are needed"
    assert ended.task.status == "completed"


@pytest.mark.promise("P13")
async def test_an_attempt_is_stopped_before_the_disk_is_full(stage: Stage) -> None:
    equipment, assignment = await stage.take("echo begun; exec sleep 60")
    scripted = ScriptedDisk()

    async with anyio.create_task_group() as group:
        ends = []

        async def work() -> None:
            ends.append(await run_attempt(replace(equipment, disk=cast("Any", scripted)), assignment))

        group.start_soon(work)
        await stage.news(assignment.task_id, "event: output")
        scripted.is_full = True

    (end,) = ends
    assert end is not None
    assert (end.state, end.reason) == (AttemptState.FAILED, Reason.DISK_FULL)
    assert end.message == "it was stopped because the runner's disk was nearly full"
    assert await stage.output(assignment.task_id) == b"begun\n"
