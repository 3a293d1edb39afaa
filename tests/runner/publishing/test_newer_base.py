"""What is reachable from the base is not the agent's; only the remote says what the base is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.runner.publishing.conftest import Site, plain_git, publication

from delegate.runner.publishing.publication import PublicationDraft

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P21")]
KEY = "aws = 'AKIAIOSFODNN7EXAMPLE'\n"


def colleague(site: Site, tmp_path: Path) -> Path:
    """A colleague's clone."""
    clone = tmp_path / "colleague"
    plain_git("clone", "-q", str(site.remote), str(clone), cwd=tmp_path)
    return clone


def push_to_base(clone: Path, path: str, text: str, *how: str) -> str:
    (clone / path).write_text(text)
    plain_git("add", path, cwd=clone)
    plain_git("commit", "-qm", "Fixes #7", *how, cwd=clone)
    plain_git("push", "-qf", "origin", "HEAD:main", cwd=clone)
    return plain_git("rev-parse", "HEAD", cwd=clone)


def fetch(site: Site) -> None:
    site.agent("fetch", "-q", str(site.remote), "+main:refs/remotes/origin/main")


async def draft_of(site: Site) -> PublicationDraft:
    draft = await publication(site).draft()
    assert draft is not None
    return draft


async def test_a_base_that_only_the_mirror_claims_is_not_believed(site: Site) -> None:
    head = site.agent_commits("keys.py", KEY)
    site.agent("push", "-q", str(site.workspace.mirror), "HEAD:refs/heads/main")
    site.agent("update-ref", "refs/remotes/origin/main", head)

    draft = await draft_of(site)

    assert draft.change.base_commit == site.base
    assert "keys.py" in draft.verdict.denied[0]


async def test_a_base_that_moved_without_the_agent_changes_nothing(site: Site, tmp_path: Path) -> None:
    push_to_base(colleague(site, tmp_path), "keys.py", KEY)
    site.agent_commits("one.txt", "1\n")

    draft = await draft_of(site)

    assert (draft.change.base_commit, draft.stats.paths, draft.verdict.denied) == (site.base, ("one.txt",), ())


async def test_a_base_that_was_rewritten_is_followed_when_the_agent_rebased(site: Site, tmp_path: Path) -> None:
    rewritten = push_to_base(colleague(site, tmp_path), "keys.py", KEY, "--amend")
    site.agent_commits("one.txt", "1\n")
    fetch(site)
    site.agent("rebase", "-q", "--onto", "origin/main", "HEAD~1")

    draft = await draft_of(site)

    assert (draft.change.base_commit, draft.stats.paths) == (rewritten, ("one.txt",))
    assert site.kept("rev-parse", f"{draft.commit}^") == rewritten


async def test_commits_squashed_on_a_published_branch_keep_the_base_that_was_merged(site: Site, tmp_path: Path) -> None:
    published = site.agent_commits("one.txt", "1\n")
    for repository in (site.remote, site.workspace.mirror):
        site.agent("push", "-q", str(repository), f"HEAD:{site.ref}")
    moved = push_to_base(colleague(site, tmp_path), "keys.py", KEY)
    fetch(site)
    site.agent("merge", "-q", "-m", "Closes #3", "origin/main")

    draft = await draft_of(site)

    assert "squashed into one" in draft.warnings[0]
    assert site.kept("log", "-1", "--format=%P", draft.commit).split() == [published, moved]
    assert draft.stats.paths == ("one.txt",)


async def test_changes_that_were_copied_from_the_base_in_part_stay_the_agents(site: Site, tmp_path: Path) -> None:
    push_to_base(colleague(site, tmp_path), "other.txt", "theirs\n")
    fetch(site)
    site.write("other.txt", "mine\n")

    draft = await draft_of(site)

    assert (draft.change.base_commit, draft.stats.paths) == (site.base, ("other.txt",))


async def test_without_the_remote_the_work_is_compared_with_its_start(site: Site) -> None:
    site.agent_commits("one.txt", "1\n")
    shutil.rmtree(site.remote)

    assert (await draft_of(site)).change.base_commit == site.base
