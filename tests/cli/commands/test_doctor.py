"""`delegate doctor` on machines of every kind: with nothing, with half, with everything, and with each thing amiss."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import anyio
import pytest
from tests.cli.scripted_relay import ScriptedRelay, answer
from tests.fakes.world import World, wait_until
from tests.git import run_git
from tests.journeys.shop import needed, open_market

from delegate import __version__
from delegate.cli.commands.doctor import format_findings
from delegate.cli.render.terminal import OutputStyle
from delegate.config.home_files import PRIVATE_DIRECTORY
from delegate.config.settings import load
from delegate.runner.doctor.context import DoctorContext
from delegate.runner.doctor.examine import examine
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.process import supervisor
from delegate.runner.workspaces.journal import WorkspaceJournal, WorkspaceState, write_journal
from delegate.runner.workspaces.locks import lock_directory
from delegate.runner.workspaces.repositories import Base, repository

CLAUDE = "echo '2.1.197 (Claude Code)'"
CODEX = """case "$*" in
  --version) echo 'codex-cli 0.166.0' ;;
  'debug models --bundled') echo '{"models":[{"slug":"gpt-5.5"},{"slug":"gpt-6"}]}' ;;
esac"""
NO_RUNNERS = {"online": 0, "claiming": 0, "idle": 0, "total": 0}
RELAY = {"version": __version__, "pid": 1, "database": "sqlite", "tasks": {}, "runners": NO_RUNNERS, "processes": []}
RUNNER = {
    "id": "runner-1",
    "name": "vm-1",
    "pid": 2,
    "version": __version__,
    "agents": ["claude"],
    "state": "idle",
    "taskId": None,
    "seenAt": "2026-11-15T12:00:00+00:00",
}


class Machine:
    """A user's machine: what is on its PATH, in its home, and in the repository they stand in."""

    def __init__(self, root: Path) -> None:
        self.bin, self.user, self.work = root / "bin", root / "ada", root / "ada" / "shop"
        for directory in (self.bin, self.user, self.work):
            directory.mkdir()
        self.home = self.user / ".delegate"
        self.env = {"PATH": str(self.bin), "HOME": str(self.user), "COLUMNS": "80"}

    def install(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def install_real(self, *names: str) -> None:
        for name in names:
            (self.bin / name).symlink_to(str(shutil.which(name)))

    def git(self, *words: str) -> None:
        run_git(*words, cwd=self.work, env={**self.env, "PATH": os.environ["PATH"]})

    def have_git(self) -> None:
        self.install_real("git")
        self.git("config", "--global", "user.name", "Ada")
        self.git("config", "--global", "user.email", "ada@example.com")

    def have_clone(self, **files: str) -> None:
        """A checkout whose remote is a bare repository beside it."""
        self.have_git()
        self.git("init", "-q", "-b", "main")
        for name, text in files.items():
            (self.work / name.replace("_toml", ".toml").replace("dot_", ".")).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "Begin")
        self.git("clone", "-q", "--bare", ".", str(self.user / "shop.git"))
        self.git("remote", "add", "origin", str(self.user / "shop.git"))

    def run(self, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "delegate", "doctor", *options]
        return subprocess.run(
            command, cwd=self.work, env={**self.env, **more}, text=True, capture_output=True, stdin=subprocess.DEVNULL
        )

    def findings(self, **more: str) -> dict[str, Finding]:
        """By part and subject; of several the last."""
        environ = {**self.env, **more}
        with tempfile.TemporaryDirectory() as scratch:
            case = DoctorContext(
                settings=load({"DELEGATE_HOME": str(self.home), **environ}),
                environ=environ,
                directory=self.work,
                scratch=Path(scratch),
                now=datetime.now(UTC),
                is_root=os.geteuid() == 0,
            )
            return {f"{one.section}: {one.subject}": one for one in anyio.run(examine, case)}


@pytest.fixture
def machine() -> Iterator[Machine]:
    root = Path(tempfile.mkdtemp(prefix="dr-"))
    yield Machine(root)
    shutil.rmtree(root)


