"""Every error that Delegate reports to a user.

DelegateError
├── Reported                an error received from another Delegate process
├── Refused                 the request itself is wrong
│   ├── InvalidField        one field has an invalid value
│   ├── MalformedBody
│   ├── MalformedRequest    not HTTP that a server can answer
│   ├── RequestTimedOut
│   ├── UnknownAgent
│   ├── PreferenceConflict  preferences that contradict each other or cannot be met
│   ├── UnknownDependency
│   ├── DependencyFailed    the dependency failed or was cancelled
│   ├── CycleDetected
│   ├── TooDeep
│   ├── InvalidSchedule
│   ├── ChildRefused        an agent submits a task that it may not
│   ├── ChildrenTooDeep
│   ├── ChildrenOverBudget
│   ├── TooManyChildren
│   ├── NoRunnerLeft        a waiting parent would hold the last runner
│   ├── BadPayload          a webhook that is not one of Linear's
│   ├── LinearRefused       Linear does not accept what Delegate sent; a repeat would not help
│   ├── PayloadTooLarge
│   └── UnsupportedMedia
├── NotAllowed
│   ├── Unauthenticated
│   ├── PairingTokenUsed
│   ├── PairingTokenExpired
│   ├── RunnerRevoked
│   ├── BadSignature        a webhook that Linear did not sign
│   ├── Forbidden
│   ├── InsideAttempt       the owner's token, in a process of a task
│   ├── HostRefused
│   ├── HttpsRequired
│   └── OriginRefused
├── NotFound
│   ├── NoSuchTask
│   ├── NoSuchSchedule
│   ├── NoSuchWorkspace     no work of that task is kept
│   ├── NoSuchPerson
│   ├── NoSuchAccessToken
│   ├── NoSuchAttempt
│   ├── NoSuchRunner
│   ├── NoSuchPlace         a team or project of Linear
│   └── NoSuchRoute
├── Conflict
│   ├── StaleFence          the runner does not hold the attempt's lease
│   ├── IllegalMove
│   ├── ScheduleEnded
│   ├── KeyUsed             the key belongs to a different request
│   ├── PersonExists
│   ├── NoQuestion          there is nothing to answer
│   ├── SequenceGap
│   ├── EventConflict
│   ├── EffectsOpen
│   ├── RunnerInUse         a copy of the runner's home, on another machine or boot
│   ├── RunnerNameUsed
│   ├── VersionMismatch     runner and relay are too far apart
│   ├── NoChange            the task has no diff, or not yet
│   ├── ChangeKept          the runner's privacy level keeps the diff on its machine
│   ├── AlreadyPaired
│   ├── KeeperPool
│   ├── LinearNotConnected
│   ├── LinearDenied        Linear does not accept the credential
│   └── AlreadyRunning
├── Unavailable             a retry may succeed
│   ├── RelayUnreachable
│   ├── StoreBusy
│   ├── RateLimited         too many failed authentications
│   ├── Stopping            the relay is shutting down
│   ├── LinearUnreachable
│   ├── LinearRateLimited
│   ├── DiskFull
│   └── MemoryFull
└── BadData                 configuration or data on disk
    ├── BadSetting
    │   └── BadSettingsFile
    ├── BadCertificate      of `delegate serve`
    ├── BadRepoFile         a repository's .delegate.toml
    ├── DamagedDatabase
    ├── NewerDatabase
    ├── WrongSecretKey      a secret of the database was encrypted with another key
    ├── HomeNotWritable
    ├── UnsafeHome          other users could have written to it
    ├── NotPaired
    ├── BadPairing          a profile's pairing.json or machine file
    ├── BadPolicy           a profile's policy.toml
    ├── EmptyToken
    └── LoosePermissions

The first line of a class docstring is the message template, the second the hint; data are attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self

EXCERPT_MAX = 80  # characters of foreign text that a message may quote
OWN_TEXT_MAX = {"why": 300, "advice": 500, "known": 300, "problems": 1_000}  # Delegate's own text may be longer
DEPEND_ON_RETRY = "and depend on the new task, or submit with `--on-dependency-failure run`"


def excerpt(value: object, limit: int = EXCERPT_MAX) -> str:
    """Return foreign text for use in a message: one line, escaped, cut. A path is not cut: users copy it."""
    text = str(value)
    if len(text) > limit and not isinstance(value, PathLike):
        return f"{escape(text[:limit])}…"
    return escape(text)


def escape(text: str) -> str:
    """Replace every unprintable character with its escape code: one line, no effect on a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class DelegateError(Exception):
    """something went wrong"""

    code: str = "error"
    status: int = 500
    exit_code: int = 70

    def __init__(self, **data: Any) -> None:  # Any: each class names its own data in its template
        self.data = data
        template = (type(self).__doc__ or "").splitlines()
        lines = [line.strip() for line in template if line.strip()]
        values = {key: excerpt(value, OWN_TEXT_MAX.get(key, EXCERPT_MAX)) for key, value in data.items()}
        self.message = lines[0].format_map(values)
        self.hint = " ".join(lines[1:]).format_map(values)
        super().__init__(self.message)

    @classmethod
    def received(cls, message: str, hint: str) -> Self:
        """Return the error as another Delegate process described it."""
        error = cls.__new__(cls)
        Exception.__init__(error, message)
        error.data, error.message, error.hint = {}, message, hint
        return error

    @property
    def field(self) -> str | None:
        return self.data.get("field")

    def report(self) -> dict[str, Any]:
        """Return the JSON form for another Delegate process, which raises it again as Reported."""
        details = {"code": self.code, "message": self.message, "hint": self.hint, "exitCode": self.exit_code}
        return {"error": details}

    @property
    def retry_after(self) -> float | None:
        return self.data.get("retry_after")


