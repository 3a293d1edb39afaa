"""What is in a workspace when its agent has ended: published as it is, left out and reported, or denied by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.hostile import active, driving
from tests.journeys.shop import Market, Shop, audited_market, open_shop

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.promise("P19")]
DEEP = "/".join(["d" * 200] * 6)


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    with audited_market(tmp_path_factory.mktemp("market"), "git", "gh") as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, market: Market) -> Shop:
    return open_shop(market, tmp_path, checks=[])


def names_on(shop: Shop, branch: str) -> set[bytes]:
    listed = shop.git("ls-tree", "-r", "-z", "--name-only", branch, cwd=shop.github.bare(shop.repository))
    return set(listed.encode(errors="surrogateescape").split(b"\0"))


def test_odd_names_are_published_as_they_are(shop: Shop) -> None:
    names = [
        "-rf",
        "--",
        ":(glob)**",
        "a\\nb",
        "\\033]52;c;x\\007",
        "not-\\303\\251-ascii",
        "n" * 255,
        "readme",
        "README",
    ]
    making = "".join(f": > \"$(printf -- '{name}')\"\n" for name in names)

    task = shop.deliver(f"{making} mkdir -p {DEEP}; echo deep > {DEEP}/file; ln -s one two; ln -s two one; mkfifo pipe")

    assert task["status"] == "completed", task["message"]
    (pull,) = shop.pulls
    expected = {b"-rf", b"--", b":(glob)**", b"a\nb", b"\x1b]52;c;x\x07", "not-é-ascii".encode(), b"n" * 255, b"readme"}
    assert expected | {b"README", f"{DEEP}/file".encode(), b"one", b"two"} <= names_on(shop, pull.head)
    assert active(pull.title) + active(pull.body) == []
    for words in ("status", "diff", "logs"):
        assert driving(shop.world.on_a_terminal(words, task["taskId"])) == []


def test_what_leads_out_or_could_run_is_denied_by_name_and_kept(shop: Shop) -> None:
    secret = shop.clone.parent / "secret"
    secret.write_text("secret\n")
    modules = '[submodule "x"]\\n\\tpath = x\\n\\turl = ext::sh -c id\\n\\tupdate = !touch pwned\\n'
    making = [
        "ln -s / root-link",
        "ln -s ../../.. up-link",
        "ln -s .git/config git-link",
        f"ln {secret} stolen",
        "mkdir .GIT; echo x > .GIT/config",
        "echo x > git~1",
        f"printf '{modules}' > .gitmodules",
        "truncate -s 1T sparse",
    ]

    task = shop.deliver("\n".join(making))

    assert (task["status"], task["reason"]) == ("failed", "policy_denied")
    named = ("root-link", "up-link", "git-link", "stolen", ".GIT/config", "git~1", ".gitmodules", "sparse")
    assert [name for name in named if name not in task["message"]] == []
    assert (shop.branches, shop.pulls) == (["main"], [])
    assert task["result"]["isKept"]


def test_too_many_files_are_denied_with_their_number(shop: Shop) -> None:
    task = shop.deliver("mkdir many; cd many; i=0; while [ $i -lt 5001 ]; do : > $i; i=$((i + 1)); done")

    assert (task["status"], task["reason"]) == ("failed", "policy_denied")
    assert "5,001 files" in task["message"]


def test_settings_of_agents_make_a_draft_with_a_warning_and_run_nothing(shop: Shop) -> None:
    hooks = '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "touch pwned"}]}]}}'

    task = shop.deliver(f"mkdir .claude; echo '{hooks}' > .claude/settings.json; echo '{{}}' > .mcp.json")

    (pull,) = shop.pulls
    assert task["status"] == "completed", task["message"]
    assert pull.is_draft
    assert [path for path in (".claude/settings.json", ".mcp.json") if path not in pull.body] == []


def test_a_remote_that_refuses_is_quoted_without_its_escapes(shop: Shop) -> None:
    hook = shop.github.bare(shop.repository) / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nprintf 'no \\033]52;c;x\\007 branches\\n\\033[2J' >&2\nexit 1\n")
    hook.chmod(0o755)

    task = shop.deliver("echo x > new.txt")

    assert (task["status"], task["reason"]) == ("failed", "push_rejected")
    assert "no" in task["message"]
    assert task["result"]["isKept"]
    for words in (("status",), ("status", task["taskId"]), ("logs", task["taskId"])):
        assert driving(shop.world.on_a_terminal(*words)) == []


def test_a_default_branch_with_an_odd_name_is_reported_before_the_agent_starts(shop: Shop) -> None:
    bare = shop.github.bare(shop.repository)
    shop.git("update-ref", "refs/heads/a;id", "refs/heads/main", cwd=bare)
    shop.git("symbolic-ref", "HEAD", "refs/heads/a;id", cwd=bare)
    shop.git("update-ref", "-d", "refs/heads/main", cwd=bare)

    task = shop.deliver("echo x > new.txt")

    assert (task["status"], task["reason"]) == ("failed", "setup_error")
    assert "a;id" in task["message"]
    assert "started" not in [event["kind"] for event in task["timeline"]]


@pytest.mark.promise("P22")
def test_what_an_agent_writes_into_the_home_runs_in_no_later_task(shop: Shop) -> None:
    payload, canary = shop.clone.parent / "payload", shop.clone.parent / "canary"
    payload.write_text(f"#!/bin/sh\necho ran >> {canary}\n")
    payload.chmod(0o755)
    settings = shop.clone.parent / "settings"
    settings.write_text(
        f'[core]\n\tfsmonitor = {payload}\n[protocol "ext"]\n\tallow = always\n'
        f'[url "ext::{payload} "]\n\tinsteadOf = {shop.github.url(shop.repository)}\n'
    )
    home = shop.world.home
    poisoning = (
        'mirror=$(dirname "$(cat "$(git rev-parse --git-common-dir)/objects/info/alternates")")\n'
        f"find {home}/mirrors {home}/runners -name '*config' | while read file; do cat {settings} >> $file; done\n"
        f"mkdir $mirror/hooks; cp {payload} $mirror/hooks/reference-transaction\n"
    )

    first = shop.deliver(f"{poisoning} echo x > first.txt")
    second = shop.deliver("echo x > second.txt")

    assert (first["status"], second["status"]) == ("completed", "completed"), second["message"]
    assert not canary.exists()