def levels(found: dict[str, Finding], *subjects: str) -> list[str]:
    return [found[subject].level for subject in subjects]


def plain(text: str) -> str:
    """Without what differs from machine to machine."""
    text = re.sub(r"(  note     permissions +)agents run .*?\n\n", r"\1…\n\n", text, flags=re.S)
    return re.sub(r"\d+\.\d GiB free", "N GiB free", text)


NOTHING = """\
home
  ok       home         ~/.delegate, created when it is first needed
  ok       disk         N GiB free

git
  problem  git          is not installed: tasks cannot work in a worktree
                        fix: install git 2.32 or newer, for example with
                        `apt install git` or `brew install git`

agents
  problem  claude       is not installed
                        fix: npm install -g @anthropic-ai/claude-code, or set
                        DELEGATE_CLAUDE_COMMAND
  note     codex        is not installed
                        fix: npm install -g @openai/codex, or set
                        DELEGATE_CODEX_COMMAND
  note     permissions  …

relay
  note     relay        is not running; the first task or `delegate up` starts
                        it

this repository
  note     directory    ~/shop is not in a git repository: tasks here work in
                        place
  ok       next task    claude (the default), its own default model

pull requests
  note     gh           is not installed: `--pr` pushes a branch, but opens no
                        pull request
                        fix: install gh from https://cli.github.com, then
                        `gh auth login`

leftovers
  ok       processes    none
  ok       kept work    none

fix first: git is not installed: tasks cannot work in a worktree; install git
2.32 or newer, for example with `apt install git` or `brew install git`
"""
HALF = """\
home
  ok       home            ~/.delegate, created when it is first needed
  ok       disk            N GiB free

git
  ok       git             VERSION
  ok       author          Ada <ada@example.com>

agents
  problem  claude          is not logged in (version 2.1.197)
                           fix: start `claude` once and log in, or set
                           ANTHROPIC_API_KEY
  note     codex           is not installed
                           fix: npm install -g @openai/codex, or set
                           DELEGATE_CODEX_COMMAND
  note     permissions     …

relay
  note     relay           is not running; the first task or `delegate up`
                           starts it

this repository
  ok       remote          ~/shop.git, default branch main
  ok       .delegate.toml  1 setup command, 1 check
  ok       next task       claude (.delegate.toml), model sonnet-4-5
                           (.delegate.toml)

pull requests
  note     gh              is not installed: `--pr` pushes a branch, but opens
                           no pull request
                           fix: install gh from https://cli.github.com, then
                           `gh auth login`

leftovers
  ok       processes       none
  ok       kept work       none

fix first: claude is not logged in (version 2.1.197); start `claude` once and
log in, or set ANTHROPIC_API_KEY
"""
FILE = 'model = "sonnet-4-5"\nsetup = ["cd ."]\nchecks = ["git fsck"]\n'


def test_on_a_machine_with_nothing(machine: Machine) -> None:
    done = machine.run()

    assert (done.returncode, plain(done.stdout), done.stderr) == (1, NOTHING, "")
    assert sorted(path.name for path in machine.user.rglob("*")) == ["shop"]


def test_on_a_machine_with_half(machine: Machine) -> None:
    machine.install("claude", CLAUDE)
    machine.have_clone(dot_delegate_toml=FILE)

    done = machine.run()

    shown = re.sub(r"(?m)^(  ok       git +)[\d.]+$", r"\1VERSION", plain(done.stdout))
    assert (done.returncode, shown, done.stderr) == (1, HALF, "")
    assert not machine.home.exists()


EVERYTHING = """\
home
  ok       home            HOME
  ok       token           only you can read it
  ok       disk            N GiB free
  ok       size            SIZE

git
  ok       git             VERSION
  ok       author          Ada <ada@example.com>

agents
  ok       claude          VERSION, logged in
  ok       codex           VERSION, login not checked, models MODELS
  ok       acp:claude-agent-acp
                           is installed
  ok       acp:opencode acp
                           VERSION
  ok       codex sandbox   works
  note     permissions     …

relay
  ok       relay           http://127.0.0.1:PORT, version VERSION
  ok       clock           agrees with the relay's
  ok       token           accepted
  ok       database        sqlite
  ok       runners         1 (1 idle)

this repository
  ok       remote          https://github.com/acme/shop.git, default branch main
  ok       login           git has a login for github.com
  ok       .delegate.toml  0 setup commands, 1 check
  ok       next task       claude (the default), its own default model

pull requests
  ok       gh              VERSION
  ok       login           github.com as a-person

leftovers
  ok       processes       none
  ok       kept work       none

nothing found that would make a task fail
"""


