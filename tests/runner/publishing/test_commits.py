from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from tests.runner.publishing.conftest import AT, MESSAGE, Site, plain_git

from delegate.runner.publishing.commits import MESSAGE_MAX, commit_to_push, normalize_message
from delegate.runner.workspaces import history

pytestmark = pytest.mark.anyio


async def test_without_a_change_there_is_no_commit(site: Site) -> None:
    assert await site.commit() is None


async def test_uncommitted_work_becomes_one_commit_of_the_user_on_the_base(site: Site) -> None:
    site.write("src/app.py", "print('changed')\n")

    commit = await site.commit()

    assert commit is not None
    assert site.kept("log", "--format=%P|%an <%ae>|%cn|%at|%ct", "-1", commit) == (
        f"{site.base}|Ada <ada@example.com>|Ada|{int(AT.timestamp())}|{int(AT.timestamp())}"
    )
    assert site.kept("log", "--format=%(trailers:key=Delegate-Task,valueonly)", "-1", commit).strip() == "task-1"


async def test_made_again_it_is_the_same_commit(site: Site) -> None:
    site.write("src/app.py", "print('changed')\n")

    assert await site.commit() == await site.commit()


async def test_the_agents_own_commits_are_kept(site: Site) -> None:
    site.agent_commits("one.txt", "1\n")
    head = site.agent_commits("two.txt", "2\n")

    assert await site.commit() == head
    assert site.kept("log", "--format=%an %s", f"{site.base}..{head}").splitlines() == [
        "Agent agent: two.txt",
        "Agent agent: one.txt",
    ]


async def test_what_the_agent_left_uncommitted_comes_on_top_of_its_commits(site: Site) -> None:
    head = site.agent_commits("one.txt", "1\n")
    site.write("two.txt", "2\n")

    commit = await site.commit()

    assert site.kept("rev-parse", f"{commit}^") == head
    assert site.kept("diff", "--name-only", head, str(commit)) == "two.txt"


async def test_what_the_agent_committed_in_spite_of_an_ignore_rule_stays(site: Site) -> None:
    head = site.agent_commits("ignored/forced.txt", "on purpose\n")

    assert await site.commit() == head


async def test_commits_that_cancel_each_other_out_change_nothing(site: Site) -> None:
    site.agent_commits("one.txt", "1\n")
    site.agent("revert", "--no-edit", "HEAD")

    assert await site.commit() is None


async def test_packed_commits_on_another_branch_are_found(site: Site) -> None:
    site.agent("checkout", "-qb", "feature/deep")
    head = site.agent_commits("one.txt", "1\n")
    site.agent("pack-refs", "--all")
    site.agent("repack", "-qad")

    assert await site.commit() == head


async def test_a_detached_head_is_the_agents_last_commit(site: Site) -> None:
    site.agent("checkout", "-q", "--detach")
    head = site.agent_commits("one.txt", "1\n")

    assert await site.commit() == head


async def test_a_locked_index_is_nobodys_business(site: Site) -> None:
    (site.workspace.git_dir / "worktrees" / "tree" / "index.lock").write_text("")
    site.write("one.txt", "1\n")

    assert "one.txt" in site.files(str(await site.commit()))


async def test_rewritten_history_becomes_one_commit_on_the_base(site: Site) -> None:
    site.agent("checkout", "-q", "--orphan", "other")
    site.agent_commits("one.txt", "1\n")

    snapshot = await site.take()
    commit = await commit_to_push(site.git, site.workspace, snapshot, MESSAGE, AT)

    assert snapshot.head is not None
    assert snapshot.problem == "the agent rewrote the history below its base"
    assert site.kept("rev-parse", f"{commit}^") == site.base
    assert site.files(str(commit)).keys() == site.files(site.base).keys() | {"one.txt"}


async def why_history_is_lost(site: Site) -> str:
    """The work is one commit on the base, without the agent's own; why."""
    snapshot = await site.take()
    commit = await commit_to_push(site.git, site.workspace, snapshot, MESSAGE, AT)

    assert snapshot.head is None
    assert site.kept("rev-parse", f"{commit}^") == site.base
    assert "one.txt" in site.files(str(commit))
    return str(snapshot.problem)


