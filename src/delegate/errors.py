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

    def __init_subclass__(
        cls, *, code: str | None = None, status: int | None = None, exit_code: int | None = None
    ) -> None:
        """The code is the name of the class unless it says otherwise; status and exit code are inherited."""
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")
        cls.code = code or vars(cls).get("code", name)
        cls.status, cls.exit_code = status or cls.status, exit_code or cls.exit_code

    def __init__(self, **data: Any) -> None:  # Any: each class names its own data in its template
        self.data = data
        template = (type(self).__doc__ or "").splitlines()
        lines = [line.strip() for line in template if line.strip()]
        values = {key: excerpt(value, OWN_TEXT_MAX.get(key, EXCERPT_MAX)) for key, value in data.items()}
        self.message = lines[0].format_map(values)
        self.hint = " ".join(lines[1:]).format_map(values)
        super().__init__(self.message)

    @classmethod
    def rebuild(cls, message: str, hint: str) -> Self:
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


class Reported(DelegateError, code=DelegateError.code):
    """an error from another Delegate process, with its code, message and exit code unchanged"""

    def __init__(self, *, code: str, message: str, hint: str = "", exit_code: int) -> None:
        super().__init__()
        self.code, self.exit_code = code, exit_code
        self.message, self.hint = message, hint
        self.args = (message,)


class Refused(DelegateError, status=422, exit_code=2):
    """the request was refused: {why}"""


class InvalidField(Refused):
    """{field}: {why}"""


class MalformedBody(Refused, code="malformed_json", status=400):
    """the request body is not a valid JSON object for this route: {why}"""


class MalformedRequest(Refused, status=400):
    """this is not a valid HTTP/1.1 request: {why}"""


class RequestTimedOut(Refused, status=408):
    """the request did not arrive completely within {seconds} seconds
    send it again"""


class UnknownAgent(Refused):
    """unknown agent {agent}
    known agents: {known}"""


class PreferenceConflict(Refused):
    """{problems}
    nothing was started; fix this and submit again"""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)  # sentences, each shown separately
        super().__init__(problems="; ".join(problems))


class UnknownDependency(Refused):
    """{field}: no task {task_id}
    `delegate status` lists all tasks"""


class DependencyFailed(Refused):
    """{field}: {task_id} is {state}, so this task would never run
    `delegate retry {task_id}` {advice}"""

    def __init__(self, *, advice: str = DEPEND_ON_RETRY, **data: Any) -> None:  # Any: as above
        super().__init__(advice=advice, **data)


class CycleDetected(Refused):
    """{field}: {cycle} depend on each other
    remove one of these dependencies"""


class TooDeep(Refused):
    """{field}: the dependency chain would be {depth} tasks long; the limit is {limit}
    depend on an earlier task in the chain"""


class ChildRefused(Refused, status=403):
    """an agent cannot submit this task: {why}"""


class ChildrenTooDeep(Refused):
    """the agent's task is itself the child of a child; the limit is {limit} generations
    end the turn with a list of the remaining work instead"""


class ChildrenOverBudget(Refused):
    """the budget of {root} ({whole} USD) leaves {left} USD for tasks of its agents
    {advice}"""


class TooManyChildren(Refused, status=429):
    """agents have submitted {count} tasks below {root} in the last hour; the limit is {limit}
    wait, or do the work in this task"""


class NoRunnerLeft(Refused, status=409):
    """at most {count} tasks run at once, and tasks that wait for their children would hold them all
    do the work in this task; more runners would allow children (DELEGATE_MAX_RUNNERS)"""


class InvalidSchedule(Refused):
    """{field}: {why}"""


class BadPayload(Refused, status=400):
    """the webhook cannot be read: {why}"""


class LinearRefused(Refused):
    """Linear refused the request: {why}"""


class PayloadTooLarge(Refused, code="too_large", status=413):
    """the body is larger than {limit} bytes"""


class UnsupportedMedia(Refused, status=415):
    """the body must be application/json, not {given}"""


class NotAllowed(DelegateError, code="forbidden", status=403, exit_code=4):
    """not allowed"""