def without_numbers(text: str, home: Path) -> str:
    shown = re.sub(r"checked, models\b.*(?:\n {27}.*)*", "checked, models MODELS", plain(text))
    shown = re.sub(r"(?<![\d.])\d+\.\d+\.\d+(?![\d.])", "VERSION", shown)
    shown = re.sub(r"(?m)^(  ok       size +).*$", r"\1SIZE", shown)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", shown).replace(str(home), "HOME")


@pytest.mark.real
@pytest.mark.slow
def test_on_a_machine_with_everything(tmp_path: Path) -> None:
    needed("claude", "codex", "claude-agent-acp", "opencode", "gh")
    with open_market(tmp_path, COLUMNS="80", PATH=os.environ["PATH"]) as market:
        world, clone = market.world, tmp_path / "clone"
        market.github.seed("acme/shop", {".delegate.toml": 'checks = ["git fsck"]\n'})
        for words in (
            ("clone", "-q", "https://github.com/acme/shop.git", str(clone)),
            ("config", "--global", "credential.helper", "store"),
            ("config", "--global", "user.name", "Ada"),
            ("config", "--global", "user.email", "ada@example.com"),
        ):
            run_git(*words, cwd=tmp_path, env=world.environment)
        # The runner tries the agents one after the other; its own trials would hold up the doctor's.
        wait_until(lambda: any("acp:opencode acp" in runner["agents"] for runner in world.info()["processes"]))

        done = subprocess.run(
            [sys.executable, "-m", "delegate", "doctor"],
            cwd=clone,
            env=world.environment,
            text=True,
            capture_output=True,
        )

    assert (done.returncode, without_numbers(done.stdout, market.world.home), done.stderr) == (0, EVERYTHING, "")
    assert market.claude.requests == market.codex.requests == []


def test_as_json_each_finding_is_one_object_that_says_what_which_and_how_to_fix_it(machine: Machine) -> None:
    done = machine.run("--json")

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert {tuple(one) for one in found} == {("level", "part", "subject", "message", "fix")}
    assert all(one["fix"] for one in found if one["level"] == "problem")


@pytest.mark.parametrize("width", [80, 40])
def test_no_line_is_wider_than_the_screen(machine: Machine, width: int) -> None:
    machine.install("claude", CLAUDE)
    machine.have_clone(dot_delegate_toml=FILE)

    lines = machine.run(COLUMNS=str(width)).stdout.splitlines()

    assert [line for line in lines if len(line) > width] == []


def test_on_a_narrow_screen_a_finding_is_a_block() -> None:
    findings = [
        DoctorSection.GIT.ok("git", "2.39.5"),
        DoctorSection.GIT.warning("author", "user.name is not set", "`git config --global user.name …`"),
    ]

    narrow = format_findings(findings, OutputStyle(width=40, colour=False, now=datetime.now(UTC)))

    assert narrow == [
        "git",
        "ok git  2.39.5",
        "warning author",
        "  user.name is not set",
        "  fix: `git config --global user.name …`",
    ]


def test_a_terminal_gets_colours_and_a_long_name_a_line_of_its_own() -> None:
    findings = [
        DoctorSection.AGENTS.ok("acp:opencode acp", "1.18.18"),
        DoctorSection.AGENTS.problem("acp:claude-agent-acp", "does not run: Cannot find module x"),
    ]

    shown = format_findings(findings, OutputStyle(width=60, colour=True, now=datetime.now(UTC)))

    assert shown == [
        "\x1b[1magents\x1b[0m",
        "  \x1b[32mok     \x1b[0m  acp:opencode acp",
        "             1.18.18",
        "  \x1b[31mproblem\x1b[0m  acp:claude-agent-acp",
        "             does not run: Cannot find module x",
    ]


