from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.runner.workspaces.conftest import Scene

from delegate.runner.git.program import read_git
from delegate.runner.workspaces.repositories import Repository, SetupProblem, locate

pytestmark = pytest.mark.anyio


async def located(scene: Scene, directory: Path) -> Repository:
    return await locate(scene.git, None, str(directory))


async def test_a_directory_below_a_checkout_means_that_checkout(scene: Scene) -> None:
    found = await located(scene, scene.checkout / "src")

    assert (found.url, found.name, found.source) == (str(scene.remote), "remote", scene.checkout)
    folders = [found.folder(str(scene.checkout / name)) for name in ("src", ".", "..")]
    assert folders == ["src", None, None]


async def test_the_remote_origin_is_taken_out_of_several(scene: Scene) -> None:
    scene.run("remote", "add", "fork", "git@example.org:me/fork.git")

    assert (await located(scene, scene.checkout)).url == str(scene.remote)


async def test_the_only_remote_is_taken_whatever_its_name(scene: Scene) -> None:
    scene.run("remote", "rename", "origin", "upstream")

    assert (await located(scene, scene.checkout)).url == str(scene.remote)


@pytest.mark.promise("P21")
@pytest.mark.parametrize(
    ("settings", "fetched", "pushed"),
    [
        ({"branch.main.remote": "second"}, "second", "second"),
        ({"branch.main.remote": "."}, "origin", "origin"),
        ({"branch.main.remote": "https://example.org/theirs.git"}, "origin", "origin"),
        ({"branch.other.remote": "second"}, "origin", "origin"),
        ({"remote.pushDefault": "second"}, "origin", "second"),
        ({"remote.pushDefault": "second", "branch.main.remote": "second"}, "second", "second"),
        ({"remote.pushDefault": "git@example.org:me/third.git"}, "origin", "third"),
        ({"remote.origin.pushurl": "git@example.org:me/third.git"}, "origin", "third"),
    ],
)
async def test_the_remotes_are_those_that_git_would_use(
    scene: Scene, settings: dict[str, str], fetched: str, pushed: str
) -> None:
    urls = {"origin": str(scene.remote), **{name: f"git@example.org:me/{name}.git" for name in ("second", "third")}}
    scene.run("remote", "add", "second", urls["second"])
    for name, value in {"branch.main.remote": "origin", **settings}.items():
        scene.run("config", name, value)

    found = await located(scene, scene.checkout)
    scene.run("worktree", "add", "-q", "--detach", str(scene.place / "linked"))
    scene.run("checkout", "-q", "--detach")
    scene.run("checkout", "-q", "main", cwd=scene.place / "linked")
    linked = await located(scene, scene.place / "linked")

    assert (found.url, found.push_url) == (linked.url, linked.push_url) == (urls[fetched], urls[pushed])


async def test_a_push_url_beside_others_is_the_one_that_is_fetched(scene: Scene) -> None:
    for url in (str(scene.remote), "git@example.org:me/copy.git"):
        scene.run("remote", "set-url", "--add", "--push", "origin", url)

    assert (await located(scene, scene.checkout)).push_url == str(scene.remote)


async def test_the_users_own_push_remote_counts_in_every_checkout(scene: Scene) -> None:
    scene.run("remote", "add", "mine", "git@example.org:me/mine.git")
    scene.run("config", "--global", "remote.pushDefault", "mine")
    git = await read_git(scene.env, scene.place / "again")

    assert (await locate(git, None, str(scene.checkout))).push_url == "git@example.org:me/mine.git"


@pytest.mark.promise("P21")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"remote.ours.url": "/a", "remote.theirs.url": "/b"}, "has the remotes ours, theirs, and none is chosen"),
        ({"remote.origin.url": "/a", "remote.pushDefault": "mine"}, "has no remote mine, which remote.pushDefault"),
    ],
)
async def test_a_remote_that_is_unclear_is_refused_with_the_candidates(
    scene: Scene, settings: dict[str, str], message: str
) -> None:
    scene.run("remote", "remove", "origin")
    for name, value in settings.items():
        scene.run("config", name, value)

    with pytest.raises(SetupProblem, match=message) as caught:
        await located(scene, scene.checkout)

    assert "`git config branch.main.remote NAME`" in str(caught.value)


