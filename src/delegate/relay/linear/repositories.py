"""Finds the repositories that an issue may be for, and asks Linear which one fits."""

from __future__ import annotations

import logging
from dataclasses import replace

from delegate.errors import DelegateError
from delegate.intake.issues import IssueStart
from delegate.linear.operations import SUGGESTIONS
from delegate.linear.records import MapKind
from delegate.linear.tags import read_preferences
from delegate.model import Field
from delegate.preferences.names import SHORT_NAME
from delegate.relay.linear.link import LinearLink
from delegate.store.database import Connection
from delegate.store.linear.connections import all_maps, maps_of

log = logging.getLogger(__name__)
CONFIDENT = 0.8  # of Linear's suggestion; below that a person decides
OPTIONS_MAX = 20


async def suggest_repository(link: LinearLink, start: IssueStart) -> IssueStart:
    """Add the repositories to choose from, and Linear's suggestion, to an issue that names none."""
    issue = start.issue
    targets = {MapKind.TEAM: issue.team_id, MapKind.PROJECT: issue.project_id, MapKind.ISSUE: issue.id}

    def read(connection: Connection) -> tuple[bool, tuple[str, ...]]:
        known = dict.fromkeys(one.repository for one in all_maps(connection) if SHORT_NAME.fullmatch(one.repository))
        return bool(maps_of(connection, targets)), tuple(known)[:OPTIONS_MAX]

    is_mapped, candidates = await link.relay.database.read(read)
    layers = read_preferences(issue, start.request)
    if is_mapped or not candidates or any(Field.REPOSITORY in layer.values for layer in layers):
        return start
    try:
        ranked = await _ask_linear(link, issue.id, candidates)
    except DelegateError as error:
        log.info("no suggestion from Linear", extra={"why": error.message})
        return replace(start, candidates=candidates)
    best = next((name for name, confidence in ranked if confidence >= CONFIDENT), None)
    return replace(
        start, suggestion=best, candidates=tuple(dict.fromkeys([*(name for name, _ in ranked), *candidates]))
    )


async def _ask_linear(link: LinearLink, issue_id: str, candidates: tuple[str, ...]) -> list[tuple[str, float]]:
    given = [{"hostname": "github.com", "repositoryFullName": name} for name in candidates]
    answer = await link.call(SUGGESTIONS, {"issueId": issue_id, "candidates": given})
    found = answer["issueRepositorySuggestions"]["suggestions"]
    pairs = [(str(one["repositoryFullName"]), float(one["confidence"])) for one in found]
    return sorted((pair for pair in pairs if pair[0] in candidates), key=lambda pair: -pair[1])