def test_a_terminal_that_knows_ascii_only_is_enough(machine: Machine) -> None:
    machine.have_git()
    machine.git("config", "--global", "user.name", "Åda")

    done = machine.run(LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")

    assert (done.returncode, done.stderr) == (1, "")
    assert "  ok       author       " in done.stdout


def test_a_setting_that_cannot_be_read_is_the_first_to_fix(machine: Machine) -> None:
    done = machine.run(DELEGATE_LEASE="soon")

    assert done.returncode == 1
    assert done.stdout.splitlines()[:2] == [
        "settings",
        "  problem  DELEGATE_LEASE  soon: must be a positive number of seconds",
    ]
    assert "\nfix first: DELEGATE_LEASE soon: must be a positive number of seconds;\nDELEGATE_LEASE: " in done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cpu_threshold = \n", "is not valid TOML: "),
        ("grace = true\n", ", line 1: grace: must be "),
        ('token = "secret-of-mine"\n', " can be read by other users"),
    ],
)
def test_a_settings_file_that_cannot_be_read_is_reported_and_the_rest_is_examined(
    machine: Machine, text: str, said: str
) -> None:
    machine.home.mkdir(mode=PRIVATE_DIRECTORY)
    (machine.home / "config.toml").write_text(text)
    (machine.home / "config.toml").chmod(0o644)

    done = machine.run("--json", DELEGATE_LEASE="soon")

    file, lease, *rest = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (1, "")
    assert [(one["level"], one["subject"]) for one in (file, lease)] == [
        ("problem", "config.toml"),
        ("problem", "DELEGATE_LEASE"),
    ]
    assert f"{machine.home}/config.toml" in file["message"]
    assert said in file["message"]
    assert {one["part"] for one in rest} >= {"home", "git", "agents", "relay", "this repository"}


def test_names_of_secrets_are_shown_but_no_values(machine: Machine) -> None:
    machine.install("claude", 'echo "bad key $ANTHROPIC_API_KEY for $HOST_URL" >&2; exit 1')
    machine.have_clone()
    machine.git("remote", "set-url", "origin", "https://ada:hunter2-hunter2@127.0.0.1:1/acme/shop.git")
    secrets = {"ANTHROPIC_API_KEY": "sk-ant-0123456789abcdef", "HOST_URL": "https://x:pass-word-9@host/"}

    printed = machine.run(**secrets).stdout + machine.run("--json", **secrets).stdout

    assert "[redacted: ANTHROPIC_API_KEY]" in printed
    assert [word for word in ("0123456789abcdef", "hunter2", "pass-word-9") if word in printed] == []


# Agents.


def test_the_agent_of_the_next_task_must_work_and_others_need_not(machine: Machine) -> None:
    machine.install("claude", "exit 3")
    machine.install("codex", CODEX)
    machine.have_clone(dot_delegate_toml='agent = "codex"\nmodel = "gpt-6"\n')

    found = machine.findings(CODEX_API_KEY="k")

    assert levels(found, "agents: codex", "agents: codex sandbox", "agents: claude") == ["ok", "ok", "warning"]
    assert found["agents: codex"].message == "0.166.0, logged in, models gpt-5.5, gpt-6"
    assert found["this repository: next task"].message == (
        "codex (.delegate.toml), model gpt-6 (.delegate.toml); in place: claude (the default)"
    )


def test_the_agent_of_the_settings_is_the_one_that_must_work(machine: Machine) -> None:
    machine.have_clone()
    machine.home.mkdir(mode=PRIVATE_DIRECTORY)
    (machine.home / "config.toml").write_text('default_agent = "codex"\n')

    of_file, of_variable = machine.findings(), machine.findings(DELEGATE_DEFAULT_AGENT="shell")

    assert levels(of_file, "agents: claude", "agents: codex") == ["note", "problem"]
    assert of_file["this repository: next task"].message == "codex (the relay's settings), its own default model"
    assert levels(of_variable, "agents: claude", "agents: codex") == ["note", "note"]
    assert of_variable["this repository: next task"].message == "shell (the caller's settings)"
    assert machine.run(DELEGATE_DEFAULT_AGENT="shell").returncode == 0


