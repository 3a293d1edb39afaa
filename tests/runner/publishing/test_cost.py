"""What publishing costs is mostly the number of git processes; it must not grow unnoticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.runner.publishing.conftest import Site, publication

pytestmark = pytest.mark.anyio


def counting(site: Site, tmp_path: Path) -> tuple[Site, Path]:
    """The same site, with a git that writes down each command it is given."""
    log, program = tmp_path / "commands", tmp_path / "counting-git"
    program.write_text(f'#!/bin/sh\necho "$1" >>{log}\nexec {site.git.program} "$@"\n')
    program.chmod(0o755)
    return replace(site, git=replace(site.git, program=str(program))), log


async def publish(site: Site) -> None:
    draft = await publication(site).draft()
    assert draft is not None
    await site.push(draft.commit)


async def test_uncommitted_work_is_published_with_seven_commands(site: Site, tmp_path: Path) -> None:
    counted, log = counting(site, tmp_path)
    site.write("src/app.py", "print('changed')\n")
    site.write("new.txt", "new\n")
    (site.tree / "src" / "old.py").unlink()

    await publish(counted)

    assert log.read_text().split() == [
        "ls-files",
        "update-index",
        "write-tree",
        "rev-parse",
        "commit-tree",
        "diff-tree",
        "push",
    ]


async def test_the_agents_commits_cost_a_few_more_and_need_no_new_one(site: Site, tmp_path: Path) -> None:
    counted, log = counting(site, tmp_path)
    site.agent_commits("one.txt", "1\n")

    await publish(counted)

    assert log.read_text().split() == [
        "merge-base",
        "pack-objects",
        "index-pack",
        "merge-base",
        "read-tree",
        "ls-files",
        "write-tree",
        "fetch",
        "rev-parse",
        "diff-tree",
        "rev-list",
        "cat-file",
        "cat-file",
        "push",
    ]


async def test_commits_that_are_known_are_not_copied_again(site: Site, tmp_path: Path) -> None:
    counted, log = counting(site, tmp_path)
    site.agent_commits("one.txt", "1\n")
    await site.take()

    await counted.take()

    assert log.read_text().split() == ["merge-base", "read-tree", "ls-files", "write-tree"]
