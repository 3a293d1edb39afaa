"""Makes a release: sets the version, dates the changelog, tests the wheel, then commits and tags.

All work happens in a temporary clone. The repository changes only at the end, after the wheel has passed its test, and
with --dry-run not at all.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
BRANCH = "main"
CHANGELOG, PROJECT, PACKAGE, LOCK = "CHANGELOG.md", "pyproject.toml", "src/delegate/__init__.py", "uv.lock"
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
UNRELEASED = re.compile(r"^## Unreleased\n(?P<entries>.*?)(?=^## |\Z)", re.M | re.S)
PROJECT_VERSION = re.compile(r'^(version = )"(?P<version>[^"]+)"$', re.M)
PACKAGE_VERSION = re.compile(r'^(__version__ = )"(?P<version>[^"]+)"$', re.M)
COMMAND_TIMEOUT = 600.0  # seconds; the longest command installs every dependency
GREETING = "delegate works"


class CannotRelease(Exception):
    """Why there is no release, in words for the person who asked for it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", metavar="VERSION", help="the new version, such as 1.2.3")
    parser.add_argument("--dry-run", action="store_true", help="do everything except change the repository")
    arguments = parser.parse_args()
    try:
        release(arguments.version, today=datetime.now(UTC).date(), dry_run=arguments.dry_run)
    except CannotRelease as why:
        sys.stderr.write(f"make release: {why}\n")
        return 1
    return 0


def release(version: str, *, today: date, dry_run: bool) -> None:
    check_version(version, current=find_version((ROOT / PROJECT).read_text(encoding="utf-8")))
    check_repository(version)
    with tempfile.TemporaryDirectory(prefix="delegate-release-") as name:
        place = Path(name)
        clone = place / "clone"
        run("git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone), cwd=place)
        changed = edit(clone, version, today)
        wheel = build(clone, place / "dist")
        say(f"built {wheel.name}")
        check_wheel(wheel, version, place)
        say("tested the wheel in a new virtual environment")
        if dry_run:
            say(f"dry run: {version} can be released; nothing was changed")
            return
        publish(version, clone, changed, wheel)
    say(f"committed and tagged v{version}; next: git push origin {BRANCH} v{version}")


def check_version(version: str, *, current: str) -> None:
    if not VERSION.fullmatch(version):
        raise CannotRelease(f"{version!r} is not a version; try: make release VERSION={current}")
    if _numbers(version) < _numbers(current):
        raise CannotRelease(f"{version} is older than {current}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def check_repository(version: str) -> None:
    branch = run("git", "branch", "--show-current", cwd=ROOT).strip()
    if branch != BRANCH:
        raise CannotRelease(f"the current branch is {branch or 'none'}; releases are made on {BRANCH}")
    if changes := run("git", "status", "--porcelain", cwd=ROOT).strip():
        raise CannotRelease(f"the working tree has uncommitted changes:\n{changes}")
    if run("git", "tag", "--list", f"v{version}", cwd=ROOT).strip():
        raise CannotRelease(f"the tag v{version} exists already")


# The files of a release. These functions are pure.


def find_version(project: str) -> str:
    return _one_match(PROJECT_VERSION, project, PROJECT)["version"]


def set_project_version(text: str, version: str) -> str:
    return _set_version(PROJECT_VERSION, text, version, PROJECT)


def set_package_version(text: str, version: str) -> str:
    return _set_version(PACKAGE_VERSION, text, version, PACKAGE)


def _set_version(pattern: re.Pattern[str], text: str, version: str, name: str) -> str:
    found = _one_match(pattern, text, name)
    return f'{text[: found.start()]}{found[1]}"{version}"{text[found.end() :]}'


def _one_match(pattern: re.Pattern[str], text: str, name: str) -> re.Match[str]:
    found = list(pattern.finditer(text))
    if len(found) != 1:
        raise CannotRelease(f"{name} has {len(found)} lines with a version, not one")
    return found[0]


def date_changelog(text: str, version: str, today: date) -> str:
    """The entries under Unreleased move to the version; an empty Unreleased stays above it."""
    found = UNRELEASED.search(text)
    if found is None:
        raise CannotRelease(f"{CHANGELOG} has no section `## Unreleased`")
    if not re.search(r"^- \S", found["entries"], re.M):
        raise CannotRelease(f"{CHANGELOG} has no entries under `## Unreleased`")
    if re.search(rf"^## {re.escape(version)}\b", text, re.M):
        raise CannotRelease(f"{CHANGELOG} has a section for {version} already")
    heading = f"## Unreleased\n\n## {version} ({today.isoformat()})\n"
    return f"{text[: found.start()]}{heading}{found['entries']}{text[found.end() :]}"


# Commands.


def edit(clone: Path, version: str, today: date) -> list[str]:
    """Write the version into the clone; returns the names of the files that belong to the release."""
    texts = {name: (clone / name).read_text(encoding="utf-8") for name in (CHANGELOG, PROJECT, PACKAGE)}
    edited = {
        CHANGELOG: date_changelog(texts[CHANGELOG], version, today),
        PROJECT: set_project_version(texts[PROJECT], version),
        PACKAGE: set_package_version(texts[PACKAGE], version),
    }
    for name, text in edited.items():
        (clone / name).write_text(text, encoding="utf-8")
    run(str(UV), "lock", "--quiet", cwd=clone)
    return [*edited, LOCK]


def build(clone: Path, target: Path) -> Path:
    run(str(UV), "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", str(target), cwd=clone)
    (wheel,) = target.glob("*.whl")
    return wheel


def check_wheel(wheel: Path, version: str, place: Path) -> None:
    """Install the wheel as a user does, and let it run one task from beginning to end."""
    environment, work = place / "venv", place / "work"
    work.mkdir()
    run(str(UV), "venv", "--quiet", "--python", sys.executable, str(environment), cwd=place)
    run(str(UV), "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), str(wheel), cwd=place)
    delegate, env = str(environment / "bin" / "delegate"), user_environment(os.environ, place)
    shown = run(delegate, "--version", cwd=work, env=env)
    if version not in shown.split():
        raise CannotRelease(f"`delegate --version` of the wheel prints {shown.strip()!r}")
    run(delegate, "--help", cwd=work, env=env)
    try:
        output = run(delegate, "run", "--agent", "shell", "--follow", f"echo {GREETING}", cwd=work, env=env)
    finally:
        run(delegate, "down", "--now", cwd=work, env=env)
    if GREETING not in output.splitlines():
        raise CannotRelease(f"the task of the wheel printed {output!r}")


def user_environment(environ: Mapping[str, str], place: Path) -> dict[str, str]:
    """The environment without the settings of this user's Delegate and Python, with a home of its own."""
    dropped = ("DELEGATE_", "PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in environ.items() if not name.startswith(dropped)}
    return {**kept, "HOME": str(place), "DELEGATE_HOME": str(place / "home")}


def publish(version: str, clone: Path, changed: Sequence[str], wheel: Path) -> None:
    for name in changed:
        shutil.copyfile(clone / name, ROOT / name)
    (ROOT / "dist").mkdir(exist_ok=True)
    shutil.copy(wheel, ROOT / "dist")
    run("git", "commit", "--quiet", "--message", f"release: {version}", "--", *changed, cwd=ROOT)
    run("git", "tag", "--annotate", "--message", f"Delegate {version}", f"v{version}", cwd=ROOT)


def run(*command: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise CannotRelease(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