def test_the_file_of_a_repository_wins_over_the_agent_of_the_settings(machine: Machine) -> None:
    machine.install("codex", CODEX)
    machine.have_clone(dot_delegate_toml='agent = "codex"\n')

    found = machine.findings(DELEGATE_DEFAULT_AGENT="shell", CODEX_API_KEY="k")

    assert found["this repository: next task"].message == (
        "codex (.delegate.toml), its own default model; in place: shell (the caller's settings)"
    )


def test_a_sandbox_that_does_not_run_is_a_problem_for_codex(machine: Machine) -> None:
    machine.install("codex", f'case "$1" in sandbox) echo "no namespaces" >&2; exit 1 ;; esac; {CODEX}')
    machine.have_clone(dot_delegate_toml='agent = "codex"\n')

    found = machine.findings(CODEX_API_KEY="k")["agents: codex sandbox"]

    assert (found.level, found.message) == (
        "problem",
        "does not work on this machine, so codex cannot run commands: no namespaces",
    )
    assert "bypassPermissions" in found.fix


def test_what_agents_may_do_unattended_is_said(machine: Machine) -> None:
    machine.install("claude", CLAUDE)
    found = machine.findings()["agents: permissions"]
    refused = machine.findings(IS_SANDBOX="0")["agents: permissions"]

    assert (found.level, "unattended" in found.message) == ("note", True)
    assert refused.level == ("problem" if os.geteuid() == 0 else "note")


def test_an_agent_that_no_runner_looks_for_is_a_problem(machine: Machine) -> None:
    machine.have_clone(dot_delegate_toml='agent = "acp:mine --acp"\n')

    found = machine.findings()["agents: acp:mine --acp"]

    assert (found.level, "DELEGATE_ACP_AGENTS" in found.fix) == ("problem", True)
    assert found.message.startswith("is chosen by .delegate.toml, ")


def test_an_agent_of_the_settings_that_no_runner_looks_for_is_a_problem(machine: Machine) -> None:
    found = machine.findings(DELEGATE_DEFAULT_AGENT="acp:mine --acp")["agents: acp:mine --acp"]

    assert (found.level, "DELEGATE_ACP_AGENTS" in found.fix) == ("problem", True)
    assert found.message.startswith("is chosen by the caller's settings, ")


@pytest.mark.slow
def test_a_program_that_hangs_is_left_alone_after_a_while(machine: Machine) -> None:
    machine.install("claude", "exec /bin/sleep 600")
    machine.install("gh", "exec /bin/sleep 600")

    found = machine.findings()

    assert found["agents: claude"].message == "did not answer within 8 s"
    assert levels(found, "agents: claude", "pull requests: gh") == ["warning", "warning"]


# The repository.


def test_a_repository_file_that_cannot_be_read_names_file_line_and_key(machine: Machine) -> None:
    machine.have_clone(dot_delegate_toml='agent = "claude"\nchecks = "pytest"\n')

    found = machine.findings()["this repository: .delegate.toml"]

    assert found.level == "problem"
    assert found.message.startswith(".delegate.toml, line 2: checks must be a list of strings")


@pytest.mark.parametrize(("kind", "said"), [("link", "is a symbolic link"), ("pipe", "is not a regular file")])
def test_a_repository_file_that_is_a_link_or_a_pipe_is_not_opened(machine: Machine, kind: str, said: str) -> None:
    machine.have_clone()
    path = machine.work / ".delegate.toml"
    path.symlink_to("other.toml") if kind == "link" else os.mkfifo(path)

    found = machine.findings()["this repository: .delegate.toml"]

    assert (found.level, said in found.message) == ("problem", True), found


