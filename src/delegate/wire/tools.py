"""The tools of the MCP server: one class per tool with its name, description and parameters, and one for its result.

Both the tool descriptions for agents and the validation in the relay come from these classes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StringConstraints

from delegate.model import OPTION_MAX, OPTIONS_MAX, QUESTION_MAX, OnDependencyFailure
from delegate.schedule.model import PIPELINE_STEPS, MissedRunPolicy, RunOutcome, ScheduleState
from delegate.wire.basics import (
    NO_NUL,
    AgentText,
    Directory,
    IdText,
    ModelName,
    Money,
    PriorityName,
    RepositoryName,
    RunnerName,
    ScheduleCursor,
    Tag,
    TaskCursor,
    Text,
    Timestamp,
    Wire,
    without_nul,
)
from delegate.wire.basics import TaskStatus as TaskState
from delegate.wire.schedules import Cron, DelayMs, RunCount, RunView, ScheduleView, Zone
from delegate.wire.shared_models import CheckpointView, QuestionView
from delegate.wire.tasks import (
    Agent,
    AttemptView,
    Dependencies,
    Effort,
    OutputBytes,
    OutputLine,
    Prompt,
    TaskView,
    TimeoutMs,
)

LINES_MAX = 1_000
TASK = Field(description="The id of the task, like task-3f2a9c.")
SCHEDULE = Field(description="The id of the schedule.")
LIMIT = Field(ge=1, le=100, description="The maximum number of entries.")
REASON = Field(description="The reason, shown in the history.")
LineCursor = Annotated[
    str,
    StringConstraints(max_length=100),
    Field(json_schema_extra={"pattern": r"^[0-9]{1,18}\.[0-9]{1,9}-[0-9]{1,18}\.[0-9]{1,9}$"}),
]
QuestionText = Annotated[
    str, StringConstraints(min_length=1, max_length=QUESTION_MAX), AfterValidator(without_nul), NO_NUL
]
OptionText = Annotated[str, StringConstraints(min_length=1, max_length=OPTION_MAX), AfterValidator(without_nul), NO_NUL]


class TaskParameters(Wire):
    """The parameters of a task, however it is started."""

    prompt: Annotated[
        Prompt, Field(description="Everything the agent needs to know: it does not see this conversation.")
    ]
    priority: Annotated[PriorityName, Field(description="P0 is the most urgent.")] = "P2"
    working_directory: Annotated[
        Directory | None,
        Field(description="An absolute path on the client's machine; the client's own directory if left out."),
    ] = None
    timeout: Annotated[TimeoutMs | None, Field(description="Milliseconds after which the task is stopped.")] = None
    max_output_buffer: Annotated[OutputBytes | None, Field(description="Bytes of output to keep.")] = None
    depends_on: Annotated[
        Dependencies, Field(description="Ids of tasks that must complete before this one starts.")
    ] = []
    continue_from: Annotated[
        IdText | None,
        Field(description="One more dependency; this task's agent gets its result, git state and last output."),
    ] = None
    on_dependency_failure: Annotated[
        OnDependencyFailure,
        Field(description="When a dependency fails: cancel this task too, or run it anyway."),
    ] = OnDependencyFailure.CANCEL
    agent: Annotated[
        Agent | None,
        Field(description="claude, codex, acp:<command>, or shell, which runs the prompt as a command."),
    ] = None
    model: Annotated[ModelName | None, Field(description="The model; the agent's own default if left out.")] = None
    effort: Annotated[Effort | None, Field(description="How long the model may think.")] = None
    worktree: Annotated[
        StrictBool, Field(description="Work in a fresh worktree, not in the directory; the result is a pushed branch.")
    ] = False
    pr: Annotated[StrictBool, Field(description="Like worktree, and open a pull request.")] = False
    repository: Annotated[
        RepositoryName | None,
        Field(description="Instead of workingDirectory: owner/name, or a URL that git can fetch from."),
    ] = None
    max_budget_usd: Annotated[Money | None, Field(description="What the task may cost, in US dollars.")] = None
    runner: Annotated[RunnerName | None, Field(description="The name of the only runner that may take it.")] = None
    tags: Annotated[list[Tag], Field(max_length=20, description="Tags that its runner must have.")] = []


class DelegateTask(TaskParameters):
    """Start a task for an agent in the background.

    Returns at once; the task keeps running even when this conversation ends.
    """


class TaskStatus(Wire):
    """Show one task in full, or a page of all tasks, newest first."""

    task_id: Annotated[IdText | None, TASK] = None
    status: Annotated[TaskState | None, Field(description="Only tasks with this status.")] = None
    limit: Annotated[StrictInt, LIMIT] = 20
    cursor: Annotated[TaskCursor | None, Field(description="`next` of the previous page.")] = None


class TaskLogs(Wire):
    """Show the output of a task: its last lines, or with `since` the lines after an earlier call.

    With `since`, waits up to 50 seconds until the task ends or there are `tail` new lines.
    """

    task_id: Annotated[IdText, TASK]
    tail: Annotated[StrictInt, Field(ge=1, le=LINES_MAX, description="The maximum number of lines.")] = 100
    since: Annotated[LineCursor | None, Field(description="`next` of an earlier call: only newer lines.")] = None


class CancelTask(Wire):
    """Cancel a task and the tasks that depend on it. A running task ends when its runner has stopped it."""

    task_id: Annotated[IdText, TASK]
    reason: Annotated[Text, REASON] = ""


class RetryTask(Wire):
    """Run an ended task again, as a new task with the same parameters.

    A failed or cancelled task continues from the work it left; a completed one starts from the beginning.
    """

    task_id: Annotated[IdText, TASK]


class ResumeTask(Wire):
    """Continue an ended task: a new task in the same directory and, if possible, the same agent session."""

    task_id: Annotated[IdText, TASK]
    additional_context: Annotated[
        AgentText | None, Field(description="What the agent should know or do differently this time.")
    ] = None


class AnswerTask(Wire):
    """Answer the questions of a task's agent, which then continues in the same session."""

    task_id: Annotated[IdText, TASK]
    answer: Annotated[AgentText, Field(description="One answer to all of its questions.")]


