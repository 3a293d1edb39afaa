"""A repository with one commit, cloned by hand, whose remote is a directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PERSON = {"GIT_AUTHOR_NAME": "A Person", "GIT_AUTHOR_EMAIL": "person@example.test"}
COMMITTER = {name.replace("AUTHOR", "COMMITTER"): value for name, value in PERSON.items()}


def run_git(*words: str) -> str:
    own = {**os.environ, **PERSON, **COMMITTER}
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True, env=own).stdout


def make_origin(clone: Path) -> Path:
    """Makes a repository of this directory; returns the bare one it was pushed to."""
    origin = clone.with_name(f"{clone.name}-origin.git")
    run_git("init", "--quiet", "--bare", "--initial-branch=main", str(origin))
    run_git("init", "--quiet", "--initial-branch=main", str(clone))
    run_git("-C", str(clone), "remote", "add", "origin", str(origin))
    run_git("-C", str(clone), "commit", "--quiet", "--allow-empty", "-m", "first")
    run_git("-C", str(clone), "push", "--quiet", "origin", "main")
    return origin


def branches_of(origin: Path) -> list[str]:
    return run_git("-C", str(origin), "for-each-ref", "--format=%(refname:short)", "refs/heads").split()
