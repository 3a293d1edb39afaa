from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from tests.git import run_git
from tests.runner.workspaces.conftest import Scene

from delegate.runner.git.program import read_git
from delegate.runner.workspaces.mirrors import PACKS_MAX, Mirror, RepositoryFiles, base_of, fetch_mirror, tidy
from delegate.runner.workspaces.repositories import SetupProblem, locate, repository

pytestmark = pytest.mark.anyio


async def mirrored(scene: Scene) -> Mirror:
    return await fetch_mirror(scene.git, scene.home, await locate(scene.git, str(scene.remote), None))


async def problem_with(scene: Scene, base: str) -> str:
    mirror = await mirrored(scene)
    with pytest.raises(SetupProblem) as caught:
        await base_of(scene.git, mirror, base)
    return str(caught.value)


async def test_runners_that_race_for_the_first_clone_make_one(scene: Scene) -> None:
    found: list[Mirror] = []

    async def race() -> None:
        found.append(await mirrored(scene))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(race)

    assert len(found) == 4
    assert all(mirror == found[0] for mirror in found)
    assert sorted(path.suffix for path in scene.home.mirrors.iterdir()) == [".git", ".lock"]


async def test_a_base_that_moved_is_fetched(scene: Scene) -> None:
    before = await base_of(scene.git, await mirrored(scene), None)
    newest = scene.push("new.txt", "new\n")

    after = await base_of(scene.git, await mirrored(scene), None)

    assert before.commit != after.commit
    assert after.commit == newest


async def test_a_history_that_was_rewritten_is_fetched(scene: Scene) -> None:
    await mirrored(scene)
    scene.run("commit", "-q", "--amend", "-m", "rewritten")
    scene.run("push", "-qf", "origin", "main")

    assert (await mirrored(scene)).heads["main"] == scene.run("rev-parse", "HEAD")


async def test_a_deleted_branch_cannot_be_the_base(scene: Scene) -> None:
    scene.run("push", "-q", "origin", "main:old", "main:older")
    await mirrored(scene)
    scene.run("push", "-q", "origin", ":old", "main:old/new")

    assert sorted((await mirrored(scene)).heads) == ["main", "old/new", "older"]


async def test_the_default_branch_is_the_one_that_the_remote_names(scene: Scene) -> None:
    scene.run("push", "-q", "origin", "main:develop", "main:also")
    scene.run("symbolic-ref", "HEAD", "refs/heads/develop", cwd=scene.remote)
    first = (await mirrored(scene)).default
    scene.run("symbolic-ref", "HEAD", "refs/heads/main", cwd=scene.remote)
    scene.push("new.txt", "new\n")

    assert (first, (await mirrored(scene)).default) == ("develop", "main")


async def test_a_remote_whose_head_leads_nowhere_has_its_usual_branch(scene: Scene) -> None:
    scene.run("symbolic-ref", "HEAD", "refs/heads/gone", cwd=scene.remote)

    assert (await base_of(scene.git, await mirrored(scene), None)).branch == "main"


async def test_an_unknown_base_names_those_that_are_near(scene: Scene) -> None:
    scene.run("push", "-q", "origin", "main:release-2")

    assert await problem_with(scene, "relase-2") == "remote has no branch relase-2; did you mean release-2?"
    assert await problem_with(scene, "origin/main") == "remote has no branch origin/main; did you mean main?"


async def test_a_tag_cannot_be_the_base(scene: Scene) -> None:
    scene.run("tag", "v1")
    scene.run("push", "-q", "origin", "v1")

    assert (await problem_with(scene, "v1")).startswith("v1 is a tag")


async def test_a_commit_cannot_be_the_base(scene: Scene) -> None:
    commit = scene.run("rev-parse", "HEAD")

    assert (await problem_with(scene, commit)).startswith(f"{commit} is a commit")


@pytest.mark.parametrize("name", ["dev+1", "-x", "a;id", "a\u202eb"])
async def test_a_default_branch_with_a_name_outside_our_grammar_is_reported(scene: Scene, name: str) -> None:
    scene.run("update-ref", f"refs/heads/{name}", "main", cwd=scene.remote)
    scene.run("symbolic-ref", "HEAD", f"refs/heads/{name}", cwd=scene.remote)
    scene.run("update-ref", "-d", "refs/heads/main", cwd=scene.remote)

    with pytest.raises(SetupProblem, match="must be a branch") as caught:
        await base_of(scene.git, await mirrored(scene), None)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["--upload-pack=touch pwned", "a..b", "a*", "x y"])
