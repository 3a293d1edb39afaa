from __future__ import annotations

import pytest
from tests.runner.publishing.conftest import Site

from delegate.runner.publishing.change import Stats, change_of, cut_patch, read_diff
from delegate.wire.basics import PATCH_MAX

pytestmark = pytest.mark.anyio


async def test_a_change_has_its_patch_and_its_numbers(site: Site) -> None:
    site.write("src/app.py", "print('changed')\nprint('more')\n")
    (site.tree / "src" / "old.py").unlink()
    commit = str(await site.commit())

    change, stats = await change_of(site.git, site.workspace, commit)

    assert (change.base_commit, change.commit, change.is_cut) == (site.base, commit, False)
    assert change.patch.startswith("diff --git a/src/app.py b/src/app.py\n")
    assert "+print('more')\n" in change.patch
    assert (stats.files, stats.additions, stats.deletions) == (2, 2, 2)
    assert stats.paths == ("src/app.py", "src/old.py")


async def test_the_patch_makes_the_commit_from_the_base(site: Site) -> None:
    site.write("new\nline.txt", "a\nb\n")
    site.write("src/app.py", "print('changed')")
    (site.tree / "README.md").rename(site.tree / "READ.md")
    (site.tree / "run").chmod(0o644)
    (site.tree / "link").unlink()
    site.write("link", "now a file\n")
    commit = str(await site.commit())

    change, _ = await change_of(site.git, site.workspace, commit)

    (site.workspace.root / "patch").write_text(change.patch)
    site.agent("stash", "-qu")
    site.agent("apply", "--index", str(site.workspace.root / "patch"))
    assert site.agent("write-tree") == site.kept("rev-parse", f"{commit}^{{tree}}")


async def test_binary_files_are_counted_by_their_size(site: Site) -> None:
    (site.tree / "image.png").write_bytes(b"\x89PNG\0" + bytes(5000))
    commit = str(await site.commit())

    change, stats = await change_of(site.git, site.workspace, commit)

    assert stats.changed[0].is_binary
    assert 5005 <= stats.size < 6000
    assert "Binary files" in change.patch


async def test_links_are_shown_with_their_target_even_when_only_moved(site: Site) -> None:
    (site.tree / "deep").mkdir()
    (site.tree / "link").rename(site.tree / "deep" / "link")
    (site.tree / "src" / "app.py").unlink()
    (site.tree / "src" / "app.py").symlink_to("old.py\nand more")
    commit = str(await site.commit())

    _, stats = await change_of(site.git, site.workspace, commit)

    assert {file.path: file.target for file in stats.changed} == {
        "deep/link": "README.md",
        "src/app.py": "old.py\nand more",
    }


async def test_added_lines_belong_to_their_file(site: Site) -> None:
    site.write("a.txt", "diff --git a/x b/x\n+++ b/x\n@@ -1 +1 @@\n")
    (site.tree / "link").unlink()
    site.write("link", "of the former link\n")
    site.write("z.txt", "last\n")
    commit = str(await site.commit())

    _, stats = await change_of(site.git, site.workspace, commit)

    assert {file.path: file.added for file in stats.changed} == {
        "a.txt": b"diff --git a/x b/x\n+++ b/x\n@@ -1 +1 @@",
        "link": b"\nof the former link",
        "z.txt": b"last",
    }


async def test_attributes_of_the_tree_do_not_hide_a_change(site: Site) -> None:
    site.write(".gitattributes", "*.txt -diff\n*.txt binary\n")
    site.write("hidden.txt", "shown all the same\n")
    commit = str(await site.commit())

    change, _ = await change_of(site.git, site.workspace, commit)

    assert "+shown all the same\n" in change.patch


def test_no_change_is_an_empty_patch() -> None:
    assert read_diff(b"") == (b"", Stats())


def test_a_long_patch_is_cut_at_the_end_of_a_line() -> None:
    text, is_cut = cut_patch(b"+0123456789\n" * PATCH_MAX)

    assert is_cut
    assert PATCH_MAX - 12 <= len(text) <= PATCH_MAX
    assert text.endswith("+0123456789\n")


def test_a_patch_of_wide_characters_is_measured_in_characters() -> None:
    text, is_cut = cut_patch("+ä\n".encode() * (PATCH_MAX // 3))

    assert not is_cut
    assert len(text) == PATCH_MAX // 3 * 3


def test_bytes_that_are_not_text_are_replaced() -> None:
    assert cut_patch(b"+\xff\0\n") == ("+\ufffd\ufffd\n", False)
