from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes import acp_agent

from delegate.runner.agents.acp import Acp
from delegate.runner.agents.claude import Claude
from delegate.runner.agents.codex import Codex
from delegate.runner.agents.probes import Probe, can_start, claude_login, codex_provider, probe
from delegate.runner.agents.shell import Shell

pytestmark = pytest.mark.anyio
CLAUDE = Claude(command="claude", is_root=False)
CODEX = Codex(command="codex")

Install = Callable[..., dict[str, str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Make programs of these names from these scripts; returns the environment in which they are found."""

    def make(**scripts: str) -> dict[str, str]:
        for name, script in scripts.items():
            program = tmp_path / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        return {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path)}

    return make


async def test_what_is_not_installed_is_a_problem_with_a_fix(install: Install) -> None:
    environ = {**install(), "PATH": "/nowhere"}

    assert await probe(CLAUDE, environ) == Probe(
        problem="claude is not installed",
        fix="npm install -g @anthropic-ai/claude-code, or set DELEGATE_CLAUDE_COMMAND",
    )
    assert (await probe(Acp(command="no-agent --acp", is_root=False), environ)).problem is not None
    assert not await can_start(CLAUDE, environ)


async def test_a_shell_needs_nothing(install: Install) -> None:
    assert await probe(Shell(), install()) == Probe()
    assert await can_start(Shell(), install())


async def test_a_program_that_fails_is_a_problem_in_its_own_words(install: Install) -> None:
    environ = install(claude="echo 'Cannot find module x' >&2; exit 3")

    found = await probe(CLAUDE, environ)

    assert found.problem == "`claude --version` ended with exit code 3: Cannot find module x"
    assert not await can_start(CLAUDE, environ)


async def test_a_program_without_its_interpreter_does_not_work(install: Install, tmp_path: Path) -> None:
    environ = install(claude="")
    (tmp_path / "bin" / "claude").write_text("#!/no/such/interpreter\n")

    assert not await can_start(CLAUDE, environ)
    assert "could not be started" in str((await probe(CLAUDE, environ)).problem)


async def test_delegates_secrets_and_an_outer_session_stay_out(install: Install, tmp_path: Path) -> None:
    environ = install(claude=f"/usr/bin/env > {tmp_path}/seen; echo 1.0.0")

    assert await can_start(CLAUDE, {**environ, "DELEGATE_TOKEN": "secret-1", "CLAUDECODE": "1", "MINE": "kept"})

    seen = (tmp_path / "seen").read_text()
    assert "MINE=kept" in seen
    assert "secret-1" not in seen
    assert "CLAUDECODE" not in seen


async def test_claude_tells_its_version_and_whether_there_is_a_login(install: Install) -> None:
    environ = install(claude="echo '2.1.197 (Claude Code)'")

    without = await probe(CLAUDE, {**environ, "CLAUDE_CODE_USE_VERTEX": ""})
    with_key = await probe(CLAUDE, {**environ, "ANTHROPIC_API_KEY": "k"})

    assert (without.version, without.is_logged_in, without.problem) == ("2.1.197", False, "claude is not logged in")
    assert with_key == Probe(version="2.1.197", is_logged_in=True)


def test_a_login_may_lie_in_a_file_or_where_we_do_not_look(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / ".claude", tmp_path / "elsewhere"
    for place in (home, elsewhere):
        place.mkdir()
    environ = {"HOME": str(tmp_path)}
    assert claude_login(environ) is False

    (home / "settings.json").write_text('{"apiKeyHelper": "pass show key"}')
    assert claude_login(environ) is None
    (home / ".credentials.json").write_text("{}")
    assert claude_login(environ) is True
    assert claude_login({**environ, "CLAUDE_CONFIG_DIR": str(elsewhere)}) is False


CODEX_SCRIPT = """case "$*" in
  --version) echo 'codex-cli 0.166.0' ;;
  'login status') echo 'Not logged in' >&2; exit 1 ;;
  'debug models --bundled') echo '{"models":[{"slug":"gpt-5.5"},{"slug":"gpt-6"},{}]}' ;;
esac"""


async def test_codex_tells_its_version_its_models_and_its_login(install: Install, tmp_path: Path) -> None:
    environ = install(codex=CODEX_SCRIPT)

    found = await probe(CODEX, environ)
    assert (found.version, found.models) == ("0.166.0", ("gpt-5.5", "gpt-6"))
    assert (found.is_logged_in, found.problem) == (False, "codex is not logged in")
    assert (await probe(CODEX, {**environ, "CODEX_API_KEY": "k"})).is_logged_in

    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text('model_provider = "mine"\n')
    assert (await probe(CODEX, environ)) == Probe(version="0.166.0", models=("gpt-5.5", "gpt-6"))
    assert codex_provider({**environ, "CODEX_HOME": "/nowhere"}) == "openai"


async def test_another_agent_is_greeted_and_says_who_it_is(install: Install, tmp_path: Path) -> None:
    environ = install()
    acp_agent.install(tmp_path / "bin")
    agent = Acp(command="acp-agent", is_root=False)

    assert await probe(agent, environ) == Probe(version="1.2.3")
    assert await can_start(agent, environ)


@pytest.mark.parametrize(
    "script", ["exit 1", "echo no; read line; echo '{}'", """echo '{"id":1,"error":{}}'""", "kill -9 $$"]
)
async def test_a_program_that_does_not_speak_the_protocol_does_not_work(script: str, install: Install) -> None:
    environ = install(agent=script)
    agent = Acp(command="agent", is_root=False)

    assert (await probe(agent, environ)).problem == "`agent` does not speak the Agent Client Protocol"
    assert not await can_start(agent, environ)


async def test_an_agent_that_is_known_by_name_only_has_to_say_its_version(install: Install, tmp_path: Path) -> None:
    environ = install(opencode=f'echo "$@" >> {tmp_path}/calls')

    assert await can_start(Acp(command="opencode acp", is_root=False), environ)

    assert (tmp_path / "calls").read_text() == "--version\n"


@pytest.mark.real
@pytest.mark.parametrize("agent", [CLAUDE, CODEX], ids=["claude", "codex"])
async def test_the_real_programs_are_probed_without_a_model(agent: Claude | Codex, tmp_path: Path) -> None:
    if shutil.which(agent.command) is None:
        pytest.skip(f"{agent.command} is not installed")
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}

    found = await probe(agent, {**kept, "HOME": str(tmp_path)})

    assert found.version is not None
    assert found.version[0].isdigit()
    assert (found.is_logged_in, found.problem) == (False, f"{agent.name} is not logged in")
    assert await can_start(agent, {**kept, "HOME": str(tmp_path)})
