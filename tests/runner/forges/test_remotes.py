"""Which forge an address belongs to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from delegate.runner.forges.github import GitHub
from delegate.runner.forges.local import Local
from delegate.runner.forges.remotes import forge_for, parse_remote
from delegate.runner.git.program import read_git
from delegate.runner.workspaces.repositories import repository


@pytest.mark.parametrize(
    ("url", "host", "repository", "is_ssh"),
    [
        ("https://github.com/acme/demo.git", "github.com", "acme/demo", False),
        ("https://github.com/acme/demo", "github.com", "acme/demo", False),
        ("https://GitHub.com/acme/demo/", "github.com", "acme/demo", False),
        ("https://www.github.com/acme/demo.js.git", "github.com", "acme/demo.js", False),
        ("https://user:token@github.com/acme/demo.git", "github.com", "acme/demo", False),
        ("http://github.com/acme/demo.git", "github.com", "acme/demo", False),
        ("git@github.com:acme/demo.git", "github.com", "acme/demo", True),
        ("github-work:acme/demo", "github-work", "acme/demo", True),
        ("ssh://git@ssh.github.com:443/acme/demo.git", "github.com", "acme/demo", True),
        ("https://git.example.com:8443/team/app.git", "git.example.com", "team/app", False),
    ],
)
def test_an_address_names_its_host_and_repository(url: str, host: str, repository: str, is_ssh: bool) -> None:
    found = parse_remote(url)

    assert found is not None
    assert (found.host, found.repository, found.is_ssh) == (host, repository, is_ssh)


@pytest.mark.parametrize(
    "url",
    [
        "/srv/git/demo.git",
        "../demo",
        "file:///srv/git/demo.git",
        "https://github.com/acme",
        "https://github.com/acme/demo/tree/main",
        "https://github.com/acme/..",
        "ssh://-oProxyCommand=id@host/x",
        "git@-oProxyCommand=id:acme/demo",
        "ext::sh -c id",
        "",
    ],
)
def test_what_is_not_the_address_of_a_forge_is_not_taken_for_one(url: str) -> None:
    assert parse_remote(url) is None


@pytest.mark.anyio
class TestChoice:
    """With this user's own configuration of git, ssh and gh."""

    async def forge(
        self, tmp_path: Path, url: str, gitconfig: str = "", push_url: str | None = None, **environ: str
    ) -> GitHub | Local:
        (tmp_path / "gitconfig").write_text(gitconfig)
        config = {"GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig"), "GH_CONFIG_DIR": str(tmp_path / "gh")}
        own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **config, **environ}
        git = await read_git(own, tmp_path / "git")
        found = await forge_for(git, repository(url, push_url=push_url), own, "gh")
        assert isinstance(found, GitHub | Local)
        return found

    async def test_github_needs_nobodys_word(self, tmp_path: Path) -> None:
        found = await self.forge(tmp_path, "https://github.com/acme/demo.git", PATH="/usr/bin:/bin")

        assert found.name == "github.com/acme/demo"

    async def test_a_short_name_of_the_users_own_is_followed(self, tmp_path: Path) -> None:
        gitconfig = '[url "git@github.com:"]\n\tinsteadOf = gh:\n'

        assert (await self.forge(tmp_path, "gh:acme/demo", gitconfig)).name == "github.com/acme/demo"

    async def test_git_is_asked_only_where_the_user_has_such_names(self, tmp_path: Path) -> None:
        program = tmp_path / "bin" / "git"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/commands\nexec {shutil.which("git")} "$@"\n')
        program.chmod(0o755)

        found = await self.forge(tmp_path, "git@github.com:acme/demo.git", PATH=f"{program.parent}:/usr/bin:/bin")

        assert found.name == "github.com/acme/demo"
        assert (tmp_path / "commands").read_text().split() == ["config"]  # the user's settings, once for a runner

    async def test_a_second_name_of_the_host_in_ssh_is_followed(self, tmp_path: Path) -> None:
        ssh = tmp_path / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text('#!/bin/sh\n[ "$*" = "-G github-work" ] && echo user git && echo hostname github.com\n')
        ssh.chmod(0o755)

        found = await self.forge(tmp_path, "git@github-work:acme/demo.git", PATH=f"{ssh.parent}:/usr/bin:/bin")

        assert found.name == "github.com/acme/demo"

    @pytest.mark.real
    async def test_a_host_that_gh_is_logged_in_to_is_a_github(self, tmp_path: Path) -> None:
        (tmp_path / "gh").mkdir()
        (tmp_path / "gh" / "hosts.yml").write_text("git.example.com:\n    oauth_token: x\n    user: a\n")

        assert (await self.forge(tmp_path, "https://git.example.com/a/b.git")).name == "git.example.com/a/b"

    @pytest.mark.parametrize("url", ["https://gitlab.com/acme/demo.git", "/srv/git/demo.git"])
    async def test_every_other_remote_has_its_review_here(self, tmp_path: Path, url: str) -> None:
        assert isinstance(await self.forge(tmp_path, url), Local)

    @pytest.mark.parametrize(
        ("url", "push_url", "name", "fork_owner"),
        [
            ("https://github.com/acme/demo.git", "git@github.com:me/demo.git", "github.com/acme/demo", "me"),
            ("https://github.com/acme/demo.git", "git@github.com:Acme/Demo.git", "github.com/Acme/Demo", None),
            ("/srv/cache/demo.git", "git@github.com:acme/demo.git", "github.com/acme/demo", None),
        ],
    )
    async def test_only_another_repository_of_the_host_is_a_fork(
        self, tmp_path: Path, url: str, push_url: str, name: str, fork_owner: str | None
    ) -> None:
        found = await self.forge(tmp_path, url, push_url=push_url)

        assert isinstance(found, GitHub)
        assert (found.name, found.fork_owner) == (name, fork_owner)

    async def test_a_branch_that_leaves_the_forge_has_its_review_here(self, tmp_path: Path) -> None:
        found = await self.forge(tmp_path, "https://github.com/acme/demo.git", push_url="/srv/git/demo.git")

        assert isinstance(found, Local)
