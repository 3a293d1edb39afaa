"""`delegate demo --linear`: an issue is delegated, and Linear and the runner are shown while it is done."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from delegate.cli.commands.runner_logs import LogFiles
from delegate.cli.demo import claude_standin
from delegate.cli.demo.linear_standin import CLIENT_ID, CLIENT_SECRET, WEBHOOK_SECRET, LinearStandin
from delegate.cli.demo.stage import DemoDisplay, DemoSandbox
from delegate.cli.demo.work import BUG, TEST_COMMAND, git_environment
from delegate.client.client import Client

if TYPE_CHECKING:
    from delegate.client.responses import TaskData

KEY, TITLE = "PER-44", "Read the discount as a percentage"
DESCRIPTION = f"In shop.py, {BUG}. Fix it with the smallest change; `{TEST_COMMAND}` must pass. Do not change the test."
PROJECT, REPOSITORY = "shop", "acme/shop"
LABELS = {"claude": ("delegate:claude",), "codex": ("delegate:codex",)}
SCRIPTED = ("delego:claude-sonnet-4-5", "delegate:high")  # for the stand-in of the agent
PROGRAM = "#!/bin/sh\nexec '{python}' -I -S '{file}' \"$@\"\n"
STORY_TIMEOUT = 900.0  # seconds; a real agent takes minutes
LAST_LINE_TIMEOUT = 5.0  # seconds between the end in Linear and the runner's last line
LAST_LINES = {"posted to linear", "queued for linear"}
POLL = 0.05


def open_linear(agent: str) -> LinearStandin:
    labels = LABELS.get(agent, SCRIPTED)
    return LinearStandin(key=KEY, title=TITLE, description=DESCRIPTION, project=PROJECT, labels=labels)


def equip(sandbox: DemoSandbox, linear: LinearStandin, agent: str) -> DemoSandbox:
    """Point the demo's Delegate to the stand-ins, and the name of the repository to the one in the sandbox."""
    names = {f"url.{sandbox.remote}.insteadOf": f"https://github.com/{REPOSITORY}.git"}
    environ = {**sandbox.environ, **git_environment(names), "DELEGATE_LINEAR_API_URL": linear.url}
    if agent not in LABELS:
        program = sandbox.root / "claude"
        file = Path(claude_standin.__file__).resolve()
        program.write_text(PROGRAM.format(python=sys.executable, file=file))
        program.chmod(0o700)
        environ["DELEGATE_CLAUDE_COMMAND"] = str(program)
    return replace(sandbox, environ=environ)


def show_issue(display: DemoDisplay, linear: LinearStandin, agent: str) -> None:
    who = agent if agent in LABELS else "a stand-in that plays claude"
    facts = {
        "Linear": f"a stand-in at {linear.url}; no account is used",
        "issue": f"{KEY} {TITLE} · {linear.state}",
        "labels": ", ".join(LABELS.get(agent, SCRIPTED)),
        "repository": f"{REPOSITORY}, from the project {PROJECT}",
        "agent": who,
    }
    display.show_facts("An issue in Linear", facts)


def follow_issue(display: DemoDisplay, client: Client, sandbox: DemoSandbox, linear: LinearStandin) -> TaskData:
    """Connect, delegate the issue, and show both sides until Linear has the end."""
    credentials = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "webhookSecret": WEBHOOK_SECRET}
    client.linear("connect", {"kind": "client_credentials", **credentials})
    client.linear("map", {"project": PROJECT, "repository": REPOSITORY})
    display.show_heading("What Linear sees, and what the runner does")
    linear.webhook_url = f"{client.url}/webhooks/linear"
    linear.delegate_issue()
    runner = LogFiles(sandbox.home.logs)
    deadline, is_last = time.monotonic() + STORY_TIMEOUT, False
    while not is_last and time.monotonic() < deadline:
        if linear.final is not None:
            deadline = min(deadline, time.monotonic() + LAST_LINE_TIMEOUT)
        lines = [("runner", entry) for entry in runner.read_new()]  # first: its last line follows Linear's last one
        lines += [("Linear", linear.seen.get()) for _ in range(linear.seen.qsize())]
        for side, entry in sorted(lines, key=lambda line: str(line[1]["at"])):
            display.show_side(side, entry)
            is_last = is_last or entry["message"] in LAST_LINES
        time.sleep(POLL)
    return client.tasks(limit=1)["tasks"][0]