class Reported(DelegateError):
    """an error from another Delegate process, with its code, message and exit code unchanged"""

    def __init__(self, *, code: str, message: str, hint: str = "", exit_code: int) -> None:
        super().__init__()
        self.code, self.exit_code = code, exit_code
        self.message, self.hint = message, hint
        self.args = (message,)


class Refused(DelegateError):
    """the request was refused: {why}"""

    code, status, exit_code = "refused", 422, 2


class InvalidField(Refused):
    """{field}: {why}"""

    code = "invalid_field"


class MalformedBody(Refused):
    """the request body is not a valid JSON object for this route: {why}"""

    code, status = "malformed_json", 400


class MalformedRequest(Refused):
    """this is not a valid HTTP/1.1 request: {why}"""

    code, status = "malformed_request", 400


class RequestTimedOut(Refused):
    """the request did not arrive completely within {seconds} seconds
    send it again"""

    code, status = "request_timed_out", 408


class UnknownAgent(Refused):
    """unknown agent {agent}
    known agents: {known}"""

    code = "unknown_agent"


class PreferenceConflict(Refused):
    """{problems}
    nothing was started; fix this and submit again"""

    code = "preference_conflict"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)  # sentences, each shown separately
        super().__init__(problems="; ".join(problems))


class UnknownDependency(Refused):
    """{field}: no task {task_id}
    `delegate status` lists all tasks"""

    code = "unknown_dependency"


class DependencyFailed(Refused):
    """{field}: {task_id} is {state}, so this task would never run
    `delegate retry {task_id}` {advice}"""

    code = "dependency_failed"

    def __init__(self, *, advice: str = DEPEND_ON_RETRY, **data: Any) -> None:  # Any: as above
        super().__init__(advice=advice, **data)


class CycleDetected(Refused):
    """{field}: {cycle} depend on each other
    remove one of these dependencies"""

    code = "cycle_detected"


class TooDeep(Refused):
    """{field}: the dependency chain would be {depth} tasks long; the limit is {limit}
    depend on an earlier task in the chain"""

    code = "too_deep"


