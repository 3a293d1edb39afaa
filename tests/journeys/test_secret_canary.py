"""Secrets of Delegate, of the environment and of the user's logins: an agent prints them all, and none is kept."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.fakes import scripted_agent
from tests.fakes.origin import branches_of, make_origin
from tests.fakes.world import World, living, wait_until
from tests.git import run_git

pytestmark = [pytest.mark.slow, pytest.mark.promise("P19")]
# Of no shape that would be known without knowing the value.
ENVIRONMENT = {
    "DELEGATE_SECRET_KEY": "canary-own-8f31b0c2d94e",
    "GITHUB_TOKEN": "canary-env-Yk3vQ9zR5tLw",
    "ANTHROPIC_API_KEY": "canary-env-Hd82mPq0sXc7",
    "DB_PASSWORD": 'ca"nary\\env /x+y=é&1',
    "SERVICE_URL": "https://robot:canary-url-Gt5Zb1Nw8Kj4@example.test/",
}
LOGINS = {
    ".git-credentials": ("https://me:{}@example.test\n", "canary-git-0aPz7Lm2Vc9e"),
    ".gitconfig": ("[credential]\n\thelper = store --file ~/.secret-store\n", ""),
    ".secret-store": ("https://me:{}@example.test\n", "canary-helper-5Rn1Ys8Dk3q"),
    ".netrc": ("machine example.test login me password {}\n", "canary-netrc-Wb6Fx4Jt0u2"),
    ".config/gh/hosts.yml": ("github.com:\n    oauth_token: {}\n    user: me\n", "canary-gh-Qe7Xi3Oa9Mv5"),
    ".claude/.credentials.json": ('{{"claudeAiOauth": {{"accessToken": "{}"}}}}', "canary-claude-Zp2Ls8Nk4Hd"),
    ".codex/auth.json": ('{{"tokens": {{"refresh_token": "{}"}}}}', "canary-codex-Ru6Tg1Yb3Cw"),
    ".npmrc": ("//registry.test/:_authToken={}\n", "canary-npm-Ij9Ek5Av7Sx0"),
}
# Prints its own environment and that of the process that the agent's first one has for a parent, then every canary
# whole, cut in two at each byte, and encoded.
LEAK = """
import base64, json, os, pathlib, sys, time, urllib.parse
canaries = json.loads(pathlib.Path("canaries.json").read_text())
leader = pathlib.Path(f"/proc/{os.getsid(0)}/stat").read_text()
parent = pathlib.Path(f"/proc/{leader.rsplit(')', 1)[1].split()[1]}/environ").read_bytes()
own = pathlib.Path("/proc/self/environ").read_bytes()
pathlib.Path("seen").write_bytes(own + b"|" + parent)
for data in (own, parent):
    os.write(1, data.replace(b"\\0", b"\\n"))
for canary in canaries:
    secret = canary.encode()
    for cut in range(len(secret) + 1):
        os.write(1, secret[:cut])
        os.write(2, b"")
        os.write(1, secret[cut:] + b"\\n")
    for before in range(3):
        os.write(2, base64.b64encode(b"." * before + secret + b"..") + b"\\n")
    os.write(2, urllib.parse.quote(canary, safe="").encode() + b"\\n")
    os.write(1, json.dumps({"said": canary}).encode() + b"\\n")
pathlib.Path("printed").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.02)
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    user = tmp_path / "user"
    for name, (text, value) in LOGINS.items():
        file = user / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(value))
    agent = scripted_agent.install(tmp_path / "bin")
    own = {"HOME": str(user), "PATH": f"{agent.parent}:{os.environ['PATH']}"}
    script = {"SCRIPTED_AGENT_FILE": str(tmp_path / "script.json")}
    with living(tmp_path / "home", **own, **script, **ENVIRONMENT) as made:
        yield made


def canaries(world: World) -> list[str]:
    logins = [value for _, value in LOGINS.values() if value]
    url = ENVIRONMENT["SERVICE_URL"].split(":")[2].split("@")[0]
    return [*(value for name, value in ENVIRONMENT.items() if name != "SERVICE_URL"), url, *logins, world.token]


