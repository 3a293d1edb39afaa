"""GitHub, through the user's `gh` and its login. Uses only features of gh 2.23; never a shell."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from delegate.errors import excerpt
from delegate.runner.forges.base import ForgeFailed, Guard, PullRequest, PullState, WantedPullRequest
from delegate.runner.forges.body import task_of
from delegate.runner.git.program import REDIRECTING_VARIABLES
from delegate.runner.process.programs import ProgramMissing, ProgramResult, ProgramTimedOut, run_program

# Shorter than a lease: a call by a disconnected runner ends before another runner can take the task.
GH_TIMEOUT = timedelta(seconds=60)
WHY_MAX = 300  # characters of gh's error message that are kept
LISTED_MAX = 100  # pull requests of one branch
NEUTRAL_DIRECTORY = Path("/")  # gh reads the repository in its directory; there must be none
NOT_LOGGED_IN = 4  # gh's exit code

# Variables that would redirect gh or make it interactive.
UNWANTED_VARIABLES = frozenset({"GH_REPO", "GH_FORCE_TTY", "GH_DEBUG", "DEBUG", "CLICOLOR_FORCE"})
NON_INTERACTIVE = {"GH_PROMPT_DISABLED": "1", "GH_NO_UPDATE_NOTIFIER": "1", "NO_COLOR": "1"}

CREATED_URL = re.compile(r"^(https://\S+/pull/(\d+))\s*$", re.MULTILINE)
NO_DRAFTS = "Draft pull requests are not supported"
# Errors that a retry cannot fix, and what they mean.
FINAL_ERRORS = {
    "HTTP 401": "GitHub does not accept the login of gh (run `gh auth login`)",
    "Could not resolve to a Repository": "the account that gh uses cannot see the repository",
    "must be a collaborator": "the account that gh uses may not open pull requests there",
    "Resource not accessible": "the token that gh uses may not open pull requests there",
    "No commits between": "the branch has no commits that are not on its base",
    "Base ref must be a branch": "the base branch no longer exists",
}
FIELDS = (
    "number",
    "url",
    "state",
    "isDraft",
    "headRefName",
    "baseRefName",
    "headRefOid",
    "isCrossRepository",
    "headRepositoryOwner",
    "body",
)


class _Owner(BaseModel):
    login: str


class _ListedPullRequest(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)

    number: int
    url: str
    state: str
    is_draft: bool
    head_ref_name: str
    base_ref_name: str
    head_ref_oid: str
    is_cross_repository: bool
    head_repository_owner: _Owner | None  # None: its account or repository was deleted
    body: str

    def is_from(self, fork_owner: str | None) -> bool:
        """Whether it comes from that owner's fork; None: from the repository itself."""
        if fork_owner is None or not self.is_cross_repository:
            return fork_owner is None and not self.is_cross_repository
        owner = self.head_repository_owner
        return owner is not None and owner.login.lower() == fork_owner.lower()


