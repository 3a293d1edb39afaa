"""Validates repository and branch names, with a grammar stricter than git's. Pure."""

from __future__ import annotations

import re
import shlex
import unicodedata
from pathlib import PurePosixPath

from delegate.errors import InvalidField

REPOSITORY_LENGTH_MAX = 1000
BRANCH_LENGTH_MAX = 250
PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
SEGMENT = r"[A-Za-z0-9_~][A-Za-z0-9._~-]{0,99}"
HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
PORT = r"(:[0-9]{1,5})?"
SEGMENTS = rf"{SEGMENT}(/{SEGMENT}){{0,9}}/?"
SHORT_NAME = re.compile(rf"(?P<owner>{PART})/(?P<name>{PART})")
URL_FORMS = (
    re.compile(rf"https?://{HOST}{PORT}/{SEGMENTS}"),
    re.compile(rf"ssh://({PART}@)?{HOST}{PORT}/{SEGMENTS}"),
    re.compile(rf"{PART}@{HOST}:/?{SEGMENTS}"),
)
WITH_LOGIN = re.compile(r"[a-z+]+://[^/@]*:[^/@]*@", re.IGNORECASE)
BRANCH = re.compile(rf"{PART}(/{PART}){{0,9}}")
GRAMMAR = (
    "must be a branch name of ASCII letters, digits, dots, hyphens and underscores, in parts separated by / "
    "that begin with a letter or digit"
)
COMMIT = re.compile(r"[0-9a-fA-F]{40}([0-9a-fA-F]{24})?")
FORMS = "owner/name, https://host/owner/name.git, ssh://git@host/owner/name.git, git@host:owner/name.git or /a/path"


def repository_url(text: str) -> str:
    """Convert a user's repository name to a URL for git; a short `owner/name` is on GitHub."""
    if len(text) > REPOSITORY_LENGTH_MAX:
        raise InvalidField(field="repository", why=f"is longer than {REPOSITORY_LENGTH_MAX:,} characters")
    if WITH_LOGIN.match(text):
        raise InvalidField(field="repository", why="contains a password; store it in git's credential helper instead")
    short = SHORT_NAME.fullmatch(text)
    if short and not _is_invalid_name(short["name"]):
        return f"https://github.com/{short['owner']}/{short['name'].removesuffix('.git')}.git"
    if any(form.fullmatch(text) for form in URL_FORMS) and ".." not in text:
        return text
    if text.startswith("/"):
        return _local_path(text)
    raise InvalidField(field="repository", why=f"must be one of {FORMS}")


def _is_invalid_name(name: str) -> bool:
    return ".." in name or name.endswith(".") or name == ".git"


def _local_path(text: str) -> str:
    parts = text.split("/")
    if ".." in parts or not text.isprintable() or not text.strip("/"):
        raise InvalidField(field="repository", why="must be the plain path of a repository on the runner's machine")
    return str(PurePosixPath(text))


def repository_name(url: str) -> str:
    """Return the display name: the last two parts of a URL, or a directory's name."""
    if url.startswith(("/", "file:")):
        return _last_parts(url, 1)
    return _last_parts(url.partition("://")[2].partition("/")[2] or url.rpartition(":")[2], 2)


def _last_parts(path: str, count: int) -> str:
    parts = [part for part in path.split("/") if part]
    if len(parts) > 1 and parts[-1] == ".git":
        parts.pop()
    return "/".join(parts[-count:]).removesuffix(".git")


def branch_problem(name: str) -> str | None:
    """Return why this is not a valid branch name, as text to follow the field's name."""
    if len(name) > BRANCH_LENGTH_MAX:
        return f"{GRAMMAR}, at most {BRANCH_LENGTH_MAX} characters in total"
    if BRANCH.fullmatch(name) is None:
        return GRAMMAR + _suggest_rename(name)
    if COMMIT.fullmatch(name):
        return f"{GRAMMAR}; this is a commit id"
    if name.startswith("refs/") or name == "HEAD":
        return f"{GRAMMAR}; leave out refs/heads/, and do not use HEAD"
    if ".." in name or any(part.endswith((".", ".lock")) for part in name.split("/")):
        return f"{GRAMMAR}; it must not contain .., and no part may end with . or .lock"
    return None


def _suggest_rename(name: str) -> str:
    """Return what to type if the name has a similar one in ASCII, else nothing."""
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss")).encode("ascii", "ignore").decode()
    if name.isascii() or not name.isprintable() or branch_problem(plain) is not None:
        return ""
    return f"; rename it with `git branch -m {shlex.quote(name)} {plain}`, and push it"
