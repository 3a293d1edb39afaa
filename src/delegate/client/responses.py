# Generated from wire/ by `make client-types`. Do not edit.
"""The relay's responses as plain dictionaries, with the same names as in wire/.

Only for the type checker: importing pydantic would take longer than all of `delegate status`.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class AccessTokenData(TypedDict):
    tokenId: str
    person: str
    name: str
    prefix: str
    status: str
    createdAt: str
    expiresAt: str | None
    revokedAt: str | None
    lastUsedAt: str | None


class AccessTokensData(TypedDict):
    tokens: list[AccessTokenData]


class AttemptData(TypedDict):
    attemptId: str
    number: int
    runnerId: str
    slotId: str
    state: str
    reason: str | None
    message: str | None
    startedAt: str
    finishedAt: str | None
    exitCode: int | None
    sessionId: str | None
    outputBytes: int
    truncatedBytes: int
    usage: UsageData


class AuditEntryData(TypedDict):
    id: int
    at: str
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


class AuditData(TypedDict):
    entries: list[AuditEntryData]
    next: str | None


class BatchData(TypedDict):
    tasks: list[TaskData]


class CancelledSchedule(TypedDict):
    schedule: ScheduleData
    tasks: list[TaskData]


class ChangeData(TypedDict):
    baseCommit: str
    commit: str
    patch: str
    isCut: bool


class CheckpointData(TypedDict):
    sessionId: str | None
    branch: str | None
    baseCommit: str | None
    commit: str | None
    dirtyFiles: list[str] | None
    outputTail: list[str]
    error: str | None
    summary: str
    isWorkDone: bool
    usage: UsageData


class ChoiceData(TypedDict):
    field: str
    value: str
    source: str


class DisabledPersonData(TypedDict):
    personId: str
    name: str
    email: str | None
    role: str
    createdAt: str
    disabledAt: str | None
    tasks: int
    schedules: int
    runners: list[str]


class EventData(TypedDict):
    id: int
    taskId: str
    attemptId: str | None
    kind: str
    at: str
    data: dict[str, Any]


class GraphData(TypedDict):
    tasks: list[TaskData]
    isCut: bool


class IssueData(TypedDict):
    key: str
    title: str
    url: str | None
    reviewState: str | None


class LastResultData(TypedDict):
    taskId: str
    state: str
    reason: str | None
    finishedAt: str


class LinearLabelData(TypedDict):
    group: str
    name: str
    exists: bool


class LinearLabelsData(TypedDict):
    labels: list[LinearLabelData]
    created: int


class LinearMapData(TypedDict):
    kind: str
    name: str
    repository: str
    agent: str | None


class LinearData(TypedDict):
    state: str
    reason: str | None
    kind: str | None
    workspace: str | None
    user: str | None
    scopes: list[str]
    members: list[str]
    webhooks: str | None
    connectedAt: str | None
    deliveredAt: str | None
    polledAt: str | None
    inboxWaiting: int
    outboxWaiting: int
    outboxDead: int
    lastError: str | None
    authorizeUrl: str
    maps: list[LinearMapData]


class MeData(TypedDict):
    kind: str
    name: str
    role: str | None
    tokenName: str | None
    expiresAt: str | None
    relayVersion: str


class NewAccessTokenData(TypedDict):
    tokenId: str
    person: str
    name: str
    prefix: str
    status: str
    createdAt: str
    expiresAt: str | None
    revokedAt: str | None
    lastUsedAt: str | None
    token: str


class NewPersonData(TypedDict):
    person: PersonData
    token: NewAccessTokenData


class OutputLine(TypedDict):
    at: str
    stream: str
    text: str


class OutputData(TypedDict):
    lines: list[OutputLine]
    truncatedBytes: int


class PairingTokenData(TypedDict):
    pairingToken: str
    name: str
    expiresAt: str
    command: str
    installCommand: str


class PeopleData(TypedDict):
    people: list[PersonData]


class PersonData(TypedDict):
    personId: str
    name: str
    email: str | None
    role: str
    createdAt: str
    disabledAt: str | None


class PipelineData(TypedDict):
    pipelineId: str
    steps: list[ScheduleData]


class PolicyData(TypedDict):
    repositories: list[str] | str
    directories: list[str]
    agents: list[str]
    acceptFrom: list[str]
    inPlace: bool
    shell: bool


class ProcessData(TypedDict):
    id: str
    name: str
    pid: int
    version: str
    agents: list[str]
    state: str
    taskId: str | None
    seenAt: str


class PromptData(TypedDict):
    text: str
    isRendered: bool


class PurgedTaskData(TypedDict):
    taskId: str
    purgedAt: str
    remains: list[str]


class QuestionData(TypedDict):
    text: str
    options: list[str]
    askedAt: str
    answer: str | None


class RelayData(TypedDict):
    version: str
    pid: int
    database: str
    startedAt: str
    dailyBudgetUsd: float | None
    spentTodayUsd: float
    tasks: dict[str, int]
    settings: NotRequired[dict[str, Any]]
    runners: RunnerCountsData
    processes: list[ProcessData]


class ResultData(TypedDict):
    summary: str
    base: str | None
    baseCommit: str | None
    branch: str | None
    commit: str | None
    pullRequest: str | None
    files: int
    additions: int
    deletions: int
    checksPassed: int
    checksTotal: int
    isKept: bool


class RunData(TypedDict):
    occurrence: str
    at: str
    outcome: str
    missed: int
    taskId: str | None
    reason: str | None
    message: str | None
    finishedAt: str | None


class RunnerAgentData(TypedDict):
    name: str
    version: str | None
    isLoggedIn: bool | None


class RunnerCountsData(TypedDict):
    online: int
    claiming: int
    idle: int
    total: int


class RunnerListData(TypedDict):
    runners: list[RunnerData]
    next: str | None
    counts: RunnerCountsData


class RunnerTaskData(TypedDict):
    taskId: str
    agent: str
    title: str
    startedAt: str


class RunnerData(TypedDict):
    runnerId: str
    name: str
    state: str
    seenAt: str
    machine: str
    isPaired: bool
    os: str | None
    architecture: str | None
    version: str
    upgradeAvailable: bool
    agents: list[RunnerAgentData]
    slots: SlotCountsData
    tasks: list[RunnerTaskData]
    lastResult: LastResultData | None
    policy: PolicyData | None
    tags: list[str]
    privacy: str | None
    problem: str | None
    pairedBy: str
    pairedAt: str


class ScheduleDetail(TypedDict):
    schedule: ScheduleData
    history: list[RunData]


class SchedulePage(TypedDict):
    schedules: list[ScheduleData]
    next: str | None


class ScheduleData(TypedDict):
    scheduleId: str
    status: str
    scheduleType: str
    cronExpression: str | None
    scheduledAt: str | None
    timezone: str
    missedRunPolicy: str
    maxRuns: int | None
    expiresAt: str | None
    afterSchedule: str | None
    delay: int
    pipeline: str | None
    prompt: str
    task: dict[str, Any]
    runs: int
    nextRunAt: str | None
    nextRuns: list[str]
    lastRunAt: str | None
    lastTaskId: str | None
    lastOutcome: str | None
    createdAt: str
    endedAt: str | None
    message: str | None
    why: str | None


class SlotCountsData(TypedDict):
    busy: int
    total: int


class TaskDetail(TypedDict):
    task: TaskData
    checkpoint: CheckpointData | None
    attempts: list[AttemptData]
    events: list[EventData]


class TaskPage(TypedDict):
    tasks: list[TaskData]
    next: str | None


class TaskData(TypedDict):
    taskId: str
    status: str
    priority: str
    agent: str
    model: str | None
    effort: str | None
    permissionMode: str | None
    prompt: str
    workingDirectory: str | None
    machine: str
    timeout: int
    maxOutputBuffer: int
    maxBudgetUsd: float | None
    maxTurns: int | None
    rerun: bool
    mode: str
    repository: str | None
    base: str | None
    title: str | None
    issue: IssueData | None
    context: str | None
    choices: list[ChoiceData]
    dependsOn: list[str]
    continueFrom: str | None
    onDependencyFailure: str
    scheduleId: str | None
    questions: list[QuestionData]
    lineage: str
    result: ResultData | None
    exitCode: int | None
    reason: str | None
    message: str | None
    advice: str | None
    why: str | None
    createdAt: str
    startedAt: str | None
    finishedAt: str | None
    notBefore: str | None
    retryOf: str | None
    parentTaskId: str | None
    retryCount: int
    attempt: int
    sessionId: str | None
    submittedBy: str | None
    runner: str | None
    tags: list[str]
    usage: UsageData


class UsageData(TypedDict):
    inputTokens: int
    outputTokens: int
    cacheReadTokens: int
    cacheWriteTokens: int
    costUsd: float
    turns: int
