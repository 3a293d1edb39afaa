"""What may be published as it is, what only as a draft, and what not at all. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from delegate.errors import shown
from delegate.runner.git.names import is_gits_own
from delegate.runner.publishing.change import ABSENT, BYTES_MAX, GITLINK, LINK, ChangedFile, Stats
from delegate.runner.secrets.redaction import shaped
from delegate.runner.workspaces.classify import Odd, Oddity

FILES_MAX = 5_000
TOLD_MAX = 20  # sentences; a hundred more say nothing new
DENIED_ODDITIES = frozenset({Oddity.OVERSIZED, Oddity.GITS_OWN, Oddity.SHARED})
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
# What decides which programs run where this repository is checked out or built.
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
# Tokens that stand in many test suites, and open nothing.
TOLERATED = frozenset({"JWT"})
LETTERS_LEAST = 9  # different ones; `ghp_xxxxxxxx` is an example
SUBMODULE_TRICK = re.compile(
    rb"^\s*(update\s*=\s*!|(url|path)\s*=\s*\"?-|url\s*=\s*\"?ext::|path\s*=\s*\"?(.*/)?\.git(/|\"?\s*$))", re.I | re.M
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    denied: tuple[str, ...]  # a sentence each; one is enough not to publish
    protected: tuple[str, ...]  # paths that make it a draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is to be known beside the change itself."""

    protected: Sequence[str] = ()  # the repository's own patterns
    odd: Sequence[Odd] = ()  # what a snapshot found beside plain files
    carried: frozenset[bytes] = frozenset()  # files of the user that only came along
    known: Callable[[bytes], Sequence[str]] = lambda _: ()  # the names of this machine's secrets in data


def judge(stats: Stats, rules: Rules) -> Verdict:
    """Reads all that was added: with a large change this takes seconds."""
    denied = [*_too_much(stats), *_odd(rules.odd)]
    if stats.size <= BYTES_MAX:
        has_modules = any(file.path == ".gitmodules" for file in stats.changed)
        denied += [sentence for file in stats.changed for sentence in _denied(file, rules, has_modules=has_modules)]
    if len(denied) > TOLD_MAX:
        denied[TOLD_MAX:] = [f"and {len(denied) - TOLD_MAX} more"]
    guarded = re.compile("|".join(map(pattern, (*PROTECTED, *rules.protected))), re.I | re.S)
    return Verdict(
        denied=tuple(denied), protected=tuple(file.path for file in stats.changed if guarded.fullmatch(f"{file.path}/"))
    )


def pattern(glob: str) -> str:
    """A regular expression for a path from the root with a `/` behind it: `*` and `?` stay in one name, `**` stands for
    any folders, a last `/` for all that is below.

    Where a name or a row of names fits first, it fits: nothing is tried twice, or a repository's file could hold up its
    runner with a row of stars.
    """
    rows: list[str] = [""]
    for part in filter(None, glob.split("/")):
        if len(part) > 1 and not part.strip("*"):
            rows.append("")
        else:
            rows[-1] += _name(part)
    first, *after = rows
    found = "".join(f"(?>(?:[^/]*/)*?{row})" for row in after if row)
    is_below = glob.endswith("/") or (after and not after[-1])
    return f"(?:{first}{found}{'.+' if is_below else '.*'})"


def _name(part: str) -> str:
    pieces = re.split(r"\*+", part)
    first, *rest = ("".join("[^/]" if c == "?" else re.escape(c) for c in piece) for piece in pieces)
    if not rest:
        return f"{first}/"
    middle = "".join(f"(?>[^/]*?{piece})" for piece in rest[:-1] if piece)
    return f"(?>{first}{middle}[^/]*{rest[-1]}/)"


def _too_much(stats: Stats) -> Iterator[str]:
    if stats.files > FILES_MAX:
        yield f"{stats.files:,} files are changed; {FILES_MAX:,} is the most that is published"
    if stats.size > BYTES_MAX:
        yield f"the change has {stats.size:,} bytes; {BYTES_MAX:,} is the most that is published"


def _odd(odd: Sequence[Odd]) -> Iterator[str]:
    return (f"{shown(one.path)} {one.kind.value}" for one in odd if one.kind in DENIED_ODDITIES)


def _denied(file: ChangedFile, rules: Rules, *, has_modules: bool) -> Iterator[str]:
    if file.mode == ABSENT:
        return
    if file.is_new and (secrets := list(_secrets(file.name, rules))):
        yield f"the name of a file {secrets[0]}"  # and no other sentence, which would have that name in it
        return
    name = shown(file.path)
    yield from _misplaced(file, rules, has_modules=has_modules)
    yield from (f"{name} {sentence}" for sentence in _secrets(file.added, rules))


def _misplaced(file: ChangedFile, rules: Rules, *, has_modules: bool) -> Iterator[str]:
    name = shown(file.path)
    if file.name in rules.carried:
        yield f"{name} was carried in from your checkout, and such files are not published"
    if is_gits_own(file.name, is_link=file.mode == LINK):
        yield f"{name} {Oddity.GITS_OWN.value}"
    if file.target is not None and leaves_tree(file.path, file.target):
        yield f"{name} is a link that leads out of the repository, to {shown(file.target)}"
    if file.mode == GITLINK and file.old_mode != GITLINK and not has_modules:
        yield f"{name} is a repository inside the repository, without an entry in .gitmodules"
    if file.path == ".gitmodules" and SUBMODULE_TRICK.search(file.added):
        yield f"{name} sets a command, an address or a path that can run programs"


def leaves_tree(path: str, target: str) -> bool:
    """Out of the repository, or into git's own files; also when that could only be told by following other links."""
    parts = target.split("/")
    climbs = 0
    while climbs < len(parts) and parts[climbs] in {"..", "."}:
        climbs += 1
    up = parts[:climbs].count("..")
    is_outside = target.startswith("/") or up > path.count("/") or ".." in parts[climbs:]
    return is_outside or is_gits_own(target.encode(errors="replace"), is_link=False)


def _secrets(data: bytes, rules: Rules) -> Iterator[str]:
    """Those of this machine are known by their value, others by their looks."""
    yield from (f"has a secret of this machine in it ({shown(name)})" for name in rules.known(data))
    for _, kind in look_like_secrets(data):
        yield f"has what looks like a secret in it ({kind})"
        return


def look_like_secrets(data: bytes) -> Iterator[tuple[bytes, str]]:
    """Each with its kind; examples and what opens nothing are left out."""
    for value, kind in shaped(data):
        if kind not in TOLERATED and len(set(value)) >= LETTERS_LEAST:
            yield value, kind
