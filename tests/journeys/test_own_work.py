"""What is published is the task's own work, and all of it is accounted for: the base moves, work is left elsewhere."""

from __future__ import annotations

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