def forms(canary: str) -> list[bytes]:
    encoded = [b64encode(b"." * before + canary.encode() + b"..")[4:-4] for before in range(3)]
    return [canary.encode(), json.dumps(canary)[1:-1].encode(), quote(canary, safe="").encode(), *encoded]


def leaks(world: World, data: bytes) -> list[str]:
    return [canary for canary in canaries(world) if any(form in data for form in forms(canary))]


def spooled(world: World) -> bytes:
    """Everything in the spools, with the output as it was printed."""
    lines = b"".join(file.read_bytes() for file in (world.home / "runners").rglob("*.jsonl")).splitlines()
    items = [json.loads(line) for line in lines]
    return b"".join(b64decode(item["output"]) if "output" in item else json.dumps(item).encode() for item in items)


def stored(world: World) -> bytes:
    """All files of the homes but those that are there to hold a secret, and all the database has."""
    found = {file for home in (world.home, world.relay_home) for file in home.rglob("*")} | set(world.relay_logs())
    files = [file for file in found if file.is_file() and file.name not in ("token", "secret.key", "pairing.json")]
    with sqlite3.connect(world.relay_home / "delegate.db") as database:
        dump = "\n".join(database.iterdump()).encode()
        output = b"".join(row[0] for row in database.execute("SELECT data FROM output ORDER BY id"))
    database.close()
    return b"".join(contents(file) for file in files) + dump + output


