"""Decides whether a change may be published, only as a draft, or not at all. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from delegate.errors import excerpt
from delegate.runner.git.names import is_git_reserved
from delegate.runner.publishing.change import ABSENT, BYTES_MAX, GITLINK, LINK, ChangedFile, Stats
from delegate.runner.secrets.redaction import find_shapes
from delegate.runner.workspaces.classify import SkippedPath, SkipReason

FILES_MAX = 5_000
DENIALS_MAX = 20  # sentences; the rest is counted
DENIED_REASONS = frozenset({SkipReason.OVERSIZED, SkipReason.RESERVED_NAME, SkipReason.SHARED})
GIT_HOOKS = (
    "commit-msg",
    "post-checkout",
    "post-commit",
    "post-merge",
    "post-rewrite",
    "pre-commit",
    "pre-push",
    "pre-rebase",
    "prepare-commit-msg",
)
# Files that decide which programs run where this repository is checked out or built.
PROTECTED = (
    ".github/",
    ".gitlab-ci.yml",
    ".gitlab/",
    ".circleci/",
    ".buildkite/",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "Jenkinsfile",
    ".husky/",
    ".githooks/",
    *(f"**/hooks/{name}" for name in GIT_HOOKS),
    ".pre-commit-config.yaml",
    "lefthook.yml",
    ".gitmodules",
    "**/.claude/",
    "**/.codex/",
    "**/.cursor/",
    "**/.gemini/",
    "**/.mcp.json",
    ".delegate.toml",
    ".worktreeinclude",
)
# Example tokens that occur in many test suites.
TOLERATED_KINDS = frozenset({"JWT"})
DISTINCT_MIN = 9  # different characters; `ghp_xxxxxxxx` is an example
UNSAFE_SUBMODULE = re.compile(
    rb"^\s*(update\s*=\s*!|(url|path)\s*=\s*\"?-|url\s*=\s*\"?ext::|path\s*=\s*\"?(.*/)?\.git(/|\"?\s*$))", re.I | re.M
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVerdict:
    denied: tuple[str, ...]  # one sentence each; any of them prevents publishing
    protected: tuple[str, ...]  # paths that make it a draft


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRules:
    """What the policy needs beside the change itself."""

    protected: Sequence[str] = ()  # the repository's own patterns
    skipped: Sequence[SkippedPath] = ()  # what a snapshot left out
    carried: frozenset[bytes] = frozenset()  # files copied from the user's checkout
    known_secrets: Callable[[bytes], Sequence[str]] = lambda _: ()  # names of this machine's secrets in the data


def judge(stats: Stats, rules: PublishRules) -> PolicyVerdict:
    """Scans all added content, which takes seconds for a large change."""
    denied = [*_find_size_denials(stats), *_find_skipped_denials(rules.skipped)]
    if stats.size <= BYTES_MAX:
        has_modules = any(file.path == ".gitmodules" for file in stats.changed)
        denied += [
            sentence for file in stats.changed for sentence in _find_denials(file, rules, has_modules=has_modules)
        ]
    if len(denied) > DENIALS_MAX:
        denied[DENIALS_MAX:] = [f"and {len(denied) - DENIALS_MAX} more"]
    guarded = re.compile("|".join(map(glob_to_regex, (*PROTECTED, *rules.protected))), re.I | re.S)
    return PolicyVerdict(
        denied=tuple(denied), protected=tuple(file.path for file in stats.changed if guarded.fullmatch(f"{file.path}/"))
    )


def glob_to_regex(glob: str) -> str:
    """A regular expression for a path from the root with a trailing `/`: `*` and `?` stay in one name, `**` matches any
    directories, a final `/` everything below.

    The first match of a name or of a sequence of names is final. Without backtracking, a repository's file cannot stall
    its runner with a long sequence of stars.
    """
    rows: list[str] = [""]
    for part in filter(None, glob.split("/")):
        if len(part) > 1 and not part.strip("*"):
            rows.append("")
        else:
            rows[-1] += _name_to_regex(part)
    first, *after = rows
    found = "".join(f"(?>(?:[^/]*/)*?{row})" for row in after if row)
    is_below = glob.endswith("/") or (after and not after[-1])
    return f"(?:{first}{found}{'.+' if is_below else '.*'})"


def _name_to_regex(part: str) -> str:
    pieces = re.split(r"\*+", part)
    first, *rest = ("".join("[^/]" if c == "?" else re.escape(c) for c in piece) for piece in pieces)
    if not rest:
        return f"{first}/"
    middle = "".join(f"(?>[^/]*?{piece})" for piece in rest[:-1] if piece)
    return f"(?>{first}{middle}[^/]*{rest[-1]}/)"


def _find_size_denials(stats: Stats) -> Iterator[str]:
    if stats.files > FILES_MAX:
        yield f"the change has {stats.files:,} files; the maximum is {FILES_MAX:,}"
    if stats.size > BYTES_MAX:
        yield f"the change has {stats.size:,} bytes; the maximum is {BYTES_MAX:,}"


def _find_skipped_denials(skipped: Sequence[SkippedPath]) -> Iterator[str]:
    return (f"{excerpt(one.path)} {one.kind.value}" for one in skipped if one.kind in DENIED_REASONS)


def _find_denials(file: ChangedFile, rules: PublishRules, *, has_modules: bool) -> Iterator[str]:
    if file.mode == ABSENT:
        return
    if file.is_new and (secrets := list(_secrets(file.name, rules))):
        yield f"the name of a file {secrets[0]}"  # no other sentence: it would contain that name
        return
    name = excerpt(file.path)
    yield from _find_path_denials(file, rules, has_modules=has_modules)
    yield from (f"{name} {sentence}" for sentence in _secrets(file.added, rules))


def _find_path_denials(file: ChangedFile, rules: PublishRules, *, has_modules: bool) -> Iterator[str]:
    name = excerpt(file.path)
    if file.name in rules.carried:
        yield f"{name} was copied from your checkout; such files are not published"
    if is_git_reserved(file.name, is_link=file.mode == LINK):
        yield f"{name} {SkipReason.RESERVED_NAME.value}"
    if file.target is not None and leaves_tree(file.path, file.target):
        yield f"{name} is a link to {excerpt(file.target)}, outside of the repository"
    if file.mode == GITLINK and file.old_mode != GITLINK and not has_modules:
        yield f"{name} is a nested repository without an entry in .gitmodules"
    if file.path == ".gitmodules" and UNSAFE_SUBMODULE.search(file.added):
        yield f"{name} sets a command, a URL or a path that can run programs"


def leaves_tree(path: str, target: str) -> bool:
    """Whether a link leads out of the repository or into `.git`, or might do so through other links."""
    parts = target.split("/")
    climbs = 0
    while climbs < len(parts) and parts[climbs] in {"..", "."}:
        climbs += 1
    up = parts[:climbs].count("..")
    is_outside = target.startswith("/") or up > path.count("/") or ".." in parts[climbs:]
    return is_outside or is_git_reserved(target.encode(errors="replace"), is_link=False)


def _secrets(data: bytes, rules: PublishRules) -> Iterator[str]:
    """Finds secrets of this machine by their value, others by their format."""
    yield from (f"contains a secret of this machine ({excerpt(name)})" for name in rules.known_secrets(data))
    for _, kind in find_likely_secrets(data):
        yield f"contains what looks like a secret ({kind})"
        return


def find_likely_secrets(data: bytes) -> Iterator[tuple[bytes, str]]:
    """Each with its kind; well-known examples are skipped."""
    for value, kind in find_shapes(data):
        if kind not in TOLERATED_KINDS and len(set(value)) >= DISTINCT_MIN:
            yield value, kind
