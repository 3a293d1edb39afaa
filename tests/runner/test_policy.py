"""The machine's own look at what the relay assigns."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from delegate.model import Mode
from delegate.placement import Origin
from delegate.runner.assignment import Assignment
from delegate.runner.policy import PolicyGuard

TASK = Assignment(
    attempt_id="att-1",
    task_id="task-1",
    fence=1,
    number=1,
    agent="claude",
    prompt="fix it",
    timeout=timedelta(minutes=1),
    max_output=1024,
    lineage="task-1",
    mode=Mode.PULL_REQUEST,
    repository="git@github.com:Acme/Shop.git",
)
NARROW = 'repositories = ["acme/shop"]\n'


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (TASK, None),
        (replace(TASK, repository="acme/other"), "does not accept acme/other"),
        (replace(TASK, agent="shell"), "does not accept shell tasks"),
        (replace(TASK, agent="acp:gemini"), "does not accept acp:gemini"),
        (replace(TASK, mode=Mode.IN_PLACE, repository=None), "does not accept work in place"),
        (replace(TASK, is_owners=False), "accepts only tasks of its owner"),
        (replace(TASK, is_owners=False, origin=Origin.LINEAR), "does not accept work from Linear"),
        (replace(TASK, is_owners=False, origin=Origin.SCHEDULE), "does not accept tasks of schedules"),
    ],
)
def test_only_what_the_file_accepts_is_run(tmp_path: Path, task: Assignment, why: str | None) -> None:
    (tmp_path / "policy.toml").write_text(NARROW)

    assert PolicyGuard(tmp_path / "policy.toml").refusal(task) == why


def test_work_in_place_stays_in_the_directories_of_the_policy(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (allowed / "out").symlink_to(other)
    (tmp_path / "policy.toml").write_text(f'in_place = true\ndirectories = ["{allowed}"]\n')
    guard = PolicyGuard(tmp_path / "policy.toml")
    here = replace(TASK, mode=Mode.IN_PLACE, repository=None)

    assert guard.refusal(replace(here, working_directory=str(allowed))) is None
    assert guard.refusal(replace(here, working_directory=str(other))) == f"does not accept work in {other}"
    escaped = str(allowed / "out")
    assert guard.refusal(replace(here, working_directory=escaped)) == f"does not accept work in {escaped}"
    assert guard.refusal(replace(here, working_directory=f"{allowed}/../other")) is not None


def test_a_change_of_the_file_counts_at_once_and_a_missing_one_refuses_all(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    guard = PolicyGuard(path)
    before = (guard.refusal(TASK), guard.problem())
    path.write_text(NARROW)

    assert before == ("has no valid policy", f"its policy cannot be used: {path}: the file is missing")
    assert (guard.refusal(TASK), guard.problem()) == (None, None)
    path.write_text("repositories = [")
    assert guard.refusal(TASK) == "has no valid policy"