def test_a_file_that_cannot_be_read_leaves_open_who_would_work(machine: Machine) -> None:
    machine.have_clone(dot_delegate_toml="agent = codex\n")

    assert machine.findings()["this repository: next task"].level == "note"


def test_a_repository_that_git_refuses_is_a_problem(machine: Machine) -> None:
    machine.have_clone()
    (machine.work / ".git" / "config").write_text("[core\n")

    found = machine.findings()["this repository: repository"]

    assert (found.level, "cannot be used as a repository" in found.message) == ("problem", True)


def test_preferences_that_no_agent_can_fulfil_are_a_problem(machine: Machine) -> None:
    machine.have_clone(dot_delegate_toml='agent = "codex"\nmodel = "sonnet-4-5"\n')

    found = machine.findings()["this repository: next task"]

    assert (found.level, "sonnet-4-5 is not a Codex model" in found.message) == ("problem", True)


def test_a_file_that_is_not_committed_is_not_what_tasks_read(machine: Machine) -> None:
    machine.have_clone()
    (machine.work / ".delegate.toml").write_text("draft = true\n")

    assert machine.findings()["this repository: .delegate.toml"].level == "note"


def test_missing_programs_and_missing_files_to_copy_are_reported(machine: Machine) -> None:
    file = 'setup = ["no-such-tool sync"]\nchecks = ["brought-by-setup -q"]\n'
    machine.have_clone(dot_delegate_toml=file, dot_worktreeinclude="# secrets\n.env\n")

    found = machine.findings()

    assert found["this repository: setup"].message == "`no-such-tool sync` needs no-such-tool, which is not on PATH"
    assert levels(found, "this repository: setup", "this repository: checks") == ["problem", "warning"]
    assert found["this repository: .worktreeinclude"].message == "1 pattern"


def test_a_remote_that_cannot_be_reached_is_a_problem_in_gits_own_words(machine: Machine) -> None:
    machine.have_clone()
    shutil.rmtree(machine.user / "shop.git")

    found = machine.findings()["this repository: remote"]

    assert (found.level, "does not appear to be a git repository" in found.message) == ("problem", True)


def test_an_https_remote_wants_a_credential_helper(machine: Machine) -> None:
    machine.have_clone()
    machine.git("remote", "set-url", "origin", "https://127.0.0.1:1/acme/shop.git")

    without = machine.findings()["this repository: login"]
    machine.git("config", "--global", "credential.helper", "store")
    with_helper = machine.findings()["this repository: login"]

    assert (without.level, with_helper.level) == ("warning", "ok")


def test_on_github_pull_requests_need_gh_and_its_login(machine: Machine) -> None:
    machine.have_clone()
    machine.git("remote", "set-url", "origin", "https://github.com/acme/shop.git")
    machine.git("config", "--global", "http.proxy", "http://127.0.0.1:1")

    missing = machine.findings()["pull requests: gh"]
    machine.install("gh", 'test "$1" = --version && echo "gh version 2.50.0"')
    logged_out = machine.findings()

    assert (missing.level, "and then fail" in missing.message) == ("problem", True)
    assert levels(logged_out, "pull requests: gh", "pull requests: login") == ["ok", "problem"]
    assert logged_out["pull requests: login"].fix == "`gh auth login --hostname github.com`"


def test_a_git_that_is_too_old_is_a_problem(machine: Machine) -> None:
    machine.install("git", 'test "$1" = --version && echo "git version 2.25.1"')

    assert machine.findings()["git: git"].level == "problem"


# The home and what is left in it.


def test_a_disk_below_the_floors_is_a_problem(machine: Machine) -> None:
    runner = machine.findings(DELEGATE_RUNNER_MIN_FREE=str(1 << 50))["home: disk"]
    relay = machine.findings(DELEGATE_RELAY_MIN_FREE=str(1 << 50))["home: disk"]

    assert (runner.level, "runners claim no tasks" in runner.message) == ("problem", True)
    assert (relay.level, "the relay accepts no tasks" in relay.message) == ("problem", True)