class ChildRefused(Refused):
    """an agent cannot submit this task: {why}"""

    code, status = "child_refused", 403


class ChildrenTooDeep(Refused):
    """the agent's task is itself the child of a child; the limit is {limit} generations
    end the turn with a list of the remaining work instead"""

    code = "children_too_deep"


class ChildrenOverBudget(Refused):
    """the budget of {root} ({whole} USD) leaves {left} USD for tasks of its agents
    {advice}"""

    code = "children_over_budget"


class TooManyChildren(Refused):
    """agents have submitted {count} tasks below {root} in the last hour; the limit is {limit}
    wait, or do the work in this task"""

    code, status = "too_many_children", 429


class NoRunnerLeft(Refused):
    """at most {count} tasks run at once, and tasks that wait for their children would hold them all
    do the work in this task; more runners would allow children (DELEGATE_MAX_RUNNERS)"""

    code, status = "no_runner_left", 409


class InvalidSchedule(Refused):
    """{field}: {why}"""

    code = "invalid_schedule"


class BadPayload(Refused):
    """the webhook cannot be read: {why}"""

    code, status = "bad_payload", 400


class LinearRefused(Refused):
    """Linear refused the request: {why}"""

    code = "linear_refused"


class PayloadTooLarge(Refused):
    """the body is larger than {limit} bytes"""

    code, status = "too_large", 413


class UnsupportedMedia(Refused):
    """the body must be application/json, not {given}"""

    code, status = "unsupported_media", 415


class NotAllowed(DelegateError):
    """not allowed"""

    code, status, exit_code = "forbidden", 403, 4


class Unauthenticated(NotAllowed):
    """the relay does not accept this token
    `delegate login URL` stores another one; or set DELEGATE_TOKEN, or use the DELEGATE_HOME of the relay"""

    code, status = "unauthenticated", 401


class PairingTokenUsed(NotAllowed):
    """this pairing token was already used; it pairs one machine, once
    create another one with `delegate runner token --name {name}`"""

    code, status = "pairing_token_used", 410


class PairingTokenExpired(NotAllowed):
    """this pairing token has expired; it is valid for {minutes} minutes
    create another one with `delegate runner token --name {name}`"""

    code, status = "pairing_token_expired", 410


class RunnerRevoked(NotAllowed):
    """the runner {name} was revoked
    pair this machine again with a new token: `delegate runner token --name {name}`"""

    code, status = "runner_revoked", 401


class BadSignature(NotAllowed):
    """the webhook has no valid signature of Linear"""

    code, status = "bad_signature", 401


class Forbidden(NotAllowed):
    """this token does not give access to {what}"""

    code = "forbidden"


class InsideAttempt(NotAllowed):
    """the token of a person or of the relay's owner is not accepted from a process that a task has started
    inside a task, use the DELEGATE_TOKEN of its environment; elsewhere, try again when no task is running"""

    code = "inside_attempt"


class HostRefused(NotAllowed):
    """the relay does not accept requests for the host name {host}
    on the relay's machine, `delegate serve --public-url` or `--allowed-host` adds a name"""

    code = "host_refused"


class HttpsRequired(NotAllowed):
    """this request was not encrypted on its way, which would expose tokens on the network
    use {url}"""

    code = "https_required"


class OriginRefused(NotAllowed):
    """the relay does not accept requests from pages on {origin}"""

    code = "origin_refused"


class NotFound(DelegateError):
    """not found"""

    code, status, exit_code = "not_found", 404, 5


class NoSuchTask(NotFound):
    """no task {task_id}
    `delegate status` lists all tasks"""

    code = "no_such_task"


class NoSuchSchedule(NotFound):
    """no schedule {schedule_id}
    `delegate schedule list` lists all schedules"""

    code = "no_such_schedule"


class NoSuchWorkspace(NotFound):
    """no work is kept for {name}
    `delegate workspaces` lists kept work"""

    code = "no_such_workspace"


