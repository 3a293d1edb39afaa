"""Work that was not pushed, as a person finds it again."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.runner.workspaces.conftest import BRANCH, LIMITS, LINEAGE, Scene, make_scene, never

from delegate.cli.commands.workspaces import format_size
from delegate.cli.main import main
from delegate.runner.workspaces.closing import close
from delegate.runner.workspaces.locks import lock_directory
from delegate.runner.workspaces.sweep import sweep

FOLDER = BRANCH.replace("/", "-")


async def scene_with_work(place: Path) -> Scene:
    made = await make_scene(place)
    workspace = await made.workspace()
    (workspace.tree / "src" / "app.py").write_text("print('bye')\n")
    (workspace.tree / "new.txt").write_text("new\n")
    assert await close(made.git, made.home, workspace, pushed=None)
    return made


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A home that keeps the work of one task."""
    made = anyio.run(scene_with_work, tmp_path)
    for name, value in {**made.env, "DELEGATE_HOME": str(made.home.root), "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return made


def test_a_machine_that_keeps_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELEGATE_HOME", str(tmp_path))

    assert main(["workspaces"]) == 0
    assert capsys.readouterr() == ("", "delegate: no work is kept: everything was pushed, or nothing was changed\n")


@pytest.mark.usefixtures("kept")
def test_what_is_kept_is_listed_with_its_size_and_its_age(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workspaces"]) == 0

    heading, row = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"WORKSPACE {8}SIZE +AGE +FILES  BRANCH +REPOSITORY +ALSO", heading)
    assert re.fullmatch(rf"{LINEAGE}  \d+ kB  \d\.\ds  2      {BRANCH}  remote", row)


def test_work_of_runners_that_are_paired_with_a_relay_elsewhere_is_found(
    kept: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "outer"
    (home / "profiles").mkdir(parents=True)
    (home / "profiles" / "default").symlink_to(kept.home.root)
    monkeypatch.setenv("DELEGATE_HOME", str(home))
    monkeypatch.setenv("DELEGATE_RELAY_URL", "https://relay.example")

    assert main(["workspaces"]) == 0
    assert LINEAGE in capsys.readouterr().out
    assert main(["workspaces", "restore", LINEAGE]) == 0
    assert (tmp_path / FOLDER / "new.txt").exists()
    assert main(["workspaces", "drop", "--yes", LINEAGE]) == 0
    capsys.readouterr()
    assert main(["workspaces"]) == 0
    assert "no work is kept on this machine" in capsys.readouterr().err


@pytest.mark.usefixtures("kept")
def test_the_list_as_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["workspaces", "--json"])

    [one] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    size, at = one.pop("size"), one.pop("at")
    assert one == {
        "lineage": LINEAGE,
        "taskIds": [LINEAGE],
        "repository": "remote",
        "branch": BRANCH,
        "files": 2,
        "elsewhere": [],
    }
    assert size > 0
    assert at.endswith("+00:00")


@pytest.mark.promise("P12")
def test_what_a_killed_restore_left_is_removed_but_not_what_one_uses(kept: Scene) -> None:
    left, used = kept.home.root / "restore-left", kept.home.root / "restore-used"
    (left / "publish-1" / "objects").mkdir(parents=True)
    lock = lock_directory(used)
    assert lock is not None

    anyio.run(partial(sweep, kept.git, kept.home, never, limits=LIMITS, now=datetime.now(UTC)))

    assert not left.exists()
    assert used.exists()
    lock.release()


@pytest.mark.promise("P12")
def test_a_restore_in_progress_is_not_swept(kept: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def look(*_: object) -> None:
        await sweep(kept.git, kept.home, never, limits=LIMITS, now=datetime.now(UTC))
        seen.extend(path.name for path in kept.home.root.glob("restore-*"))

    monkeypatch.setattr("delegate.runner.workspaces.kept.restore", look)

    assert main(["workspaces", "restore", LINEAGE]) == 0

    assert len(seen) == 1
    assert list(kept.home.root.glob("restore-*")) == []


@pytest.mark.promise("P12")
def test_kept_work_comes_back_as_a_repository(kept: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workspaces", "restore", LINEAGE]) == 0

    target = kept.place / FOLDER
    assert capsys.readouterr() == (
        f"{target}\n",
        f"delegate: {LINEAGE} is still kept\nhint: `delegate workspaces drop {LINEAGE}` removes it for good\n",
    )
    assert kept.run("rev-parse", "--abbrev-ref", "HEAD", cwd=target) == BRANCH
    assert kept.run("status", "--porcelain", cwd=target).split("\n") == ["M src/app.py", "?? new.txt"]
    assert (target / "src" / "app.py").read_text() == "print('bye')\n"


def test_kept_work_comes_back_where_one_wants_it(kept: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workspaces", "restore", "--json", LINEAGE, "elsewhere/deep"]) == 0

    printed = json.loads(capsys.readouterr().out)
    assert (printed["path"], printed["lineage"]) == (str(kept.place / "elsewhere" / "deep"), LINEAGE)
    assert (kept.place / "elsewhere" / "deep" / "new.txt").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["restore", "task-none"],
            5,
            "delegate: no work is kept for task-none\nhint: `delegate workspaces` lists kept work\n",
        ),
        (
            ["drop", "task-none"],
            5,
            "delegate: no work is kept for task-none\nhint: `delegate workspaces` lists kept work\n",
        ),
        (["restore", LINEAGE, "checkout"], 2, "delegate: directory: {place}/checkout is not empty; name another one\n"),
        (
            ["restore", LINEAGE, "checkout/README.md/x"],
            2,
            "delegate: directory: {place}/checkout/README.md/x cannot be written: not a directory\n",
        ),
        (
            ["drop", LINEAGE],
            2,
            "delegate: the request was refused: this deletes the only copy of the work; add --yes to confirm\n",
        ),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_lost(
    kept: Scene, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert main(["workspaces", *words]) == code

    assert capsys.readouterr().err == said.format(place=kept.place)
    assert [path.name for path in kept.home.salvage.iterdir()] == [LINEAGE]


def test_dropped_work_is_gone(kept: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workspaces", "drop", "--yes", LINEAGE]) == 0

    assert capsys.readouterr().out == f"{LINEAGE} dropped\n"
    assert not any(kept.home.salvage.iterdir())


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 kB"),
        (4_096, "4 kB"),
        (999_000, "999 kB"),
        (1_234_567, "1.2 MB"),
        (99_999_999, "100 MB"),
        (2**33, "8.6 GB"),
    ],
)
def test_a_size_is_short(size: int, shown: str) -> None:
    assert format_size(size) == shown
