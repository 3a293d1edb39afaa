from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.runner.publishing.conftest import Site

from delegate.runner.publishing.change import BYTES_MAX, ChangedFile, Stats, change_of
from delegate.runner.publishing.policy import (
    DENIALS_MAX,
    FILES_MAX,
    PROTECTED,
    PolicyVerdict,
    PublishRules,
    judge,
    leaves_tree,
)
from delegate.runner.workspaces.classify import SkippedPath, SkipReason

GITHUB_TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def changed(path: str, **fields: object) -> ChangedFile:
    given = {
        "path": path,
        "name": path.encode(),
        "mode": "100644",
        "old_mode": "100644",
        "blob": "0" * 40,
        "is_binary": False,
        "added": b"",
        "is_new": False,
    }
    return ChangedFile(**{**given, **fields})  # type: ignore[arg-type]  # fields by name


def verdict(*files: ChangedFile, protected: tuple[str, ...] = (), odd: tuple[SkippedPath, ...] = ()) -> PolicyVerdict:
    return judge(Stats(changed=files), PublishRules(protected=protected, skipped=odd))


def test_a_plain_change_is_neither_denied_nor_protected() -> None:
    assert verdict(changed("src/app.py", added=b"print(1)\n")) == PolicyVerdict(denied=(), protected=())


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("home", "/root"),
        ("up", ".."),
        ("a/up", "../../x"),
        ("a/b/up", "./../.././../x"),
        ("config", ".git/config"),
        ("a/config", "../.GIT/hooks"),
        ("through", "src/../../x"),
        ("hidden", "sub/.git/config"),
    ],
)
def test_links_that_leave_the_tree_are_denied(path: str, target: str) -> None:
    assert verdict(changed(path, mode="120000", target=target)).denied == (
        f"{path} is a link to {target}, outside of the repository",
    )


@pytest.mark.parametrize(
    ("path", "target"),
    [("a/b", "../README.md"), ("self", "self"), ("here", "."), ("x", ".gitignore"), ("a/b/c", "../../d"), ("e", "")],
)
def test_links_that_stay_in_the_tree_are_not(path: str, target: str) -> None:
    assert not leaves_tree(path, target)


@pytest.mark.parametrize(
    "path", [".GIT/config", "git~1", "a/.git/hooks/x", ".git.", ".git::$INDEX_ALLOCATION", "a\\.git\\x"]
)
def test_names_of_gits_own_are_denied(path: str) -> None:
    assert verdict(changed(path)).denied == (f"{path} has a name that git reserves",)


def test_what_is_removed_is_not_denied() -> None:
    assert verdict(changed(".GIT/config", mode="000000"), changed("link", mode="000000")).denied == ()


def test_too_many_files_are_denied() -> None:
    files = tuple(changed(f"f{number}") for number in range(FILES_MAX + 1))

    assert verdict(*files).denied == ("the change has 5,001 files; the maximum is 5,000",)


def test_too_many_bytes_are_denied() -> None:
    denied = judge(Stats(changed=(changed("x"),), size=BYTES_MAX + 1), PublishRules()).denied

    assert denied == ("the change has 200,000,001 bytes; the maximum is 200,000,000",)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"token = '{GITHUB_TOKEN}'", "GitHub token"),
        ("AWS_KEY=AKIAQ3EGT7WXYZ12345B", "AWS key"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq8\nabcdefghijklmnopqrstuvwxyz0123456789\n",
            "private key",
        ),
    ],
)
def test_secrets_in_added_lines_are_denied_without_being_repeated(text: str, kind: str) -> None:
    denied = verdict(changed("settings.py", added=text.encode())).denied

    assert denied == (f"settings.py contains what looks like a secret ({kind})",)


def test_a_secret_in_a_name_is_denied_without_being_repeated() -> None:
    found = verdict(changed(f"{GITHUB_TOKEN}.txt", is_new=True, added=GITHUB_TOKEN.encode()))

    assert found.denied == ("the name of a file contains what looks like a secret (GitHub token)",)
    assert verdict(changed(f"{GITHUB_TOKEN}.txt")).denied == ()


def test_carried_files_are_denied_unless_they_are_gone() -> None:
    stats = Stats(changed=(changed(".env"), changed("gone.env", mode="000000"), changed("sub/.env")))

    denied = judge(stats, PublishRules(carried=frozenset({b".env", b"gone.env"}))).denied

    assert denied == (".env was copied from your checkout; such files are not published",)


def test_examples_of_secrets_are_not_denied() -> None:
    assert verdict(changed("docs.md", added=b"use ghp_" + b"x" * 36)).denied == ()


@pytest.mark.parametrize(
    "text", ["\tupdate = !touch /tmp/x", "url = ext::sh -c id", "  path = .git/hooks", 'url = "-oProxyCommand=id"']
)
def test_submodules_that_run_programs_are_denied(text: str) -> None:
    found = verdict(changed(".gitmodules", added=f'[submodule "x"]\n{text}\n'.encode()))

    assert found.denied == (".gitmodules sets a command, a URL or a path that can run programs",)


