"""The findings of `delegate doctor`, their severity and their sections."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # good to know
    WARNING = "warning"  # something is wrong, or could not be checked
    PROBLEM = "problem"  # would make a task fail


class DoctorSection(StrEnum):
    """In the order in which they are shown, which is the order in which to fix problems."""

    SETTINGS = "settings"
    HOME = "home"
    GIT = "git"
    AGENTS = "agents"
    RELAY = "relay"
    REPOSITORY = "this repository"
    PULL_REQUESTS = "pull requests"
    LEFTOVERS = "leftovers"

    def ok(self, subject: str, message: str) -> Finding:
        return Finding(level=Level.OK, section=self, subject=subject, message=message)

    def note(self, subject: str, message: str, fix: str = "") -> Finding:
        return Finding(level=Level.NOTE, section=self, subject=subject, message=message, fix=fix)

    def warning(self, subject: str, message: str, fix: str = "") -> Finding:
        return Finding(level=Level.WARNING, section=self, subject=subject, message=message, fix=fix)

    def problem(self, subject: str, message: str, fix: str = "") -> Finding:
        return Finding(level=Level.PROBLEM, section=self, subject=subject, message=message, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    level: Level
    section: DoctorSection
    subject: str  # which one
    message: str
    fix: str = ""


def first_problem(findings: list[Finding]) -> Finding | None:
    return next((finding for finding in findings if finding.level is Level.PROBLEM), None)