class NoSuchPerson(NotFound):
    """there is no user {name}
    `delegate user list` lists all users"""

    code = "no_such_person"


class NoSuchAccessToken(NotFound):
    """there is no token {token_id}
    `delegate token list` lists the tokens"""

    code = "no_such_token"


class NoSuchAttempt(NotFound):
    """no attempt {attempt_id}"""

    code = "no_such_attempt"


class NoSuchRunner(NotFound):
    """no runner {runner_id}
    `delegate runner list` lists all runners"""

    code = "no_such_runner"


class NoSuchPlace(NotFound):
    """Linear has no {kind} {name}
    use the name or the key that Linear shows"""

    code = "no_such_place"


class NoSuchRoute(NotFound):
    """no route {method} {path}
    /api/openapi.json lists all routes"""

    code = "no_such_route"


class Conflict(DelegateError):
    """the request conflicts with the current state"""

    code, status, exit_code = "conflict", 409, 5


class StaleFence(Conflict):
    """attempt {attempt_id} is not held with fence {fence}
    stop working on it: another runner holds it, or its task has ended"""

    code = "stale_fence"


class IllegalMove(Conflict):
    """task {task_id} is {state}: it cannot be {verb}
    {advice}"""

    code = "illegal_move"


class ScheduleEnded(Conflict):
    """schedule {schedule_id} is {state}: it cannot be {verb}
    {advice}; `delegate schedule get {schedule_id}` shows this one"""

    code = "schedule_ended"

    def __init__(self, *, advice: str = "create a new one", **data: Any) -> None:  # Any: as above
        super().__init__(advice=advice, **data)


class KeyUsed(Conflict):
    """the request key {key} was used for a different request
    use a new key"""

    code = "request_key_used"


class PersonExists(Conflict):
    """there is already a user with the {field} {value}
    `delegate user list` lists all users"""

    code = "person_exists"


class NoQuestion(Conflict):
    """{task_id} is {state} and has no unanswered question"""

    code = "no_question"


class SequenceGap(Conflict):
    """attempt {attempt_id} expects event {expected}, not {given}"""

    code = "gap_expected_seq"


class EventConflict(Conflict):
    """attempt {attempt_id} already has an event {seq} with different content"""

    code = "event_conflict"


class EffectsOpen(Conflict):
    """task {task_id} has unresolved effects: {which}
    check whether each one happened, then report it as done or abandoned"""

    code = "effects_open"


class RunnerInUse(Conflict):
    """the runner {name} {why}
    if this home is a copy, pair this machine again with a token of its own: `delegate runner token`"""

    code = "runner_in_use"


class RunnerNameUsed(Conflict):
    """there is already a runner named {name}
    choose another name, or revoke that one with `delegate runner revoke {name}`"""

    code = "runner_name_used"


class VersionMismatch(Conflict):
    """a runner of version {runner} does not work with a relay of version {relay}
    upgrade the {side} to {wanted}; one minor version apart works"""

    code = "version_mismatch"


class NoChange(Conflict):
    """task {task_id} has no changes to show
    only tasks that ran with --worktree or --pr and changed files have a diff"""

    code = "no_change"


class ChangeKept(Conflict):
    """the diff of task {task_id} is kept on {runner}
    `delegate runner privacy {task_id} --show full` on that machine shows it; its branch has it too"""

    code = "kept_on_runner"


class AlreadyPaired(Conflict):
    """profile {profile} is already paired: it is {name} at {url}
    `delegate runner unpair` ends that; or use `--profile` for a second runner on this machine"""

    code = "already_paired"


class KeeperPool(Conflict):
    """{name} is the pool of a keeper
    stop it with `delegate down` on its machine"""

    code = "keeper_pool"


class LinearNotConnected(Conflict):
    """Linear is not connected
    connect it with `delegate linear connect`"""

    code = "linear_not_connected"


