"""Converts requests of HTTP, MCP and stored schedules to the types of intake."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pydantic import ValidationError

from delegate.errors import InvalidField, InvalidSchedule, Refused
from delegate.intake.submit import Request
from delegate.model import OWNER, Actor, Issue, Mode, Priority, ScheduleId, TaskId
from delegate.schedule.model import MissedRunPolicy, Timing
from delegate.wire.schedules import PipelineRequest, PipelineStep, ScheduleRequest
from delegate.wire.tasks import SubmitRequest

# Raise it when the format of stored templates changes; `request_of_template` must then convert the older ones.
TEMPLATE_VERSION = 1
TEMPLATE_FIELDS = set(SubmitRequest.model_fields) - {"request_key"}  # the key belongs to the schedule, not to its tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    timing: Timing
    template: dict[str, object]  # the submit request of its tasks, as given, with the version of this format
    request_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPipeline:
    steps: tuple[NewSchedule, ...]  # each step follows the previous one
    request_key: str | None = None


def request_of(body: SubmitRequest, by: Actor = OWNER) -> Request:
    return Request(
        prompt=body.prompt,
        agent=body.agent,
        default_agent=body.default_agent,
        working_directory=body.working_directory,
        machine=body.machine,
        repository=body.repository,
        base=body.base,
        mode=Mode.PULL_REQUEST if body.pr else Mode.WORKTREE if body.worktree else None,
        title=body.title,
        issue=None if body.issue is None else Issue(**body.issue.model_dump()),
        labels=tuple(body.labels),
        priority=Priority[body.priority],
        model=body.model,
        effort=body.effort,
        permission_mode=body.permission_mode,
        timeout=None if body.timeout is None else timedelta(milliseconds=body.timeout),
        max_output=body.max_output_buffer,
        max_budget_usd=body.max_budget_usd,
        max_turns=body.max_turns,
        rerun=body.rerun,
        depends_on=tuple(TaskId(task_id) for task_id in body.depends_on),
        continue_from=None if body.continue_from is None else TaskId(body.continue_from),
        on_dependency_failure=body.on_dependency_failure,
        runner=body.runner,
        tags=tuple(body.tags),
        request_key=body.request_key,
        by=by,
    )


def request_of_template(template: dict[str, object]) -> Request:
    version = template.get("version", 1)  # at first it was stored without a version
    if version != TEMPLATE_VERSION:
        why = (
            f"its task is stored in version {version}, and this relay reads only version {TEMPLATE_VERSION}; "
            "upgrade the relay, or create the schedule again"
        )
        raise Refused(why=why)
    try:
        return request_of(SubmitRequest.model_validate(task_of_template(template)))
    except ValidationError as error:  # valid when it was stored, perhaps by an older version
        raise Refused(why=f"its stored task is no longer valid: {error.errors()[0]['msg']}") from None


def task_of_template(template: dict[str, object]) -> dict[str, object]:
    """Return the stored fields of the task, in whatever version."""
    return {name: value for name, value in template.items() if name != "version"}


def template_of(body: SubmitRequest) -> dict[str, object]:
    """Return what a schedule stores. The version is beside the task's fields, where retention finds `dependsOn`."""
    task = body.model_dump(mode="json", by_alias=True, exclude_unset=True, include=TEMPLATE_FIELDS)
    return {"version": TEMPLATE_VERSION, **task}


def parse_schedule(body: ScheduleRequest) -> NewSchedule:
    _check_kind(body)
    timing = Timing(
        cron=None if body.cron_expression is None else " ".join(body.cron_expression.split()),
        at=body.scheduled_at,
        timezone=body.timezone,
        missed_run_policy=body.missed_run_policy,
        max_runs=body.max_runs,
        expires_at=body.expires_at,
        after=None if body.after_schedule is None else ScheduleId(body.after_schedule),
    )
    return NewSchedule(timing=timing, template=template_of(body), request_key=body.request_key)


def _check_kind(body: ScheduleRequest) -> None:
    if body.schedule_type == "cron":
        if body.cron_expression is None:
            raise InvalidSchedule(field="cronExpression", why="is missing; give one, for example `0 2 * * *`")
        if body.scheduled_at is not None:
            raise InvalidSchedule(field="scheduledAt", why="applies only to one_time schedules; use cronExpression")
        return
    if body.cron_expression is not None:
        raise InvalidSchedule(field="cronExpression", why="applies only to cron schedules; use scheduledAt")
    if body.scheduled_at is None and body.after_schedule is None:
        raise InvalidSchedule(field="scheduledAt", why="is missing; give a time, for example `2030-01-31T08:00:00Z`")
    if body.max_runs is not None:
        raise InvalidSchedule(field="maxRuns", why="applies only to cron schedules; a one_time schedule runs once")


def parse_pipeline(body: PipelineRequest) -> NewPipeline:
    steps = tuple(_parse_step(number, step) for number, step in enumerate(body.steps))
    return NewPipeline(steps=steps, request_key=body.request_key)


def _parse_step(number: int, step: PipelineStep) -> NewSchedule:
    if number > 0 and step.continue_from is not None:
        raise InvalidField(field=f"steps.{number}.continueFrom", why="is always the previous step; leave it out")
    if number == 0 and step.delay:
        raise InvalidField(field="steps.0.delay", why="has no previous step to count from; leave it out")
    if step.request_key is not None:
        raise InvalidField(field=f"steps.{number}.requestKey", why="belongs to the pipeline, not to one of its steps")
    # A step that became due while the relay was down runs when it is back.
    timing = Timing(delay=timedelta(milliseconds=step.delay), missed_run_policy=MissedRunPolicy.CATCHUP)
    return NewSchedule(timing=timing, template=template_of(step))
