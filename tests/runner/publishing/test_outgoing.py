"""What a push carries beside the change: the commits that the agent made on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.runner.publishing.conftest import AT, KNOWN, Site, plain_git, publication

from delegate.model import Usage
from delegate.runner.checks import Checks
from delegate.runner.publishing import history_policy
from delegate.runner.publishing.finished_work import FinishedWork
from delegate.runner.publishing.history_policy import carried_names
from delegate.runner.publishing.publication import PublicationDraft, ReviewFacts, body_facts

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P19")]
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
SHAPED = "the agent's commits were squashed into one: one of them contains what looks like a secret (GitHub token)"
MACHINES = "the agent's commits were squashed into one: one of them contains a secret of this machine (CANARY)"
secrets = pytest.mark.parametrize(("secret", "warning"), [(TOKEN, SHAPED), (KNOWN, MACHINES)], ids=["shaped", "known"])


async def drafted(site: Site) -> PublicationDraft:
    draft = await publication(site).draft()
    assert draft is not None
    return draft


async def pushed(site: Site, draft: PublicationDraft) -> str:
    """All that the remote has got."""
    await site.push(draft.commit)
    objects = plain_git("rev-list", "--objects", site.ref, "^main", cwd=site.remote)
    names = [line.split(" ")[0] for line in objects.splitlines()]
    return objects + "".join(plain_git("cat-file", "-p", name, cwd=site.remote) for name in names)


def remove(site: Site, path: str) -> None:
    site.agent("rm", "-qf", path)
    site.agent("commit", "-qm", "take it out again")


def in_a_file(site: Site, secret: str) -> None:
    site.agent_commits("settings.py", f"TOKEN = '{secret}'\n")
    remove(site, "settings.py")


def in_a_message(site: Site, secret: str) -> None:
    site.agent("commit", "-q", "--allow-empty", "-m", f"use {secret}")


def in_an_author(site: Site, secret: str) -> None:
    site.agent("commit", "-q", "--allow-empty", "-m", "x", f"--author={secret} <a@example.com>")


def in_a_binary_file(site: Site, secret: str) -> None:
    site.agent_commits("data.bin", f"\0\1{secret}\n")
    remove(site, "data.bin")


def in_a_name(site: Site, secret: str) -> None:
    site.agent_commits(f"sub/{secret}.txt", "x\n")
    remove(site, f"sub/{secret}.txt")


def in_a_side_branch(site: Site, secret: str) -> None:
    site.agent("checkout", "-qb", "side")
    site.agent_commits("settings.py", secret)
    site.agent("checkout", "-q", site.workspace.branch)
    site.agent_commits("other.txt", "x\n")
    site.agent("merge", "-q", "-s", "ours", "-m", "merge", "side")


@secrets
@pytest.mark.parametrize("hide", [in_a_file, in_a_message, in_an_author, in_a_binary_file, in_a_name, in_a_side_branch])
async def test_a_secret_in_the_history_alone_costs_the_commits_and_not_the_work(
    site: Site, hide: Callable[[Site, str], None], secret: str, warning: str
) -> None:
    hide(site, secret)
    site.agent_commits("work.txt", "work\n")
    site.write("more.txt", "more\n")

    draft = await drafted(site)

    assert (draft.verdict.denied, draft.warnings) == ((), (warning,))
    assert draft.change.commit == draft.commit
    assert site.kept("log", "--format=%P|%an|%s", "-1", draft.commit) == f"{site.base}|Ada|Do what was asked"
    assert {"work.txt", "more.txt"} <= site.files(draft.commit).keys()
    assert secret not in await pushed(site, draft)


@secrets
@pytest.mark.parametrize(("path", "text"), [("data.bin", "\0{}"), ("{}.txt", "x\n"), ("a.py", "x = '{}'\n")])
@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_secret_in_the_tree_is_denied(
    site: Site, path: str, text: str, is_committed: bool, secret: str, warning: str
) -> None:
    write = site.agent_commits if is_committed else site.write
    write(path.format(secret), text.format(secret))

    draft = await drafted(site)

    (sentence,) = draft.verdict.denied
    assert sentence.endswith(warning.partition("one of them ")[2])
    assert secret not in sentence


async def test_plain_commits_go_out_as_they_are(site: Site) -> None:
    site.agent_commits("one.txt", "1\n")
    head = site.agent_commits("data.bin", "\0\1\2")

    draft = await drafted(site)

    assert (draft.commit, draft.verdict.denied, draft.warnings) == (head, (), ())


async def test_a_file_that_had_a_secret_at_the_base_may_be_changed(site: Site) -> None:
    base = site.agent_commits("tests/example.py", f"EXAMPLE = '{TOKEN}'\nLOGIN = '{KNOWN}'\n")
    await site.take()
    plain_git("fetch", "-q", str(site.workspace.git_dir), base, cwd=site.workspace.mirror)
    later = replace(site, workspace=replace(site.workspace, base=replace(site.workspace.base, commit=base)))
    head = later.agent_commits("tests/example.py", f"EXAMPLE = '{TOKEN}'\nLOGIN = '{KNOWN}'\nmore = 1\n")

    draft = await drafted(later)

    assert (draft.commit, draft.verdict.denied, draft.warnings) == (head, (), ())


async def test_commits_that_are_out_already_are_left_alone(site: Site) -> None:
    site.agent_commits("settings.py", TOKEN)
    out = site.agent("rev-parse", "HEAD")
    plain_git("fetch", "-q", str(site.workspace.git_dir), f"{out}:{site.ref}", cwd=site.workspace.mirror)
    remove(site, "settings.py")
    head = site.agent_commits("work.txt", "work\n")

    assert (await drafted(site)).commit == head

    in_a_message(site, KNOWN)
    draft = await drafted(site)
    assert draft.warnings == (MACHINES,)
    assert site.kept("rev-parse", f"{draft.commit}^") == out


async def test_a_history_that_is_too_large_to_look_through_goes_out_as_one_commit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.agent_commits("large.txt", "x" * 5000)
    site.agent_commits("large.txt", "y\n")
    monkeypatch.setattr(history_policy, "BYTES_MAX", 4000)

    (warning,) = (await drafted(site)).warnings

    assert warning.endswith("bytes, too many to scan")


async def test_all_portions_are_looked_through(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_policy, "BATCH_BYTES", 1)
    in_a_file(site, TOKEN)
    site.agent_commits("work.txt", "work\n")

    assert (await drafted(site)).warnings == (SHAPED,)


@pytest.mark.parametrize("message", ["Fixes #1", "x\n\nReviewed-by: Linus <l@example.com>"])
async def test_messages_that_act_at_the_merge_do_not_go_out(site: Site, message: str) -> None:
    site.write("work.txt", "work\n")
    site.agent("add", "-A")
    site.agent("commit", "-qm", message)

    draft = await drafted(site)

    assert draft.warnings[0].startswith("the agent's commits were squashed into one: one of the messages ")
    assert message not in await pushed(site, draft)


def carry(site: Site, *names: str) -> None:
    lines = ["/" + "".join(f"\\{c}" if c in "\\*?[!# " else c for c in name) for name in names]
    site.workspace.carried_excludes.write_text("".join(f"{line}\n" for line in lines))


async def test_carried_names_are_read_as_they_were_written(site: Site) -> None:
    assert carried_names(site.workspace) == frozenset()
    carry(site, ".env", "a/#b c*", "back\\slash")

    assert carried_names(site.workspace) == {b".env", b"a/#b c*", b"back\\slash"}


@pytest.mark.parametrize("name", [".env", "config/*.env", ":(top)x"])
async def test_carried_files_that_the_agent_committed_are_denied(site: Site, name: str) -> None:
    carry(site, "other", name)
    site.agent("--literal-pathspecs", "add", ".")
    site.write(name, "DB=hunter2\n")
    site.agent("--literal-pathspecs", "add", "-f", name)
    site.agent("commit", "-qm", "env")

    denied = (await drafted(site)).verdict.denied

    assert denied == (f"{name} was copied from your checkout; such files are not published",)


async def test_carried_files_in_the_history_alone_cost_the_commits(site: Site) -> None:
    carry(site, ".env")
    site.agent_commits(".env", "DB=hunter2\n")
    site.agent("rm", "-q", "--cached", ".env")
    site.agent("commit", "-qm", "take it out again")
    site.agent_commits("work.txt", "work\n")

    draft = await drafted(site)

    assert draft.warnings == (
        "the agent's commits were squashed into one: one of them contains a file that was copied from your checkout",
    )
    assert "hunter2" not in await pushed(site, draft)


@pytest.mark.parametrize("is_head_known", [False, True])
async def test_work_that_was_finished_work_as_one_commit_is_found_again(site: Site, is_head_known: bool) -> None:
    in_a_file(site, TOKEN)
    head = site.agent_commits("work.txt", "work\n")
    draft = await drafted(site)
    noted = FinishedWork(task_id="task-1", commit=draft.commit, at=AT, head=head if is_head_known else None)
    if is_head_known:
        site.write("left-by-a-check.txt", "x\n")

    found = await publication(site).draft_finished_work([noted])

    assert found is not None
    assert found[1].commit == draft.commit


async def test_a_secret_in_the_request_does_not_become_the_commits_subject(site: Site) -> None:
    site.write("work.txt", "work\n")

    draft = await publication(site, f"Use {TOKEN} to sign in").draft()

    assert draft is not None
    assert site.kept("log", "--format=%s", "-1", draft.commit) == "Use [redacted: GitHub token] to sign in"


async def test_the_reviewer_sees_what_was_left_out(site: Site, tmp_path: Path) -> None:
    site.write("work.txt", "work\n")
    plain_git("init", "-q", str(site.tree / "nested"), cwd=tmp_path)
    site.write("nested/file", "x\n")
    draft = await drafted(site)

    story = ReviewFacts(summary="", checks=Checks(), model=None, usage=Usage(), duration=timedelta())
    facts = body_facts(publication(site).prepared.assignment, draft, story)

    assert facts.warnings == ("not published: nested/ is a nested repository",)
