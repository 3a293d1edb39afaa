"""Repositories to work on: a bare one that is everybody's origin, a user's clone of it, and plain git beside us."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.product import clean_environment, workplace

SMALL, MEDIUM, HUGE = 20, 2_000, 100_000  # files
PER_DIRECTORY = 50
LINES = 40  # of a file, some 1.5 kB; where there are very many, it is their number that costs
FEW_LINES = 2
MEMORY = Path("/dev/shm")
MEMORY_LEAST = 4 * 1024**3  # bytes free
CONFIG = "[user]\n\tname = Bench\n\temail = bench@example.org\n[init]\n\tdefaultBranch = main\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """`clone` is the user's, whose tasks we take; in `plain` nobody but git itself works."""

    place: Path
    files: int
    environment: dict[str, str]

    @property
    def bare(self) -> Path:
        return self.place / "origin.git"

    @property
    def clone(self) -> Path:
        return self.place / "clone"

    @property
    def plain(self) -> Path:
        return self.place / "plain"

    def git(self, *words: str, cwd: Path, feed: bytes = b"") -> None:
        done = subprocess.run(
            ["git", *words], cwd=cwd, env=self.environment, input=feed, capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"git {' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")

    def add_worktree(self, name: str) -> Path:
        """As by hand: what is new, and a tree of it on a branch of its own."""
        tree = self.place / "trees" / name
        self.git("fetch", "-q", "origin", cwd=self.plain)
        self.git("worktree", "add", "-q", "--no-track", "-b", name, str(tree), "origin/main", cwd=self.plain)
        return tree

    def drop_worktree(self, name: str) -> None:
        shutil.rmtree(self.place / "trees" / name)
        self.git("worktree", "prune", cwd=self.plain)
        self.git("branch", "-q", "-D", name, cwd=self.plain)

    def drop_branch(self, name: str) -> None:
        """Of the origin: the next fetch should find as little as the one before."""
        self.git("update-ref", "-d", f"refs/heads/{name}", cwd=self.bare)


@contextmanager
def in_memory() -> Iterator[Path]:
    """A place for our files and plain git's, on the disk only if there is no other.

    Every repeat makes and deletes a tree, and some disks make files forty times slower for minutes after files were
    deleted there. What a flush costs cannot be seen here.
    """
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_LEAST:
        with workplace() as place:
            yield place
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="delegate-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def origin(place: Path, files: int, more: Mapping[str, str] | None = None) -> Iterator[Origin]:
    """Gone afterwards: a hundred thousand files are in the way of whatever is measured next."""
    place.mkdir()
    config = place / "gitconfig"
    config.write_text(CONFIG)
    environment = {**git_environment(), "GIT_CONFIG_GLOBAL": str(config), "GIT_CONFIG_NOSYSTEM": "1"}
    made = Origin(place=place, files=files, environment=environment)
    try:
        made.git("init", "-q", "--bare", str(made.bare), cwd=place)
        made.git("fast-import", "--quiet", cwd=made.bare, feed=history(files, more or {}))
        for clone in (made.clone, made.plain):
            made.git("clone", "-q", "--no-checkout", str(made.bare), str(clone), cwd=place)
        yield made
    finally:
        shutil.rmtree(place, ignore_errors=True)


def git_environment() -> dict[str, str]:
    """Without what another git around us may have set."""
    return {name: value for name, value in clean_environment().items() if not name.startswith("GIT_")}


def history(files: int, more: Mapping[str, str]) -> bytes:
    """One commit, as `git fast-import` reads it."""
    head = b"commit refs/heads/main\ncommitter Bench <bench@example.org> 1767225600 +0000\ndata 5\nfirst\n"
    lines = LINES if files <= MEDIUM else FEW_LINES
    numbered = (_file(f"{_directory(number)}/file-{number}.txt", _text(number, lines)) for number in range(files))
    named = (_file(path, text) for path, text in more.items())
    return head + b"".join((*numbered, *named)) + b"\ndone\n"


def _directory(number: int) -> str:
    inner = number // PER_DIRECTORY
    return f"part-{inner // PER_DIRECTORY}/{inner}"


def _text(number: int, lines: int) -> str:
    return "".join(f"line {line} of file {number}, and no other\n" for line in range(lines))


def _file(path: str, text: str) -> bytes:
    data = text.encode()
    return b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(data), data)


def work_in(tree: Path, number: int) -> None:
    """What an agent leaves: a file changed, and one made."""
    changed = tree / "part-0" / "0" / "file-0.txt"
    changed.write_text(f"{changed.read_text()}change {number}\n")
    (tree / f"new-{number}.txt").write_text("new\n" * 20)
