"""Completion, asked as the script of a shell asks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from delegate.cli.commands.completion import SHELLS
from delegate.cli.main import main

ENTRY = """#!/bin/sh
exec '{python}' -m delegate "$@"
"""


def asked(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What may stand in the place of the last word."""
    monkeypatch.setenv("_DELEGATE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    assert main([]) == 0
    return [answer.removeprefix("plain,") for answer in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("delegate st", ["status"]),
        ("delegate config ", ["path", "set", "show"]),
        ("delegate config set --un", ["--unset"]),
        ("delegate --json status --js", ["--json"]),
        ("delegate completion ", list(SHELLS)),
        ("delegate nonsense --x", [""]),
        ("delegate help lo", ["login", "logout", "logs"]),
        ("delegate help schedule pa", ["pause"]),
        ("delegate help logs ", [""]),
        ("delegate config show cpu", ["cpu_threshold"]),
        ("delegate config set hea", ["heartbeat"]),
        ("delegate run -w sr", ["dir,sr"]),
        ("delegate run --prompt-file pl", ["file,pl"]),
        ("delegate backup de", ["file,de"]),
    ],
)
def test_commands_and_options_are_completed(
    line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(asked(line, monkeypatch, capsys)) == sorted(expected)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_it_can_read(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out

    assert f"_DELEGATE_COMPLETE={shell}_complete" in script
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        assert subprocess.run([shell, "-n", str(file)], check=False).returncode == 0


def test_in_bash_itself_a_command_is_completed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    main(["completion", "bash"])
    program = tmp_path / "delegate"
    program.write_text(ENTRY.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "script").write_text(capsys.readouterr().out)
    typed = "COMP_WORDS=(delegate sched); COMP_CWORD=1; _delegate_completion ./delegate; echo ${COMPREPLY[@]}"

    done = subprocess.run(
        ["bash", "-c", f". ./script; {typed}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout == "schedule\n"


def test_a_script_is_json_when_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "--json"]) == 0

    printed = json.loads(capsys.readouterr().out)
    assert (printed["shell"], "_DELEGATE_COMPLETE=bash_complete" in printed["script"]) == ("bash", True)


def test_another_shell_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
