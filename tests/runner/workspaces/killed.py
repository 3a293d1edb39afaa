"""An attempt's way through its workspace, with SIGKILL at one point of it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from tests.runner.workspaces.conftest import LINEAGE, Scene

from delegate import failpoints
from delegate.runner import workspaces
from delegate.runner.workspaces.closing import close
from delegate.runner.workspaces.saving import save
from delegate.runner.workspaces.worktrees import release_workspace

PACKAGE = Path(workspaces.__file__).parent
SOURCES = "".join(path.read_text() for path in sorted(PACKAGE.glob("*.py")))
POINTS = sorted(set(re.findall(r'failpoint\("([^"]+)"\)', SOURCES)))


def evidence(number: int) -> dict[bytes, bytes]:
    """What the agent of the attempt with this number leaves uncommitted."""
    return {
        b"src/app.py": b"print('%d')\r\n" % number,
        b"new-%d.txt" % number: b"new\0\xff",
        b"odd-%d-\xff\n name" % number: b"odd",
        b"nested-%d/file" % number: b"nested",
    }


def agent_at_work(scene: Scene, tree: Path, number: int) -> None:
    (tree / f"committed-{number}.txt").write_text("committed\n")
    scene.run("add", "-A", cwd=tree)
    scene.run("commit", "-qm", f"by agent {number}", cwd=tree)
    nested = tree / f"nested-{number}"
    scene.run("init", "-q", str(nested), cwd=tree)
    scene.run("commit", "-q", "--allow-empty", "-m", "nested", cwd=nested)
    for name, content in evidence(number).items():
        (tree / os.fsdecode(name)).write_bytes(content)
    (scene.place / f"worked-{number}").touch()


async def attempt(scene: Scene, number: int) -> None:
    workspace = await scene.workspace()
    agent_at_work(scene, workspace.tree, number)
    await save(scene.git, workspace)
    await close(scene.git, scene.home, workspace, pushed=None)


async def lost_attempt(scene: Scene, number: int) -> None:
    workspace = await scene.workspace()
    agent_at_work(scene, workspace.tree, number)
    release_workspace(workspace)


def killed_at(point: str, act: Callable[[], Awaitable[None]]) -> bool:
    """Run it in a process of its own that ends at the point; False when it does not come by there."""
    child = os.fork()
    if child == 0:
        failpoints.ARMED[point] = ("kill", "")
        try:
            anyio.run(act)
        finally:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def worked(scene: Scene) -> list[int]:
    return sorted(int(path.name.removeprefix("worked-")) for path in scene.place.glob("worked-*"))


def missing(scene: Scene, tree: Path) -> list[str]:
    """What agents did and the tree does not hold."""
    numbers = worked(scene)
    wanted = {name: content for number in numbers for name, content in evidence(number).items()}
    found = {name: tree / os.fsdecode(name) for name in wanted}
    lost = [ascii(name) for name, path in found.items() if not path.exists() or path.read_bytes() != wanted[name]]
    subjects = scene.run("log", "--format=%s", cwd=tree).splitlines()
    return lost + [f"commit {number}" for number in numbers if f"by agent {number}" not in subjects]


__all__ = ["LINEAGE", "POINTS", "attempt", "killed_at", "lost_attempt", "missing", "worked"]