class ScheduleTask(TaskParameters):
    """Run a task later, once or repeatedly. Each run is a separate task."""

    schedule_type: Annotated[
        Literal["cron", "one_time"],
        Field(description="cron needs cronExpression, one_time needs scheduledAt or afterSchedule."),
    ]
    cron_expression: Annotated[
        Cron | None, Field(description="Five fields: minute, hour, day of month, month, day of week.")
    ] = None
    scheduled_at: Annotated[
        Timestamp | None, Field(description="A time in the future, ISO 8601 with a zone: 2030-02-19T08:00:00Z.")
    ] = None
    timezone: Annotated[Zone, Field(description="The IANA time zone of cronExpression.")] = "UTC"
    missed_run_policy: Annotated[
        MissedRunPolicy,
        Field(description="For a run more than 5 minutes late: skip it, run it once, or fail the schedule."),
    ] = MissedRunPolicy.SKIP
    max_runs: Annotated[RunCount | None, Field(description="The schedule completes after this many runs.")] = None
    expires_at: Annotated[Timestamp | None, Field(description="No run starts at or after this time.")] = None
    after_schedule: Annotated[IdText | None, Field(description="Run once after a run of this schedule succeeds.")] = (
        None
    )


class ListSchedules(Wire):
    """List a page of schedules, newest first."""

    status: Annotated[ScheduleState | None, Field(description="Only schedules with this status.")] = None
    limit: Annotated[StrictInt, LIMIT] = 20
    cursor: Annotated[ScheduleCursor | None, Field(description="`next` of the previous page.")] = None


class GetSchedule(Wire):
    """Show one schedule in full: its next runs and the results of past runs."""

    schedule_id: Annotated[IdText, SCHEDULE]
    include_history: Annotated[StrictBool, Field(description="Include past runs, newest first.")] = True
    history_limit: Annotated[StrictInt, Field(ge=1, le=100, description="The maximum number of past runs.")] = 10