LISTING = TypeAdapter(list[_ListedPullRequest])


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHub:
    command: str
    environ: Mapping[str, str]
    host: str
    repository: str  # owner/name
    fork_owner: str | None = None  # the branches are in the fork of this owner

    @property
    def name(self) -> str:
        return f"{self.host}/{self.repository}"

    async def find(self, branch: str) -> list[PullRequest]:
        listed = await self._run_gh(
            "pr",
            "list",
            *self._repository_option,
            f"--head={branch}",
            "--state=all",
            f"--limit={LISTED_MAX}",
            f"--json={','.join(FIELDS)}",
        )
        try:
            found = LISTING.validate_json(listed.stdout)
        except ValidationError as error:
            raise ForgeFailed("gh listed the pull requests in an unknown format") from error
        # Anyone may open one from a branch of the same name in a fork.
        return [_pull_request(one) for one in found if one.is_from(self.fork_owner)]

    async def open(self, wanted: WantedPullRequest, guard: Guard) -> PullRequest:
        try:
            return await self._create(wanted, guard, is_draft=wanted.is_draft)
        except ForgeFailed as problem:
            if NO_DRAFTS not in problem.why:
                raise
            return await self._create(wanted, guard, is_draft=False)

    async def _create(self, wanted: WantedPullRequest, guard: Guard, *, is_draft: bool) -> PullRequest:
        options = [f"--base={wanted.base}", f"--head={self._head(wanted)}", f"--title={wanted.title}", "--body-file=-"]
        if is_draft:
            options.append("--draft")
        await guard()
        done = await self._run_gh(
            "pr", "create", *self._repository_option, *options, input=wanted.body.encode(), writes=True
        )
        created = CREATED_URL.search(done.stdout.decode(errors="replace"))
        if created is None:
            raise ForgeFailed("gh did not print the URL of the pull request that it opened")
        return PullRequest(
            number=int(created[2]),
            url=created[1],
            state=PullState.OPEN,
            is_draft=is_draft,
            head=wanted.branch,
            base=wanted.base,
            commit=wanted.commit,
            task_id=wanted.task_id,
            body=wanted.body,
        )

    async def edit(self, pull: PullRequest, body: str, guard: Guard) -> None:
        # Not `gh pr edit`: before 2.66 it also queries classic projects, which GitHub now rejects.
        await guard()
        path = f"repos/{self.repository}/pulls/{pull.number}"
        options = [f"--hostname={self.host}", "--method=PATCH", "--input=-", "--silent"]
        await self._run_gh("api", *options, path, input=json.dumps({"body": body}).encode(), writes=True)

    async def make_draft(self, pull: PullRequest, guard: Guard) -> None:
        await guard()
        try:
            await self._run_gh("pr", "ready", *self._repository_option, "--undo", str(pull.number), writes=True)
        except ForgeFailed as problem:
            if NO_DRAFTS not in problem.why:
                raise

    async def close(self, pull: PullRequest, comment: str) -> None:
        await self._run_gh(
            "pr", "close", *self._repository_option, f"--comment={comment}", str(pull.number), writes=True
        )

    def manual_command(self, wanted: WantedPullRequest) -> str:
        return f"gh pr create -R {self.name} --base {wanted.base} --head {self._head(wanted)}"

    def _head(self, wanted: WantedPullRequest) -> str:
        return wanted.branch if self.fork_owner is None else f"{self.fork_owner}:{wanted.branch}"

    @property
    def _repository_option(self) -> tuple[str]:
        return (f"--repo={self.name}",)

    async def _run_gh(self, *arguments: str, input: bytes = b"", writes: bool = False) -> ProgramResult:
        env = gh_environment(self.environ)
        try:
            done = await run_program(
                [self.command, *arguments],
                cwd=NEUTRAL_DIRECTORY,
                env=env,
                timeout=GH_TIMEOUT,
                input=input,
                kill_with_parent=writes,
            )
        except ProgramMissing as problem:
            why = f"gh could not be started (install it from https://cli.github.com and run `gh auth login`): {problem}"
            raise ForgeFailed(why, is_final=True) from problem
        except ProgramTimedOut as problem:
            raise ForgeFailed(str(problem)) from problem
        if done.code != 0:
            raise _failure(done, self.host)
        return done


async def has_login(command: str, host: str, environ: Mapping[str, str]) -> bool:
    """Whether gh has a token for this host; never prompts."""
    env = gh_environment(environ)
    if env.get("GH_HOST", "").lower() != host:
        # gh would use this one for every host but github.com.
        env = {name: value for name, value in env.items() if not name.endswith("_ENTERPRISE_TOKEN")}
    try:
        done = await run_program(
            [command, "auth", "token", f"--hostname={host}"], cwd=NEUTRAL_DIRECTORY, env=env, timeout=GH_TIMEOUT
        )
    except (ProgramMissing, ProgramTimedOut):
        return False
    return done.code == 0 and bool(done.stdout.strip())


def gh_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment, so that gh finds its login, without variables that redirect it or let it prompt."""
    own = {
        name: value
        for name, value in environ.items()
        if name not in UNWANTED_VARIABLES and not name.startswith(REDIRECTING_VARIABLES)
    }
    return {"PATH": os.defpath, **own, **NON_INTERACTIVE}


def _failure(done: ProgramResult, host: str) -> ForgeFailed:
    if done.code == NOT_LOGGED_IN:
        return ForgeFailed(f"gh is not logged in to {host} (run `gh auth login --hostname {host}`)", is_final=True)
    message = excerpt(done.error_text or f"gh ended with exit code {done.code}", WHY_MAX)
    for sign, meaning in FINAL_ERRORS.items():
        if sign in message:
            return ForgeFailed(f"{meaning}: {message}", is_final=True)
    return ForgeFailed(message)


def _pull_request(listed: _ListedPullRequest) -> PullRequest:
    return PullRequest(
        number=listed.number,
        url=listed.url,
        state=PullState(listed.state.lower()),
        is_draft=listed.is_draft,
        head=listed.head_ref_name,
        base=listed.base_ref_name,
        commit=listed.head_ref_oid,
        task_id=task_of(listed.body),
        body=listed.body,
    )
