"""The real Codex program against a scripted model, started, read and judged as an attempt does it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes.openai_standin import OpenAIStandin
from tests.fakes.world import wait_until
from tests.git import run_git
from tests.runner.agents.codex_turns import SESSION, codex_turn

from delegate.model import EventKind, Outcome, Usage
from delegate.runner.agents import AgentTurn, Ending, Fact, Roots
from delegate.runner.agents.codex import Codex
from delegate.runner.agents.codex_reading import CodexReading
from delegate.runner.process.agent_process import AgentProcess, Command, become_subreaper, launch, start_spare
from delegate.states import AttemptState, Reason

pytestmark = [pytest.mark.real, pytest.mark.anyio]
LAUNCHER, NATIVE = shutil.which("codex"), shutil.which("codex-native")
CODEX = Codex(command="codex")
COMMIT = "echo made > made.txt && git add made.txt && git commit -q -m 'Make it'"
FEW_RETRIES = "request_max_retries = 0\nstream_max_retries = 1\n"
# The sandbox leaves the machine's folder for temporary files open, and the tests live in it.
NO_TEMPORARY = """
[sandbox_workspace_write]
exclude_slash_tmp = true
exclude_tmpdir_env_var = true
"""
AUTHOR = {"NAME": "A User", "EMAIL": "user@example.com"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    outcome: Outcome
    facts: list[Fact]
    reading: CodexReading


class Bench:
    """A user's machine with Codex configured to speak to the stand-in."""

    def __init__(self, home: Path, model: OpenAIStandin) -> None:
        self.model = model
        self.work = home / "work"
        self.work.mkdir()
        self.codex_home = home / ".codex"
        self.codex_home.mkdir()
        (self.codex_home / "config.toml").write_text(model.codex_config() + FEW_RETRIES + NO_TEMPORARY)
        git = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in AUTHOR.items()}
        own = {"HOME": str(home), "CODEX_HOME": str(self.codex_home), "STANDIN_API_KEY": "test-key"}
        self.environ = {**os.environ, **git, **own, "GIT_CONFIG_GLOBAL": "/dev/null"}

    def plays(self, *steps: dict[str, Any], **more: Any) -> None:
        self.model.define("default", {"steps": list(steps), **more})

    def asked(self) -> list[dict[str, Any]]:
        return [request["body"] for request in self.model.requests if request.get("kind") == "main"]

    def git(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        return run_git(*arguments, cwd=cwd or self.work, env=self.environ)

    def checkout(self) -> None:
        self.git("init", "-q", "-b", "main")
        (self.work / "calc.py").write_text("def add(a, b):\n    return a - b\n")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "one")

    async def start(self, turn: AgentTurn, cwd: Path | None = None) -> AgentProcess:
        made = CODEX.invocation(turn, self.environ)
        process = await launch(await start_spare(), Command(argv=made.argv, cwd=cwd or self.work, env=made.env))
        await process.send(made.initial_input)
        if not made.keep_input_open:
            await process.close_input()
        return process

    async def run(self, turn: AgentTurn, cwd: Path | None = None) -> Ran:
        reading, facts = CODEX.reading(turn), []
        process = await self.start(turn, cwd)
        try:
            with anyio.fail_after(60):
                while True:
                    stream, data = await process.receive()
                    facts += reading.feed(stream, data)
        except anyio.EndOfStream:
            ended = await process.wait()
        finally:
            await process.aclose()
        return Ran(outcome=reading.judge(ended, Ending.EXITED, datetime.now(UTC)), facts=facts, reading=reading)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    if LAUNCHER is None:
        pytest.skip("codex is not installed")
    become_subreaper()
    with OpenAIStandin({}) as model:
        yield Bench(tmp_path, model)


def test_the_native_program_is_found_from_the_launcher(bench: Bench) -> None:
    if LAUNCHER is None or NATIVE is None:
        pytest.skip("codex is not installed by npm")

    program = CODEX.program(bench.environ)

    assert Path(LAUNCHER).resolve().suffix == ".js"
    assert program == str(Path(NATIVE).resolve())


