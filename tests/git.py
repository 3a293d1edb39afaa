"""How the tests run git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

TIMEOUT = 60  # seconds; a push to the GitHub stand-in is the slowest command
PERSON = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in {"NAME": "A Person", "EMAIL": "person@example.test"}.items()
}


def run_git(*arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None, input: bytes = b"") -> str:
    """What git prints, without white space around it. Git must succeed."""
    done = try_git(*arguments, cwd=cwd, env=env, input=input)
    assert done.returncode == 0, f"git {arguments[0]}: {done.stderr.decode(errors='replace')}"
    return done.stdout.decode(errors="surrogateescape").strip()


def try_git(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None, input: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Without an environment, git inherits that of the tests and gets an identity for commits."""
    own = {**os.environ, **PERSON} if env is None else env
    return subprocess.run(
        ["git", *arguments], cwd=cwd, env=own, input=input, capture_output=True, timeout=TIMEOUT, check=False
    )
