"""Builds the facts that all agents share, in the same format and with the same limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from delegate.model import EventKind, Usage
from delegate.runner.agents.base import Fact
from delegate.runner.agents.lines import as_text, one_line
from delegate.wire.shared_models import UsageView

TEXT_MAX = 60_000  # characters of a message in an event; the output has all of it
SUMMARY_MAX = 200
ID_MAX = 200


def warning(text: str) -> Fact:
    return Fact(kind=EventKind.WARNING, data={"text": text})


def tool(name: str, summary: str, call_id: str) -> Fact:
    data: dict[str, object] = {
        "name": one_line(name, SUMMARY_MAX),
        "summary": one_line(summary, SUMMARY_MAX),
        "id": one_line(call_id, ID_MAX),
    }
    return Fact(kind=EventKind.TOOL, data=data)


def summarize_input(given: dict[str, object], fields: Iterable[str]) -> str:
    """The summary of a call: the first of these input fields that is not empty."""
    return next((text for field in fields if (text := as_text(given.get(field)).strip())), "")


def usage_fact(usage: Usage) -> Fact:
    return Fact(kind=EventKind.USAGE, data=UsageView(**asdict(usage)).model_dump(by_alias=True))
