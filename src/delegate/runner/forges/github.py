"""GitHub, through the user's own `gh` and its login: argument vectors only, and nothing that gh 2.23 does not know."""

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

from delegate.errors import shown
from delegate.runner.forges.base import ForgeFailed, Guard, PullRequest, PullState, WantedPullRequest
from delegate.runner.forges.body import task_of
from delegate.runner.git.program import STEERING
from delegate.runner.process.programs import Done, ProgramMissing, ProgramTimedOut, run_program

# Shorter than a lease: what a runner that was cut off has begun must be over when another takes the task.
PATIENCE = timedelta(seconds=60)
WHY_MAX = 300  # characters of gh's own words that are passed on
LISTED_MAX = 100  # pull requests of one branch
NOWHERE = Path("/")  # gh reads the repository it stands in; it must not stand in one
NOT_LOGGED_IN = 4  # gh's exit code

# Of the user's own variables, those that would point gh elsewhere or have it talk to a person.
UNWANTED = frozenset({"GH_REPO", "GH_FORCE_TTY", "GH_DEBUG", "DEBUG", "CLICOLOR_FORCE"})
QUIET = {"GH_PROMPT_DISABLED": "1", "GH_NO_UPDATE_NOTIFIER": "1", "NO_COLOR": "1"}

CREATED = re.compile(r"^(https://\S+/pull/(\d+))\s*$", re.MULTILINE)
NO_DRAFTS = "Draft pull requests are not supported"
# What no second try can change, and how a person mends it.
FINAL = {
    "HTTP 401": "the login of gh is not accepted (run `gh auth login`)",
    "Could not resolve to a Repository": "the account that gh is logged in with cannot see the repository",
    "must be a collaborator": "the account that gh is logged in with may not open pull requests there",
    "Resource not accessible": "the token of gh may not open pull requests there",
    "No commits between": "the branch has no commit that its base lacks",
    "Base ref must be a branch": "the base branch is not there any more",
}
FIELDS = ("number", "url", "state", "isDraft", "headRefName", "baseRefName", "headRefOid", "isCrossRepository", "body")


class _Listed(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)

    number: int
    url: str
    state: str
    is_draft: bool
    head_ref_name: str
    base_ref_name: str
    head_ref_oid: str
    is_cross_repository: bool
    body: str


LISTING = TypeAdapter(list[_Listed])


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHub:
    command: str
    environ: Mapping[str, str]
    host: str
    repository: str  # owner/name

    @property
    def name(self) -> str:
        return f"{self.host}/{self.repository}"

    async def find(self, branch: str) -> list[PullRequest]:
        listed = await self._gh(
            "pr",
            "list",
            *self._there,
            f"--head={branch}",
            "--state=all",
            f"--limit={LISTED_MAX}",
            f"--json={','.join(FIELDS)}",
        )
        try:
            found = LISTING.validate_json(listed.stdout)
        except ValidationError as error:
            raise ForgeFailed("gh listed the pull requests in a form that is not known") from error
        # Anyone may open one from a branch of the same name in a copy of their own.
        return [_pull_request(one) for one in found if not one.is_cross_repository]

    async def open(self, wish: WantedPullRequest, guard: Guard) -> PullRequest:
        try:
            return await self._create(wish, guard, is_draft=wish.is_draft)
        except ForgeFailed as problem:
            if NO_DRAFTS not in problem.why:
                raise
            return await self._create(wish, guard, is_draft=False)

    async def _create(self, wish: WantedPullRequest, guard: Guard, *, is_draft: bool) -> PullRequest:
        options = [f"--base={wish.base}", f"--head={wish.branch}", f"--title={wish.title}", "--body-file=-"]
        if is_draft:
            options.append("--draft")
        await guard()
        done = await self._gh("pr", "create", *self._there, *options, input=wish.body.encode(), acts=True)
        created = CREATED.search(done.stdout.decode(errors="replace"))
        if created is None:
            raise ForgeFailed("gh did not name the pull request that it opened")
        return PullRequest(
            number=int(created[2]),
            url=created[1],
            state=PullState.OPEN,
            is_draft=is_draft,
            head=wish.branch,
            base=wish.base,
            commit=wish.commit,
            task_id=wish.task_id,
            body=wish.body,
        )

    async def edit(self, pull: PullRequest, body: str, guard: Guard) -> None:
        # Not `gh pr edit`: before 2.66 it also asks for classic projects, which GitHub answers with an error by now.
        await guard()
        path = f"repos/{self.repository}/pulls/{pull.number}"
        options = [f"--hostname={self.host}", "--method=PATCH", "--input=-", "--silent"]
        await self._gh("api", *options, path, input=json.dumps({"body": body}).encode(), acts=True)

    async def make_draft(self, pull: PullRequest, guard: Guard) -> None:
        await guard()
        try:
            await self._gh("pr", "ready", *self._there, "--undo", str(pull.number), acts=True)
        except ForgeFailed as problem:
            if NO_DRAFTS not in problem.why:
                raise

    async def close(self, pull: PullRequest, comment: str) -> None:
        await self._gh("pr", "close", *self._there, f"--comment={comment}", str(pull.number), acts=True)

    def by_hand(self, wish: WantedPullRequest) -> str:
        return f"gh pr create -R {self.name} --base {wish.base} --head {wish.branch}"

    @property
    def _there(self) -> tuple[str]:
        return (f"--repo={self.name}",)

    async def _gh(self, *arguments: str, input: bytes = b"", acts: bool = False) -> Done:
        env = environment(self.environ)
        try:
            done = await run_program(
                [self.command, *arguments], cwd=NOWHERE, env=env, timeout=PATIENCE, input=input, dies_with_us=acts
            )
        except ProgramMissing as problem:
            why = f"gh cannot be started (install it from https://cli.github.com and run `gh auth login`): {problem}"
            raise ForgeFailed(why, is_final=True) from problem
        except ProgramTimedOut as problem:
            raise ForgeFailed(str(problem)) from problem
        if done.code != 0:
            raise _failure(done, self.host)
        return done


async def has_login(command: str, host: str, environ: Mapping[str, str]) -> bool:
    """Whether gh has a token for this host; it asks nobody."""
    env = environment(environ)
    if env.get("GH_HOST", "").lower() != host:
        # gh offers this one to every host that is not github.com.
        env = {name: value for name, value in env.items() if not name.endswith("_ENTERPRISE_TOKEN")}
    try:
        done = await run_program(
            [command, "auth", "token", f"--hostname={host}"], cwd=NOWHERE, env=env, timeout=PATIENCE
        )
    except (ProgramMissing, ProgramTimedOut):
        return False
    return done.code == 0 and bool(done.stdout.strip())


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's own, so that gh finds its login, but with nothing that steers it or makes it ask."""
    own = {name: value for name, value in environ.items() if name not in UNWANTED and not name.startswith(STEERING)}
    return {"PATH": os.defpath, **own, **QUIET}


def _failure(done: Done, host: str) -> ForgeFailed:
    if done.code == NOT_LOGGED_IN:
        return ForgeFailed(f"gh is not logged in to {host} (run `gh auth login --hostname {host}`)", is_final=True)
    words = shown(done.words or f"gh ended with exit code {done.code}", WHY_MAX)
    for sign, meaning in FINAL.items():
        if sign in words:
            return ForgeFailed(f"{meaning}: {words}", is_final=True)
    return ForgeFailed(words)


def _pull_request(listed: _Listed) -> PullRequest:
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
