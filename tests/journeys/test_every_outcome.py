"""Twenty tasks that end in every way there is: the user's things stay as they were, and no work is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.world import wait_until
from tests.journeys.shop import FIXED, Market, Shop, contents, needed, open_market, open_shop

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.promise("P12")]
FIX = f"cat > shop.py <<'EOF'\n{FIXED}EOF\n"
HALF = b"half \xff done\n"
HALF_DONE = "printf 'half \\377 done\\n' > half.bin; mkdir -p deep/er; echo deep > deep/er/file; "


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    needed("git", "gh")
    with open_market(tmp_path_factory.mktemp("market"), runners=2) as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, market: Market) -> Shop:
    return open_shop(market, tmp_path)


def without_cache(files: dict[str, tuple[int, bytes]]) -> dict[str, tuple[int, bytes]]:
    """Without the files that Codex writes for itself, even for `codex --version`."""
    return {name: entry for name, entry in files.items() if name.split("/")[0] != ".codex"}


def test_the_users_repository_and_home_are_byte_identical_and_all_unpushed_work_can_be_had_back(shop: Shop) -> None:
    (shop.clone / "uncommitted.txt").write_text("the user is in the middle of something\n")
    shop.git("checkout", "-q", "-b", "the-users-own-branch")
    home = Path(shop.world.environment["HOME"])
    before = contents(shop.clone), without_cache(contents(home))

    published = [shop.deliver(f"{FIX} echo {n} > {n}.txt") for n in range(6)]
    pushed = [shop.deliver(f"{FIX} echo {n} > {n}.txt", pr=False, worktree=True) for n in range(3)]
    unchanged = [shop.deliver("true") for _ in range(2)]
    unfinished = [
        shop.deliver(f"{HALF_DONE} exit 3"),
        shop.deliver(f"{HALF_DONE} git add -A; git commit -qm half; echo more > more; exit 3"),
        shop.deliver(f"{HALF_DONE} echo 'broken(' > shop.py"),
        shop.deliver(f"{HALF_DONE} sleep 60", timeout=1500),
        shop.deliver(f"{FIX} {HALF_DONE} echo aws=AKIAIOSFODNN7EXAMPLE > keys.py"),
        cancelled(shop),
        killed(shop),
    ]
    refused = [
        shop.deliver("true", base="no-such-branch"),
        shop.deliver("true", repository="acme/nothing", workingDirectory=None, machine=None),
    ]

    assert {task["reason"] for task in published + pushed} == {"done"}
    assert {task["reason"] for task in unchanged} == {"no_changes"}
    assert [task["reason"] for task in unfinished] == [
        "command_failed",
        "command_failed",
        "checks_failed",
        "timeout",
        "policy_denied",
        "cancelled",
        "lost_runner",
    ]
    assert {task["reason"] for task in refused} == {"setup_error"}
    assert len(shop.pulls) == 6
    shop.wait_until_tidy()
    for task in unfinished:
        restored = shop.clone.parent / f"restored-{task['taskId']}"
        shop.world.ok("workspaces", "restore", task["taskId"], str(restored))
        assert (restored / "half.bin").read_bytes() == HALF, task["reason"]
        assert (restored / "deep/er/file").read_text() == "deep\n"
    assert (contents(shop.clone), without_cache(contents(home))) == before
    shop.world.down()
    shop.world.audit()


def cancelled(shop: Shop) -> dict[str, Any]:
    task_id = shop.submit(f"{HALF_DONE} touch ready; sleep 60")
    shop.wait_for_file(task_id, "ready")
    shop.world.ok("cancel", task_id)
    return shop.world.wait_for(task_id)


def killed(shop: Shop) -> dict[str, Any]:
    """The runner dies by SIGKILL in the middle of the work, and its successor finds what it left."""
    task_id = shop.submit(f"{HALF_DONE} touch ready; sleep 60")
    shop.wait_for_file(task_id, "ready")
    runner = next(one for one in shop.world.processes() if one["taskId"] == task_id)
    os.kill(runner["pid"], signal.SIGKILL)
    return dict(wait_until(lambda: (task := shop.world.task(task_id))["status"] == "failed" and task))