class LinearDenied(Conflict):
    """Linear does not accept the credential: {why}
    connect again with `delegate linear connect`"""

    code = "linear_denied"


class AlreadyRunning(Conflict):
    """Delegate is already running for {home} (process {pid})
    `delegate info` shows it, `delegate down` stops it"""

    code = "already_running"


class Unavailable(DelegateError):
    """temporarily unavailable"""

    code, status, exit_code = "unavailable", 503, 6


class RelayUnreachable(Unavailable):
    """cannot reach the relay at {url}: {why}
    {advice}"""

    code = "relay_unreachable"


class StoreBusy(Unavailable):
    """the database is not responding: {why}
    try again in a moment"""

    code = "store_busy"


class RateLimited(Unavailable):
    """too many requests from this address had a token that the relay does not accept
    wait {seconds} s, and check the token"""

    code, status = "rate_limited", 429


class Stopping(Unavailable):
    """the relay is stopping
    try again in a moment; if it does not come back, run `delegate up`"""

    code = "stopping"


class LinearUnreachable(Unavailable):
    """cannot reach Linear: {why}
    try again in a moment"""

    code = "linear_unreachable"


class LinearRateLimited(Unavailable):
    """Linear's rate limit is reached
    try again later"""

    code = "linear_rate_limited"


class MemoryFull(Unavailable):
    """the relay has no memory left for this request
    try again in a moment"""

    code = "memory_full"


class DiskFull(Unavailable):
    """the disk is full: {why}
    free some space; accepted tasks are not lost"""

    code, status = "disk_full", 507


class BadData(DelegateError):
    """configuration or data cannot be used"""

    code, status, exit_code = "bad_data", 500, 3


class BadSetting(BadData):
    """{name}={value}: {why}
    {advice}"""

    code = "bad_setting"


class BadSettingsFile(BadSetting):
    """{path}{place}: {why}
    {advice}"""


class BadCertificate(BadData):
    """{path}: {why}
    {advice}"""

    code = "bad_certificate"


class BadRepoFile(BadData):
    """{where}: {why}
    docs/delegate-toml.md lists every key"""

    code = "bad_repository_file"


class DamagedDatabase(BadData):
    """the database {path} cannot be used: {why}
    it was not changed; `delegate restore` restores the newest backup ({backup})"""

    code = "damaged_database"


class NewerDatabase(BadData):
    """the database {path} was written by a newer Delegate (schema {found}; this version supports {known})
    update Delegate, or use `delegate restore` with a backup made by this version"""

    code = "newer_database"


class WrongSecretKey(BadData):
    """a secret in the database cannot be decrypted with this key
    set DELEGATE_SECRET_KEY, or the file secret-key in the home, to the key that encrypted it"""

    code = "wrong_secret_key"


class HomeNotWritable(BadData):
    """DELEGATE_HOME {path} is not writable: {why}
    set DELEGATE_HOME to a directory you own"""

    code = "home_not_writable"


class UnsafeHome(BadData):
    """DELEGATE_HOME {home} is not safe: {path} {why}
    {advice}"""

    code = "unsafe_home"


class NotPaired(BadData):
    """profile {profile} is not paired with a relay: {path} does not exist
    pair it with the command that `delegate runner token` prints"""

    code = "not_paired"


class BadPairing(BadData):
    """{path} cannot be used: {why}
    pair this machine again with the command that `delegate runner token` prints"""

    code = "bad_pairing"


class BadPolicy(BadData):
    """{path}: {why}
    until this is fixed, the runner accepts no task; docs/team.md lists every key"""

    code = "bad_policy"


class EmptyToken(BadData):
    """{path} is missing or empty, so the relay of this home lets nobody in
    `delegate down`, then `delegate up`, writes a new token"""

    code = "empty_token"


class LoosePermissions(BadData):
    """{path} can be read by other users
    run: chmod {mode} {path}"""

    code = "loose_permissions"
