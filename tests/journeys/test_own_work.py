"""What is published is the task's own work, and all of it is accounted for: the base moves, work is left elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.world import wait_until
from tests.journeys.shop import FIXED, Market, Shop, audited_market, open_shop

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.promise("P21")]
FIX = f"cat > shop.py <<'EOF'\n{FIXED}EOF\n"
NAMED = "export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@example.com"
COMMITTED = f"{FIX}git add shop.py; git commit -qm 'Read the discount as a percentage'"
# A message that closes an issue, a fixture that looks like a key, a protected workflow.
COLLEAGUES = {
    "fixture.py": "aws = 'AKIAIOSFODNN7EXAMPLE'\n",
    ".github/workflows/ci.yml": "on: push\n",
    "notes.txt": "one\n",
}


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    with audited_market(tmp_path_factory.mktemp("market"), "git", "gh") as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, market: Market) -> Iterator[Shop]:
    yield open_shop(market, tmp_path)
    market.github.hub.restore()


def deliver_while_the_base_moves(shop: Shop, before: str, after: str) -> dict[str, Any]:
    """The task; colleagues push to the base between the two parts of the agent's work."""
    go = shop.clone.parent / "go"
    task_id = shop.submit(f"set -e; {NAMED}; {before}\ntouch ready; until [ -e {go} ]; do sleep 0.05; done; {after}")
    shop.wait_for_file(task_id, "ready").unlink()
    shop.seed(COLLEAGUES, message="Add a workflow\n\nFixes #7\nReviewed-by: B <b@example.com>")
    go.touch()
    return shop.world.wait_for(task_id)


def warnings_of(task: dict[str, Any]) -> list[str]:
    return [event["data"]["text"] for event in task["timeline"] if event["kind"] == "warning"]


UPDATES = {
    "pull and rebase": (COMMITTED, "git pull -q --rebase origin main"),
    "merge": (COMMITTED, "git fetch -q; git merge -q --no-edit origin/main"),
    "pull a clean branch, then work": ("true", f"git pull -q origin main; {COMMITTED}"),
    "merge, then work on": (COMMITTED, "git fetch -q; git merge -q --no-edit origin/main; echo more > more.txt"),
    "merge into one commit": (COMMITTED, "git fetch -q; git merge -q --squash origin/main; git commit -qm Update"),
    "merge without a commit": (FIX, "git fetch -q; git stash -q; git merge -q --ff-only origin/main; git stash pop -q"),
}


@pytest.mark.parametrize(("before", "after"), UPDATES.values(), ids=UPDATES)
def test_what_the_agent_took_from_the_base_is_not_its_work(shop: Shop, before: str, after: str) -> None:
    task = deliver_while_the_base_moves(shop, before, after)

    assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
    assert not [text for text in warnings_of(task) if "squashed" in text or "policy" in text]
    (pull,) = shop.pulls
    branch, bare = task["result"]["branch"], shop.github.bare(shop.repository)
    changed = shop.git("diff", "--name-only", f"main...{branch}", cwd=bare).split()
    assert set(changed) - {"more.txt"} == {"shop.py"}
    assert not pull.is_draft
    assert task["result"]["files"] == len(changed)
    assert task["result"]["baseCommit"] == shop.github.head(shop.repository, "main")
    assert "Fixes #7" not in shop.git("log", "--format=%B", f"main..{branch}", cwd=bare)
    assert "AKIA" not in shop.world.ok("diff", task["taskId"])


def test_a_branch_that_was_only_updated_is_no_change(shop: Shop) -> None:
    task = deliver_while_the_base_moves(shop, "true", "git pull -q origin main")

    assert (task["status"], task["reason"]) == ("completed", "no_changes"), task["message"]
    assert shop.branches == ["main"]
    assert shop.pulls == []


CONFLICT = f"""{NAMED}
git checkout -qb other; echo theirs > notes.txt; git add notes.txt; git commit -qm theirs
git checkout -q -; echo ours > notes.txt; {COMMITTED}; git add notes.txt; git commit -qm ours
"""
HALF_DONE = {
    "merge": ("git merge -q other", "a merge is not finished; unresolved conflicts in notes.txt"),
    "rebase": ("git rebase -q other", "a rebase is not finished; unresolved conflicts in notes.txt"),
    "stash": ("echo x > notes.txt; git stash -q; echo y > notes.txt; git commit -qam y; git stash pop", "in notes.txt"),
    "resolved merge": ("git merge -q other; echo z > notes.txt; git add notes.txt", "a merge is not finished"),
    "committed": ("git merge -q other; git add -A; git commit -qm merged", "conflict markers in notes.txt"),
}