def test_a_home_that_others_can_enter_and_a_token_that_they_can_read_are_reported(machine: Machine) -> None:
    machine.home.mkdir()
    machine.home.chmod(0o755)
    (machine.home / "token").write_text("0123456789abcdef\n")
    (machine.home / "token").chmod(0o644)

    found = machine.findings()

    assert (found["home: home"].level, found["home: home"].fix) == ("warning", "`chmod 700 ~/.delegate`")
    assert (found["home: token"].level, "chmod" in found["home: token"].fix) == ("problem", True)


def test_a_process_that_outlived_its_attempt_is_named(machine: Machine) -> None:
    mark = {"DELEGATE_ATTEMPT_ID": "att-1", "DELEGATE_HOME": str(machine.home)}
    elsewhere = {**mark, "DELEGATE_HOME": "/elsewhere"}
    orphan, other = (subprocess.Popen(["sleep", "600"], env={**os.environ, **env}) for env in (mark, elsewhere))

    shown = [json.loads(line) for line in machine.run("--json").stdout.splitlines()]
    for process in (orphan, other):
        process.send_signal(signal.SIGKILL)
        process.wait()

    found = next(one for one in shown if one["subject"] == "processes")
    assert (found["level"], found["message"]) == ("warning", f"{orphan.pid}: left by an attempt that has ended")
    assert f"kill {orphan.pid}" in found["fix"]


def test_a_process_that_only_names_the_supervisor_is_none(machine: Machine) -> None:
    env = {**os.environ, "DELEGATE_ATTEMPT_ID": "att-1", "DELEGATE_HOME": str(machine.home)}
    command = ["sh", "-c", "read line", supervisor.__file__]

    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as orphan:
        shown = [json.loads(line) for line in machine.run("--json").stdout.splitlines()]

    found = next(one for one in shown if one["subject"] == "processes")
    assert (found["level"], found["message"]) == ("warning", f"{orphan.pid}: left by an attempt that has ended")


@pytest.mark.parametrize(("days", "level"), [(3, "note"), (13, "warning")])
def test_unpushed_work_is_reported_with_its_age(machine: Machine, days: int, level: str) -> None:
    place = machine.home / "salvage" / "task-1"
    place.mkdir(parents=True, mode=PRIVATE_DIRECTORY)
    write_journal(place, kept(datetime.now(UTC) - timedelta(days=days, hours=1)))

    found = machine.findings()["leftovers: kept work"]

    assert found.level == level
    assert f"the oldest {days} days old: task-1 (acme/shop)" in found.message


def test_an_unused_workspace_is_reported(machine: Machine) -> None:
    place = machine.home / "workspaces" / "task-1"
    place.mkdir(parents=True, mode=PRIVATE_DIRECTORY)
    write_journal(place, kept(datetime.now(UTC)))

    found = machine.findings()["leftovers: workspaces"]

    assert (found.level, found.message) == ("note", "1 unused workspace: task-1")


def test_a_workspace_in_which_a_runner_works_is_in_use_whatever_the_relay_knows(machine: Machine) -> None:
    place = machine.home / "workspaces" / "task-1"
    place.mkdir(parents=True, mode=PRIVATE_DIRECTORY)
    write_journal(place, kept(datetime.now(UTC)))
    lock = lock_directory(place)

    found = machine.findings()["leftovers: workspaces"]

    assert lock is not None
    lock.release()
    assert (found.level, found.message) == ("ok", "1 in use")


def kept(at: datetime) -> WorkspaceJournal:
    return WorkspaceJournal(
        lineage="task-1",
        state=WorkspaceState.READY,
        repository=repository("https://github.com/acme/shop.git"),
        base=Base(branch="main", commit="0" * 40),
        branch="delegate/task-1",
        tasks=("task-1",),
        at=at,
    )


# The relay.


def findings_with(relay: ScriptedRelay, machine: Machine) -> dict[str, Finding]:
    return machine.findings(DELEGATE_RELAY_URL=relay.url, DELEGATE_TOKEN="a-token-of-that-relay")


def dated(value: object, at: datetime) -> bytes:
    head, _, body = answer(value).partition(b"\r\n\r\n")
    return head + b"\r\nDate: " + format_datetime(at, usegmt=True).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(("seconds", "level"), [(0, "ok"), (-30, "note"), (30, "note"), (-600, "problem")])
