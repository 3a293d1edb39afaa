"""Nothing that an agent leaves in a repository runs when its work is published."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.runner.publishing.conftest import AT, MESSAGE, Site, plain_git
from tests.runner.publishing.poison import Poison, mix_poison, nest, poison_home, run_plainly
from tests.runner.workspaces.conftest import assignment

from delegate.config.paths import Home
from delegate.runner.git.program import Git
from delegate.runner.publishing.change import change_of
from delegate.runner.publishing.commits import commit_to_push
from delegate.runner.publishing.policy import PublishRules, judge
from delegate.runner.publishing.push import delete_branch_if_unchanged
from delegate.runner.workspaces.closing import close
from delegate.runner.workspaces.mirrors import base_of, fetch_mirror
from delegate.runner.workspaces.prepare import prepare
from delegate.runner.workspaces.repositories import repository
from delegate.runner.workspaces.saving import save

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P19")]


async def publish(site: Site) -> str:
    """Everything from the worktree to the remote."""
    snapshot = await site.take()
    commit = str(await commit_to_push(site.git, site.workspace, snapshot, MESSAGE, AT))
    _, stats = await change_of(site.git, site.workspace, commit)
    judge(stats, PublishRules(skipped=snapshot.skipped))
    await site.push(commit)
    return commit


@pytest.fixture
def poison(tmp_path: Path, site: Site) -> Poison:
    return poisoned(tmp_path / "poison", site)


def poisoned(directory: Path, site: Site) -> Poison:
    """The agent committed a nested repository, left another one behind, and set every trap it knows."""
    mixed = mix_poison(directory, site)
    nest(site, mixed, "linked")
    careful = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false")
    site.agent(*careful, "update-index", "--add", "--cacheinfo", _gitlink(site, "linked"))
    site.agent(*careful, "commit", "-qm", "agent: a nested repository")
    nest(site, mixed, "nested")
    site.write("work.txt", "work\n")
    site.write("src/app.py", "print('changed')\n")
    (mixed.directory / "canary").unlink(missing_ok=True)
    return mixed


def _gitlink(site: Site, path: str) -> str:
    return f"160000,{plain_git('-c', 'core.fsmonitor=false', 'rev-parse', 'HEAD', cwd=site.tree / path)},{path}"


async def test_in_plain_git_the_payloads_do_run(site: Site, poison: Poison) -> None:
    run_plainly(
        site,
        "git status",
        "git diff $(git hash-object -t tree /dev/null) HEAD",
        "git hash-object --path=src/app.py src/app.py",
        "git hash-object --path=picture.bin picture.bin",
        "git cat-file --filters HEAD:README.md",
        "git cat-file --textconv HEAD:README.md",
        "git -c filter.lfs.process= add -A",
        "git snap",
        "git -c filter.lfs.process= commit --allow-empty -m x",
        "git -c filter.lfs.process= -c commit.gpgSign=false commit --allow-empty -m x",
        "git -c push.gpgSign=false push origin HEAD:refs/heads/x",
        "git fetch ssh://nowhere.example/x",
        f"git -c push.gpgSign=false push --no-verify {site.remote} HEAD:refs/heads/stolen",
    )

    expected = {
        "included",
        "nested-included",
        "clean",
        "diffCommand",
        "alias",
        "gpg",
        "sshCommand",
        "receivepack",
        "hook:pre-commit",
        "hook:post-index-change",
        "hook:reference-transaction",
        "lfsProcess",
        "smudge",
        "textconv",
    }
    assert expected - poison.ran == set()
    assert "refs/heads/stolen" in plain_git("for-each-ref", cwd=poison.thief)


async def test_publishing_runs_none_of_them(site: Site, poison: Poison) -> None:
    commit = await publish(site)

    assert poison.ran == set()
    assert site.published() == commit
    assert plain_git("for-each-ref", cwd=poison.thief) == ""
    assert {"work.txt", "src/app.py", ".gitattributes", "hooks/pre-commit"} <= site.files(commit).keys()
    assert site.kept("cat-file", "blob", f"{commit}:src/app.py") == "print('changed')"


async def test_neither_does_a_second_look_nor_taking_the_branch_back(site: Site, poison: Poison) -> None:
    commit = await publish(site)
    await site.take()

    assert await delete_branch_if_unchanged(site.git, str(site.remote), site.workspace.branch, commit)
    assert poison.ran == set()


async def test_a_replaced_git_pointer_leads_nowhere(site: Site, poison: Poison) -> None:
    (site.tree / ".git").write_text(f"gitdir: {site.tree}/nested/.git\n")

    commit = await publish(site)

    assert poison.ran == set()
    assert site.published() == commit


async def life(home: Home, git: Git, remote: Path, task: str) -> AsyncIterator[Site]:
    """A workspace of the runner's own making, from the fetch to its removal."""
    mirror = await fetch_mirror(git, home, repository(str(remote)))
    base = await base_of(git, mirror, None)
    workspace = await prepare(git, home, assignment(task_id=task, lineage=task), mirror, base, f"{task}-work")
    site = Site(git=git, remote=remote, workspace=workspace)
    yield site
    await save(git, workspace)
    commit = await publish(site)
    await close(git, home, workspace, pushed=commit)
    assert site.published() == commit
    assert not workspace.tree.exists()


