"""Parses preferences in an issue's labels and text, such as `executor/codex` or `delegate:effort=high`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from delegate.errors import excerpt
from delegate.model import Field, Source, is_agent
from delegate.preferences.models import EFFORTS, family
from delegate.preferences.resolve import AGENT_SYNONYMS, SOURCE_NAMES, PreferenceLayer

KEYS = {
    "executor": Field.AGENT,
    "agent": Field.AGENT,
    "model": Field.MODEL,
    "thinking": Field.EFFORT,
    "effort": Field.EFFORT,
    "repo": Field.REPOSITORY,
    "repository": Field.REPOSITORY,
    "base": Field.BASE,
    "mode": Field.MODE,
}
PREFIXED = re.compile(r"\s*(?:delegate|delego)\s*:(?P<body>.*)", re.I | re.S)
# Without the prefix, only the documented groups count: `base/…` may be another tool's label.
GROUPED = re.compile(r"\s*(?P<key>executor|model|thinking|repo)\s*/(?P<value>.*)", re.I | re.S)
KEYED = re.compile(r"(?P<key>[A-Za-z_-]+)\s*(?P<sign>[=/])(?P<value>.*)", re.S)
TAG = re.compile(r"(?<![\w:/.@-])(?:delegate|delego):(?P<body>[A-Za-z0-9][^\s,;()<>{}\"'`|]*)", re.I)
# Ignored: fenced and inline code (examples), quotations (another author), HTML comments (invisible).
IGNORED_MARKUP = re.compile(
    r"^[ \t]*(?P<fence>```+|~~~+).*?(?:^[ \t]*(?P=fence)|\Z)|<!--.*?(?:-->|\Z)|^[ \t]*>.*?$|`[^`\n]+`", re.S | re.M
)
PUNCTUATION = ".!?:*_~"


def parse_labels(labels: Sequence[str]) -> tuple[PreferenceLayer, ...]:
    """Parse the preferences in an issue's labels; other labels are ignored."""
    return tuple(layer for label in labels if (layer := parse_label(label)) is not None)


def parse_label(label: str) -> PreferenceLayer | None:
    """Parse one label; None when it is not for Delegate. An unknown name counts as a model."""
    if prefixed := PREFIXED.fullmatch(label):
        return _parse_body(prefixed["body"].strip(), Source.LABEL, f"the label {excerpt(label)}", bare_is_model=True)
    if grouped := GROUPED.fullmatch(label):
        return _layer_for_value(
            KEYS[grouped["key"].lower()], grouped["value"].strip(), Source.LABEL, f"the label {excerpt(label)}"
        )
    return None


def parse_tags(text: str, source: Source) -> tuple[PreferenceLayer, ...]:
    """Parse the tags in a description or comment. One in code, a quotation or a hidden comment only makes a note."""
    visible_text = IGNORED_MARKUP.sub(lambda found: " " * len(found[0]), text)
    found = [_parse_body(body, source, _tag_in(body, source), bare_is_model=False) for body in _bodies(visible_text)]
    ignored = [body for part in IGNORED_MARKUP.finditer(text) for body in _bodies(part[0])]
    if ignored:
        notes = [f"{_tag_in(body, source)} is in code, a quotation or a hidden comment: ignored" for body in ignored]
        found.append(PreferenceLayer(source=source, notes=tuple(dict.fromkeys(notes))))
    return tuple(found)


def _bodies(text: str) -> Iterator[str]:
    for tag in TAG.finditer(text):
        yield tag["body"].rstrip(PUNCTUATION)


def _tag_in(body: str, source: Source) -> str:
    return f"delegate:{excerpt(body)} in {SOURCE_NAMES[source]}"


def _parse_body(body: str, source: Source, where: str, *, bare_is_model: bool) -> PreferenceLayer:
    keyed = KEYED.fullmatch(body)
    if keyed and keyed["key"].lower() in KEYS:
        return _layer_for_value(KEYS[keyed["key"].lower()], keyed["value"].strip(), source, where)
    if keyed and keyed["sign"] == "=":
        near = get_close_matches(keyed["key"].lower(), KEYS, n=1)
        advice = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(KEYS)}"
        return PreferenceLayer(source=source, problems=(f"{where} has an unknown key; {advice}",))
    return _parse_bare_name(body, source, where, bare_is_model=bare_is_model)


def _layer_for_value(field: Field, value: str, source: Source, where: str) -> PreferenceLayer:
    if not value:
        return PreferenceLayer(source=source, problems=(f"{where} has no value for {field}",))
    return PreferenceLayer(source=source, values={field: value})


def _parse_bare_name(body: str, source: Source, where: str, *, bare_is_model: bool) -> PreferenceLayer:
    """Parse a name without a key: an agent, an effort, or else a model."""
    name = body.lower()
    if not body:
        return PreferenceLayer(source=source, problems=(f"{where} has no value",))
    if name in AGENT_SYNONYMS or is_agent(name) or is_agent(body):
        return PreferenceLayer(source=source, values={Field.AGENT: body})
    if name in EFFORTS:
        return PreferenceLayer(source=source, values={Field.EFFORT: body})
    if bare_is_model or family(body) is not None:
        return PreferenceLayer(source=source, values={Field.MODEL: body})
    # In running text an unknown word is more likely a typo than a model.
    advice = f"if {excerpt(body)} is a model, write delegate:model={excerpt(body)}"
    return PreferenceLayer(source=source, problems=(f"{where} is not a known agent, effort or model; {advice}",))