class PauseSchedule(Wire):
    """Pause a schedule; ResumeSchedule continues it."""

    schedule_id: Annotated[IdText, SCHEDULE]
    reason: Annotated[Text, REASON] = ""


class ResumeSchedule(Wire):
    """Continue a paused schedule from its next due time."""

    schedule_id: Annotated[IdText, SCHEDULE]
    reason: Annotated[Text, REASON] = ""


class CancelSchedule(Wire):
    """Cancel a schedule permanently."""

    schedule_id: Annotated[IdText, SCHEDULE]
    reason: Annotated[Text, REASON] = ""
    cancel_tasks: Annotated[StrictBool, Field(description="Also cancel its tasks that have not ended.")] = False


class Step(TaskParameters):
    """One step of a pipeline."""

    delay: Annotated[DelayMs, Field(description="Milliseconds to wait after the previous step ends.")] = 0


class CreatePipeline(Wire):
    """Run tasks in sequence; each gets the result of the previous one. A failed step stops the rest."""

    steps: Annotated[
        list[Step],
        Field(min_length=PIPELINE_STEPS[0], max_length=PIPELINE_STEPS[1], description="The first step starts at once."),
    ]


class AskUser(Wire):
    """Ask the user who gave you this task. Use it only when you cannot continue without the answer.

    Then end your turn: the answer arrives as your next message.
    """

    question: Annotated[
        QuestionText, Field(description="One question that makes sense without knowing your earlier work.")
    ]
    options: Annotated[
        list[OptionText], Field(max_length=OPTIONS_MAX, description="The possible answers, if there are only a few.")
    ] = []


# Results.


class DelegateTaskResult(Wire):
    task_id: str
    status: TaskState
    why: str | None = None  # why it is not running yet


class TaskBrief(Wire):
    task_id: str
    status: TaskState
    priority: PriorityName
    agent: str
    prompt: str  # its beginning
    why: str | None = None
    message: str | None = None
    depends_on: list[str]
    questions: list[QuestionView]
    pull_request: str | None = None
    schedule_id: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class TaskStatusResult(Wire):
    """`task`, `attempts` and `checkpoint` for one task; `tasks` and `next` for a page."""

    task: TaskView | None = None
    attempts: list[AttemptView] | None = None
    checkpoint: CheckpointView | None = None
    tasks: list[TaskBrief] | None = None
    next: str | None = None


class TaskLogsResult(Wire):
    task_id: str
    status: TaskState
    lines: list[OutputLine]
    next: str


class CancelTaskResult(Wire):
    task_id: str
    status: TaskState  # a running task ends when its runner has stopped it
    also_cancelled: list[str]  # tasks that depended on it; none yet if it is still running


class RetryTaskResult(Wire):
    task_id: str
    status: TaskState
    retry_of: str
    parent_task_id: str
    retry_count: int


class AnswerTaskResult(Wire):
    task_id: str
    status: TaskState


class ScheduleResult(Wire):
    schedule_id: str
    status: ScheduleState
    next_run_at: datetime | None = None
    next_runs: list[datetime]
    why: str | None = None
    message: str | None = None


class ScheduleBrief(Wire):
    schedule_id: str
    status: ScheduleState
    schedule_type: Literal["cron", "one_time"]
    cron_expression: str | None = None
    scheduled_at: datetime | None = None
    timezone: str
    prompt: str  # its beginning
    pipeline: str | None = None
    runs: int
    next_run_at: datetime | None = None
    last_task_id: str | None = None
    last_outcome: RunOutcome | None = None
    message: str | None = None
    why: str | None = None


class ListSchedulesResult(Wire):
    schedules: list[ScheduleBrief]
    next: str | None = None


class GetScheduleResult(Wire):
    schedule: ScheduleView
    history: list[RunView] | None = None


class CancelScheduleResult(Wire):
    schedule_id: str
    status: ScheduleState
    cancelled_tasks: list[str]


class CreatePipelineResult(Wire):
    pipeline_id: str
    steps: list[ScheduleResult]


class AskUserResult(Wire):
    task_id: str
    asked: int  # the number of open questions
    next: str  # what to do now