async def test_a_deleted_object_costs_the_history_but_not_the_work(site: Site) -> None:
    site.agent_commits("one.txt", "1\n")
    blob = site.agent("rev-parse", "HEAD:one.txt")
    (site.workspace.git_dir / "objects" / blob[:2] / blob[2:]).unlink()

    assert "commits are damaged" in await why_history_is_lost(site)


async def test_an_object_under_a_wrong_name_costs_the_history(site: Site) -> None:
    site.agent_commits("one.txt", "1\n")
    (site.tree.parent / "harmful").write_text("harmful\n")
    named, real = site.agent("rev-parse", "HEAD:one.txt"), site.agent("hash-object", "-w", "../harmful")
    objects = site.workspace.git_dir / "objects"
    (objects / named[:2] / named[2:]).unlink()
    shutil.copy(objects / real[:2] / real[2:], objects / named[:2] / named[2:])

    assert "commits are damaged" in await why_history_is_lost(site)


async def test_changed_alternates_are_not_followed(site: Site, tmp_path: Path) -> None:
    site.agent_commits("one.txt", "1\n")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(site.workspace.git_dir / "objects", elsewhere)
    alternates = site.workspace.git_dir / "objects" / "info" / "alternates"
    alternates.write_bytes(site.workspace.alternates + os.fsencode(elsewhere) + b"\n")

    assert "alternates of the agent's repository were changed" in await why_history_is_lost(site)


@pytest.mark.parametrize(
    "content", ["", "ref: refs/heads/../../config\n", "ref: refs/heads/none\n", "0" * 40, "\0\xff"]
)
async def test_a_head_that_names_nothing_is_not_believed(site: Site, content: str) -> None:
    site.agent_commits("one.txt", "1\n")
    (site.workspace.git_dir / "worktrees" / "tree" / "HEAD").write_text(content)

    assert "agent's" in await why_history_is_lost(site)


async def test_a_head_that_is_a_pipe_is_not_waited_for(site: Site) -> None:
    site.agent_commits("one.txt", "1\n")
    head = site.workspace.git_dir / "worktrees" / "tree" / "HEAD"
    head.unlink()
    os.mkfifo(head)

    assert "branch of the agent's worktree cannot be read" in await why_history_is_lost(site)


async def test_a_head_that_is_not_a_commit_is_not_believed(site: Site) -> None:
    site.agent_commits("one.txt", "1\n")
    tree = site.agent("rev-parse", "HEAD^{tree}")
    (site.workspace.git_dir / "worktrees" / "tree" / "HEAD").write_text(f"{tree}\n")

    assert "is not a commit" in await why_history_is_lost(site)


async def test_an_object_that_is_a_pipe_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "COPY_TIMEOUT", timedelta(seconds=0.3))
    head = site.agent_commits("one.txt", "1\n")
    place = site.workspace.git_dir / "objects" / head[:2] / head[2:]
    place.unlink()
    os.mkfifo(place)

    assert "could not be read in time" in await why_history_is_lost(site)


async def test_without_its_repository_the_work_is_still_there(site: Site) -> None:
    site.agent_commits("one.txt", "1\n")
    shutil.rmtree(site.workspace.git_dir)
    (site.tree / ".git").unlink()

    assert "branch of the agent's worktree cannot be read" in await why_history_is_lost(site)


async def test_once_taken_the_commits_need_the_agents_repository_no_more(site: Site) -> None:
    head = site.agent_commits("one.txt", "1\n")
    await site.take()
    shutil.rmtree(site.workspace.git_dir / "objects")

    assert await site.commit() == head
    assert plain_git("fsck", "--connectivity-only", head, cwd=site.workspace.kept_repository) == ""


async def test_a_message_may_hold_anything(site: Site) -> None:
    site.write("one.txt", "1\n")
    message = "--amend\0 \ud800 `id` $(id)\n\nDelegate-Task: task-1\n"

    commit = await commit_to_push(site.git, site.workspace, await site.take(), message, AT)

    assert site.kept("log", "--format=%s", "-1", str(commit)) == "--amend ? `id` $(id)"


def test_a_long_message_is_cut_and_keeps_its_trailers() -> None:
    cut = normalize_message("subject\n\n" + "x" * 1_000_000 + "\n\nDelegate-Task: task-1\n")

    assert len(cut) < MESSAGE_MAX + 10
    assert cut.startswith("subject\n\nxxx")
    assert cut.endswith("x…\n\nDelegate-Task: task-1\n")
