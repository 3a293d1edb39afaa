"""What the GitHub stand-in knows: repositories, which are real bare ones, and their pull requests."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.fakes.github_graphql import GraphQLProblem, Json, connection
from tests.git import try_git

TITLE_MAX, BODY_MAX = 256, 65_536  # GitHub's own
AUTHOR = "Stand-in <standin@localhost> 1700000000 +0000"
# Neither this machine's configuration of git nor that of the test may reach in here.
GIT_ENV = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    **{f"GIT_{who}_NAME": "Stand-in" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "standin@localhost" for who in ("AUTHOR", "COMMITTER")},
}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node_id(kind: str, *parts: object) -> str:
    return base64.b64encode(f"{kind}:{'/'.join(map(str, parts))}".encode()).decode()


def user(login: str) -> Json:
    return {"__typename": "User", "login": login, "id": node_id("User", login), "name": login, "databaseId": 1}


@dataclass(slots=True, kw_only=True)
class Pull:
    """A pull request; tests may read it and change it."""

    number: int
    url: str
    title: str
    body: str
    base: str
    head: str
    commit: str  # of the head; stays when the branch is gone
    author: str
    is_draft: bool = False
    state: str = "OPEN"
    is_cross_repository: bool = False  # it comes from a fork
    head_owner: str = "somebody-else"  # whose fork it is
    merge_commit: str | None = None
    comments: list[str] = field(default_factory=list)
    created_at: str = field(default_factory=now)


class Repository:
    def __init__(self, full_name: str, bare: Path) -> None:
        self.full_name, self.bare = full_name, bare
        self.owner, self.name = full_name.split("/")
        self.id = node_id("Repository", full_name)
        self.url = f"https://github.com/{full_name}"
        self.default_branch = "main"
        self.has_drafts = True  # free private repositories have none
        self.pulls: dict[int, Pull] = {}
        self.forks: dict[str, Repository] = {}  # by their owner
        if not bare.exists():
            bare.parent.mkdir(parents=True, exist_ok=True)
            bare.mkdir()
            self.git("init", "-q", "--bare", "-b", "main", "--template=")
            self.git("config", "http.receivepack", "true")

    def git(self, *arguments: str, input: bytes = b"") -> str:
        done = try_git("--git-dir", self.bare, *arguments, cwd=self.bare, env=GIT_ENV, input=input)
        if done.returncode != 0:
            raise GraphQLProblem(f"git {arguments[0]}: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode(errors="replace").strip()

    def head_of(self, branch: str) -> str | None:
        listed = self.git("for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}").split()
        return listed[0] if listed else None

    def branches(self) -> list[str]:
        return self.git("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").split()

    def seed(self, files: Mapping[str, str | bytes], branch: str, message: str) -> str:
        """A commit with these files on top of the branch, which it makes if it is not there; its id."""
        stream = [f"commit refs/heads/{branch}\ncommitter {AUTHOR}\n".encode(), _data(message.encode())]
        head = self.head_of(branch)
        if head:
            stream.append(f"from {head}\n".encode())
        for path, content in files.items():
            stream += [
                f"M 100644 inline {path}\n".encode(),
                _data(content if isinstance(content, bytes) else content.encode()),
            ]
        self.git("fast-import", "--quiet", input=b"".join(stream))
        made = self.head_of(branch)
        assert made is not None
        return made

    def open_pull(self, asked: Json, author: str) -> Pull:
        owner, _, head = f":{asked['head']}".rpartition(":")
        fork = self.forks.get(owner.removeprefix(":"))
        base, number = asked["base"], len(self.pulls) + 1
        source = f"refs/heads/{head}"
        if fork is not None and fork.head_of(head):
            source = f"refs/pull/{number}/head"
            self.git("fetch", "-q", str(fork.bare), f"+refs/heads/{head}:{source}")
        self._check(asked, base, source, fork)
        pull = Pull(
            number=number,
            url=f"{self.url}/pull/{number}",
            title=asked["title"],
            body=asked.get("body") or "",
            base=base,
            head=head,
            commit=self.git("rev-parse", source),
            author=author,
            is_draft=bool(asked.get("draft")),
            is_cross_repository=fork is not None,
            head_owner=fork.owner if fork else self.owner,
        )
        self.pulls[number] = pull
        return pull

    def _check(self, asked: Json, base: str, source: str, fork: Repository | None) -> None:
        """What GitHub refuses."""
        head = asked["head"].rpartition(":")[2]
        if self.head_of(base) is None:
            raise GraphQLProblem("Base ref must be a branch")
        if (fork or self).head_of(head) is None:
            blank = "Head sha can't be blank, Base sha can't be blank"
            raise GraphQLProblem(f"{blank}, No commits between {base} and {head}, Head ref must be a branch")
        if self.git("rev-list", "--count", f"refs/heads/{base}..{source}") == "0":
            raise GraphQLProblem(f"No commits between {base} and {head}")
        owner = fork.owner if fork else self.owner
        if any((p.head_owner, p.head, p.base, p.state) == (owner, head, base, "OPEN") for p in self.pulls.values()):
            raise GraphQLProblem(f"A pull request already exists for {owner}:{head}.")
        if asked.get("draft") and not self.has_drafts:
            raise GraphQLProblem("Draft pull requests are not supported in this repository.")
        if not asked["title"].strip() or len(asked["title"]) > TITLE_MAX:
            raise GraphQLProblem(f"Title is blank or too long (maximum is {TITLE_MAX} characters)")
        if len(asked.get("body") or "") > BODY_MAX:
            raise GraphQLProblem(f"Body is too long (maximum is {BODY_MAX} characters)")

    def merge(self, pull: Pull, method: str = "MERGE") -> None:
        """Really, in the bare repository; everything but MERGE makes one commit, as a squash does."""
        base, head = self.head_of(pull.base), self.head_of(pull.head)
        assert base is not None
        assert head is not None
        tree = self.git("merge-tree", "--write-tree", base, head).split("\n")[0]
        parents = ["-p", base, *(["-p", head] if method == "MERGE" else [])]
        merged = f"Merge pull request #{pull.number} from {self.owner}/{pull.head}"
        message = merged if method == "MERGE" else f"{pull.title} (#{pull.number})\n\n{pull.body}"
        made = self.git("commit-tree", tree, *parents, input=message.encode())
        self.git("update-ref", f"refs/heads/{pull.base}", made, base)
        pull.state, pull.merge_commit, pull.commit = "MERGED", made, head

    def refresh(self) -> None:
        """GitHub closes a pull request whose branch is deleted."""
        standing = [pull for pull in self.pulls.values() if pull.state == "OPEN" and not pull.is_cross_repository]
        if not standing:
            return
        listed = self.git("for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads").splitlines()
        heads = dict(line.split(" ") for line in listed)
        for pull in standing:
            pull.state = "OPEN" if pull.head in heads else "CLOSED"
            pull.commit = heads.get(pull.head, pull.commit)


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)


def repository_view(repository: Repository) -> Json:
    """The repository as GraphQL shows it."""

    def listed(arguments: Json) -> Json:
        states = arguments.get("states") or ["OPEN", "CLOSED", "MERGED"]
        found = [
            pull_view(repository, pull)
            for pull in reversed(repository.pulls.values())
            if pull.state in states
            and arguments.get("headRefName") in (None, pull.head)
            and arguments.get("baseRefName") in (None, pull.base)
        ]
        return connection(found, arguments)

    def numbered(arguments: Json) -> Json:
        number = arguments.get("number")
        if number not in repository.pulls:
            raise GraphQLProblem(f"Could not resolve to a PullRequest with the number of {number}.", "NOT_FOUND")
        return pull_view(repository, repository.pulls[number])

    return {
        "__typename": "Repository",
        "id": repository.id,
        "name": repository.name,
        "nameWithOwner": repository.full_name,
        "owner": user(repository.owner),
        "url": repository.url,
        "sshUrl": f"git@github.com:{repository.full_name}.git",
        "description": "",
        "isPrivate": False,
        "isFork": False,
        "isArchived": False,
        "isEmpty": False,
        "parent": None,
        "viewerPermission": "ADMIN",
        "hasIssuesEnabled": True,
        "hasWikiEnabled": False,
        "mergeCommitAllowed": True,
        "squashMergeAllowed": True,
        "rebaseMergeAllowed": True,
        "defaultBranchRef": {"name": repository.default_branch},
        "pullRequests": listed,
        "pullRequest": numbered,
        "issueOrPullRequest": numbered,
        "pullRequestTemplates": [],
    }


def pull_view(repository: Repository, pull: Pull) -> Json:
    """The pull request as GraphQL shows it."""
    notes = [{"author": user(pull.author), "body": text, "createdAt": pull.created_at} for text in pull.comments]
    empty: Callable[[Json], Any] = lambda arguments: connection([], arguments)  # noqa: E731
    return {
        "__typename": "PullRequest",
        "id": node_id("PullRequest", repository.full_name, pull.number),
        "number": pull.number,
        "url": pull.url,
        "title": pull.title,
        "body": pull.body,
        "state": pull.state,
        "isDraft": pull.is_draft,
        "closed": pull.state != "OPEN",
        "createdAt": pull.created_at,
        "updatedAt": pull.created_at,
        "author": user(pull.author),
        "baseRefName": pull.base,
        "headRefName": pull.head,
        "headRefOid": pull.commit,
        "isCrossRepository": pull.is_cross_repository,
        "headRepository": {"id": repository.id, "name": repository.name, "nameWithOwner": repository.full_name},
        "headRepositoryOwner": user(pull.head_owner if pull.is_cross_repository else repository.owner),
        "maintainerCanModify": False,
        "mergeable": "MERGEABLE",
        "mergeStateStatus": "CLEAN",
        "mergeCommit": {"oid": pull.merge_commit} if pull.merge_commit else None,
        "reviewDecision": "",
        "comments": lambda arguments: connection(notes, arguments),
        "reviews": empty,
        "labels": empty,
        "assignees": empty,
        "reviewRequests": empty,
        "projectCards": empty,
        "projectItems": empty,
        "milestone": None,
        "statusCheckRollup": None,
    }


def pull_answer(repository: Repository, pull: Pull) -> Json:
    """The pull request as the REST interface shows it."""
    return {
        "number": pull.number,
        "title": pull.title,
        "body": pull.body,
        "state": "open" if pull.state == "OPEN" else "closed",
        "merged": pull.state == "MERGED",
        "draft": pull.is_draft,
        "html_url": pull.url,
        "user": {"login": pull.author},
        "head": {"ref": pull.head, "sha": pull.commit, "label": f"{repository.owner}:{pull.head}"},
        "base": {"ref": pull.base, "sha": repository.head_of(pull.base)},
    }