async def test_a_checkout_without_a_remote_is_its_own(scene: Scene) -> None:
    scene.run("remote", "remove", "origin")

    assert (await located(scene, scene.checkout)).url == str(scene.checkout)


async def test_a_relative_remote_is_meant_from_the_checkout(scene: Scene) -> None:
    scene.run("remote", "set-url", "origin", "../remote.git")

    assert (await located(scene, scene.checkout / "src")).url == str(scene.remote)


async def test_git_reads_settings_that_are_not_simple(scene: Scene) -> None:
    with (scene.checkout / ".git" / "config").open("a") as config:
        config.write('[remote "origin"]\n  url = "git@example.org:me/second.git" ; another\n')
    (scene.checkout / ".git" / "more").write_text("[remote]\n")
    scene.run("config", "include.path", "more")

    assert (await located(scene, scene.checkout)).url == str(scene.remote)


async def test_a_linked_worktree_has_the_remote_of_its_repository(scene: Scene) -> None:
    scene.run("worktree", "add", "-q", str(scene.place / "linked"))

    assert (await located(scene, scene.place / "linked")).url == str(scene.remote)


async def test_a_repository_is_named_by_the_path_of_a_bare_one(scene: Scene) -> None:
    found = await locate(scene.git, str(scene.remote), None)

    assert (found.url, found.source) == (str(scene.remote), None)


async def test_a_short_name_is_on_github(scene: Scene) -> None:
    found = await locate(scene.git, "owner/name", None)

    assert (found.url, found.name) == ("https://github.com/owner/name.git", "owner/name")


async def test_two_repositories_of_one_name_have_two_mirrors(scene: Scene) -> None:
    keys = {(await locate(scene.git, name, None)).key for name in ("a/name", "a/name.git", "b/name")}

    assert len(keys) == 2


@pytest.mark.parametrize("place", ["missing", "checkout/README.md", "plain", "broken"])
async def test_there_is_no_repository_in(scene: Scene, place: str) -> None:
    (scene.place / "plain").mkdir()
    (scene.place / "broken" / ".git").mkdir(parents=True)

    with pytest.raises(SetupProblem) as caught:
        await located(scene, scene.place / place)
    assert place in str(caught.value)


async def test_the_home_directory_is_not_a_project(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(scene.checkout))

    with pytest.raises(SetupProblem, match="itself cannot be the repository of a task"):
        await located(scene, scene.checkout)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_git_does_not_trust_a_repository_of_another_user(scene: Scene) -> None:
    for path in (scene.checkout, scene.checkout / ".git"):
        os.chown(path, 12345, 12345)

    with pytest.raises(SetupProblem, match="dubious ownership") as told:
        await located(scene, scene.checkout)
    assert f"git config --global --add safe.directory {scene.checkout}; then restart Delegate" in str(told.value)


@pytest.mark.parametrize("url", ["ext::sh -c id", "--upload-pack=id", "a\u202eb"])
async def test_a_remote_that_could_run_a_program_is_refused(scene: Scene, url: str) -> None:
    scene.run("config", "remote.origin.url", url)

    with pytest.raises(SetupProblem, match="is not a URL that Delegate can use"):
        await located(scene, scene.checkout)


async def test_a_repository_named_by_a_link_is_refused(scene: Scene) -> None:
    (scene.place / "link").symlink_to(scene.remote)

    with pytest.raises(SetupProblem, match="symbolic link"):
        await locate(scene.git, str(scene.place / "link"), None)


async def test_a_bare_repository_as_directory_says_what_to_type(scene: Scene) -> None:
    with pytest.raises(SetupProblem, match=f"name it with `--repository {scene.remote}`"):
        await located(scene, scene.remote)


async def test_an_empty_git_directory_in_the_way_is_named(scene: Scene) -> None:
    for place in (scene.place, scene.checkout / "src"):
        (place / ".git").mkdir()
    (scene.place / "plain").mkdir()

    assert (await located(scene, scene.checkout / "src")).source == scene.checkout
    with pytest.raises(SetupProblem) as caught:
        await located(scene, scene.place / "plain")
    assert f"rmdir {scene.place}/.git" in str(caught.value)
