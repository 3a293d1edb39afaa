"""Commits of a user who signs them, here with an SSH key; never with a question to anybody."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runner.publishing.conftest import Site, plain_git, publication

from delegate.runner.git.program import read_git

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P21")]


def make_key(path: Path, passphrase: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path], check=True)


async def signing_site(site: Site, tmp_path: Path, passphrase: str = "") -> Site:
    key, home = tmp_path / "key", tmp_path / "user"
    make_key(key, passphrase)
    settings = f"[user]\n\tname = Ada\n\temail = ada@example.com\n\tsigningKey = {key}\n"
    (home / ".gitconfig").write_text(f"{settings}[gpg]\n\tformat = ssh\n[commit]\n\tgpgSign = true\n")
    git = await read_git({"PATH": os.environ["PATH"], "HOME": str(home)}, tmp_path / "signing")
    return replace(site, git=git)


def is_signed_by(site: Site, commit: str, tmp_path: Path) -> bool:
    allowed = tmp_path / "allowed"
    allowed.write_text(f"ada@example.com {(tmp_path / 'key.pub').read_text()}")
    settings = ("-c", "gpg.format=ssh", "-c", f"gpg.ssh.allowedSignersFile={allowed}")
    return site.kept(*settings, "log", "-1", "--format=%G?", commit) == "G"


async def test_our_commit_is_signed_with_the_users_key(site: Site, tmp_path: Path) -> None:
    signing = await signing_site(site, tmp_path)
    site.write("new.txt", "new\n")

    draft = await publication(signing).draft()

    assert draft is not None
    assert draft.warnings == ()
    assert is_signed_by(site, draft.commit, tmp_path)


async def test_a_key_that_needs_a_passphrase_is_not_waited_for_and_the_reviewer_is_told(
    site: Site, tmp_path: Path
) -> None:
    signing = await signing_site(site, tmp_path, passphrase="long enough")
    site.write("new.txt", "new\n")

    draft = await publication(signing).draft()

    assert draft is not None
    assert draft.warnings == ("the commit is not signed, although commit.gpgSign is set: `delegate doctor` says why",)


async def test_what_the_agent_configures_signs_nothing(site: Site, tmp_path: Path) -> None:
    signing = await signing_site(site, tmp_path)
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    program.chmod(0o755)
    for name in ("gpg.ssh.program", "gpg.program"):
        plain_git("config", name, str(program), cwd=site.tree)
    site.write("new.txt", "new\n")

    draft = await publication(signing).draft()

    assert draft is not None
    assert is_signed_by(site, draft.commit, tmp_path)
    assert not (tmp_path / "ran").exists()
