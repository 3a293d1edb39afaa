"""Chooses the remotes of a checkout from its git settings, as git would. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

REMOTE_URL = re.compile(r"remote\.(.+)\.(url|pushurl)", re.DOTALL)
HTTP_LOGIN = re.compile(r"^(https?://)[^/]*@", re.IGNORECASE)
URL_LIKE = re.compile(r".*[:/]", re.DOTALL)  # git takes what is not the name of a remote for a URL or a path


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteUrls:
    fetch: str
    push: str


@dataclass(slots=True)
class _NamedRemote:
    url: list[str] = field(default_factory=list)
    pushurl: list[str] = field(default_factory=list)


class RemoteUnclear(Exception):
    """The settings choose no remote; the text follows the name of the checkout."""

    def __init__(self, why: str, candidates: Mapping[str, str]) -> None:
        self.candidates = candidates  # the URL that each remote fetches from
        super().__init__(why)


def without_login(url: str) -> str:
    """Return the URL without a user name and password for HTTP, which are secret."""
    return HTTP_LOGIN.sub(r"\1", url)


def is_path(url: str) -> bool:
    """Whether only this machine can fetch from it."""
    return url.startswith(("/", ".", "~", "file:")) or ":" not in url


def choose_remotes(
    settings: Sequence[tuple[str, str]], branch: str | None, push_default: str | None = None
) -> RemoteUrls | None:
    """Where to fetch from and push to; None without any remote.

    `branch` is checked out. Its own remote counts only by name: a URL there is where a single pull request came from.
    """
    remotes, last = _read_remotes(settings), dict(settings)
    if not remotes:
        return None
    candidates = {name: remote.url[0] for name, remote in remotes.items()}
    push_name = last.get("remote.pushdefault") or push_default
    only = next(iter(remotes)) if len(remotes) == 1 else None
    preferred = (last.get(f"branch.{branch}.remote"), "origin", only, push_name)
    name = next((name for name in preferred if name in remotes), None)
    if name is None:
        raise RemoteUnclear(f"has the remotes {', '.join(sorted(remotes))}, and none is chosen", candidates)
    push_name = push_name or name
    if push_name not in remotes and not URL_LIKE.match(push_name):
        raise RemoteUnclear(
            f"has no remote {push_name}, which remote.pushDefault names; it has {', '.join(sorted(remotes))}",
            candidates,
        )
    push = _push_url(push_name, remotes[push_name], candidates) if push_name in remotes else push_name
    return RemoteUrls(fetch=candidates[name], push=push)


def _read_remotes(settings: Sequence[tuple[str, str]]) -> dict[str, _NamedRemote]:
    remotes: dict[str, _NamedRemote] = {}
    for name, value in settings:
        found = REMOTE_URL.fullmatch(name)
        if found:
            remote = remotes.setdefault(found[1], _NamedRemote())
            (remote.url if found[2] == "url" else remote.pushurl).append(value)
    return {name: remote for name, remote in remotes.items() if remote.url}


def _push_url(name: str, remote: _NamedRemote, candidates: Mapping[str, str]) -> str:
    """Git pushes to all of several; a task has one branch, so it needs the one that is also fetched from."""
    if not remote.pushurl or remote.url[0] in remote.pushurl:
        return remote.url[0]
    if len(remote.pushurl) > 1:
        raise RemoteUnclear(f"has {len(remote.pushurl)} push URLs for its remote {name}", candidates)
    return remote.pushurl[0]