def contents(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""  # the runners are alive and have just removed it


def test_no_secret_that_an_agent_prints_is_kept_anywhere(world: World) -> None:
    world.ok("up", "--runners", "1")
    (world.work / "leak.py").write_text(LEAK)
    (world.work / "canaries.json").write_text(json.dumps(canaries(world)))
    task_id = world.submit(f"{sys.executable} leak.py")
    wait_until((world.work / "printed").exists)
    on_the_way = wait_until(lambda: (found := spooled(world)).count(b"redacted: npmrc (base64)") and found)
    (world.work / "go").touch()

    ended = world.wait_for(task_id)

    assert ended["status"] == "completed"
    assert leaks(world, on_the_way) == []
    assert leaks(world, stored(world)) == []
    shown = world.ok("logs", "--raw", task_id) + world.ok("logs", task_id) + world.ok("status", task_id, "--json")
    assert leaks(world, shown.encode()) == []
    assert len(canaries(world)) >= 12


def test_the_agent_sees_none_of_delegates_own_secrets_in_its_environment_or_its_parents(world: World) -> None:
    world.ok("up", "--runners", "1")
    (world.work / "leak.py").write_text(LEAK)
    (world.work / "canaries.json").write_text("[]")
    (world.work / "go").touch()

    task_id = world.submit(f"{sys.executable} leak.py")
    world.wait_for(task_id)

    own, parent = (world.work / "seen").read_bytes().split(b"|")
    assert ENVIRONMENT["GITHUB_TOKEN"].encode() in own  # the user's own, as by hand
    assert ENVIRONMENT["DELEGATE_SECRET_KEY"].encode() not in own
    assert leaks(world, parent) == []


def test_encoded_secrets_are_reported_in_the_timeline(world: World) -> None:
    world.ok("up", "--runners", "1")
    secret = ENVIRONMENT["GITHUB_TOKEN"]
    encoded = b64encode(f"x{secret}".encode()).decode()
    escaped = quote(ENVIRONMENT["DB_PASSWORD"], safe="").replace("%", "%%")

    task_id = world.submit(f"printf '{escaped}\\n{encoded}\\n'")
    ended = world.wait_for(task_id)

    warnings = [event["data"]["text"] for event in ended["timeline"] if event["kind"] == "warning"]
    warning = "secrets were removed from the output: DB_PASSWORD (url-encoded), GITHUB_TOKEN (base64)"
    assert warnings == [warning]


def test_what_an_agent_says_about_a_secret_is_kept_without_it(world: World) -> None:
    world.ok("up", "--runners", "1")
    said = " ".join(canaries(world))
    steps = [
        {"init": {}},
        {"say": f"I found {said}"},
        {"tool": "Bash", "input": {"command": f"curl -H {said}"}},
        {"result": f"Done with {said}"},
        {"end_of_input": True},
    ]
    Path(world.environment["SCRIPTED_AGENT_FILE"]).write_text(json.dumps({"steps": steps}))

    ended = world.wait_for(world.submit("look around", agent="claude"))

    timeline = json.dumps(ended["timeline"])
    assert ended["status"] == "completed"
    assert "I found [redacted: DELEGATE_SECRET_KEY] [redacted: GITHUB_TOKEN]" in timeline
    assert leaks(world, stored(world)) == []


AGENT = "git -c user.name=Agent -c user.email=agent@example.test"
HIDDEN = {
    "in a file that is removed again": f"echo $GITHUB_TOKEN >x; git add x; {AGENT} commit -qm x; git rm -q x;"
    f" {AGENT} commit -qm y",
    "in a message": f'{AGENT} commit -q --allow-empty -m "use $GITHUB_TOKEN"',
    "in a binary file": f"printf '\\0%s' $GITHUB_TOKEN >x; git add x; {AGENT} commit -qm x; git rm -q x;"
    f" {AGENT} commit -qm y",
    "in a name": f"touch $GITHUB_TOKEN; git add .; {AGENT} commit -qm x; git rm -q $GITHUB_TOKEN; {AGENT} commit -qm y",
}


@pytest.mark.parametrize("hide", HIDDEN.values(), ids=HIDDEN)
def test_a_secret_in_the_agents_commits_is_not_pushed_with_the_work(world: World, hide: str) -> None:
    origin = make_origin(world.work)
    world.ok("up", "--runners", "1")

    ended = world.wait_for(world.submit(f"{hide}; echo work >work.txt", "--worktree"))

    assert ended["status"] == "completed", ended
    (branch,) = set(branches_of(origin)) - {"main"}
    objects = [line.split()[0] for line in run_git("rev-list", "--objects", branch, cwd=origin).splitlines()]
    out = "".join(run_git("cat-file", "-p", name, cwd=origin) for name in objects)
    assert "work.txt" in out
    assert leaks(world, out.encode()) == []
    assert "contains a secret of this machine (GITHUB_TOKEN)" in json.dumps(ended["timeline"])


@pytest.mark.parametrize("work", ["printf '\\0%s' $GITHUB_TOKEN >x.bin", "touch $GITHUB_TOKEN"])
def test_a_secret_where_no_patch_shows_it_is_not_pushed(world: World, work: str) -> None:
    origin = make_origin(world.work)
    world.ok("up", "--runners", "1")

    ended = world.wait_for(world.submit(work, "--worktree"))

    assert (ended["status"], ended["reason"]) == ("failed", "policy_denied")
    assert branches_of(origin) == ["main"]
    assert leaks(world, json.dumps(ended).encode()) == []


def test_a_secret_in_the_work_itself_is_not_pushed(world: World) -> None:
    origin = make_origin(world.work)
    world.ok("up", "--runners", "1")

    ended = world.wait_for(world.submit("echo $GITHUB_TOKEN > settings.txt", "--worktree"))

    assert (ended["status"], ended["reason"]) == ("failed", "policy_denied")
    assert "settings.txt contains a secret of this machine (GITHUB_TOKEN)" in ended["message"]
    assert branches_of(origin) == ["main"]
    assert leaks(world, stored(world)) == []


@pytest.mark.parametrize("name", ["AUTH_PROVIDER", "PROVIDER_TOKEN"])
def test_a_word_that_is_the_value_of_a_variable_is_published_in_the_name_of_a_branch(name: str, tmp_path: Path) -> None:
    person = {"GIT_AUTHOR_NAME": "Ada Lovelace 1815", "GIT_AUTHOR_EMAIL": "ada1815@example.test"}
    with living(tmp_path / "home", **person, **{name: "keycloak-v26"}) as world:
        origin = make_origin(world.work)
        work = 'echo "$GIT_AUTHOR_NAME <$GIT_AUTHOR_EMAIL>" > AUTHORS'

        ended = world.wait_for(world.submit(work, "--worktree", "--title", "Move to keycloak-v26"))

        assert (ended["status"], ended["reason"]) == ("completed", "done"), ended["message"]
        assert ended["result"]["branch"].startswith("move-to-keycloak-v26-")
        assert ended["result"]["branch"] in branches_of(origin)
        assert "Ada Lovelace" in run_git("show", f"{ended['result']['branch']}:AUTHORS", cwd=origin)
