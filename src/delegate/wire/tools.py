"""The tools of the MCP server: a class for each with its name, its description and its parameters, and its answer.

What an agent is told of a tool and what the relay takes are both made from these.
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
    IdText,
    ModelName,
    Money,
    PriorityName,
    RepositoryName,
    ScheduleCursor,
    TaskCursor,
    Text,
    Timestamp,
    Wire,
    without_nul,
)
from delegate.wire.basics import (
    TaskStatus as TaskState,
)
from delegate.wire.parts import CheckpointView, QuestionView
from delegate.wire.schedules import Cron, DelayMs, RunCount, RunView, ScheduleView, Zone
from delegate.wire.tasks import (
    Agent,
    AttemptView,
    Dependencies,
    Directory,
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
LIMIT = Field(ge=1, le=100, description="How many at most.")
REASON = Field(description="Why, for whoever reads the history.")
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
    """What can be said of a task, whatever starts it."""

    prompt: Annotated[
        Prompt, Field(description="Everything the agent needs to know: it sees nothing of this conversation.")
    ]
    priority: Annotated[PriorityName, Field(description="P0 is the most urgent.")] = "P2"
    working_directory: Annotated[
        Directory | None,
        Field(description="An absolute path on the client's machine; the client's own directory if left out."),
    ] = None
    timeout: Annotated[TimeoutMs | None, Field(description="Milliseconds after which the task is stopped.")] = None
    max_output_buffer: Annotated[OutputBytes | None, Field(description="Bytes of output that are kept.")] = None
    depends_on: Annotated[
        Dependencies, Field(description="Ids of tasks that must complete before this one starts.")
    ] = []
    continue_from: Annotated[
        IdText | None,
        Field(description="One more dependency: its result, git state and last output are told to this task's agent."),
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
        StrictBool, Field(description="Work in a fresh worktree, not in the directory; the work ends on a branch.")
    ] = False
    pr: Annotated[StrictBool, Field(description="The same, and open a pull request.")] = False
    repository: Annotated[
        RepositoryName | None,
        Field(description="Instead of workingDirectory: owner/name, or an address that git can fetch from."),
    ] = None
    max_budget_usd: Annotated[Money | None, Field(description="What the task may cost, in US dollars.")] = None


class DelegateTask(TaskParameters):
    """Hand a piece of work to an agent in the background.

    Answers at once; the task goes on by itself, also when this conversation ends.
    """


class TaskStatus(Wire):
    """One task in full, or a page of all tasks, the newest first."""

    task_id: Annotated[IdText | None, TASK] = None
    status: Annotated[TaskState | None, Field(description="Only tasks with this status.")] = None
    limit: Annotated[StrictInt, LIMIT] = 20
    cursor: Annotated[TaskCursor | None, Field(description="`next` of the page before.")] = None


class TaskLogs(Wire):
    """The output of a task: its last lines at once, or with `since` those after them.

    With `since` it waits until the task ends or there are `tail` new lines, up to 50 seconds.
    """

    task_id: Annotated[IdText, TASK]
    tail: Annotated[StrictInt, Field(ge=1, le=LINES_MAX, description="How many lines at most.")] = 100
    since: Annotated[LineCursor | None, Field(description="`next` of an earlier answer: only what came after.")] = None


class CancelTask(Wire):
    """Stop a task that waits, and those that depend on it; one that runs, and they, when its runner has stopped it."""

    task_id: Annotated[IdText, TASK]
    reason: Annotated[Text, REASON] = ""


class RetryTask(Wire):
    """Run an ended task once more, as a new task with the same wishes.

    One that failed or was cancelled goes on from what it left; one that completed starts anew.
    """

    task_id: Annotated[IdText, TASK]


class ResumeTask(Wire):
    """Go on where an ended task stopped: a new task in the same place and, if possible, the agent's same session."""

    task_id: Annotated[IdText, TASK]
    additional_context: Annotated[
        AgentText | None, Field(description="What the agent is to know or do differently this time.")
    ] = None