async def test_codex_edits_runs_commits_in_a_worktree_and_writes_nowhere_else(bench: Bench, tmp_path: Path) -> None:
    bench.checkout()
    roots = Roots(tree=tmp_path / "lineage" / "tree", git_dir=tmp_path / "lineage" / "git")
    bench.git("clone", "-q", "--bare", bench.work, roots.git_dir)
    bench.git("worktree", "add", "-q", "-b", "delegate/fix", roots.tree, cwd=roots.git_dir)
    patch = "*** Begin Patch\n*** Update File: calc.py\n@@\n-    return a - b\n+    return a + b\n*** End Patch"
    outside = tmp_path / "outside.txt"
    bench.plays(
        {"patch": patch},
        {"shell": f"git commit -q -a -m 'Fix add' ; touch {outside} ; touch {roots.tree}/left.txt"},
        {"text": "Fixed add."},
    )

    ran = await bench.run(codex_turn("Fix add.", workspace=roots, model="gpt-5.5", effort="high"), roots.tree)

    assert (ran.outcome.state, ran.outcome.message) == (AttemptState.COMPLETED, "codex finished: Fixed add.")
    assert ran.reading.summary == "Fixed add."
    assert bench.git("log", "--format=%s", "main..delegate/fix", cwd=roots.tree) == "Fix add"
    assert (roots.tree / "calc.py").read_text().endswith("return a + b\n")
    assert (roots.tree / "left.txt").exists()
    assert not outside.exists()
    assert bench.git("status", "--porcelain") == ""
    assert [fact.data["name"] for fact in ran.facts if fact.kind is EventKind.TOOL] == ["edit", "shell"]
    assert {(body["model"], body["reasoning"]["effort"]) for body in bench.asked()} == {("gpt-5.5", "high")}


async def test_in_place_codex_can_commit_too(bench: Bench) -> None:
    bench.checkout()
    bench.plays({"shell": COMMIT}, {"text": "Made."})

    ran = await bench.run(codex_turn(working_directory=str(bench.work)))

    assert ran.outcome.reason is Reason.DONE
    assert bench.git("log", "-1", "--format=%s") == "Make it"


@pytest.mark.promise("P22")
@pytest.mark.parametrize("linked", [False, True], ids=["checkout", "linked worktree"])
async def test_in_place_codex_commits_but_cannot_make_the_users_git_run_anything(
    bench: Bench, tmp_path: Path, linked: bool
) -> None:
    bench.checkout()
    git, place = bench.work / ".git", bench.work
    if linked:
        place = tmp_path / "linked"
        bench.git("worktree", "add", "-q", "-b", "own", place)
    shutil.rmtree(git / "hooks")
    before = (git / "config").read_bytes()
    attacks = [
        f"cd {place}",
        "git config core.fsmonitor /tmp/payload",
        f"mkdir -p {git}/hooks && echo payload > {git}/hooks/pre-commit",
        f"mv {git}/config {git}/config.old",
        f"echo '[core]fsmonitor=/tmp/payload' > {git}/config.worktree",
        f"mkdir -p {git}/info && echo '* filter=payload' > {git}/info/attributes",
        COMMIT,
    ]
    bench.plays({"shell": "\n".join(attacks)}, {"text": "Made."})

    ran = await bench.run(codex_turn(working_directory=str(place)), place)

    assert ran.outcome.reason is Reason.DONE
    assert bench.git("log", "-1", "--format=%s", cwd=place) == "Make it"
    assert (git / "config").read_bytes() == before
    assert not any((git / name).exists() for name in ("hooks", "config.worktree", "config.old", "info/attributes"))


async def test_commands_reach_the_network(bench: Bench) -> None:
    url = bench.model.base_url()
    bench.plays({"shell": f"python3 -c \"import urllib.request as u; u.urlopen('{url}/x')\" 2>&1"}, {"text": "Looked."})

    await bench.run(codex_turn(working_directory=str(bench.work)))

    assert "/v1/x" in [request["path"] for request in bench.model.requests]


async def test_a_plan_writes_nothing(bench: Bench) -> None:
    bench.plays({"shell": "touch made.txt"}, {"text": "Here is the plan."})

    ran = await bench.run(codex_turn(permission_mode="plan", working_directory=str(bench.work)))

    assert ran.reading.summary == "Here is the plan."
    assert list(bench.work.iterdir()) == []


async def test_a_second_turn_remembers_the_first_and_counts_only_itself(bench: Bench) -> None:
    bench.plays({"shell": "true"}, {"text": "The word is quince."}, {"text": "Quince."})
    first = await bench.run(codex_turn("Think of a fruit.", working_directory=str(bench.work)))

    session, spent = first.outcome.session_id, first.outcome.usage
    second = await bench.run(codex_turn("-- which?", session=session, spent=spent, working_directory=str(bench.work)))

    assert second.outcome.session_id == session
    assert "The word is quince." in str(bench.asked()[-1]["input"])
    assert spent == Usage(input_tokens=200, output_tokens=40, turns=1)
    assert second.outcome.usage == Usage(input_tokens=100, output_tokens=20, turns=1)


