"""`delegate runner privacy`: what the runners of this machine report, at each level."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from delegate.cli.context import CommandContext, examples, shared_options
from delegate.cli.profiles import local_profile_option, paired_profiles
from delegate.cli.render.terminal import one_line, rows_in_columns
from delegate.cli.render.timeline import format_clock
from delegate.config.pairing import profile_home
from delegate.errors import Refused
from delegate.model import EventKind, Privacy
from delegate.runner.attempt.outcomes import STORED_OUTCOME, end_request
from delegate.runner.upload import privacy as rules
from delegate.runner.upload.local_record import END, RecordedItem, read_items, records_of_task

LEVELS = [str(level) for level in Privacy]
VALUE_SHOWN = 60
ALWAYS_SENT = {"fence", "next_seq", "output_incomplete", "messages_seen"}  # of the protocol, not of the task


@click.command(
    epilog=examples(
        "delegate runner privacy",
        "delegate runner privacy task-1f0c9a77e2",
        "delegate runner privacy task-1f0c9a77e2 --show full",
    )
)
@click.argument("task_id", metavar="[ID]", required=False)
@click.option(
    "--show", type=click.Choice(LEVELS), help="Show everything that leaves the machine at this level, as JSON."
)
@local_profile_option
@shared_options
@click.pass_obj
def privacy(context: CommandContext, task_id: str | None, show: str | None, profile: str | None) -> None:
    """Show what leaves this machine at each privacy level: of any task, or of one that ran here.

    The local pool and all paired runners are searched, unless a profile is named.
    """
    if task_id is None:
        _print_levels(context)
        return
    profiles = paired_profiles(context.home) if profile is None else [profile]
    homes = [*([context.home] if profile is None else []), *(profile_home(context.home, name) for name in profiles)]
    files = [path for home in homes for path in records_of_task(home.records, task_id)]
    if not files:
        why = (
            f"no attempt of {one_line(task_id)} is recorded on this machine; records are kept for 14 days where it ran"
        )
        raise Refused(why=why)
    items = [item for path in files for item in read_items(path)]
    if show is not None or context.as_json:
        context.print_json_lines(sent_items(items, Privacy(show or Privacy.FULL)))
    else:
        context.print(line for item in items for line in _compare(item))


def _print_levels(context: CommandContext) -> None:
    rows = level_rows()
    if context.as_json:
        context.print_json_lines({"what": what, **dict(zip(LEVELS, sent, strict=True))} for what, *sent in rows)
        return
    context.print(rows_in_columns([("what", *LEVELS), *rows]))


def level_rows() -> list[tuple[str, str, str, str]]:
    """What leaves at each level, beside what the level before it sends."""
    kinds = [kind for kind in EventKind if rules.rules(Privacy.SUMMARY, kind)]
    return [
        *((f"{kind} event", *_fields_sent(kind), "everything") for kind in kinds),
        ("message event", "–", "–", "everything"),
        ("output", "bytes", "–", "everything"),
        ("end", "state, reason, exit code, usage, session", "the final summary of a completed task", "every message"),
        ("result", "branches, commits, counts, pull request", "the summary of a completed task", "every summary"),
        ("checkpoint", "branch, commits, usage, session", "changed files", "last output, error, every summary"),
        ("diff", "–", "–", "everything"),
        ("effect", "branch, commit, pull request", "–", "–"),
        ("problem of a runner", "numbers", "–", "paths on the machine"),
        ("question of an agent", "everything", "–", "–"),
        ("child task of an agent", "refused", "refused", "everything"),
    ]


def _fields_sent(kind: EventKind) -> tuple[str, str]:
    minimal, summary = rules.rules(Privacy.MINIMAL, kind), rules.rules(Privacy.SUMMARY, kind)
    more = [name for name in summary if name not in minimal]
    return ", ".join(minimal) or "–", ", ".join(more) or "–"


def sent_items(items: Iterable[RecordedItem], level: Privacy) -> Iterator[dict[str, object]]:
    for item in items:
        data = sent_data(item, level)
        if data is not None:
            yield {"at": item.at, "kind": item.kind, "data": data}


def sent_data(item: RecordedItem, level: Privacy) -> Mapping[str, Any] | None:  # Any: each kind has its own data
    """What leaves of a recorded item; None if nothing does."""
    if item.kind == END:
        request = end_request(1, STORED_OUTCOME.validate_python(item.data))
        told = rules.end_request(level, request).model_dump(mode="json", exclude_defaults=True)
        return {name: value for name, value in told.items() if name not in ALWAYS_SENT}
    if item.kind == EventKind.OUTPUT:
        text = base64.b64decode(item.output).decode(errors="replace")
        return {"stream": item.stream, "text": text} if level is Privacy.FULL else {"bytes": len(text.encode())}
    return rules.event(level, EventKind(item.kind), item.data)


def _compare(item: RecordedItem) -> Iterator[str]:
    """One line for each level that sends something, with what the level below does not send."""
    before: Mapping[str, Any] = {}
    for level in Privacy:
        data = sent_data(item, level) or {}
        more = {name: value for name, value in data.items() if before.get(name) != value}
        if more:
            yield f"{format_clock(item.at)}  {item.kind:<12}  {level:<7}  {_fields(more)}"
        before = data


def _fields(data: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_shorten(value)}" for name, value in data.items())


def _shorten(value: object) -> str:
    text = one_line(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= VALUE_SHOWN else f"{text[: VALUE_SHOWN - 1]}…"
