"""Decides what leaves the runner's machine at each privacy level. Pure; what is not listed here stays.

`full` sends everything. `summary` sends what a person needs to follow the work: names of tools, paths in the
repository, counts, to-do titles and the final summary. `minimal` sends states and numbers. Texts of agents, commands,
checks and programs stay on the machine below `full`, and so do output, diffs and prompts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from urllib.parse import urlsplit

from delegate.config.settings import Settings
from delegate.config.values import LOOPBACK
from delegate.model import IS_WAITING, EventKind, Privacy
from delegate.preferences.models import family
from delegate.runner.agents.base import STOPS
from delegate.runner.agents.timeline_facts import TOOLS, VERBS
from delegate.runner.upload.spool import decoded_size, gap_line, span
from delegate.states import Reason
from delegate.wire.basics import Wire
from delegate.wire.runners import ClaimRequest, EffectRequest, FinishRequest, ReleaseRequest
from delegate.wire.shared_models import CheckpointView, ResultView

KEPT = object()  # what a rule returns for a value that stays
KEPT_MESSAGE = "the details are kept on the runner's machine"
KEPT_WARNING = "a warning; its text is kept on the runner's machine"
KEPT_PROBLEM = "the runner takes no work now; `delegate runner status` on its machine says why"

Rule = Callable[[object], object]
EndRequest = FinishRequest | ReleaseRequest

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
REFERENCE = re.compile(r"kept-[0-9a-f]{32}")
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@\[\]-]{0,99}")
REF = re.compile(r"[^\s\x00-\x1f]{1,200}")
URL = re.compile(r"https?://[^\s\x00-\x1f]{1,2000}")
DISK_PATH = re.compile(r" on the disk of .*, and ")
PROBLEM = re.compile(r"[A-Za-z0-9 .,:%-]+")
# Our own sentences, with nothing but numbers, branches and addresses of pull requests in them.
OWN_WARNINGS = re.compile(
    "codex does not support turn limits; the task's limit is not enforced"
    "|codex does not report costs; the task's budget is not enforced"
    "|the session of the previous attempt no longer exists; the agent starts a new one"
    "|the agent had already finished its work; only the steps after it are repeated"
    r"|lines of the agent's output that could not be parsed: \d+"
    "|too many events for the timeline; see the output for the rest"
)
OWN_MESSAGES = re.compile(
    "|".join(re.escape(stop.message) for stop in STOPS.values())
    + r"|it was stopped because it reached its time limit of [\d.]+ (second|minute|hour)s?"
    r"|the command (ended with exit code -?\d+|was killed by (SIG[A-Z0-9]+|signal \d+))"
    r"|(pushed to [^\s;]+|pull request (opened|updated): https?://[^\s;]+)(; the request to cancel came too late)?"
    "|the agent (asked a question|made no changes)|the agent's supervisor was killed"
    "|the runner was (stopped|restarted)[a-z ]*"
)


def privacy_level(settings: Settings, url: str) -> Privacy:
    """The level of the settings; without one, a relay on the same machine gets everything, and others a summary."""
    if settings.privacy is not None:
        return Privacy(settings.privacy)
    return Privacy.FULL if urlsplit(url).hostname in LOOPBACK else Privacy.SUMMARY


def number(value: object) -> object:
    return value if isinstance(value, int | float) else KEPT


def session(value: object) -> object:
    """An agent may choose any text for the id of its session; the runner finds it again by this reference."""
    if not isinstance(value, str):
        return KEPT
    return value if UUID.fullmatch(value) or REFERENCE.fullmatch(value) else reference(value)


def reference(session_id: str) -> str:
    return f"kept-{sha256(session_id.encode()).hexdigest()[:32]}"


def model(value: object) -> object:
    return value if isinstance(value, str) and MODEL.fullmatch(value) and family(value) is not None else KEPT


def matching(pattern: re.Pattern[str]) -> Rule:
    return lambda value: value if isinstance(value, str) and pattern.fullmatch(value) else KEPT


def one_of(known: Mapping[str, object]) -> Rule:
    return lambda value: value if isinstance(value, str) and value in known else KEPT


def text(value: object) -> object:
    return value if isinstance(value, str) else KEPT


def texts(value: object) -> object:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else KEPT


def entries(*names: str) -> Rule:
    """A list of objects, of which only these fields leave."""

    def apply(value: object) -> object:
        if not isinstance(value, list):
            return KEPT
        found = [entry for entry in value if isinstance(entry, dict)]
        return [{name: entry[name] for name in names if isinstance(entry.get(name), str)} for entry in found]

    return apply


def warning_text(value: object) -> object:
    return value if isinstance(value, str) and OWN_WARNINGS.fullmatch(value) else KEPT_WARNING


commit, ref, url = matching(COMMIT), matching(REF), matching(URL)
USAGE_FIELDS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "costUsd", "turns")
SIZE = {"additions": number, "deletions": number}
EVENTS: dict[Privacy, dict[EventKind, dict[str, Rule]]] = {
    Privacy.MINIMAL: {
        EventKind.STARTED: {"pid": number},
        EventKind.SESSION: {"sessionId": session},
        EventKind.TOOL: {"verb": one_of(TOOLS), **SIZE},
        EventKind.USAGE: dict.fromkeys(USAGE_FIELDS, number),
        EventKind.WARNING: {"text": warning_text, IS_WAITING: number},
        EventKind.WORKSPACE: {"baseCommit": commit},
        EventKind.SETUP: {"exitCode": number, "seconds": number},
        EventKind.PROMPT: {"characters": number},
        EventKind.CHECK: {"ok": number, "passed": number, "total": number, "seconds": number},
        EventKind.COMMIT: {"commit": commit, "files": number, **SIZE},
        EventKind.PUSH: {"branch": ref, "commit": commit},
        EventKind.PULL_REQUEST: {"url": url, "number": number, "draft": number, "adopted": number},
    },
    Privacy.SUMMARY: {
        EventKind.SESSION: {"model": model},
        EventKind.TOOL: {"name": one_of(VERBS), "path": text},
        EventKind.TODO: {"items": entries("title", "state")},
        EventKind.PREFERENCES: {"choices": entries("field", "value", "source")},
        EventKind.WORKSPACE: {"base": ref, "branch": ref},
        EventKind.SETUP: {"carried": texts},
    },
}
# Fields of the requests that end an attempt and announce effects: states, numbers, commits and branches.
END_FIELDS = (
    *("fence", "next_seq", "output_incomplete", "outcome", "reason", "exit_code", "not_before", "usage"),
    *("messages_seen", "wants_agent"),
)
RESULT_FIELDS = (
    *("base", "base_commit", "branch", "commit", "pull_request", "files", "additions", "deletions"),
    *("checks_passed", "checks_total", "is_kept"),
)
CHECKPOINT_FIELDS = ("branch", "base_commit", "commit", "is_work_done", "usage")
EFFECT_FIELDS = ("fence", "kind", "state", "target", "expected", "external_id")
CLAIM_FIELDS = ("claim_id", "agents", "parked", "wait", "ask_hash", "privacy")


def rules(level: Privacy, kind: EventKind) -> dict[str, Rule]:
    """The fields of an event that leave, each with its rule; `summary` sends more than `minimal`."""
    more = EVENTS[Privacy.SUMMARY].get(kind, {}) if level is Privacy.SUMMARY else {}
    return {**EVENTS[Privacy.MINIMAL].get(kind, {}), **more}


def event(level: Privacy, kind: EventKind, data: dict[str, object]) -> dict[str, object] | None:
    """What leaves of an event; None if nothing does."""
    if level is Privacy.FULL:
        return data
    listed = rules(level, kind)
    if not listed:
        return None
    passed = {name: rule(data[name]) for name, rule in listed.items() if name in data}
    return {name: value for name, value in passed.items() if value is not KEPT}


def item(level: Privacy, line: bytes) -> bytes:
    """One item of a report as it leaves; one that stays becomes a gap with its number."""
    if level is Privacy.FULL:
        return line
    found = json.loads(line)
    kind, (first, last) = EventKind(found["kind"]), span(line)
    if kind in (EventKind.OUTPUT, EventKind.SKIPPED):
        size = found["bytes"] if kind is EventKind.SKIPPED else decoded_size(found["output"])
        return gap_line(first, last, size, found["at"], is_kept=True)
    data = event(level, kind, found["data"])
    if data is None:
        return gap_line(first, last, 0, found["at"], is_kept=True)
    return json.dumps({**found, "data": data}, separators=(",", ":")).encode()


def end_request(level: Privacy, request: EndRequest) -> EndRequest:
    """A finish or a release: without output, errors and diff; the agent's summary only if it completed the task."""
    if level is Privacy.FULL:
        return request
    is_told = level is Privacy.SUMMARY and isinstance(request, FinishRequest) and request.outcome == "completed"
    result = request.result if isinstance(request, FinishRequest) else None
    more: dict[str, object] = {
        "message": _message(request, result, is_told=is_told),
        "session_id": _session_id(request.session_id),
        "checkpoint": _checkpoint(level, request.checkpoint, is_told=is_told),
    }
    if result is not None:
        summary = {"summary": result.summary} if is_told else {}
        more["result"] = ResultView.model_validate(_choose(result, RESULT_FIELDS) | summary)
    return type(request).model_validate(_choose(request, END_FIELDS) | more)