class Unauthenticated(NotAllowed, status=401):
    """the relay does not accept this token
    `delegate login URL` stores another one; or set DELEGATE_TOKEN, or use the DELEGATE_HOME of the relay"""


class PairingTokenUsed(NotAllowed, status=410):
    """this pairing token was already used; it pairs one machine, once
    create another one with `delegate runner token --name {name}`"""


class PairingTokenExpired(NotAllowed, status=410):
    """this pairing token has expired; it is valid for {minutes} minutes
    create another one with `delegate runner token --name {name}`"""


class RunnerRevoked(NotAllowed, status=401):
    """the runner {name} was revoked
    pair this machine again with a new token: `delegate runner token --name {name}`"""


class BadSignature(NotAllowed, status=401):
    """the webhook has no valid signature of Linear"""


class Forbidden(NotAllowed):
    """this token does not give access to {what}"""


class InsideAttempt(NotAllowed):
    """the token of a person or of the relay's owner is not accepted from a process that a task has started
    inside a task, use the DELEGATE_TOKEN of its environment; elsewhere, try again when no task is running"""


class HostRefused(NotAllowed):
    """the relay does not accept requests for the host name {host}
    on the relay's machine, `delegate serve --public-url` or `--allowed-host` adds a name"""


class HttpsRequired(NotAllowed):
    """this request was not encrypted on its way, which would expose tokens on the network
    use {url}"""


class OriginRefused(NotAllowed):
    """the relay does not accept requests from pages on {origin}"""


class NotFound(DelegateError, status=404, exit_code=5):
    """not found"""


class NoSuchTask(NotFound):
    """no task {task_id}
    `delegate status` lists all tasks"""


class NoSuchSchedule(NotFound):
    """no schedule {schedule_id}
    `delegate schedule list` lists all schedules"""


class NoSuchWorkspace(NotFound):
    """no work is kept for {name}
    `delegate workspaces` lists kept work"""


class NoSuchPerson(NotFound):
    """there is no user {name}
    `delegate user list` lists all users"""


class NoSuchAccessToken(NotFound, code="no_such_token"):
    """there is no token {token_id}
    `delegate token list` lists the tokens"""


class NoSuchAttempt(NotFound):
    """no attempt {attempt_id}"""


class NoSuchRunner(NotFound):
    """no runner {runner_id}
    `delegate runner list` lists all runners"""


class NoSuchPlace(NotFound):
    """Linear has no {kind} {name}
    use the name or the key that Linear shows"""


class NoSuchRoute(NotFound):
    """no route {method} {path}
    /api/openapi.json lists all routes"""


class Conflict(DelegateError, status=409, exit_code=5):
    """the request conflicts with the current state"""


class StaleFence(Conflict):
    """attempt {attempt_id} is not held with fence {fence}
    stop working on it: another runner holds it, or its task has ended"""


class IllegalMove(Conflict):
    """task {task_id} is {state}: it cannot be {verb}
    {advice}"""


class ScheduleEnded(Conflict):
    """schedule {schedule_id} is {state}: it cannot be {verb}
    {advice}; `delegate schedule get {schedule_id}` shows this one"""

    def __init__(self, *, advice: str = "create a new one", **data: Any) -> None:  # Any: as above
        super().__init__(advice=advice, **data)


class KeyUsed(Conflict, code="request_key_used"):
    """the request key {key} was used for a different request
    use a new key"""


class PersonExists(Conflict):
    """there is already a user with the {field} {value}
    `delegate user list` lists all users"""


class NoQuestion(Conflict):
    """{task_id} is {state} and has no unanswered question"""


class SequenceGap(Conflict, code="gap_expected_seq"):
    """attempt {attempt_id} expects event {expected}, not {given}"""


class EventConflict(Conflict):
    """attempt {attempt_id} already has an event {seq} with different content"""


class EffectsOpen(Conflict):
    """task {task_id} has unresolved effects: {which}
    check whether each one happened, then report it as done or abandoned"""


class RunnerInUse(Conflict):
    """the runner {name} {why}
    if this home is a copy, pair this machine again with a token of its own: `delegate runner token`"""


class RunnerNameUsed(Conflict):
    """there is already a runner named {name}
    choose another name, or revoke that one with `delegate runner revoke {name}`"""


