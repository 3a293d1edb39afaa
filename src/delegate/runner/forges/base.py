"""The interface of a forge, and `ensure`, which opens at most one pull request per task across retries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

import stamina

from delegate.runner.forges.body import merge_body

TRIES = 3
RETRY_WAIT_INITIAL, RETRY_WAIT_MAX = 1.0, 10.0  # seconds between the tries

Guard = Callable[[], Awaitable[None]]  # raises when this runner may not act any more


class PullState(StrEnum):
    OPEN = "open"
    MERGED = "merged"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    number: int  # 0: the forge does not number them
    url: str
    state: PullState
    is_draft: bool
    head: str
    base: str
    commit: str = ""  # the head's, as the forge knows it
    task_id: str | None = None  # the task that our marker in the body names
    body: str = field(default="", repr=False)

    @property
    def is_ours(self) -> bool:
        return self.task_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPullRequest:
    """The pull request that a task wants; `body` carries the task's marker."""

    task_id: str
    title: str
    body: str
    branch: str
    base: str
    commit: str
    is_draft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsuredPullRequest:
    pull_request: PullRequest
    adopted: bool = False  # it already existed
    warning: str | None = None  # the pull request exists, but could not be updated completely


class ForgeFailed(Exception):
    """A call to the forge failed, or its outcome is unknown. `is_final`: a retry cannot succeed."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        self.why = why
        self.is_final = is_final
        super().__init__(why)


class PrRejected(Exception):
    """There is no pull request; the text says why and what to do. `may_exist`: the last check failed too."""

    def __init__(self, sentence: str, *, may_exist: bool = False) -> None:
        self.may_exist = may_exist
        super().__init__(sentence)


class Forge(Protocol):
    """Every call raises ForgeFailed; those that take a guard await it directly before they act."""

    @property
    def name(self) -> str: ...

    async def find(self, branch: str) -> list[PullRequest]:
        """The pull requests from this branch of this repository (not of forks), in all states."""

    async def open(self, wanted: WantedPullRequest, guard: Guard) -> PullRequest: ...

    async def edit(self, pull: PullRequest, body: str, guard: Guard) -> None: ...

    async def make_draft(self, pull: PullRequest, guard: Guard) -> None: ...

    async def close(self, pull: PullRequest, comment: str) -> None: ...

    def manual_command(self, wanted: WantedPullRequest) -> str:
        """The command that opens the pull request by hand."""


async def ensure(forge: Forge, wanted: WantedPullRequest, guard: Guard) -> EnsuredPullRequest:
    """Checks for an existing pull request before each write. Raises PrRejected, or what the guard raises."""
    sync = _PullRequestSync(forge, wanted, guard)
    try:
        return await _retry(sync)
    except ForgeFailed as problem:
        if sync.existing is not None:
            warning = f"the pull request exists, but could not be updated: {problem.why}"
            return EnsuredPullRequest(pull_request=sync.existing, adopted=True, warning=warning)
        sentence = (
            f"branch {wanted.branch} is pushed, but the pull request could not be opened: {problem.why}; "
            f"try again with `delegate retry`, or open it with `{forge.manual_command(wanted)}`"
        )
        raise PrRejected(sentence, may_exist=sync.is_unknown) from problem


async def _retry(sync: _PullRequestSync) -> EnsuredPullRequest:
    waits = {"wait_initial": RETRY_WAIT_INITIAL, "wait_max": RETRY_WAIT_MAX}
    async for trial in stamina.retry_context(on=_is_retryable, attempts=TRIES, timeout=None, **waits):
        with trial:
            ensured = await sync.run_once()
    return ensured


def _is_retryable(problem: Exception) -> bool:
    return isinstance(problem, ForgeFailed) and not problem.is_final


class _PullRequestSync:
    def __init__(self, forge: Forge, wanted: WantedPullRequest, guard: Guard) -> None:
        self._forge, self._wanted, self._guard = forge, wanted, guard
        self.existing: PullRequest | None = None  # the open pull request, whether or not it could be edited
        self.is_unknown = False  # one may have been opened since the last check

    async def run_once(self) -> EnsuredPullRequest:
        pull = await self._find_existing()
        if pull is not None:
            return await self._adopt(pull)
        try:
            self.is_unknown = True
            opened = await self._forge.open(self._wanted, self._guard)
        except ForgeFailed as problem:
            self.is_unknown = not problem.is_final
            # The request may have succeeded with its response lost, or another one came first.
            pull = await self._find_existing()
            if pull is None:
                raise
            return await self._adopt(pull)
        self.is_unknown = False
        return EnsuredPullRequest(pull_request=opened)

    async def _find_existing(self) -> PullRequest | None:
        found = await self._forge.find(self._wanted.branch)
        self.is_unknown = False
        return choose(found, self._wanted)

    async def _adopt(self, pull: PullRequest) -> EnsuredPullRequest:
        if pull.state is not PullState.OPEN:
            return EnsuredPullRequest(pull_request=pull, adopted=True)
        self.existing = pull
        body = merge_body(pull.body, self._wanted.body)
        if body != pull.body:
            await self._forge.edit(pull, body, self._guard)
        if self._wanted.is_draft and not pull.is_draft:
            await self._forge.make_draft(pull, self._guard)
            pull = replace(pull, is_draft=True)
        return EnsuredPullRequest(pull_request=replace(pull, body=body, task_id=self._wanted.task_id), adopted=True)


def choose(found: Sequence[PullRequest], wanted: WantedPullRequest) -> PullRequest | None:
    """This task's existing pull request, open or merged. One that a person closed is never reopened.

    A pull request of an earlier task of the lineage, on the same branch, counts only if it is still open or has merged
    this commit.
    """
    of_branch = [pull for pull in found if pull.head == wanted.branch]
    fitting = [p for p in of_branch if p.state is PullState.OPEN and (p.is_ours or p.base == wanted.base)]
    if fitting:
        return max(fitting, key=lambda p: (p.base == wanted.base, p.is_ours, p.number))
    for pull in of_branch:
        if pull.state is PullState.MERGED and (pull.task_id == wanted.task_id or pull.commit == wanted.commit):
            return pull
    for pull in of_branch:
        if pull.state is PullState.CLOSED and (pull.task_id == wanted.task_id or _is_manually_opened(pull, wanted)):
            raise PrRejected(
                f"pull request {pull.url} was closed without being merged, and Delegate does not reopen it; "
                f"branch {wanted.branch} is pushed: reopen the pull request by hand to use this work"
            )
    return None


def _is_manually_opened(pull: PullRequest, wanted: WantedPullRequest) -> bool:
    """Whether a person opened it from our branch."""
    return not pull.is_ours and pull.base == wanted.base
