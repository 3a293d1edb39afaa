"""The examples of the README, as they are written there, with real processes and the official MCP client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.fakes.anthropic_standin import AnthropicStandin
from tests.fakes.mcp_client import Outer, mcp_session
from tests.fakes.world import World, living
from tests.git import run_git

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.anyio]
CLAUDE = shutil.which("claude")
COMMANDS = r"npm run \w+|npm test|git commit -m '[^']+'|sleep \d+"  # what its model finds in a prompt and runs
SCRIPTS = {
    "build": "echo build >> ran.txt && echo built the app",
    "test": "echo test >> ran.txt && printenv DELEGATE_CONTEXT > context.txt || true",
    "deploy": "echo deploy >> ran.txt",
    "lint": "echo lint >> lint.txt && git add lint.txt",
    "format": "echo format >> format.txt && until git add format.txt; do :; done",
}


@pytest.fixture(scope="module")
def model() -> Iterator[AnthropicStandin]:
    with AnthropicStandin({}) as standin:
        yield standin


def claude_environment(home: Path, model: AnthropicStandin) -> dict[str, str]:
    if CLAUDE is None:
        pytest.skip("claude is not installed")
    return {**model.environment(home), "DELEGATE_CLAUDE_COMMAND": CLAUDE}


def make_project(place: Path) -> None:
    (place / "package.json").write_text(json.dumps({"name": "app", "version": "1.0.0", "scripts": SCRIPTS}))
    run_git("init", "-q", cwd=place)
    run_git("config", "user.name", "a", cwd=place)
    run_git("config", "user.email", "a@b.c", cwd=place)
    run_git("add", "package.json", cwd=place)
    run_git("commit", "-qm", "begin", cwd=place)


@pytest.fixture(scope="module", params=["shell", "claude"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Once with the shell as the default agent, once with the real Claude Code, whose model runs what it is asked."""
    place = tmp_path_factory.mktemp("seed")
    environment = {"DELEGATE_DEFAULT_AGENT": request.param, "npm_config_update_notifier": "false"}
    if request.param == "claude":
        model: AnthropicStandin = request.getfixturevalue("model")
        model.define("default", {"obeys": COMMANDS})
        environment |= claude_environment(place, model)
    with living(place / "home", **environment) as world:
        make_project(world.work)
        yield world


def last_commit(place: Path) -> list[str]:
    return run_git("log", "-1", "--name-only", "--format=%s", cwd=place).split("\n")


def ran(world: World, name: str = "ran.txt") -> list[str]:
    path = world.work / name
    return path.read_text().split() if path.exists() else []


def delegated(world: World, *words: str) -> str:
    """The id that `delegate delegate` prints."""
    return world.ok("delegate", *words).split()[0]


def test_build_then_test_then_deploy_from_the_shell(project: World) -> None:
    (project.work / "ran.txt").unlink(missing_ok=True)

    build = delegated(project, "npm run build", "--priority", "P1")
    test = delegated(project, "npm test", "--depends-on", build)
    deploy = delegated(project, "npm run deploy", "--depends-on", test)

    assert project.wait_for(deploy)["status"] == "completed"
    assert ran(project) == ["build", "test", "deploy"]


async def test_lint_and_format_run_before_the_commit_that_waits_for_both(project: World) -> None:
    async with mcp_session(project) as agent:
        lint = await agent.call("DelegateTask", prompt="npm run lint")
        formatted = await agent.call("DelegateTask", prompt="npm run format")
        commit = await agent.call(
            "DelegateTask",
            prompt="git commit -m 'Formatted and linted'",
            dependsOn=[lint["taskId"], formatted["taskId"]],
        )

    assert project.wait_for(commit["taskId"])["status"] == "completed"
    assert last_commit(project.work) == ["Formatted and linted", "", "format.txt", "lint.txt"]


async def test_a_test_that_continues_from_the_build_knows_what_it_left(project: World) -> None:
    async with mcp_session(project) as agent:
        build = await agent.call("DelegateTask", prompt="npm run build")
        test = await agent.call(
            "DelegateTask", prompt="npm test", dependsOn=[build["taskId"]], continueFrom=build["taskId"]
        )
        ended = project.wait_for(test["taskId"])

    prompt = project.ok("prompt", test["taskId"]) + "".join(ran(project, "context.txt"))
    assert (ended["status"], ended["continueFrom"]) == ("completed", build["taskId"])
    if ended["agent"] == "shell":
        assert "builttheapp" in prompt
    else:
        assert ended["sessionId"] == project.task(build["taskId"])["sessionId"]


async def test_a_daily_backup_in_new_york_and_a_deployment_tomorrow(project: World) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)
    async with mcp_session(project) as agent:
        daily = await agent.call(
            "ScheduleTask",
            prompt="Backup database to S3",
            scheduleType="cron",
            cronExpression="0 2 * * *",
            timezone="America/New_York",
            missedRunPolicy="catchup",
        )
        once = await agent.call(
            "ScheduleTask",
            prompt="Deploy to production",
            scheduleType="one_time",
            scheduledAt=tomorrow.isoformat().replace("+00:00", "Z"),
        )
        listed = await agent.call("ListSchedules", status="active")
        await cancel_all(agent, [daily, once])

    runs = [datetime.fromisoformat(run).astimezone(ZoneInfo("America/New_York")) for run in daily["nextRuns"]]
    assert [(run.hour, run.minute) for run in runs] == [(2, 0)] * 3
    assert datetime.fromisoformat(once["nextRunAt"]) == tomorrow
    assert {daily["scheduleId"], once["scheduleId"]} <= {schedule["scheduleId"] for schedule in listed["schedules"]}


async def cancel_all(agent: Outer, schedules: list[dict[str, Any]]) -> None:
    for schedule in schedules:
        await agent.call("CancelSchedule", scheduleId=schedule["scheduleId"], reason="the example is over")


async def test_a_failed_task_is_resumed_with_something_to_add(project: World) -> None:
    failed = delegated(project, "sleep 60", "--timeout", "2s")
    project.wait_for(failed, "failed")

    from_shell = project.ok("resume", failed, "--context", "Try a different approach this time").split()[0]
    project.ok("cancel", from_shell)
    async with mcp_session(project) as agent:
        resumed = await agent.call(
            "ResumeTask", taskId=failed, additionalContext="Focus on the database migration step"
        )
        await agent.call("CancelTask", taskId=resumed["taskId"], reason="seen enough")

    lineage = [project.task(task_id) for task_id in (from_shell, resumed["taskId"])]
    assert [task["retryOf"] for task in lineage] == [failed, failed]
    assert [task["parentTaskId"] for task in lineage] == [failed, failed]
    assert lineage[0]["context"] == "Try a different approach this time"
    assert lineage[1]["context"] == "Focus on the database migration step"


async def test_a_task_may_have_limits_of_its_own(project: World) -> None:
    async with mcp_session(project) as agent:
        long = await agent.call(
            "DelegateTask", prompt="true analyze large dataset", timeout=7_200_000, maxOutputBuffer=104_857_600
        )
        quick = await agent.call("DelegateTask", prompt="true run eslint", timeout=30_000, maxOutputBuffer=1_048_576)

    tasks = [project.wait_for(task["taskId"]) for task in (long, quick)]
    assert [(task["timeout"], task["maxOutputBuffer"]) for task in tasks] == [
        (7_200_000, 104_857_600),
        (30_000, 1_048_576),
    ]
    assert {task["status"] for task in tasks} == {"completed"}
