from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.origin import branches_of, make_origin
from tests.fakes.world import World, living
from tests.git import run_git

from delegate.runner.workspaces.remote_changes import changed_routes, parse_routes

ORIGIN = '[remote "origin"]\n\turl = https://example.org/a.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with living(tmp_path / "home") as made:
        yield made


@pytest.mark.slow
@pytest.mark.promise("P22")
def test_an_agent_that_changes_the_remote_does_not_redirect_a_later_push(world: World, tmp_path: Path) -> None:
    origin = make_origin(world.work)
    evil = tmp_path / "evil.git"
    run_git("init", "--quiet", "--bare", evil, cwd=tmp_path)
    run_git("push", "--quiet", evil, "main", cwd=world.work)

    changing = world.wait_for(world.submit(f"git remote set-url origin {evil}"))
    refused = world.wait_for(world.submit("touch made", "--worktree"))
    run_git("remote", "set-url", "origin", origin, cwd=world.work)
    good = world.wait_for(world.submit("touch made", "--worktree"))

    assert f"remote.origin.url was {origin} and is {evil}" in str(changing["timeline"])
    assert (refused["status"], refused["reason"]) == ("failed", "setup_error")
    assert f"while {changing['taskId']} ran there: remote.origin.url was {origin} and is {evil}" in refused["message"]
    assert good["result"]["branch"] in branches_of(origin), good["message"]
    assert branches_of(evil) == ["main"]


@pytest.mark.parametrize(
    ("added", "changed"),
    [
        ('[remote "origin"]\n\tpushurl = x\n', ["remote.origin.pushurl"]),
        ('[Remote "origin"] URL = x\n', ["remote.origin.url"]),
        ('[url "x"]\n\tinsteadOf = https://example.org/\n', ["url.x.insteadof"]),
        ("[include]\n\tpath = more\n", ["include.path"]),
        ("[remote]\n\tpushDefault = evil\n", ["remote.pushdefault"]),
        ('[branch "main"]\n\tremote = https://evil.example/x.git\n', ["branch.main.remote"]),
        ('[branch "fix"]\n\tremote = origin\n\tmerge = refs/heads/fix\n', []),
        ('[remote "upstream"]\n\turl = https://example.org/b.git\n', []),
        ("[user]\n\tname = A Person\n", []),
    ],
)
def test_only_settings_that_redirect_a_push_are_noticed(added: str, changed: list[str]) -> None:
    assert list(changed_routes(parse_routes(ORIGIN), parse_routes(ORIGIN + added))) == changed


def test_a_first_remote_is_noticed() -> None:
    assert list(changed_routes({}, parse_routes(ORIGIN))) == ["remote.origin.url"]
