"""Defines the states of tasks and attempts, the allowed moves between them, and the reasons for a move."""

from __future__ import annotations

from enum import StrEnum


class TaskState(StrEnum):
    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"
    LOST = "lost"


class Reason(StrEnum):
    DONE = "done"
    COMMAND_FAILED = "command_failed"
    AGENT_ERROR = "agent_error"
    NOT_INSTALLED = "not_installed"
    NOT_LOGGED_IN = "not_logged_in"
    UNKNOWN_MODEL = "unknown_model"
    RATE_LIMITED = "rate_limited"
    USAGE_LIMIT = "usage_limit"
    OVERLOADED = "overloaded"
    UNREACHABLE = "unreachable"
    CONTEXT_TOO_LONG = "context_too_long"
    MAX_TURNS = "max_turns"
    BUDGET = "budget"
    REFUSED = "refused"
    STALLED = "stalled"
    NO_START = "no_start"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    CRASHED = "crashed"
    LOST_RUNNER = "lost_runner"
    POISON = "poison"
    SETUP_ERROR = "setup_error"
    DISK_FULL = "disk_full"
    NO_CHANGES = "no_changes"
    CHECKS_FAILED = "checks_failed"
    POLICY_DENIED = "policy_denied"
    PUSH_REJECTED = "push_rejected"
    PR_REJECTED = "pr_rejected"
    DEPENDENCY_FAILED = "dependency_failed"
    OUT_OF_MEMORY = "out_of_memory"
    QUESTION = "question"
    HANDED_BACK = "handed_back"
    INTERNAL = "internal"


S = TaskState
TASK_MOVES: dict[TaskState, frozenset[TaskState]] = {
    S.BLOCKED: frozenset({S.QUEUED, S.CANCELLED}),
    S.QUEUED: frozenset({S.RUNNING, S.CANCELLED}),
    S.RUNNING: frozenset({S.QUEUED, S.WAITING, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.WAITING: frozenset({S.QUEUED, S.CANCELLED}),
    S.COMPLETED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}
FINAL_TASK_STATES = frozenset(state for state, moves in TASK_MOVES.items() if not moves)

A = AttemptState
ATTEMPT_MOVES: dict[AttemptState, frozenset[AttemptState]] = {
    A.RUNNING: frozenset({A.COMPLETED, A.FAILED, A.CANCELLED, A.RELEASED, A.LOST}),
    A.COMPLETED: frozenset(),
    A.FAILED: frozenset(),
    A.CANCELLED: frozenset(),
    A.RELEASED: frozenset(),
    A.LOST: frozenset(),
}

STATE_MEANINGS: dict[TaskState, str] = {
    S.BLOCKED: "waits for other tasks, or for issues in Linear; shown as queued",
    S.QUEUED: "waits for a runner",
    S.RUNNING: "a runner is working on it",
    S.WAITING: "waits for the user's answer",
    S.COMPLETED: "succeeded",
    S.FAILED: "did not succeed; the reason says why",
    S.CANCELLED: "cancelled by the user, or because a dependency failed",
}

# What the user should do, for every reason that ends or parks a task.
ADVICE: dict[Reason, str] = {
    Reason.DONE: "",
    Reason.COMMAND_FAILED: "read its output with `delegate logs`, then run the task again with `delegate retry`",
    Reason.AGENT_ERROR: "read what the agent said with `delegate logs`, then run the task again with `delegate retry`",
    Reason.NOT_INSTALLED: "install the agent on the runner's machine, or submit with another `--agent`",
    Reason.NOT_LOGGED_IN: "log in to the agent on the runner's machine, then run the task again with `delegate retry`",
    Reason.UNKNOWN_MODEL: "submit again with a `--model` that the agent supports",
    Reason.RATE_LIMITED: "nothing: the task restarts automatically when the limit resets",
    Reason.USAGE_LIMIT: "nothing: the task restarts automatically when the subscription's limit resets",
    Reason.OVERLOADED: "the model's service is overloaded; run the task again later with `delegate retry`",
    Reason.UNREACHABLE: "check the network and the proxy of the runner's machine, then run the task again with "
    "`delegate retry`",
    Reason.CONTEXT_TOO_LONG: "split the work into smaller tasks, or shorten the prompt",
    Reason.MAX_TURNS: "submit again with a higher `--max-turns`, or split the work",
    Reason.BUDGET: "submit again with a higher `--max-budget-usd`, or split the work",
    Reason.REFUSED: "the model declined the request; reword it and submit again",
    Reason.STALLED: "the agent stopped responding; read `delegate logs`, then run the task again with `delegate retry`",
    Reason.NO_START: "the agent printed nothing after it started; start it once by hand, then run the task again with "
    "`delegate retry`",
    Reason.TIMEOUT: "submit again with a longer `--timeout`, or split the work",
    Reason.CANCELLED: "`delegate retry` runs it again",
    Reason.CRASHED: "`delegate logs --raw` shows its full output; `delegate retry` runs it again",
    Reason.LOST_RUNNER: "its runner was lost, and the command may not be safe to repeat; check, then run the task "
    "again with `delegate retry` (or submit with `--rerun`)",
    Reason.POISON: "three runners were lost while working on it; read `delegate logs` before you run the task again "
    "with `delegate retry`",
    Reason.SETUP_ERROR: "fix the problem in the message, then run the task again with `delegate retry`",
    Reason.DISK_FULL: "free disk space on the runner's machine, then run the task again with `delegate retry`",
    Reason.NO_CHANGES: "",
    Reason.CHECKS_FAILED: "`delegate logs` shows the checks, `delegate diff` the changes; `delegate retry` continues "
    "the work",
    Reason.POLICY_DENIED: "`delegate diff` shows the changes; `delegate resume` with `--context` continues the work",
    Reason.PUSH_REJECTED: "the work is kept: `delegate workspaces` lists it; fix the problem in the message, then run "
    "the task again with `delegate retry`",
    Reason.PR_REJECTED: "the branch is pushed: open the pull request by hand, or fix the problem in the message and "
    "run the task again with `delegate retry`",
    Reason.DEPENDENCY_FAILED: "`delegate status --tree` shows what failed; run that task again with `delegate retry`, "
    "then this one",
    Reason.OUT_OF_MEMORY: "raise DELEGATE_TASK_MEMORY_MAX on the runner's machine, or split the work",
    Reason.QUESTION: "answer it with `delegate answer`",
    Reason.HANDED_BACK: "nothing: another runner will take it",
    Reason.INTERNAL: "this is a bug in Delegate; please report it with the relay's log",
}

# Reasons that make the task wait for a limit to reset instead of ending it.
PARKING_REASONS = frozenset({Reason.RATE_LIMITED, Reason.USAGE_LIMIT})

# Reasons of a completed task; every other reason is one of a task that did not succeed.
SUCCESS_REASONS = frozenset({Reason.DONE, Reason.NO_CHANGES})

# Reasons that an answer cannot help with: the attempt used up its limit.
EXHAUSTED_REASONS = frozenset({Reason.TIMEOUT, Reason.BUDGET})


def waits_for_answer(state: AttemptState, reason: Reason) -> bool:
    """Whether a task with an open question waits for the answer (or continues with it) after such an end."""
    return state in (A.COMPLETED, A.RELEASED) or (state is A.FAILED and reason not in EXHAUSTED_REASONS)