def test_a_plain_submodule_is_protected_and_not_denied() -> None:
    added = b'[submodule "lib"]\n\tpath = lib\n\turl = https://example.com/lib.git\n'

    found = verdict(changed(".gitmodules", added=added), changed("lib", mode="160000", old_mode="000000"))

    assert found == PolicyVerdict(denied=(), protected=(".gitmodules",))


def test_a_repository_without_an_entry_is_denied() -> None:
    found = verdict(changed("vendor/lib", mode="160000", old_mode="000000"))

    assert found.denied == ("vendor/lib is a nested repository without an entry in .gitmodules",)


def test_of_what_a_snapshot_found_odd_only_what_is_dangerous_is_denied() -> None:
    odd = tuple(SkippedPath(path=kind.name, kind=kind) for kind in SkipReason)

    assert verdict(odd=odd).denied == (
        "OVERSIZED is larger than 2 GiB",
        "RESERVED_NAME has a name that git reserves",
        "SHARED is a hard link to a file outside of the change",
    )


def test_only_the_first_sentences_are_reported() -> None:
    files = [changed(f"link{number}", mode="120000", target="/") for number in range(DENIALS_MAX + 5)]

    denied = verdict(*files).denied

    assert len(denied) == DENIALS_MAX + 1
    assert denied[-1] == "and 5 more"


def test_a_name_cannot_write_to_a_terminal() -> None:
    denied = verdict(changed("\x1b]0;x\x07", mode="120000", target="/")).denied

    assert denied == ("\\x1b]0;x\\x07 is a link to /, outside of the repository",)


@pytest.mark.parametrize(
    "path",
    [
        ".github/workflows/ci.yml",
        ".GitHub/workflows/ci.yml",
        ".gitlab-ci.yml",
        ".husky/pre-commit",
        "tools/hooks/pre-commit",
        "hooks/pre-push",
        ".claude/settings.json",
        "packages/app/.claude/settings.json",
        ".codex/config.toml",
        ".mcp.json",
        "sub/.mcp.json",
        ".delegate.toml",
    ],
)
def test_what_decides_about_programs_is_protected(path: str) -> None:
    assert verdict(changed(path)).protected == (path,)


@pytest.mark.parametrize(
    "path", ["src/hooks/useThing.ts", "docs/.github.md", "githubx/y", "x.gitlab-ci.yml", ".claudex", "mcp.json"]
)
def test_what_only_looks_similar_is_not(path: str) -> None:
    assert verdict(changed(path)).protected == ()


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("deploy/", "deploy/a/b"),
        ("deploy", "deploy/a"),
        ("/infra/*.tf", "infra/main.tf"),
        ("**/*.sql", "a/b/c.sql"),
        ("**/*.sql", "c.sql"),
        ("secrets?.txt", "secrets1.txt"),
        ("a/**/z", "a/b/c/z"),
        ("a/**/z", "a/z"),
        ("a/**", "a/b/c"),
        ("**", "a/b"),
        ("**/a/*x", "a/b/a/1x"),
        ("*a*a*z", "bababz"),
        ("**/x*/**/y", "p/x1/q/r/y/below"),
        ("we[i]rd(name", "we[i]rd(name"),
    ],
)
def test_a_repository_protects_its_own_paths(pattern: str, path: str) -> None:
    assert verdict(changed(path), protected=(pattern,)).protected == (path,)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("infra/*.tf", "infra/a/main.tf"),
        ("deploy/", "deployment/x"),
        ("deploy/", "deploy"),
        ("a?b", "a/b"),
        ("a/**", "a"),
        ("*a*a*z", "bacz"),
        ("b", "a/b"),
        ("ab", "abc"),
    ],
)
def test_a_pattern_stays_in_its_place(pattern: str, path: str) -> None:
    assert verdict(changed(path), protected=(pattern,)).protected == ()


@pytest.mark.parametrize(("stars", "path"), [("**/" * 60 + "x", "a/" * 500 + "y"), ("*a" * 100 + "*x", "a" * 255)])
def test_a_row_of_stars_is_read_in_one_go(stars: str, path: str) -> None:
    assert verdict(changed(path), protected=(stars,)).protected == ()


def test_removing_a_protected_file_is_reported_too() -> None:
    assert verdict(changed(PROTECTED[1], mode="000000")).protected == (PROTECTED[1],)


@pytest.mark.anyio
async def test_links_and_hard_links_in_a_real_tree_are_judged(site: Site, tmp_path: Path) -> None:
    for name, target in {
        "home": str(tmp_path),
        "up": "../..",
        "git": ".git/config",
        "one": "two",
        "two": "one",
    }.items():
        (site.tree / name).symlink_to(target)
    (tmp_path / "key").write_text("k\n")
    os.link(tmp_path / "key", site.tree / "key")
    snapshot = await site.take()
    commit = str(await site.commit())

    _, stats = await change_of(site.git, site.workspace, commit)

    denied = judge(stats, PublishRules(skipped=snapshot.skipped)).denied
    assert [sentence.split(" ")[0] for sentence in denied] == ["key", "git", "home", "up"]