@pytest.mark.parametrize(("command", "problem"), HALF_DONE.values(), ids=HALF_DONE)
def test_half_done_work_is_never_a_pull_request(shop: Shop, command: str, problem: str) -> None:
    task = shop.deliver(f"{CONFLICT}{command}; true")

    assert (task["status"], task["reason"]) == ("failed", "checks_failed"), task["message"]
    assert problem in task["message"]
    assert (shop.branches, shop.pulls) == (["main"], [])
    assert task["result"]["isKept"]


def test_a_finished_merge_with_a_resolved_conflict_is_published(shop: Shop) -> None:
    resolved = "git merge -q other; echo both > notes.txt; git add notes.txt; git commit -qm merged"

    task = shop.deliver(f"{CONFLICT}{resolved}")

    assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
    assert shop.on_remote(task["result"]["branch"], "notes.txt") == "both"


AMENDED = "git commit -q --amend -m 'Read the discount in percent'"
PUSHED_BEFORE = {
    "amended": (AMENDED, ["Read the discount in percent"]),
    "rebased": (
        "git reset -q --hard HEAD~; echo a > a.txt; git add a.txt; git commit -qm a; git cherry-pick ORIG_HEAD",
        ["Read the discount as a percentage", "a"],
    ),
    "squashed": ("git commit -q --amend -m 'Fix it' -m 'Reviewed-by: B <b@example.com>'", ["Pay in percent"]),
}


@pytest.mark.parametrize(("after", "subjects"), PUSHED_BEFORE.values(), ids=PUSHED_BEFORE)
def test_a_branch_that_the_agent_pushed_and_then_changed_is_adopted(
    shop: Shop, after: str, subjects: list[str]
) -> None:
    task = shop.deliver(f"set -e; {NAMED}; {COMMITTED}\ngit push -q origin HEAD; {after}", title="Pay in percent")

    assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
    (pull,) = shop.pulls
    found = shop.git("log", "--format=%s", f"main..{pull.head}", cwd=shop.github.bare(shop.repository))
    assert found.splitlines() == subjects
    assert any("which the agent had pushed itself, was replaced" in text for text in warnings_of(task))


@pytest.mark.parametrize("is_fetched", [False, True])
def test_what_others_pushed_onto_the_agents_branch_is_not_overwritten(shop: Shop, is_fetched: bool) -> None:
    go, branch = shop.clone.parent / "go", shop.clone.parent / "branch"
    onto = "git fetch -q; git reset -q --hard @{u}; echo b > b.txt; git add b.txt; git commit -qm b; git push -q"
    dropped = f"{onto}; git reset -q --hard HEAD~2" if is_fetched else "true"
    task_id = shop.submit(
        f"set -e; {NAMED}; {COMMITTED}\ngit push -q -u origin HEAD; git branch --show-current > {branch}.new\n"
        f"mv {branch}.new {branch}; until [ -e {go} ]; do sleep 0.05; done; {dropped}; {AMENDED}"
    )
    wait_until(branch.exists)
    name = branch.read_text().strip()
    theirs = shop.seed({"theirs.txt": "theirs\n"}, branch=name)
    go.touch()

    task = shop.world.wait_for(task_id)

    assert (task["status"], task["reason"]) == ("failed", "push_rejected"), task["message"]
    assert "has commits that are not from this task; nothing was overwritten" in task["message"]
    shop.git("merge-base", "--is-ancestor", theirs, name, cwd=shop.github.bare(shop.repository))
    assert task["result"]["isKept"]


ON_BASE = "main at the remote has commits of the agent that were neither checked nor reviewed: {}"


@pytest.mark.parametrize("after", ["true", "git reset -q --hard HEAD~"])
def test_work_that_the_agent_pushed_to_the_base_is_told(shop: Shop, after: str) -> None:
    task = shop.deliver(f"set -e; {NAMED}; {COMMITTED}\ngit push -q origin HEAD:main; {after}")

    told = ON_BASE.format(str(shop.github.head(shop.repository, "main"))[:9])
    assert (task["status"], task["reason"], task["message"]) == ("completed", "no_changes", told)
    assert warnings_of(task) == [told]


def test_a_failed_task_tells_what_the_agent_pushed_to_the_base(shop: Shop) -> None:
    task = shop.deliver(f"set -e; {NAMED}; {COMMITTED}\ngit push -q origin HEAD:main; exit 3")

    assert task["status"] == "failed"
    assert warnings_of(task) == [ON_BASE.format(str(shop.github.head(shop.repository, "main"))[:9])]