async def test_a_base_outside_our_grammar_is_not_asked_for(scene: Scene, name: str) -> None:
    assert (await problem_with(scene, name)).startswith(f"the base {name} must be a branch")


async def test_the_error_for_an_empty_repository_says_what_it_lacks(scene: Scene) -> None:
    scene.run("init", "-q", "--bare", str(scene.place / "empty.git"))
    mirror = await fetch_mirror(scene.git, scene.home, repository(str(scene.place / "empty.git")))

    with pytest.raises(SetupProblem, match="has no commits: push a first one"):
        await base_of(scene.git, mirror, None)


async def test_an_empty_repository_without_a_remote_needs_a_commit_not_a_push(scene: Scene) -> None:
    fresh = scene.place / "fresh"
    scene.run("init", "-q", str(fresh))
    mirror = await fetch_mirror(scene.git, scene.home, await locate(scene.git, None, str(fresh)))

    with pytest.raises(SetupProblem, match="fresh has no commits: make a first one with `git commit --allow-empty"):
        await base_of(scene.git, mirror, None)


async def test_a_repository_file_that_is_a_link_says_so(scene: Scene) -> None:
    (scene.checkout / ".delegate.toml").symlink_to("config/delegate.toml")
    scene.push("other.txt", "x")
    mirror = await mirrored(scene)
    (mirror.path / "config").write_text("[core]\n\trepositoryformatversion = 99\n")  # as an agent may have written it

    with pytest.raises(SetupProblem, match=r"\.delegate\.toml in the repository is a symbolic link; commit the file"):
        await RepositoryFiles().get(scene.git, mirror, await base_of(scene.git, mirror, None))


async def test_a_remote_that_cannot_be_reached_leaves_the_mirror_alone(scene: Scene) -> None:
    mirror = await mirrored(scene)
    scene.remote.rename(scene.place / "away")

    with pytest.raises(SetupProblem, match="could not be fetched from"):
        await fetch_mirror(scene.git, scene.home, mirror.repository)

    assert scene.run("rev-parse", "main", cwd=mirror.path) == mirror.heads["main"]


async def test_a_first_clone_that_fails_leaves_nothing(scene: Scene) -> None:
    with pytest.raises(SetupProblem, match="could not be fetched from"):
        await fetch_mirror(scene.git, scene.home, repository(str(scene.place / "nowhere.git")))

    assert [path.suffix for path in scene.home.mirrors.iterdir()] == [".lock"]


def damage_objects(mirror: Path) -> None:
    for path in mirror.glob("objects/??/*"):
        path.chmod(0o600)
        path.write_bytes(b"")


def damage_refs(mirror: Path) -> None:
    (mirror / "packed-refs").write_bytes(b"\0" * 100)


def damage_layout(mirror: Path) -> None:
    shutil.rmtree(mirror / "refs")
    (mirror / "HEAD").unlink()


@pytest.mark.parametrize("damage", [damage_objects, damage_refs, damage_layout])
async def test_a_damaged_mirror_is_created_again(scene: Scene, damage: Callable[[Path], None]) -> None:
    mirror = await mirrored(scene)
    damage(mirror.path)
    newest = scene.push("new.txt", "new\n")

    again = await mirrored(scene)

    assert again.heads == {"main": newest}
    scene.run("fsck", "--strict", cwd=again.path)


async def test_a_mirror_that_grew_is_packed_and_loses_nothing(scene: Scene) -> None:
    mirror = await mirrored(scene)
    commits = [in_a_pack_of_its_own(scene, mirror, number) for number in range(PACKS_MAX + 1)]

    await tidy(scene.git, scene.home)

    assert len(list((mirror.path / "objects" / "pack").glob("*.pack"))) < PACKS_MAX
    assert scene.run("cat-file", "-t", commits[-1], cwd=mirror.path) == "commit"


def in_a_pack_of_its_own(scene: Scene, mirror: Mirror, number: int) -> str:
    commit = scene.run("commit-tree", "-m", str(number), "main^{tree}", cwd=mirror.path)
    run_git("pack-objects", "-q", "objects/pack/pack", cwd=mirror.path, input=commit.encode())
    return commit


async def test_a_remote_of_another_user_that_the_user_trusts_is_fetched(scene: Scene) -> None:
    another = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}  # how git's own tests pretend that
    run_git("config", "--global", "safe.directory", str(scene.remote), cwd=scene.place, env=scene.env)
    git = await read_git({**scene.env, **another}, scene.place / "runner")

    mirror = await fetch_mirror(git, scene.home, repository(str(scene.remote)))

    assert mirror.heads["main"] == scene.run("rev-parse", "HEAD")
