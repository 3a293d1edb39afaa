"""From `delegate delegate --pr` to a checked pull request: real git over HTTP and real gh, with commands as agents."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.world import PATIENCE
from tests.journeys.shop import FIXED, Market, Shop, audited_market, contents, open_shop

pytestmark = [pytest.mark.slow, pytest.mark.real]
FIX = f"cat > shop.py <<'EOF'\n{FIXED}EOF\necho 'The discount is a percentage now.'"


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    with audited_market(tmp_path_factory.mktemp("market"), "git", "gh") as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, market: Market) -> Iterator[Shop]:
    yield open_shop(market, tmp_path)
    market.github.hub.restore()


def test_work_becomes_a_checked_pull_request_and_the_users_clone_stays_as_it_was(shop: Shop) -> None:
    before = contents(shop.clone)

    task = shop.deliver(FIX, title="Read the discount as a percentage")

    assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
    (pull,) = shop.pulls
    assert task["result"]["pullRequest"] == f"https://github.com/{shop.repository}/pull/{pull.number}"
    assert pull.title == "Read the discount as a percentage"
    assert shop.on_remote(task["result"]["branch"], "shop.py") == FIXED.strip()
    assert (task["result"]["checksPassed"], task["result"]["checksTotal"]) == (1, 1)
    assert contents(shop.clone) == before
    shop.wait_until_tidy()


def test_a_red_check_fails_the_task_and_keeps_the_work(shop: Shop) -> None:
    task = shop.deliver("printf 'def total(prices, discount_percent=0):\\n    return 0\\n' > shop.py")

    assert (task["status"], task["reason"]) == ("failed", "checks_failed")
    assert "python3 -m unittest" in task["message"]
    assert shop.pulls == []
    assert shop.branches == ["main"]
    assert task["result"]["isKept"]
    assert "+    return 0" in shop.world.ok("diff", task["taskId"])


def test_what_the_policy_refuses_is_not_taken_for_done_by_a_retry(shop: Shop) -> None:
    runs = shop.clone.parent / "runs"
    refused = shop.deliver(f"{FIX}; echo aws=AKIAIOSFODNN7EXAMPLE > keys.py; echo run >> {runs}")

    retried = shop.world.wait_for(shop.world.ok("retry", refused["taskId"]).strip())

    assert (refused["reason"], retried["reason"]) == ("policy_denied", "policy_denied")
    assert "keys.py" in refused["message"]
    assert runs.read_text() == "run\nrun\n"


def test_no_change_is_a_good_end_without_a_pull_request(shop: Shop) -> None:
    task = shop.deliver("echo 'All is well as it is.'")

    assert (task["status"], task["reason"]) == ("completed", "no_changes")
    assert task["result"]["pullRequest"] is None
    assert shop.branches == ["main"]
    shop.wait_until_tidy()


def test_a_worktree_task_ends_on_a_pushed_branch_without_a_pull_request(shop: Shop) -> None:
    task = shop.deliver(FIX, pr=False, worktree=True)

    assert task["status"] == "completed", task["message"]
    assert shop.on_remote(task["result"]["branch"], "shop.py") == FIXED.strip()
    assert shop.pulls == []


def test_when_gh_fails_the_branch_stays_and_a_retry_opens_the_pull_request_without_the_agent(shop: Shop) -> None:
    shop.github.hub.fail("PullRequestCreate", times=20)
    runs = shop.clone.parent / "runs"

    failed = shop.deliver(f"{FIX}; echo run >> {runs}")
    shop.github.hub.restore()
    retried = shop.world.wait_for(shop.world.ok("retry", failed["taskId"]).strip())

    assert (failed["status"], failed["reason"]) == ("failed", "pr_rejected")
    assert "gh pr create" in failed["message"]
    assert retried["status"] == "completed", retried["message"]
    (pull,) = shop.pulls
    assert pull.head == failed["result"]["branch"] == retried["result"]["branch"]
    assert runs.read_text() == "run\n"


def test_a_branch_with_foreign_commits_is_not_overwritten(shop: Shop) -> None:
    go = shop.clone.parent / "go"
    task_id = shop.submit(f"until [ -e {go} ]; do sleep 0.05; done; {FIX}")
    events = shop.events_until(task_id, "workspace")
    branch = events["workspace"]["branch"]
    foreign = shop.seed({"foreign.txt": "not ours\n"}, branch=branch)

    go.touch()
    task = shop.world.wait_for(task_id)

    assert (task["status"], task["reason"]) == ("failed", "push_rejected")
    assert shop.github.head(shop.repository, branch) == foreign
    assert shop.pulls == []
    restored = shop.clone.parent / "restored"
    shop.world.ok("workspaces", "restore", task_id, str(restored))
    assert (restored / "shop.py").read_text() == FIXED


def test_work_that_was_dropped_is_done_again_by_a_retry(shop: Shop) -> None:
    runs, go = shop.clone.parent / "runs", shop.clone.parent / "go"
    task_id = shop.submit(f"echo run >> {runs}; until [ -e {go} ]; do sleep 0.05; done; {FIX}")
    branch = shop.events_until(task_id, "workspace")["workspace"]["branch"]
    shop.seed({"foreign.txt": "not ours\n"}, branch=branch)
    go.touch()
    shop.world.wait_for(task_id, "failed")
    shop.world.ok("workspaces", "drop", task_id, "--yes")
    shop.git("update-ref", "-d", f"refs/heads/{branch}", cwd=shop.github.bare(shop.repository))

    retried = shop.world.wait_for(shop.world.ok("retry", task_id).strip())

    assert (retried["status"], retried["reason"]) == ("completed", "done"), retried["message"]
    assert runs.read_text() == "run\nrun\n"
    assert len(shop.pulls) == 1


def test_a_task_can_be_cancelled_while_its_repository_is_fetched(shop: Shop) -> None:
    gate = shop.github.hub.hold("git-upload-pack", times=20)
    task_id = shop.submit(FIX)
    assert gate.reached.wait(PATIENCE)

    shop.world.ok("cancel", task_id)
    task = shop.world.task(task_id)
    gate.open()

    assert (task["status"], task["reason"]) == ("cancelled", "cancelled")
    assert "started" not in [event["kind"] for event in task["timeline"]]


@pytest.mark.promise("P21")
@pytest.mark.parametrize("removed", ['"$OLDPWD"', '"$(dirname "$OLDPWD")"'], ids=["tree", "workspace"])
def test_an_agent_that_removes_its_own_workspace_fails_and_nothing_is_claimed_as_kept(shop: Shop, removed: str) -> None:
    task = shop.deliver(f"cd /; rm -rf {removed}")

    assert (task["status"], task["reason"]) == ("failed", "setup_error")
    assert "the agent removed its worktree" in task["message"]
    assert not task["result"]["isKept"]
    assert task["taskId"] not in shop.world.ok("workspaces")
    shop.wait_until_tidy()


def test_a_base_that_moved_between_two_tasks_is_where_the_second_starts(shop: Shop) -> None:
    shop.deliver("echo first > first.txt")
    moved = shop.seed({"shop.py": FIXED, "moved.txt": "moved\n"})

    task = shop.deliver("cat moved.txt > second.txt")

    assert task["status"] == "completed", task["message"]
    assert task["result"]["baseCommit"] == moved
    assert shop.on_remote(task["result"]["branch"], "second.txt") == "moved"


def test_a_failing_set_up_stops_the_attempt_before_the_agent_starts(shop: Shop) -> None:
    shop.seed({".delegate.toml": 'setup = ["echo no network >&2; exit 3"]\n'})

    task = shop.deliver(FIX)

    assert (task["status"], task["reason"]) == ("failed", "setup_error")
    assert "no network" in task["message"]
    assert "started" not in [event["kind"] for event in task["timeline"]]


def test_a_mistake_in_the_repositorys_file_is_reported_with_the_nearest_key(shop: Shop) -> None:
    shop.seed({".delegate.toml": 'check = ["true"]\n'})

    task = shop.deliver(FIX)

    assert (task["status"], task["reason"]) == ("failed", "setup_error")
    assert "checks" in task["message"]


def test_files_that_git_ignores_are_carried_in_and_never_published(shop: Shop) -> None:
    shop.seed({".delegate.toml": 'carry = [".env"]\n'})
    (shop.clone / ".env").write_text("NAME=value\n")

    task = shop.deliver(f"cat .env > copied.txt; {FIX}")

    assert task["status"] == "completed", task["message"]
    assert shop.on_remote(task["result"]["branch"], "copied.txt") == "NAME=value"
    assert ".env" not in shop.git(
        "ls-tree", "--name-only", task["result"]["branch"], cwd=shop.github.bare(shop.repository)
    )


def test_protected_paths_make_a_draft_with_a_warning(shop: Shop) -> None:
    task = shop.deliver(f"{FIX}; mkdir -p .github/workflows; echo 'on: push' > .github/workflows/ci.yml")

    (pull,) = shop.pulls
    assert task["status"] == "completed", task["message"]
    assert pull.is_draft
    assert ".github/workflows/ci.yml" in pull.body


def test_the_title_and_the_body_name_the_issue(shop: Shop) -> None:
    issue = {"key": "PER-44", "title": "Read the discount as a percentage", "url": "https://linear.app/acme/PER-44"}

    task = shop.deliver(FIX, issue=issue)

    (pull,) = shop.pulls
    assert task["result"]["branch"].startswith("per-44-read-the-discount-as-a-percentage-")
    assert pull.title == "PER-44 · Read the discount as a percentage"
    assert "Opened automatically for PER-44." in pull.body
    assert "| ✅ | `python3 -m unittest` | passed |" in pull.body


@pytest.mark.promise("P12")
def test_cancelled_work_is_kept_and_restored_byte_for_byte(shop: Shop) -> None:
    task_id = shop.submit(
        "printf 'half \\377 done' > half.bin; ln -s shop.py link; chmod +x shop.py; touch ready; sleep 60"
    )
    shop.wait_for_file(task_id, "ready")

    shop.world.ok("cancel", task_id)
    restored = shop.clone.parent / "restored"
    shop.world.ok("workspaces", "restore", task_id, str(restored))

    assert (restored / "half.bin").read_bytes() == b"half \xff done"
    assert (restored / "link").readlink() == Path("shop.py")
    assert (restored / "shop.py").stat().st_mode & 0o111
    shop.wait_until_tidy()


def test_an_agent_that_no_runner_has_waits_and_says_so(shop: Shop) -> None:
    task_id = shop.submit("Fix it", agent="acp:/nowhere/agent")

    task = shop.world.task(task_id)

    assert task["status"] == "queued"
    assert "acp:/nowhere/agent" in task["why"]
    shop.world.ok("cancel", task_id)


def test_what_only_the_checks_have_left_in_the_tree_is_not_kept(shop: Shop) -> None:
    shop.seed({".delegate.toml": 'checks = ["echo junk > report.html"]\n'})

    task = shop.deliver(FIX)

    assert task["status"] == "completed", task["message"]
    assert not task["result"]["isKept"]
    files = shop.git("ls-tree", "--name-only", task["result"]["branch"], cwd=shop.github.bare(shop.repository))
    assert "report.html" not in files


def test_work_inside_a_submodule_is_kept_and_reported_though_the_rest_is_published(shop: Shop) -> None:
    library = f"{shop.repository}-library"
    shop.github.seed(library, {"lib.txt": "library\n"})
    shop.git("submodule", "add", "-q", shop.github.url(library), "lib")
    shop.git("-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-qm", "Use a library")
    shop.git("push", "-q", "origin", "HEAD:main")
    shop.seed({".delegate.toml": 'setup = ["git submodule update --init -q"]\n'})

    plain = shop.deliver("echo out > outside.txt")
    task = shop.deliver("echo out > outside.txt; echo work > lib/inside.txt")

    assert (plain["status"], plain["result"]["isKept"]) == ("completed", False), plain["message"]
    assert (task["status"], task["result"]["isKept"]) == ("completed", True), task["message"]
    warnings = [event["data"]["text"] for event in task["timeline"] if event["kind"] == "warning"]
    assert any("not published, but kept: lib" in text for text in warnings)
    restored = shop.clone.parent / "restored"
    shop.world.ok("workspaces", "restore", task["taskId"], str(restored))
    assert (restored / "lib" / "inside.txt").read_text() == "work\n"


@pytest.mark.promise("P21")
def test_from_a_fork_the_pull_request_is_on_upstream_and_the_branch_on_the_fork(shop: Shop) -> None:
    fork = shop.github.fork(shop.repository, "a-person")
    shop.git("remote", "rename", "origin", "upstream")
    shop.git("remote", "add", "mine", shop.github.url(fork))
    shop.git("config", "remote.pushDefault", "mine")
    moved = shop.seed({"moved.txt": "upstream is ahead\n"})

    task = shop.deliver(FIX)

    assert task["status"] == "completed", task["message"]
    (pull,) = shop.pulls
    branch = task["result"]["branch"]
    assert (pull.head_owner, pull.head, pull.base) == ("a-person", branch, "main")
    assert task["result"]["pullRequest"] == pull.url
    assert task["result"]["baseCommit"] == moved
    assert (shop.branches, shop.github.branches(fork)) == (["main"], [branch, "main"])
    shop.wait_until_tidy()


@pytest.mark.promise("P21")
def test_work_from_a_fork_continues_on_its_branch_and_pull_request(shop: Shop) -> None:
    fork = shop.github.fork(shop.repository, "a-person")
    shop.git("config", "remote.origin.pushurl", shop.github.url(fork))
    first = shop.deliver(f"{FIX}; echo run >> runs.txt")

    resumed = shop.world.wait_for(shop.world.ok("resume", first["taskId"], "--context", "again").strip())

    assert resumed["status"] == "completed", resumed["message"]
    (pull,) = shop.pulls
    assert resumed["result"]["pullRequest"] == first["result"]["pullRequest"] == pull.url
    assert shop.git("show", f"{pull.head}:runs.txt", cwd=shop.github.bare(fork)) == "run\nrun"
    assert shop.branches == ["main"]


@pytest.mark.promise("P21")
def test_nothing_is_pushed_while_the_remote_is_unclear(shop: Shop) -> None:
    shop.git("remote", "rename", "origin", "ours")
    shop.git("remote", "add", "theirs", "https://github.com/elsewhere/shop.git")
    shop.git("branch", "--unset-upstream")
    before = contents(shop.clone)

    task = shop.deliver(FIX)

    assert (task["status"], task["reason"]) == ("failed", "setup_error")
    assert "ours" in task["message"]
    assert "theirs" in task["message"]
    assert "git config branch.main.remote" in task["message"]
    assert contents(shop.clone) == before


@pytest.mark.promise("P21")
def test_a_checkout_that_is_named_by_its_path_is_not_pushed_into(shop: Shop) -> None:
    before = contents(shop.clone)

    task = shop.deliver(FIX, workingDirectory=None, repository=str(shop.clone))

    assert task["status"] == "completed", task["message"]
    assert task["result"]["branch"] in shop.branches
    assert contents(shop.clone) == before


# What git-lfs leaves after a commit: a pointer in the commit, and the object beside the repository.
COMMIT_TO_LFS = r"""
printf 'a large film' > film.bin; oid=$(sha256sum film.bin | cut -c1-64); store=$(git rev-parse --git-common-dir)
mkdir -p "$store/lfs/objects/$(echo $oid | cut -c1-2)/$(echo $oid | cut -c3-4)"
cp film.bin "$store/lfs/objects/$(echo $oid | cut -c1-2)/$(echo $oid | cut -c3-4)/$oid"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12\n' $oid > film.bin
git add film.bin; git -c user.name=A -c user.email=a@example.com commit -qm 'Add the film'
"""


@pytest.mark.promise("P21")
def test_a_file_in_lfs_is_not_pushed_without_its_object(shop: Shop) -> None:
    if shutil.which("git-lfs", path=shop.world.environment["PATH"]):
        pytest.skip("git-lfs is installed")

    task = shop.deliver(f"{FIX}\n{COMMIT_TO_LFS}")

    assert (task["status"], task["reason"]) == ("failed", "push_rejected")
    assert "film.bin, stored in Git LFS, could not be uploaded: git-lfs is not installed" in task["message"]
    assert "https://git-lfs.com" in task["message"]
    assert (shop.branches, shop.pulls) == (["main"], [])
    restored = shop.clone.parent / "restored"
    shop.world.ok("workspaces", "restore", task["taskId"], str(restored))
    (object_of_film,) = (path for path in (restored / ".git" / "lfs" / "objects").rglob("*") if path.is_file())
    assert object_of_film.read_text() == "a large film"


@pytest.mark.promise("P21")
def test_a_repository_with_sha_256_gets_its_branch(shop: Shop) -> None:
    place = shop.clone.parent
    shop.git("init", "-q", "--bare", "--object-format=sha256", "-b", "main", str(place / "long.git"), cwd=place)
    shop.git("init", "-q", "--object-format=sha256", "-b", "main", str(place / "long"), cwd=place)
    shop.git("remote", "add", "origin", str(place / "long.git"), cwd=place / "long")
    (place / "long" / "shop.py").write_text("print('old')\n")
    shop.git("add", "-A", cwd=place / "long")
    shop.git("-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-qm", "First", cwd=place / "long")
    shop.git("push", "-q", "origin", "HEAD:main", cwd=place / "long")

    task = shop.deliver(
        f"{FIX}; git add -A; git commit -qm 'Fix it'; echo more > more.txt", workingDirectory=str(place / "long")
    )

    assert task["status"] == "completed", task["message"]
    assert len(task["result"]["commit"]) == 64
    branch = task["result"]["branch"]
    assert shop.git("show", f"{branch}:shop.py", cwd=place / "long.git") == FIXED.strip()
    assert "+more" in shop.world.ok("diff", task["taskId"])
    shop.wait_until_tidy()


@pytest.mark.promise("P12")
def test_unpushed_work_of_a_repository_with_sha_256_is_restored(shop: Shop) -> None:
    place = shop.clone.parent
    shop.git("init", "-q", "--object-format=sha256", "-b", "main", str(place / "long"), cwd=place)
    (place / "long" / "shop.py").write_text("print('old')\n")
    shop.git("add", "-A", cwd=place / "long")
    shop.git("-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-qm", "First", cwd=place / "long")

    task = shop.deliver("echo half > half.txt; exit 3", workingDirectory=str(place / "long"))

    restored = place / "restored"
    shop.world.ok("workspaces", "restore", task["taskId"], str(restored))
    assert (restored / "half.txt").read_text() == "half\n"


def test_a_shallow_clone_without_a_remote_gets_its_branch(shop: Shop) -> None:
    shallow = shop.clone.parent / "shallow"
    shop.git("clone", "-q", "--depth", "1", f"file://{shop.github.bare(shop.repository)}", str(shallow))
    shop.git("remote", "remove", "origin", cwd=shallow)

    task = shop.deliver(FIX, workingDirectory=str(shallow))

    assert task["status"] == "completed", task["message"]
    assert shop.git("show", f"{task['result']['branch']}:shop.py", cwd=shallow) == FIXED.strip()


def test_a_check_that_a_signal_ended_is_not_reported_as_slow(shop: Shop) -> None:
    shop.seed({".delegate.toml": 'checks = ["kill -9 $$"]\n'})

    task = shop.deliver(FIX)

    assert (task["status"], task["reason"]) == ("failed", "checks_failed")
    assert "exit code 137" in task["message"]
