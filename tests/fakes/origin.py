"""A repository with one commit, cloned by hand, whose remote is a directory."""

from __future__ import annotations

from pathlib import Path

from tests.git import run_git


def make_origin(clone: Path) -> Path:
    """Makes a repository of this directory; returns the bare one it was pushed to."""
    origin = clone.with_name(f"{clone.name}-origin.git")
    run_git("init", "--quiet", "--bare", "--initial-branch=main", origin, cwd=clone)
    run_git("init", "--quiet", "--initial-branch=main", cwd=clone)
    run_git("remote", "add", "origin", origin, cwd=clone)
    run_git("commit", "--quiet", "--allow-empty", "-m", "first", cwd=clone)
    run_git("push", "--quiet", "origin", "main", cwd=clone)
    return origin


def branches_of(origin: Path) -> list[str]:
    return run_git("for-each-ref", "--format=%(refname:short)", "refs/heads", cwd=origin).split()