def test_a_pull_request_tells_what_the_agent_pushed_to_the_base(shop: Shop) -> None:
    moved = "git fetch -q; git rebase -q origin/main; git push -q origin HEAD:main"
    rest = "echo more > more.txt; git add more.txt; git commit -qm more"

    task = deliver_while_the_base_moves(shop, COMMITTED, f"{moved}; {rest}")

    (pull,) = shop.pulls
    assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
    assert ON_BASE.format(str(shop.github.head(shop.repository, "main"))[:9]) in pull.body
    assert shop.git("diff", "--name-only", f"main...{pull.head}", cwd=shop.github.bare(shop.repository)) == "more.txt"


ELSEWHERE = {
    "stash entries": (
        "echo 1 > a.txt; git add .; git stash -q; echo 2 > a.txt; git add .; git stash -q",
        "2 stash entries",
    ),
    "branch": ("git checkout -qb fix; echo 2 > a.txt; git add .; git commit -qm x; git checkout -q -", "branch fix"),
    "detached commit": (
        "git checkout -q --detach; echo 2 > a.txt; git add .; git commit -qm x; git checkout -q -",
        "commit ",
    ),
    "branch of an unusual name": (
        "git checkout -qb \"$(printf 'f\\377')\"; echo 2 > a.txt; git add .; git commit -qm x; git checkout -q -",
        "branch f\\udcff",
    ),
    "worktree beside": ("git worktree add -q ../fix; echo 2 > ../fix/a.txt", "fix-beside"),
    "ignored worktree": ("git worktree add -q __pycache__/fix; echo 2 > __pycache__/fix/a.txt", "fix-beside"),
    "worktree in TMPDIR": ('git worktree add -q "$TMPDIR/fix"; echo 2 > "$TMPDIR/fix/a.txt"', "fix-beside"),
    "clone beside": ("git clone -q . ../copy; echo 2 > ../copy/a.txt", "copy-beside"),
    "bare repository beside": ("git clone -q --bare . ../copy.git; echo 2 > ../copy.git/a.txt", "copy.git-beside"),
    "nested repository": ("git init -q sub; cd sub; echo 2 > a.txt; git add .; git commit -qm x; rm a.txt", "sub"),
    "new .git": ("rm .git; git init -q; echo 2 > a.txt; git add a.txt; git commit -qm x; rm a.txt", "new-git-beside"),
}


def find_everywhere(restored: Path, shop: Shop) -> set[str]:
    """The content of `a.txt` in the files, and in each commit and stash entry of each restored repository."""
    found = {path.read_text() for path in restored.rglob("a.txt")}
    for repository in restored.rglob(".git"):
        commits = shop.git("log", "--all", "--format=%H", cwd=repository.parent).split() if repository.is_dir() else []
        for commit in commits:
            names = shop.git("ls-tree", "-r", "--name-only", commit, cwd=repository.parent).split()
            found |= {shop.git("show", f"{commit}:a.txt", cwd=repository.parent) + "\n"} if "a.txt" in names else set()
    return found


