"""Applies the policy of a paired runner's machine before anything runs: the relay's word is not enough."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from delegate.errors import BadPolicy
from delegate.model import Mode
from delegate.placement import Placement, Policy, accepts, repository_key
from delegate.preferences.policyfile import PolicyFile, read_policy
from delegate.runner.assignment import Assignment

ME, ANOTHER = "me", "another"  # who submitted a task, as the relay says


class PolicyGuard:
    """Reads the file again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] | None = None
        self._found: PolicyFile | BadPolicy | None = None

    def read(self) -> PolicyFile:
        """Raises BadPolicy: without a valid policy nothing is accepted."""
        stamp: tuple[int, ...] = ()
        with suppress(OSError):
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._stamp or self._found is None:
            self._stamp = stamp
            try:
                self._found = read_policy(self._path)
            except BadPolicy as problem:
                self._found = problem
        if isinstance(self._found, BadPolicy):
            raise self._found
        return self._found

    def problem(self) -> str | None:
        try:
            self.read()
        except BadPolicy as problem:
            return f"its policy cannot be used: {problem.message}"
        return None

    def refusal(self, assignment: Assignment) -> str | None:
        """Why this machine does not run the task, as text after the runner's name; None if it does."""
        try:
            policy = self.read().rules
        except BadPolicy:
            return "has no valid policy"
        is_in_place = assignment.mode is Mode.IN_PLACE
        placement = Placement(
            agent=assignment.agent,
            in_place=is_in_place,
            repository=None if assignment.repository is None else repository_key(assignment.repository),
            person=ME if assignment.is_owners else ANOTHER,
            origin=assignment.origin,
        )
        refusal = accepts(policy, placement, ME)
        if refusal is None and (is_in_place or assignment.repository is None):
            return refuse_directory(policy, assignment.working_directory)
        return refusal

    def checkout_of(self, repository: str) -> Path | None:
        """Where the repository is on this machine; None: nowhere, or the policy cannot be read."""
        try:
            found = self.read().checkouts.get(repository_key(repository))
        except BadPolicy:
            return None
        return None if found is None else Path(found)


def refuse_directory(policy: Policy, directory: str | None) -> str | None:
    if not policy.directories or directory is None:
        return None
    place = Path(os.path.realpath(directory))
    if any(place.is_relative_to(os.path.realpath(allowed)) for allowed in policy.directories):
        return None
    return f"does not accept work in {directory}"