async def test_a_resumed_turn_is_in_the_sandbox_as_well(bench: Bench, tmp_path: Path) -> None:
    bench.plays({"text": "Hello."}, {"shell": f"touch {tmp_path}/outside.txt inside.txt"}, {"text": "Tried."})
    first = await bench.run(codex_turn())

    await bench.run(codex_turn("Try.", session=first.outcome.session_id, working_directory=str(bench.work)))

    assert (bench.work / "inside.txt").exists()
    assert not (tmp_path / "outside.txt").exists()


async def test_a_session_that_is_not_there_is_missing(bench: Bench) -> None:
    ran = await bench.run(codex_turn(session=SESSION))

    assert ran.reading.session_missing
    assert ran.outcome.session_id is None


async def test_a_session_whose_file_is_damaged_is_missing(bench: Bench) -> None:
    bench.plays({"text": "Hello."})
    first = await bench.run(codex_turn())
    for transcript in bench.codex_home.rglob("rollout-*"):
        transcript.write_text("garbage\n")

    again = await bench.run(codex_turn(session=first.outcome.session_id))

    assert again.reading.session_missing


async def test_a_usage_limit_parks_until_it_resets(bench: Bench) -> None:
    reset = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(days=2)
    limit = {"status": 429, "type": "usage_limit_reached", "plan_type": "plus", "resets_at": int(reset.timestamp())}
    bench.plays({"error": limit})

    ran = await bench.run(codex_turn())

    assert (ran.outcome.state, ran.outcome.reason) == (AttemptState.RELEASED, Reason.USAGE_LIMIT)
    assert ran.outcome.not_before == reset + timedelta(minutes=1)


async def test_an_error_that_passes_does_not_fail_a_good_run(bench: Bench) -> None:
    bench.plays({"drop": "mid", "text": "Half an answ"}, {"text": "A whole answer."})

    ran = await bench.run(codex_turn())

    assert (ran.outcome.reason, ran.reading.summary) == (Reason.DONE, "A whole answer.")
    assert [fact.kind for fact in ran.facts].count(EventKind.WARNING) == 1


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"steps": [], "models": ["other"]}, Reason.UNKNOWN_MODEL),
        ({"steps": [], "api_keys": ["another"]}, Reason.NOT_LOGGED_IN),
        ({"steps": [{"error": {"status": 503, "message": "Overloaded"}, "repeat": -1}]}, Reason.OVERLOADED),
        ({"steps": [{"error": {"status": 429, "code": "insufficient_quota"}, "repeat": -1}]}, Reason.AGENT_ERROR),
        ({"steps": [{"failed": {"code": "context_length_exceeded", "message": "x"}}]}, Reason.CONTEXT_TOO_LONG),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_failure_of_the_real_program_gets_its_class(
    bench: Bench, script: dict[str, Any], reason: Reason
) -> None:
    bench.model.define("default", script)

    ran = await bench.run(codex_turn(model="gpt-5.5"))

    assert (ran.outcome.state, ran.outcome.reason) == (AttemptState.FAILED, reason)


async def test_a_prompt_of_140_kilobytes_that_starts_with_a_dash_arrives_whole(bench: Bench) -> None:
    bench.plays({"text": "Read."})
    prompt = "--help " + "y" * 140_000 + " the end"

    ran = await bench.run(codex_turn(prompt))

    assert ran.outcome.reason is Reason.DONE
    assert prompt in str(bench.asked()[0]["input"])


@pytest.mark.promise("P11")
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_nothing_of_a_codex_that_was_ended_lives_on(bench: Bench, how: str) -> None:
    bench.plays({"shell": "touch began; sleep 600"}, {"text": "never"})
    turn = codex_turn(attempt_id=f"att-{os.urandom(8).hex()}", working_directory=str(bench.work))
    process = await bench.start(turn)
    await anyio.to_thread.run_sync(wait_until, (bench.work / "began").exists)
    before = marked(turn)

    if how == "stop":
        await process.stop(timedelta(seconds=5))
    else:
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    await process.aclose()

    assert len(before) > 1
    assert marked(turn) == []


def marked(turn: AgentTurn) -> list[str]:
    """The commands of all processes that carry the attempt's id."""
    marker = f"DELEGATE_ATTEMPT_ID={turn.assignment.attempt_id}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().decode())
        except OSError:  # it has just ended
            continue
    return found