@pytest.mark.parametrize(("command", "told"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_work_elsewhere_is_kept_and_reported(shop: Shop, command: str, told: str) -> None:
    task = shop.deliver(f"set -e; {NAMED}; {command}")

    assert (task["status"], task["reason"]) == ("completed", "no_changes"), task["message"]
    assert task["result"]["isKept"]
    assert f"not published, but kept: {told}" in task["message"]
    assert any(told in text for text in warnings_of(task))
    assert told in shop.world.run("logs", "-f", task["taskId"]).stderr
    assert told in shop.world.ok("status")
    listed = [json.loads(line) for line in shop.world.ok("workspaces", "--json").splitlines()]
    (kept,) = (one for one in listed if task["taskId"] in one["taskIds"])
    assert kept["elsewhere"][0].startswith(told)
    restored = shop.clone.parent / "restored"
    shop.world.ok("workspaces", "restore", task["taskId"], str(restored))
    assert "2\n" in find_everywhere(restored, shop)


def test_stash_entries_are_restored_as_such(shop: Shop) -> None:
    stashed = ELSEWHERE["stash entries"][0].replace("stash -q", "stash push -q -m mine")

    task = shop.deliver(f"set -e; {NAMED}; {stashed}")

    restored = shop.clone.parent / "restored"
    shop.world.ok("workspaces", "restore", task["taskId"], str(restored))
    assert shop.git("stash", "list", "--format=%gd %s", cwd=restored).splitlines() == [
        f"stash@{{{number}}} On {shop.git('branch', '--show-current', cwd=restored)}: mine" for number in (0, 1)
    ]
    assert shop.git("show", "stash@{1}:a.txt", cwd=restored) == "1"
    shop.git("stash", "pop", "-q", cwd=restored)
    assert (restored / "a.txt").read_text() == "2\n"


def test_a_worktree_elsewhere_on_the_disk_is_reported_and_stays(shop: Shop) -> None:
    fix, base = shop.clone.parent / "fix", shop.clone.parent / "base"

    task = shop.deliver(f"git worktree add -q {fix}; echo 2 > {fix}/a.txt; git worktree add -q --detach {base}")

    assert (task["status"], task["reason"]) == ("completed", "no_changes"), task["message"]
    assert task["message"].endswith(f"not published, but kept: {fix} (stays there)")
    assert (fix / "a.txt").read_text() == "2\n"


def test_work_elsewhere_of_a_failed_task_is_reported(shop: Shop) -> None:
    task = shop.deliver(f"{NAMED}; {ELSEWHERE['stash entries'][0]}; exit 3")

    assert task["status"] == "failed"
    assert task["result"]["isKept"]
    assert task["message"].endswith("; not published, but kept: 2 stash entries")


def test_a_secret_in_the_name_of_work_elsewhere_is_not_reported(shop: Shop) -> None:
    secret = shop.world.environment["STANDIN_API_KEY"]
    named = (
        f"git checkout -qb fix-{secret}; git commit -q --allow-empty -m x; git checkout -q -; git init -q sub-{secret}"
    )

    task = shop.deliver(f"set -e; {NAMED}; {named}; touch sub-{secret}/a.txt".replace(secret, "$STANDIN_API_KEY"))

    assert "not published, but kept: branch fix-" in task["message"]
    assert secret not in json.dumps(task)


def test_work_elsewhere_is_reported_beside_a_pull_request(shop: Shop) -> None:
    task = shop.deliver(f"{NAMED}; echo 1 > a.txt; git add .; git stash -q; {FIX}")

    assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
    assert len(shop.pulls) == 1
    assert task["message"].endswith("; not published, but kept: 1 stash entry")


def test_what_the_remote_has_is_not_work_elsewhere(shop: Shop) -> None:
    known = "git worktree add -q ../fix; git checkout -q main; git checkout -q --detach; git checkout -qb mine"

    task = shop.deliver(f"set -e; {NAMED}; {known}; {COMMITTED}; git branch earlier HEAD")

    assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
    assert not task["result"]["isKept"]
    shop.wait_until_tidy()


def test_writes_into_the_users_checkout_are_reported(shop: Shop) -> None:
    task = shop.deliver(f"echo oops >> {shop.clone}/shop.py; echo new > {shop.clone}/new.txt; {FIX}")

    assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
    (warning,) = warnings_of(task)
    assert warning.startswith(f"your checkout {shop.clone} changed while the task ran: new.txt, shop.py;")


def test_a_cancelled_task_ends_without_another_look_at_the_checkout(shop: Shop) -> None:
    started = shop.clone / "started"
    task_id = shop.submit(f"touch {started}; sleep 600")
    wait_until(started.exists)

    shop.world.ok("cancel", task_id)
    task = shop.world.wait_for(task_id)

    assert (task["status"], task["reason"]) == ("cancelled", "cancelled")
    assert warnings_of(task) == []


SETTINGS = {
    "commit": ("git -C {} commit -q --allow-empty -m x", "HEAD"),
    "configuration": ("git -C {} config alias.st status", ".git/config"),
    "hook": ("touch {}/.git/hooks/post-checkout", ".git/hooks/post-checkout"),
}


@pytest.mark.parametrize(("command", "told"), SETTINGS.values(), ids=SETTINGS)
def test_changes_of_the_users_repository_are_reported(shop: Shop, command: str, told: str) -> None:
    task = shop.deliver(f"{NAMED}; {command.format(shop.clone)}; {FIX}")

    assert [text.partition("; ")[0] for text in warnings_of(task)] == [
        f"your checkout {shop.clone} changed while the task ran: {told}"
    ]


def test_a_dirty_checkout_that_stays_as_it_is_is_not_reported(shop: Shop) -> None:
    (shop.clone / "shop.py").unlink()
    (shop.clone / "draft.txt").write_text("mine\n")

    task = shop.deliver(FIX)

    assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
    assert warnings_of(task) == []
