"""The schedule commands, with a scripted relay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.render.test_status import NOW, look
from tests.cli.scripted_relay import Run, answer, body_of, problem

from delegate.cli.datetimes import parse_datetime
from delegate.cli.render.schedule_page import OUTCOME_LABELS, next_lines, pipeline_table, schedule_page, schedule_table
from delegate.cli.render.terminal import cells
from delegate.schedule.model import RunOutcome

if TYPE_CHECKING:
    from delegate.client.responses import ScheduleData

NIGHTS = ["2026-03-02T07:00:00Z", "2026-03-03T07:00:00Z", "2026-03-04T07:00:00Z"]


def schedule(**changes: Any) -> ScheduleData:
    plain: Any = {
        "scheduleId": "schedule-1f0c9a77e2",
        "status": "active",
        "scheduleType": "cron",
        "cronExpression": "0 2 * * *",
        "scheduledAt": None,
        "timezone": "America/New_York",
        "missedRunPolicy": "catchup",
        "maxRuns": None,
        "expiresAt": None,
        "afterSchedule": None,
        "delay": 0,
        "pipeline": None,
        "prompt": "back up the database",
        "task": {"prompt": "back up the database", "agent": "shell", "workingDirectory": "/home/ada/shop"},
        "runs": 0,
        "nextRunAt": NIGHTS[0],
        "nextRuns": NIGHTS,
        "lastRunAt": None,
        "lastTaskId": None,
        "lastOutcome": None,
        "createdAt": "2026-03-01T11:00:00Z",
        "endedAt": None,
        "message": None,
        "why": None,
    }
    return {**plain, **changes}  # type: ignore[typeddict-item]  # built from parts


def once(**changes: Any) -> ScheduleData:
    return schedule(scheduleType="one_time", cronExpression=None, timezone="UTC", **changes)


DETAIL = {"schedule": schedule(), "history": []}


def test_a_new_schedule_prints_its_id_and_tells_its_next_runs(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["back up", "the database", "--cron", "0 2 * * *", "--timezone", "America/New_York"]

    code, asked = run(
        answer(DETAIL, "201 Created"), "schedule", "create", *words, "--missed-run-policy", "catchup", "-a", "shell"
    )

    shown = capsys.readouterr()
    assert (code, asked[0].line, shown.out) == (0, "POST /api/schedules HTTP/1.1", "schedule-1f0c9a77e2\n")
    assert [line.rpartition(",")[0] for line in shown.err.splitlines()] == [
        "  Mon 2026-03-02 02:00 EST",
        "  Tue 2026-03-03 02:00 EST",
        "  Wed 2026-03-04 02:00 EST",
    ]
    sent = body_of(asked)
    assert sent.pop("machine")
    assert sent == {
        "prompt": "back up the database",
        "scheduleType": "cron",
        "cronExpression": "0 2 * * *",
        "timezone": "America/New_York",
        "missedRunPolicy": "catchup",
        "agent": "shell",
        "workingDirectory": sent["workingDirectory"],
    }


def test_everything_that_limits_a_schedule_is_sent(run: Run, tmp_path: Path) -> None:
    words = "create deploy --at 2026-02-19T08:00 --timezone Europe/Berlin --max-runs 3 --expires-at 2026-02-20T00:00Z"

    _, asked = run(answer(DETAIL), "schedule", *words.split(), "--after", "schedule-2", "--depends-on", "task-1")

    sent = body_of(asked)
    assert (sent["scheduleType"], sent["scheduledAt"]) == ("one_time", "2026-02-19T08:00:00+01:00")
    assert (sent["maxRuns"], sent["expiresAt"]) == (3, "2026-02-20T00:00:00+00:00")
    assert (sent["afterSchedule"], sent["dependsOn"]) == ("schedule-2", ["task-1"])
    assert sent["workingDirectory"] == str(tmp_path)


def test_a_schedule_after_another_needs_no_moment(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    made = once(afterSchedule="schedule-2", nextRunAt=None, nextRuns=[], why="waits for schedule-2")

    _, asked = run(answer({"schedule": made, "history": []}), "schedule", "create", "tidy up", "--after", "schedule-2")

    assert (body_of(asked)["scheduleType"], "scheduledAt" in body_of(asked)) == ("one_time", False)
    assert capsys.readouterr().err == "  waits for schedule-2\n"


def test_what_the_relay_refuses_is_shown(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    refusal = problem("422 Unprocessable", "invalid_schedule", "cronExpression: has 4 fields", "write five fields")

    code, _ = run(refusal, "schedule", "create", "x", "--cron", "* * * *")

    assert code == 2
    assert capsys.readouterr().err == "delegate: --cron: has 4 fields\nhint: write five fields\n"


@pytest.mark.parametrize(
    ("typed", "zone", "meant"),
    [
        ("2026-07-01T08:00", "America/New_York", "2026-07-01T08:00:00-04:00"),
        ("2026-01-01 08:00", "America/New_York", "2026-01-01T08:00:00-05:00"),
        ("2026-02-19T08:00:00Z", "America/New_York", "2026-02-19T08:00:00+00:00"),
        ("20260219T080000+0530", "UTC", "2026-02-19T08:00:00+05:30"),
        ("+10m", "Mars/Base", "2026-03-01T12:10:00+00:00"),
        (" +1d ", "UTC", "2026-03-02T12:00:00+00:00"),
        # As for cron: the first minute after a gap, the first time of two.
        ("2026-03-08T02:30", "America/New_York", "2026-03-08T03:00:00-04:00"),
        ("2026-03-08T02:30:15", "America/New_York", "2026-03-08T03:00:00-04:00"),
        ("2026-03-08T02:30-05:00", "America/New_York", "2026-03-08T02:30:00-05:00"),
        ("2026-11-01T01:30:15", "America/New_York", "2026-11-01T01:30:15-04:00"),
    ],
)
def test_a_moment_is_typed_as_people_do(typed: str, zone: str, meant: str) -> None:
    assert parse_datetime("at", typed, zone, NOW) == meant


def test_a_time_that_the_clocks_skip_is_shown_with_what_it_became(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["x", "--at", "2030-03-10T02:30", "--timezone", "America/New_York"]

    _, asked = run(answer({"schedule": once(nextRuns=[]), "history": []}), "schedule", "create", *words)

    assert body_of(asked)["scheduledAt"] == "2030-03-10T03:00:00-04:00"
    said = "delegate: 2030-03-10T02:30 is skipped by the clocks of America/New_York; using 2030-03-10T03:00:00-04:00\n"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--at", "--expires-at"])
def test_an_empty_moment_is_refused_before_anybody_is_asked(
    run: Run, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    also = ["--after", "schedule-2"] if option == "--expires-at" else []

    code, asked = run(answer(DETAIL), "schedule", "create", "x", option, "", *also)

    assert (code, asked) == (2, [])
    assert f"{option}: '' is not a time; write it as 2030-02-19T08:00" in capsys.readouterr().err


def test_the_table_of_schedules_says_when_each_runs_next_and_why_not() -> None:
    failed = schedule(
        scheduleId="schedule-0000000002",
        status="failed",
        nextRunAt=None,
        message="the run of 02:00 was missed",
        cronExpression="*/5 9-17 * 1,3,5,7,9,11 1-5",
    )
    waiting = once(scheduleId="schedule-0000000003", afterSchedule="schedule-1", nextRunAt=None, why="waits for it")

    assert schedule_table([schedule(), failed, waiting], look()) == [
        "SCHEDULE             STATUS  NEXT      WHEN              PROMPT",
        "schedule-1f0c9a77e2  active  in 19h00  0 2 * * *         back up the database",
        "schedule-0000000002  failed            */5 9-17 * 1,3,…  back up the database",
        "  the run of 02:00 was missed",
        "schedule-0000000003  active            after another     back up the database",
        "  why: waits for it",
    ]
    assert schedule_table([schedule()], look(40)) == [
        "schedule-1f0c9a77e2",
        "  active in 19h00 0 2 * * *",
        "  back up the database",
    ]


@pytest.mark.parametrize(
    ("status", "outcome", "shown"),
    [
        ("active", None, "active"),
        ("completed", "completed", "completed"),
        ("completed", "started", "completed (task started)"),
        ("completed", "failed", "completed (task failed)"),
        ("completed", "cancelled", "completed (task cancelled)"),
        ("active", "overlapped", "active (overlapped)"),
        ("expired", "missed", "expired (missed)"),
        ("failed", "refused", "failed (refused)"),
    ],
)
def test_a_last_run_that_did_not_end_well_stands_beside_the_status(
    status: str, outcome: str | None, shown: str
) -> None:
    known = once(status=status, lastOutcome=outcome, nextRunAt=None, nextRuns=[])

    assert schedule_table([known], look(200))[1].split("  ")[1] == shown
    assert schedule_table([known], look(40))[1] == f"  {shown} once"
    assert schedule_page({"schedule": known, "history": []}, look())[0] == f"schedule-1f0c9a77e2  {shown}"


@pytest.mark.parametrize("width", [40, 200])
def test_colour_paints_the_status_and_the_last_run(width: int) -> None:
    known = once(status="completed", lastOutcome="failed", nextRunAt=None)

    table = schedule_table([known], look(width, colour=True))

    assert "  \x1b[32mcompleted\x1b[0m (task \x1b[31mfailed)\x1b[0m " in "\n".join(table)


def test_every_outcome_but_success_is_shown() -> None:
    assert {*OUTCOME_LABELS, "completed"} == {outcome.value for outcome in RunOutcome}


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_no_line_about_schedules_is_wider_than_the_terminal(width: int) -> None:
    long = schedule(prompt="日本語 " * 100, why="because " * 50, nextRunAt=None)
    steps: Any = {"pipelineId": "schedule-1", "steps": [long, long]}

    lines = [*schedule_table([schedule(), long], look(width)), *pipeline_table(steps, look(width))]

    assert max(map(cells, [*lines, *next_lines(schedule(), look(width))])) <= width


RUNS: list[Any] = [
    {
        "occurrence": "2026-03-01T07:00:00Z",
        "at": "2026-03-01T07:00:00.400Z",
        "outcome": "failed",
        "missed": 0,
        "taskId": "task-0000000002",
        "reason": "command_failed",
        "message": "the command ended with exit code 7",
        "finishedAt": "2026-03-01T07:00:12.400Z",
    },
    {
        "occurrence": "2026-02-28T07:00:00Z",
        "at": "2026-02-28T09:00:00Z",
        "outcome": "completed",
        "missed": 2,
        "taskId": "task-0000000001",
        "reason": "done",
        "message": "all good",
        "finishedAt": "2026-02-28T09:01:00Z",
    },
    {
        "occurrence": "2026-02-27T07:00:00Z",
        "at": "2026-02-27T07:00:00Z",
        "outcome": "overlapped",
        "missed": 0,
        "taskId": None,
        "reason": None,
        "message": "task-0000000000 had not ended",
        "finishedAt": "2026-02-27T07:00:00Z",
    },
]


def test_the_page_of_a_schedule_has_its_history_with_outcomes() -> None:
    known = schedule(runs=2, maxRuns=10, expiresAt="2026-04-01T04:00:00Z")

    assert schedule_page({"schedule": known, "history": RUNS}, look()) == [
        "schedule-1f0c9a77e2  active",
        "",
        "  prompt     back up the database",
        "  agent      shell",
        "  directory  /home/ada/shop",
        "  cron       0 2 * * * in America/New_York",
        "  next       Mon 2026-03-02 02:00 EST, in 19h00",
        "             Tue 2026-03-03 02:00 EST, in 1d",
        "             Wed 2026-03-04 02:00 EST, in 2d",
        "  if missed  catchup",
        "  runs       2 of 10",
        "  expires    Wed 2026-04-01 00:00 EDT",
        "  created    Sun 2026-03-01 06:00 EST",
        "",
        "  DUE                       OUTCOME     TASK",
        "  Sun 2026-03-01 02:00 EST  failed      task-0000000002  took 12s",
        "    command_failed: the command ended with exit code 7",
        "  Sat 2026-02-28 02:00 EST  completed   task-0000000001  2h00 late, took 1m",
        "    2 more skipped",
        "  Fri 2026-02-27 02:00 EST  overlapped",
        "    task-0000000000 had not ended",
    ]


def test_a_step_of_a_pipeline_says_after_what_it_runs() -> None:
    step = once(afterSchedule="schedule-1", delay=30_000, pipeline="schedule-1", nextRunAt=None, nextRuns=[], why="w")

    page = schedule_page({"schedule": step, "history": []}, look())

    assert page[5:8] == ["  after      schedule-1, 30s after its end", "  why        w", "  if missed  catchup"]
    assert "  pipeline   schedule-1" in page


def test_colour_paints_what_came_of_a_run() -> None:
    page = schedule_page({"schedule": schedule(), "history": RUNS[:1]}, look(200, colour=True))

    assert page[0] == "schedule-1f0c9a77e2  \x1b[34mactive\x1b[0m"
    assert "EST  \x1b[31mfailed\x1b[0m   task-" in page[-2]


def test_schedules_are_listed_page_by_page(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    _, asked = run(
        answer({"schedules": [schedule()], "next": "c"}), "schedule", "list", "--status", "active", "--limit", "1"
    )

    assert asked[0].line == "GET /api/schedules?limit=1&status=active HTTP/1.1"
    assert capsys.readouterr().err == "delegate: only the newest 1 are shown; -n shows more\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            [],
            "delegate: there are no schedules yet\n"
            'hint: delegate schedule create "update the dependencies" --cron "0 2 * * *"\n',
        ),
        (
            ["--status", "paused"],
            "delegate: there are no schedules with status paused\nhint: `delegate schedule list` shows all\n",
        ),
    ],
)
def test_an_empty_list_of_schedules_says_so(
    run: Run, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    code, _ = run(answer({"schedules": [], "next": None}), "schedule", "list", *options)

    assert (code, *capsys.readouterr()) == (0, "", said)


@pytest.mark.parametrize(("verb", "state"), [("pause", "paused"), ("resume", "active")])
def test_a_schedule_is_paused_and_resumed(run: Run, capsys: pytest.CaptureFixture[str], verb: str, state: str) -> None:
    moved = schedule(status=state, nextRuns=[])

    _, asked = run(answer(moved), "schedule", verb, "schedule-1", "--reason", "holidays")

    assert asked[0].line == f"POST /api/schedules/schedule-1/{verb} HTTP/1.1"
    assert json.loads(asked[0].body) == {"reason": "holidays"}
    assert capsys.readouterr().out == f"schedule-1f0c9a77e2 {state}\n"


def test_a_resumed_schedule_that_is_too_late_says_what_became_of_it(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    late = once(status="expired", message="2026-03-01 10:00 UTC was missed", nextRunAt=None, nextRuns=[])

    run(answer(late), "schedule", "resume", "schedule-1")

    assert capsys.readouterr() == ("schedule-1f0c9a77e2 expired\n", "  2026-03-01 10:00 UTC was missed\n")


def test_a_time_that_is_due_already_is_said_to_be() -> None:
    due = once(nextRunAt="2026-03-01T11:57:00Z", nextRuns=["2026-03-01T11:57:00Z"])

    assert next_lines(due, look()) == ["  Sun 2026-03-01 11:57 UTC, 3m ago: due now"]


def test_a_schedule_is_cancelled_with_its_tasks(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [{"taskId": "task-1", "status": "running"}, {"taskId": "task-2", "status": "cancelled"}]
    reply = answer({"schedule": schedule(status="cancelled", nextRuns=[]), "tasks": tasks})

    _, asked = run(reply, "schedule", "cancel", "--cancel-tasks", "schedule-1")

    assert json.loads(asked[0].body) == {"reason": "", "cancelTasks": True}
    assert capsys.readouterr().out == ("schedule-1f0c9a77e2 cancelled\ntask-1 is being cancelled\ntask-2 cancelled\n")


@pytest.mark.parametrize("verb", ["get", "pause", "resume", "cancel"])
def test_an_id_that_cannot_be_one_is_not_sent(run: Run, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    code, asked = run(b"", "schedule", verb, "../tasks")

    assert (code, asked) == (5, [])
    assert capsys.readouterr().err == (
        "delegate: no schedule ../tasks\nhint: `delegate schedule list` lists all schedules\n"
    )


STEPS = [
    once(scheduleId="schedule-0000000001", prompt="npm run build"),
    once(scheduleId="schedule-0000000002", prompt="npm test", afterSchedule="schedule-0000000001", delay=30_000),
]


def test_a_pipeline_prints_its_steps(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["pipeline", "npm run build", "npm test", "--delay", "30s", "-a", "shell"]

    code, asked = run(answer({"pipelineId": "schedule-0000000001", "steps": STEPS}, "201 Created"), *words)

    assert (code, asked[0].line) == (0, "POST /api/pipelines HTTP/1.1")
    first, second = body_of(asked)["steps"]
    assert (first["prompt"], first["agent"], "delay" in first) == ("npm run build", "shell", False)
    assert (second["prompt"], second["agent"], second["delay"]) == ("npm test", "shell", 30_000)
    assert capsys.readouterr().out.splitlines() == [
        "STEP                 STATUS  STARTS     PROMPT",
        "schedule-0000000001  active  now        npm run build",
        "schedule-0000000002  active  30s later  npm test",
    ]


@pytest.mark.parametrize(
    ("words", "reply", "wanted"),
    [
        (["create", "x", "--at", "+1h"], DETAIL, DETAIL["schedule"]),
        (["list"], {"schedules": [schedule()], "next": None}, schedule()),
        (["get", "schedule-1"], DETAIL, {**schedule(), "history": []}),
        (["pause", "schedule-1"], schedule(), schedule()),
        (["cancel", "schedule-1"], {"schedule": schedule(), "tasks": []}, {**schedule(), "tasks": []}),
    ],
    ids=["create", "list", "get", "pause", "cancel"],
)
def test_every_command_of_the_group_speaks_json(
    run: Run, capsys: pytest.CaptureFixture[str], words: list[str], reply: object, wanted: object
) -> None:
    run(answer(reply), "schedule", *words, "--json")

    shown = capsys.readouterr()
    assert (json.loads(shown.out), shown.err) == (wanted, "")