class VersionMismatch(Conflict):
    """a runner of version {runner} does not work with a relay of version {relay}
    upgrade the {side} to {wanted}; one minor version apart works"""


class NoChange(Conflict):
    """task {task_id} has no changes to show
    only tasks that ran with --worktree or --pr and changed files have a diff"""


class ChangeKept(Conflict, code="kept_on_runner"):
    """the diff of task {task_id} is kept on {runner}
    `delegate runner privacy {task_id} --show full` on that machine shows it; its branch has it too"""


class AlreadyPaired(Conflict):
    """profile {profile} is already paired: it is {name} at {url}
    `delegate runner unpair` ends that; or use `--profile` for a second runner on this machine"""


class KeeperPool(Conflict):
    """{name} is the pool of a keeper
    stop it with `delegate down` on its machine"""


class LinearNotConnected(Conflict):
    """Linear is not connected
    connect it with `delegate linear connect`"""


class LinearDenied(Conflict):
    """Linear does not accept the credential: {why}
    connect again with `delegate linear connect`"""


class AlreadyRunning(Conflict):
    """Delegate is already running for {home} (process {pid})
    `delegate info` shows it, `delegate down` stops it"""


class Unavailable(DelegateError, status=503, exit_code=6):
    """temporarily unavailable"""


class RelayUnreachable(Unavailable):
    """cannot reach the relay at {url}: {why}
    {advice}"""


class StoreBusy(Unavailable):
    """the database is not responding: {why}
    try again in a moment"""


class RateLimited(Unavailable, status=429):
    """too many requests from this address had a token that the relay does not accept
    wait {seconds} s, and check the token"""


class Stopping(Unavailable):
    """the relay is stopping
    try again in a moment; if it does not come back, run `delegate up`"""


class LinearUnreachable(Unavailable):
    """cannot reach Linear: {why}
    try again in a moment"""


class LinearRateLimited(Unavailable):
    """Linear's rate limit is reached
    try again later"""


class MemoryFull(Unavailable):
    """the relay has no memory left for this request
    try again in a moment"""


class DiskFull(Unavailable, status=507):
    """the disk is full: {why}
    free some space; accepted tasks are not lost"""


class BadData(DelegateError, status=500, exit_code=3):
    """configuration or data cannot be used"""


class BadSetting(BadData):
    """{name}={value}: {why}
    {advice}"""


class BadSettingsFile(BadSetting, code="bad_setting"):
    """{path}{place}: {why}
    {advice}"""


class BadCertificate(BadData):
    """{path}: {why}
    {advice}"""


class BadRepoFile(BadData, code="bad_repository_file"):
    """{where}: {why}
    docs/delegate-toml.md lists every key"""


class DamagedDatabase(BadData):
    """the database {path} cannot be used: {why}
    it was not changed; `delegate restore` restores the newest backup ({backup})"""


class NewerDatabase(BadData):
    """the database {path} was written by a newer Delegate (schema {found}; this version supports {known})
    update Delegate, or use `delegate restore` with a backup made by this version"""


class WrongSecretKey(BadData):
    """a secret in the database cannot be decrypted with this key
    set DELEGATE_SECRET_KEY, or the file secret-key in the home, to the key that encrypted it"""


class HomeNotWritable(BadData):
    """DELEGATE_HOME {path} is not writable: {why}
    set DELEGATE_HOME to a directory you own"""


class UnsafeHome(BadData):
    """DELEGATE_HOME {home} is not safe: {path} {why}
    {advice}"""


class NotPaired(BadData):
    """profile {profile} is not paired with a relay: {path} does not exist
    pair it with the command that `delegate runner token` prints"""


class BadPairing(BadData):
    """{path} cannot be used: {why}
    pair this machine again with the command that `delegate runner token` prints"""


class BadPolicy(BadData):
    """{path}: {why}
    until this is fixed, the runner accepts no task; docs/team.md lists every key"""


class EmptyToken(BadData):
    """{path} is missing or empty, so the relay of this home accepts no token
    `delegate down`, then `delegate up`, writes a new token"""


class LoosePermissions(BadData):
    """{path} can be read by other users
    run: chmod {mode} {path}"""