class AnswerTask(Wire):
    """Answer what a task's agent has asked; it then goes on in the same session."""

    task_id: Annotated[IdText, TASK]
    answer: Annotated[AgentText, Field(description="One answer for all that it asked.")]


class ScheduleTask(TaskParameters):
    """Run a task later, once or again and again. Each run is a task of its own."""

    schedule_type: Annotated[
        Literal["cron", "one_time"],
        Field(description="cron needs cronExpression, one_time needs scheduledAt or afterSchedule."),
    ]
    cron_expression: Annotated[
        Cron | None, Field(description="Five fields: minute, hour, day of month, month, day of week.")
    ] = None
    scheduled_at: Annotated[
        Timestamp | None, Field(description="A moment to come, ISO 8601 with its zone: 2030-02-19T08:00:00Z.")
    ] = None
    timezone: Annotated[Zone, Field(description="IANA name of the zone that cronExpression is read in.")] = "UTC"
    missed_run_policy: Annotated[
        MissedRunPolicy,
        Field(description="A run more than 5 minutes late: skip it, catch it up once, or fail the schedule."),
    ] = MissedRunPolicy.SKIP
    max_runs: Annotated[RunCount | None, Field(description="The schedule completes after so many runs.")] = None
    expires_at: Annotated[Timestamp | None, Field(description="No run at or after this moment.")] = None
    after_schedule: Annotated[IdText | None, Field(description="Run after a run of this schedule has ended well.")] = (
        None
    )


class ListSchedules(Wire):
    """A page of the schedules, the newest first."""

    status: Annotated[ScheduleState | None, Field(description="Only schedules with this status.")] = None
    limit: Annotated[StrictInt, LIMIT] = 20
    cursor: Annotated[ScheduleCursor | None, Field(description="`next` of the page before.")] = None


class GetSchedule(Wire):
    """One schedule in full: its next runs, and what became of the past ones."""

    schedule_id: Annotated[IdText, SCHEDULE]
    include_history: Annotated[StrictBool, Field(description="Also the past runs, the newest first.")] = True
    history_limit: Annotated[StrictInt, Field(ge=1, le=100, description="How many past runs at most.")] = 10


class PauseSchedule(Wire):
    """Stop a schedule for now; ResumeSchedule takes it up again."""

    schedule_id: Annotated[IdText, SCHEDULE]
    reason: Annotated[Text, REASON] = ""


class ResumeSchedule(Wire):
    """Take up a paused schedule again, with its next time to come."""

    schedule_id: Annotated[IdText, SCHEDULE]
    reason: Annotated[Text, REASON] = ""


class CancelSchedule(Wire):
    """End a schedule for good."""

    schedule_id: Annotated[IdText, SCHEDULE]
    reason: Annotated[Text, REASON] = ""
    cancel_tasks: Annotated[StrictBool, Field(description="Also stop its tasks that have not ended.")] = False


class Step(TaskParameters):
    """One step of a pipeline."""

    delay: Annotated[DelayMs, Field(description="Milliseconds to wait after the end of the step before.")] = 0


class CreatePipeline(Wire):
    """Run tasks one after the other, each told what the one before has left. A step that fails stops the rest."""

    steps: Annotated[
        list[Step],
        Field(min_length=PIPELINE_STEPS[0], max_length=PIPELINE_STEPS[1], description="The first begins at once."),
    ]


class AskUser(Wire):
    """Ask the person who gave you this task. Use it only when you cannot go on without the answer.

    Then end your turn: the answer comes as your next message.
    """

    question: Annotated[QuestionText, Field(description="One question, understandable without your work before it.")]
    options: Annotated[
        list[OptionText], Field(max_length=OPTIONS_MAX, description="Possible answers, if there are few.")
    ] = []


# Answers.


class DelegateTaskResult(Wire):
    task_id: str
    status: TaskState
    why: str | None = None  # why it does not run yet


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
    status: TaskState  # a running one ends when its runner has stopped it
    also_cancelled: list[str]  # those that depended on it; of a running one none yet


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
    asked: int  # how many questions wait for an answer now
    next: str  # what to do now
