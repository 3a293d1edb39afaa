from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.runner.publishing.conftest import Site, plain_git

from delegate.runner.git.program import Git
from delegate.runner.publishing import push as pushing
from delegate.runner.publishing.push import (
    PushDecision,
    PushRejected,
    PushResult,
    decide,
    delete_branch_if_unchanged,
    push,
)

pytestmark = pytest.mark.anyio
OURS, THEIRS = "a" * 40, "b" * 40


@pytest.mark.promise("P2")
@pytest.mark.parametrize("remote", [None, OURS, THEIRS])
@pytest.mark.parametrize("is_ancestor", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_only_what_is_free_ours_or_below_us_is_replaced(remote: str | None, is_ancestor: bool, is_known: bool) -> None:
    known = frozenset({THEIRS}) if is_known else frozenset()

    decision = decide(remote, OURS, is_ancestor=is_ancestor, known=known)

    if remote == OURS:
        assert decision is PushDecision.DONE
    elif remote == THEIRS and not is_ancestor and not is_known:
        assert decision is PushDecision.REFUSE
    else:
        assert decision is PushDecision.PUSH


async def work(site: Site, text: str = "work\n") -> str:
    site.write("work.txt", text)
    return str(await site.commit())


def foreign_push(site: Site, ref: str = "") -> str:
    """Somebody else puts a commit of theirs on the branch."""
    tree = plain_git("rev-parse", "main^{tree}", cwd=site.remote)
    commit = plain_git("commit-tree", tree, "-p", "main", "-m", "foreign", cwd=site.remote)
    plain_git("update-ref", ref or site.ref, commit, cwd=site.remote)
    return commit


async def test_a_free_branch_gets_the_commit_and_nothing_else_moves(site: Site) -> None:
    commit = await work(site)

    pushed = await site.push(commit)

    assert pushed == PushResult(commit=commit)
    assert plain_git("for-each-ref", "--format=%(refname) %(objectname)", cwd=site.remote).splitlines() == [
        f"refs/heads/main {site.base}",
        f"{site.ref} {commit}",
    ]


@pytest.mark.promise("P2")
async def test_a_push_that_already_happened_is_found(site: Site) -> None:
    commit = await work(site)
    await site.push(commit)

    assert await site.push(commit) == PushResult(commit=commit)
    assert await site.push(commit, commit) == PushResult(commit=commit)
    assert site.published() == commit


async def test_an_earlier_attempts_commit_is_replaced(site: Site) -> None:
    earlier = await work(site, "earlier\n")
    await site.push(earlier)
    later = await work(site, "later\n")

    assert await site.push(later, earlier) == PushResult(commit=later)
    assert site.published() == later


async def test_a_branch_below_our_commit_is_moved_forward(site: Site) -> None:
    plain_git("branch", site.workspace.branch, "main", cwd=site.remote)
    commit = await work(site)

    assert await site.push(commit) == PushResult(commit=commit)


@pytest.mark.promise("P2")
@pytest.mark.parametrize("known", [(), (OURS,)])
async def test_foreign_commits_are_never_overwritten(site: Site, known: tuple[str, ...]) -> None:
    foreign = foreign_push(site)
    commit = await work(site)

    with pytest.raises(PushRejected, match="commits that are not from this task"):
        await site.push(commit, *known)

    assert site.published() == foreign


@pytest.mark.promise("P2")
@pytest.mark.parametrize("has_earlier", [False, True])
async def test_a_rival_who_pushes_between_look_and_push_wins(site: Site, has_earlier: bool) -> None:
    earlier = await work(site, "earlier\n")
    if has_earlier:
        await site.push(earlier)
    commit = await work(site, "later\n")

    async def rival() -> None:
        foreign_push(site)

    with pytest.raises(PushRejected, match="commits that are not from this task"):
        await push(site.git, site.workspace, commit, known=frozenset({earlier}), guard=rival)

    assert site.published() not in {earlier, commit}


async def test_without_leave_nothing_is_pushed(site: Site) -> None:
    commit = await work(site)

    async def refuse() -> None:
        raise PermissionError("stale")

    with pytest.raises(PermissionError):
        await push(site.git, site.workspace, commit, known=frozenset(), guard=refuse)

    assert site.published() is None


def wrapped(git: Git, directory: Path, script: str) -> Git:
    """The same git behind a script that decides how a push goes."""
    program = directory / "wrapped-git"
    program.write_text(f'#!/bin/sh\nlog={directory}/pushes\n{script}\nexec {git.program} "$@"\n')
    program.chmod(0o755)
    return replace(git, program=str(program))


@pytest.mark.promise("P2")
async def test_a_lost_answer_is_looked_for(site: Site, tmp_path: Path) -> None:
    script = f'if [ "$1" = push ]; then echo x >>$log; {site.git.program} "$@" >/dev/null 2>&1; exit 128; fi'
    lossy = replace(site, git=wrapped(site.git, tmp_path, script))
    commit = await work(site)

    pushed = await lossy.push(commit)

    assert pushed == PushResult(commit=commit)
    assert site.published() == commit
    assert (tmp_path / "pushes").read_text() == "x\n"


@pytest.mark.promise("P2")
async def test_a_push_that_breaks_off_is_tried_again(site: Site, tmp_path: Path) -> None:
    script = 'if [ "$1" = push ]; then echo x >>$log; [ $(wc -l <$log) = 3 ] || exit 128; fi'
    shaky = replace(site, git=wrapped(site.git, tmp_path, script))
    commit = await work(site)

    await shaky.push(commit)

    assert site.published() == commit


async def test_a_push_that_always_breaks_off_ends(site: Site, tmp_path: Path) -> None:
    broken = replace(site, git=wrapped(site.git, tmp_path, 'if [ "$1" = push ]; then echo x >>$log; exit 128; fi'))
    commit = await work(site)

    with pytest.raises(PushRejected, match="in 3 tries"):
        await broken.push(commit)

    assert (tmp_path / "pushes").read_text() == "x\n" * pushing.TRIES


@pytest.mark.promise("P2")
async def test_a_push_that_could_not_be_looked_for_may_have_happened(site: Site, tmp_path: Path) -> None:
    push = f'if [ "$1" = push ]; then {site.git.program} "$@" >/dev/null 2>&1; exit 128; fi'
    lost = replace(site, git=wrapped(site.git, tmp_path, f"{push}\n[ $1 = ls-remote ] && exit 128"))
    commit = await work(site)

    with pytest.raises(PushRejected, match="could not be read at the remote") as unknown:
        await lost.push(commit)

    assert unknown.value.may_exist
    assert site.published() == commit


async def test_a_push_that_was_not_tried_has_not_happened(site: Site, tmp_path: Path) -> None:
    silent = replace(site, git=wrapped(site.git, tmp_path, "[ $1 = ls-remote ] && exit 128"))
    commit = await work(site)

    with pytest.raises(PushRejected, match="could not be read at the remote") as refused:
        await silent.push(commit, OURS)

    assert not refused.value.may_exist


def add_hook(site: Site, text: str) -> None:
    hooks = site.remote / "own-hooks"
    hooks.mkdir()
    (hooks / "pre-receive").write_text(f"#!/bin/sh\n{text}\n")
    (hooks / "pre-receive").chmod(0o755)
    plain_git("config", "core.hooksPath", str(hooks), cwd=site.remote)


async def test_a_refusal_of_the_remote_is_reported_and_not_tried_again(site: Site) -> None:
    add_hook(site, "echo x >>pushes; echo 'GH006: \033[31mProtected branch' >&2; exit 1")
    commit = await work(site)

    with pytest.raises(PushRejected) as refused:
        await site.push(commit)

    assert str(refused.value) == (
        "the remote refused branch task-1-work: pre-receive hook declined (GH006: \\x1b[31mProtected branch)"
    )
    assert (site.remote / "pushes").read_text() == "x\n"
    assert site.published() is None


async def test_a_remote_that_is_gone_is_reported(site: Site) -> None:
    commit = await work(site)
    site.remote.rename(site.remote.with_name("away.git"))

    with pytest.raises(PushRejected, match=r"task-1-work could not be read at the remote: .*not appear to be a git"):
        await site.push(commit)


async def test_a_remote_that_hangs_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "PUSH_TIMEOUT", timedelta(seconds=0.3))
    commit = await work(site)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"git://127.0.0.1:{silent.getsockname()[1]}/x"
        repository = replace(site.workspace.repository, url=url)
        hanging = replace(site, workspace=replace(site.workspace, repository=repository))

        with pytest.raises(PushRejected, match=r"timed out after 0\.3 s"):
            await hanging.push(commit)