def test_the_clock_of_the_relay_is_compared_with_ours(machine: Machine, seconds: int, level: str) -> None:
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    with ScriptedRelay([dated({**RELAY, "processes": [RUNNER]}, at)]) as relay:
        found = findings_with(relay, machine)

    assert levels(found, "relay: clock", "relay: relay", "relay: token") == [level, "ok", "ok"]


def test_a_relay_of_another_version_and_a_silent_runner_are_warnings(machine: Machine) -> None:
    silent = {
        **RUNNER,
        "name": "vm-2",
        "state": "silent",
        "seenAt": (datetime.now(UTC) - timedelta(hours=3)).isoformat(),
    }
    with ScriptedRelay([answer({**RELAY, "version": "0.0.1", "processes": [RUNNER, silent]})]) as relay:
        found = findings_with(relay, machine)

    assert levels(found, "relay: relay", "relay: runners") == ["warning", "warning"]
    assert found["relay: runners"].message == "vm-2 has been silent for 3 hours"


@pytest.mark.parametrize(
    ("reply", "subject"),
    [
        (answer({"type": "unauthenticated", "detail": "no"}, "401 Unauthorized"), "relay: token"),
        (answer({"type": "rate_limited", "detail": "wait"}, "429 Too Many Requests"), "relay: relay"),
        (answer({"type": "host_refused", "detail": "not this name"}, "403 Forbidden"), "relay: relay"),
        (answer([]), "relay: relay"),
        (b"SSH-2.0-OpenSSH\r\n\r\n\r\n", "relay: relay"),
        (b"", "relay: relay"),
        (answer(RELAY), "relay: runners"),
        (answer({**RELAY, "processes": [{**RUNNER, "state": "silent"}]}), "relay: runners"),
    ],
    ids=[
        "wrong token",
        "too many wrong tokens",
        "wrong name",
        "no relay",
        "no HTTP",
        "no answer",
        "no runner",
        "all silent",
    ],
)
def test_a_relay_that_cannot_be_used_is_a_problem(machine: Machine, reply: bytes, subject: str) -> None:
    with ScriptedRelay([reply]) as relay:
        found = findings_with(relay, machine)

    assert found[subject].level == "problem"


def test_a_relay_elsewhere_has_runners_if_one_is_online(machine: Machine) -> None:
    with ScriptedRelay([answer({**RELAY, "runners": {**NO_RUNNERS, "online": 2, "total": 3}})]) as relay:
        found = findings_with(relay, machine)["relay: runners"]

    assert (found.level, found.message) == ("ok", "2 online")


@pytest.mark.slow
def test_a_relay_that_says_nothing_is_a_problem(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        found = machine.findings(DELEGATE_RELAY_URL=url, DELEGATE_TOKEN="a-token-of-that-relay")["relay: relay"]

    assert (found.level, found.message) == ("problem", f"{url} does not answer: timed out")


def test_a_runner_that_was_started_where_the_agent_is_not_is_a_problem(machine: Machine) -> None:
    machine.install("claude", CLAUDE)
    with ScriptedRelay([answer({**RELAY, "processes": [{**RUNNER, "agents": ["shell"]}]})]) as relay:
        found = findings_with(relay, machine)["relay: runners"]

    assert (found.level, found.message) == ("problem", "no runner finds claude, so the next task would wait")


def test_a_relay_that_runs_is_asked_and_one_that_does_not_is_not_started(busy_world: World, machine: Machine) -> None:
    wait_until(lambda: len(busy_world.info()["processes"]) == 2)

    running = machine.findings(DELEGATE_HOME=str(busy_world.home))
    stopped = machine.findings()

    subjects = ("relay: relay", "relay: clock", "relay: token", "relay: database", "relay: runners", "home: token")
    assert levels(running, *subjects) == ["ok"] * 6
    assert running["relay: runners"].message == "2 (2 idle)"
    assert stopped["relay: relay"].level == "note"
    assert not machine.home.exists()
