from __future__ import annotations

from datetime import date

import pytest
from scripts.release import (
    CannotRelease,
    check_version,
    date_changelog,
    find_version,
    set_package_version,
    set_project_version,
)
from tests.docs.pages import ROOT

TODAY = date(2027, 1, 31)
CHANGELOG = """# Changelog

What changed.

## Unreleased

### Added

- A second thing.

## 0.1.0 (2026-12-01)

### Added

- A first thing.
"""


def test_the_entries_move_to_the_version_and_an_empty_unreleased_stays() -> None:
    assert (
        date_changelog(CHANGELOG, "0.2.0", TODAY)
        == """# Changelog

What changed.

## Unreleased

## 0.2.0 (2027-01-31)

### Added

- A second thing.

## 0.1.0 (2026-12-01)

### Added

- A first thing.
"""
    )


def test_the_first_release_has_no_section_below_it() -> None:
    first = "# Changelog\n\n## Unreleased\n\n- A thing.\n"

    assert date_changelog(first, "0.1.0", TODAY) == (
        "# Changelog\n\n## Unreleased\n\n## 0.1.0 (2027-01-31)\n\n- A thing.\n"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# Changelog\n\n## 0.1.0\n\n- A thing.\n", "has no section"),
        ("# Changelog\n\n## Unreleased\n\n### Added\n\n## 0.1.0\n\n- A thing.\n", "has no entries"),
        ("# Changelog\n\n## Unreleased\n\n- A thing.\n\n## 0.2.0 (2026-12-01)\n", "has a section for 0.2.0 already"),
    ],
)
def test_a_changelog_that_cannot_be_dated_is_refused(text: str, why: str) -> None:
    with pytest.raises(CannotRelease, match=why):
        date_changelog(text, "0.2.0", TODAY)


def test_a_changelog_cannot_be_dated_twice() -> None:
    with pytest.raises(CannotRelease, match="has no entries"):
        date_changelog(date_changelog(CHANGELOG, "0.2.0", TODAY), "0.3.0", TODAY)


def test_only_the_version_of_the_project_is_set() -> None:
    project = '[project]\nname = "delegate"\nversion = "0.1.0"\n\n[tool.mypy]\npython_version = "3.11"\n'

    assert set_project_version(project, "0.2.0") == project.replace("0.1.0", "0.2.0")
    assert find_version(set_project_version(project, "0.2.0")) == "0.2.0"


def test_the_version_of_the_package_is_set() -> None:
    assert set_package_version('"""A text."""\n\n__version__ = "0.1.0"\n', "0.2.0") == (
        '"""A text."""\n\n__version__ = "0.2.0"\n'
    )


@pytest.mark.parametrize("text", ["", 'version = "1.0.0"\nversion = "2.0.0"\n'])
def test_a_project_without_one_version_is_refused(text: str) -> None:
    with pytest.raises(CannotRelease, match="lines with a version"):
        set_project_version(text, "0.2.0")


@pytest.mark.parametrize("version", ["", "1", "1.2", "v1.2.3", "1.2.3rc1", "01.2.3", "1.2.3\n"])
def test_what_is_not_a_version_is_refused(version: str) -> None:
    with pytest.raises(CannotRelease, match="is not a version"):
        check_version(version, current="0.1.0")


def test_an_older_version_is_refused_and_the_current_one_can_be_released() -> None:
    with pytest.raises(CannotRelease, match=r"0\.9\.0 is older than 0\.10\.0"):
        check_version("0.9.0", current="0.10.0")

    check_version("0.10.0", current="0.10.0")


def test_the_files_of_this_repository_can_be_released() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    package = (ROOT / "src" / "delegate" / "__init__.py").read_text(encoding="utf-8")
    version = find_version(project)

    assert set_project_version(project, version) == project
    assert set_package_version(package, version) == package
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