async def test_from_fetch_to_removal_and_in_the_next_workspace_none_of_them_runs(
    tmp_path: Path, git: Git, seeded_remote: Path
) -> None:
    remote, checkout, home = tmp_path / "remote.git", tmp_path / "checkout", Home(tmp_path / "home")
    shutil.copytree(seeded_remote, remote)
    plain_git("clone", "-q", str(remote), str(checkout), cwd=tmp_path)
    settings = (checkout / ".git" / "config").read_bytes()

    async for site in life(home, git, remote, "task-1"):
        poison = poisoned(tmp_path / "poison", site)
    async for site in life(home, git, remote, "task-2"):
        site.write("work.txt", "more work\n")

    assert plain_git("status", "--porcelain", cwd=checkout) == ""
    assert (checkout / ".git" / "config").read_bytes() == settings
    assert plain_git("for-each-ref", cwd=poison.thief) == ""
    assert poison.ran == set()


async def test_settings_in_the_environment_of_the_runner_are_not_taken_over(
    site: Site, poison: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", poison.payload("environment"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", poison.payload("externalDiff"))

    await publish(site)

    assert poison.ran == set()


@pytest.mark.promise("P22")
async def test_nothing_that_an_agent_writes_into_the_mirror_or_beside_it_runs_in_the_next_task(
    tmp_path: Path, git: Git, seeded_remote: Path
) -> None:
    remote, home = tmp_path / "remote.git", Home(tmp_path / "home")
    shutil.copytree(seeded_remote, remote)
    async for site in life(home, git, remote, "task-1"):
        poison = poisoned(tmp_path / "poison", site)
    poison_home(poison, str(remote), *home.mirrors.glob("*.git"), tmp_path / "runner")
    plain_git("branch", "other", "main", cwd=remote)

    async for site in life(home, git, remote, "task-2"):
        site.write("work.txt", "more work\n")

    assert poison.ran == set()
    assert plain_git("for-each-ref", cwd=poison.thief) == ""


@pytest.mark.promise("P22")
async def test_a_mirror_that_an_agent_led_elsewhere_is_made_again(
    tmp_path: Path, git: Git, seeded_remote: Path
) -> None:
    home, owned = Home(tmp_path / "home"), tmp_path / "owned.git"
    mirror = await fetch_mirror(git, home, repository(str(seeded_remote)))
    shutil.copytree(mirror.path, owned)
    plain_git("branch", "mine", "main", cwd=owned)
    shutil.rmtree(mirror.path)
    mirror.path.symlink_to(owned)

    again = await fetch_mirror(git, home, mirror.repository)

    assert not mirror.path.is_symlink()
    assert again.heads == mirror.heads
    assert plain_git("branch", "--format=%(refname:short)", cwd=owned) == "main\nmine"


@pytest.mark.promise("P22")
async def test_scratch_repositories_are_made_under_the_home(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    monkeypatch.setattr(tempfile, "tempdir", str(shared))  # does not exist: nothing can be made in it
    site.write("work.txt", "work\n")
    commit = await publish(site)

    assert await delete_branch_if_unchanged(site.git, str(site.remote), site.workspace.branch, commit)