def effect_request(level: Privacy, request: EffectRequest) -> EffectRequest:
    return request if level is Privacy.FULL else EffectRequest.model_validate(_choose(request, EFFECT_FIELDS))


def claim_request(level: Privacy, request: ClaimRequest) -> ClaimRequest:
    if level is Privacy.FULL:
        return request
    problem = None if request.problem is None else _problem(request.problem)
    return ClaimRequest.model_validate(_choose(request, CLAIM_FIELDS) | {"problem": problem})


def checkpoint(level: Privacy, view: CheckpointView, *, is_completed: bool) -> CheckpointView:
    """A checkpoint as the relay gets it."""
    if level is Privacy.FULL:
        return view
    found = _checkpoint(level, view, is_told=is_completed and level is Privacy.SUMMARY)
    assert found is not None
    return found


def _checkpoint(level: Privacy, view: CheckpointView | None, *, is_told: bool) -> CheckpointView | None:
    if view is None:
        return None
    more: dict[str, object] = {"session_id": _session_id(view.session_id)}
    if level is Privacy.SUMMARY:
        more["dirty_files"] = view.dirty_files
    if is_told:
        more["summary"] = view.summary
    return CheckpointView.model_validate(_choose(view, CHECKPOINT_FIELDS) | more)


def _choose(message: Wire, names: tuple[str, ...]) -> dict[str, object]:
    return {name: getattr(message, name) for name in names if name in type(message).model_fields}


def _session_id(session_id: str | None) -> object:
    return None if session_id is None else session(session_id)


def _message(request: EndRequest, result: ResultView | None, *, is_told: bool) -> str:
    if OWN_MESSAGES.fullmatch(request.message):
        return request.message
    if not is_told:
        return "" if isinstance(request, FinishRequest) and request.outcome == "completed" else KEPT_MESSAGE
    if request.reason is Reason.NO_CHANGES and (result is None or request.message not in result.summary):
        return "the agent made no changes"
    return request.message


def _problem(problem: str) -> str:
    """Without the path on this machine."""
    told = DISK_PATH.sub(" on its disk, and ", problem)
    return told if PROBLEM.fullmatch(told) else KEPT_PROBLEM