class _WantsPassword(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def serving() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _WantsPassword) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/x.git"
        finally:
            server.shutdown()
            thread.join()


async def test_a_remote_that_asks_for_a_password_is_reported(site: Site) -> None:
    commit = await work(site)
    with serving() as url:
        repository = replace(site.workspace.repository, url=url)
        asking = replace(site, workspace=replace(site.workspace, repository=repository))

        with pytest.raises(PushRejected, match="it asks for a password: sign in with `gh auth login`"):
            await asking.push(commit)


async def test_a_pushed_branch_is_taken_back_only_as_it_was(site: Site) -> None:
    commit = await work(site)
    url, branch = str(site.remote), site.workspace.branch
    await site.push(commit)

    assert await delete_branch_if_unchanged(site.git, url, branch, OURS) is False
    assert site.published() == commit
    assert await delete_branch_if_unchanged(site.git, url, branch, commit) is True
    assert site.published() is None
    assert await delete_branch_if_unchanged(site.git, url, branch, commit) is True


async def test_a_deletion_that_the_remote_refuses_is_reported(site: Site) -> None:
    commit = await work(site)
    await site.push(commit)
    plain_git("config", "receive.denyDeletes", "true", cwd=site.remote)

    with pytest.raises(PushRejected, match="deletion prohibited"):
        await delete_branch_if_unchanged(site.git, str(site.remote), site.workspace.branch, commit)

    assert site.published() == commit
