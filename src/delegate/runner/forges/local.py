"""For remotes without a supported forge: the branch is pushed, and the review stays in Delegate."""

from __future__ import annotations

from delegate.runner.forges.base import Guard, PullRequest, PullState, WantedPullRequest


class Local:
    """The pull request is the task's own page, named after the branch."""

    name = "local"

    async def find(self, branch: str) -> list[PullRequest]:  # noqa: ARG002  # required by Forge
        return []

    async def open(self, wanted: WantedPullRequest, guard: Guard) -> PullRequest:
        await guard()
        return PullRequest(
            number=0,
            url=f"local:{wanted.branch}",
            state=PullState.OPEN,
            is_draft=wanted.is_draft,
            head=wanted.branch,
            base=wanted.base,
            commit=wanted.commit,
            task_id=wanted.task_id,
            body=wanted.body,
        )

    async def edit(self, pull: PullRequest, body: str, guard: Guard) -> None: ...

    async def make_draft(self, pull: PullRequest, guard: Guard) -> None: ...

    async def close(self, pull: PullRequest, comment: str) -> None: ...

    def manual_command(self, wanted: WantedPullRequest) -> str:
        return f"git merge {wanted.branch}"
