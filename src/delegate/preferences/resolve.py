"""Resolves preferences from many sources into one agent, model, effort, repository, base and mode.

A later source overrides an earlier one. A preference that cannot be met is a problem, reported before anything runs.
Only a default (of the relay, the caller, a project or a repository) is dropped with a note when it conflicts with what
the task itself asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from delegate.errors import InvalidField, PreferenceConflict, excerpt
from delegate.model import AgentName, Choice, Field, Mode, Source, is_agent
from delegate.preferences.models import AGENT_TITLES, EFFORTS, effort_problem, family, full_model_name, short_model_name
from delegate.preferences.names import SHORT_NAME, branch_problem, repository_url
from delegate.preferences.repofile import RepoFile

RANK = {source: rank for rank, source in enumerate(Source)}
ISSUE_SOURCES = frozenset({Source.LABEL, Source.DESCRIPTION, Source.COMMENT})
DEFAULT_SOURCES = frozenset({Source.DEFAULT, Source.RELAY, Source.CALLER, Source.PROJECT, Source.REPOSITORY_FILE})
MAY_RUN_COMMANDS = frozenset({Source.REQUEST, Source.RELAY, Source.CALLER})
DEFAULTS = {Field.AGENT: str(AgentName.CLAUDE), Field.MODE: str(Mode.IN_PLACE)}
AGENT_SYNONYMS = {"claude-code": AgentName.CLAUDE, "codex-cli": AgentName.CODEX}
MODE_SYNONYMS = {"pr": Mode.PULL_REQUEST}
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,99}")
SOURCE_NAMES = {
    Source.DEFAULT: "the default",
    Source.RELAY: "the relay's settings",
    Source.CALLER: "the caller's settings",
    Source.PROJECT: "the project",
    Source.REPOSITORY_FILE: ".delegate.toml",
    Source.LABEL: "a label",
    Source.DESCRIPTION: "the description",
    Source.COMMENT: "the comment",
    Source.REQUEST: "the request",
}
LABEL_KEYS = {Field.AGENT: "executor", Field.EFFORT: "thinking", Field.REPOSITORY: "repo"}
NUMBER_WORDS = {2: "two", 3: "three", 4: "four"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceLayer:
    """The preferences from one source; `problems` are sentences about those that could not be parsed."""

    source: Source
    values: Mapping[Field, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    agent: str
    model: str | None
    effort: str | None
    repository: str | None
    base: str | None
    mode: Mode
    choices: tuple[Choice, ...]  # with the source of each
    notes: tuple[str, ...] = ()  # sentences about overridden preferences


@dataclass(slots=True)
class Findings:
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def resolve(layers: Sequence[PreferenceLayer]) -> Preferences:
    """Resolve the layers. Raises PreferenceConflict with all problems, not only the first."""
    found = Findings()
    for layer in layers:
        found.problems += layer.problems
        found.notes += layer.notes
    all_layers = [PreferenceLayer(source=Source.DEFAULT, values=DEFAULTS), *layers]
    candidates = {one: _candidates(one, all_layers, found) for one in Field}
    chosen = {one: candidates[one][0] for one in (Field.REPOSITORY, Field.BASE, Field.MODE) if candidates[one]}
    if candidates[Field.AGENT]:
        chosen |= _choose_agent_and_model(candidates[Field.AGENT][0], candidates[Field.MODEL], found)
        chosen |= _choose_effort(chosen, candidates[Field.EFFORT], found)
    if found.problems:
        _refuse(found.problems)
    return _build_preferences(chosen, found.notes)


def apply_repository_file(choices: Sequence[Choice], repofile: RepoFile) -> Preferences:
    """Resolve again with the repository's file, which counts where no stronger source made the choice."""
    decided = [PreferenceLayer(source=choice.source, values={choice.field: choice.value}) for choice in choices]
    return resolve([*decided, PreferenceLayer(source=Source.REPOSITORY_FILE, values=repofile.preferences)])


def _build_preferences(chosen: Mapping[Field, Choice], notes: Sequence[str]) -> Preferences:
    values = {one: choice.value for one, choice in chosen.items()}
    return Preferences(
        agent=values[Field.AGENT],
        model=values.get(Field.MODEL),
        effort=values.get(Field.EFFORT),
        repository=values.get(Field.REPOSITORY),
        base=values.get(Field.BASE),
        mode=Mode(values[Field.MODE]),
        choices=tuple(chosen[one] for one in Field if one in chosen),
        notes=tuple(dict.fromkeys(notes)),
    )


def _refuse(problems: Sequence[str]) -> NoReturn:
    raise PreferenceConflict(tuple(dict.fromkeys(problems)))


# The candidates for one field, the strongest first.


def _candidates(one: Field, layers: Sequence[PreferenceLayer], found: Findings) -> list[Choice]:
    """Parse all values for a field. An invalid one from the strongest source is a problem, from others a note."""
    requested = [(layer.source, layer.values[one]) for layer in layers if one in layer.values]
    if not requested:
        return []
    strongest = max((source for source, _ in requested), key=RANK.__getitem__)
    candidates: dict[Choice, None] = {}
    for source, text in requested:
        try:
            candidates[Choice(field=one, value=_read(one, text, source), source=source)] = None
        except ValueError as problem:
            message = f"{_source_prefix(source)}{problem}"
            if source is strongest:
                found.problems.append(message)
            else:
                found.notes.append(f"{message}; {SOURCE_NAMES[strongest]} overrides it")
    winners = [candidate for candidate in candidates if candidate.source is strongest]
    if len(winners) > 1:
        found.problems.append(_describe_duplicates(one, strongest, winners))
    if winners:
        found.notes += [
            _describe_override(candidate, winners[0])
            for candidate in candidates
            if _is_worth_a_note(candidate, winners[0])
        ]
    return sorted(candidates, key=lambda candidate: -RANK[candidate.source])


def _is_worth_a_note(loser: Choice, winner: Choice) -> bool:
    """Whether to report an override: overriding a default is normal."""
    return loser.source not in DEFAULT_SOURCES and loser.source is not winner.source and loser.value != winner.value


def _describe_override(loser: Choice, winner: Choice) -> str:
    lost, won = (f"{_describe_choice(one)} from {SOURCE_NAMES[one.source]}" for one in (loser, winner))
    return f"{lost} is overridden by {won}"


def _source_prefix(source: Source) -> str:
    """Name the source if it is a default: the caller does not see those."""
    return f"{SOURCE_NAMES[source]}: " if source in DEFAULT_SOURCES else ""


def _describe_duplicates(one: Field, source: Source, candidates: Sequence[Choice]) -> str:
    """As in "two executor labels: claude and codex"."""
    count = NUMBER_WORDS.get(len(candidates), str(len(candidates)))
    values = " and ".join(excerpt(short_model_name(candidate.value)) for candidate in candidates)
    if source is Source.LABEL:
        return f"{count} {LABEL_KEYS.get(one, one)} labels: {values}; keep one of them"
    return f"{SOURCE_NAMES[source]} names {count} values for {one}: {values}; keep one of them"


def _describe_choice(choice: Choice) -> str:
    return f"{choice.field} {excerpt(short_model_name(choice.value) if choice.field is Field.MODEL else choice.value)}"


# Agent, model and effort belong together.


def _choose_agent_and_model(agent: Choice, models: Sequence[Choice], found: Findings) -> dict[Field, Choice]:
    """A model of a known family selects its agent; a requested agent drops a default model of another family."""
    for model in models:
        maker = family(model.value)
        is_stronger = RANK[model.source] > RANK[agent.source]
        if maker is not None and is_stronger and agent.source in DEFAULT_SOURCES:
            if agent.source is not Source.DEFAULT and agent.value != maker:
                found.notes.append(f"{_describe_override(agent, model)}, a {maker} model")
            return {Field.AGENT: Choice(field=Field.AGENT, value=maker, source=model.source), Field.MODEL: model}
        if _can_run(agent.value, maker):
            return {Field.AGENT: agent, Field.MODEL: model}
        if model.source in DEFAULT_SOURCES and RANK[model.source] < RANK[agent.source]:
            found.notes.append(
                f"{_describe_choice(model)} from {SOURCE_NAMES[model.source]} is not used with {agent.value}"
            )
            continue
        found.problems.append(_describe_mismatch(agent, model))
        break
    return {Field.AGENT: agent}


def _can_run(agent: str, maker: AgentName | None) -> bool:
    """Whether an agent can run a model of this family; ACP agents and unknown models are not checked."""
    if agent == AgentName.SHELL:
        return False
    return maker is None or agent == maker or agent not in AGENT_TITLES


def _describe_mismatch(agent: Choice, model: Choice) -> str:
    if agent.value == AgentName.SHELL:
        return f"{_describe_choice(model)} is not supported for shell tasks"
    sentence = f"{_describe_choice(model)} is not a {AGENT_TITLES[AgentName(agent.value)]} model"
    if agent.source is model.source:
        return f"{_source_prefix(agent.source)}{sentence}"
    return f"{sentence}: {SOURCE_NAMES[model.source]} sets the model, {SOURCE_NAMES[agent.source]} sets {agent.value}"


def _choose_effort(chosen: Mapping[Field, Choice], efforts: Sequence[Choice], found: Findings) -> dict[Field, Choice]:
    agent, model = chosen[Field.AGENT], chosen.get(Field.MODEL)
    by = max(RANK[choice.source] for choice in (agent, model) if choice is not None)
    for effort in efforts:
        problem = effort_problem(agent.value, model.value if model else None, effort.value)
        if problem is None:
            return {Field.EFFORT: effort}
        if effort.source in DEFAULT_SOURCES and RANK[effort.source] < by:
            found.notes.append(f"{_describe_choice(effort)} from {SOURCE_NAMES[effort.source]} is not used: {problem}")
            continue
        found.problems.append(f"{_source_prefix(effort.source)}{problem}")
        break
    return {}


# Strict parsers for one value; an invalid one raises ValueError with a sentence.


def _read(one: Field, text: str, source: Source) -> str:
    value = READERS[one](text.strip())
    if one is Field.AGENT and value == AgentName.SHELL and source not in MAY_RUN_COMMANDS:
        # Otherwise the text of an issue, which anyone may have written, would run as commands.
        raise ValueError("the agent shell can only be chosen by a request or by settings")
    if one is Field.REPOSITORY and source in ISSUE_SOURCES and SHORT_NAME.fullmatch(value) is None:
        # The author of an issue must not choose among the paths and hosts that the runner can reach.
        raise ValueError(f"{SOURCE_NAMES[source]} must name the repository as owner/name, not {excerpt(value)}")
    return value


def _read_agent(text: str) -> str:
    name = text if text.startswith("acp:") else text.lower()
    name = AGENT_SYNONYMS.get(name, name)
    if not is_agent(name):
        raise ValueError(f"unknown agent {excerpt(text)}; known agents: {', '.join(AgentName)} and acp:<command>")
    return str(name)


def _read_model(text: str) -> str:
    if MODEL_NAME.fullmatch(text) is None:
        raise ValueError(f"{excerpt(text)} is not a valid model name")
    return full_model_name(text)


def _read_effort(text: str) -> str:
    if text.lower() not in EFFORTS:
        raise ValueError(f"unknown effort {excerpt(text)}; known efforts: {', '.join(EFFORTS)}")
    return text.lower()


def _read_repository(text: str) -> str:
    try:
        repository_url(text)
    except InvalidField as problem:
        raise ValueError(f"repository {excerpt(text)} {problem.data['why']}") from None
    return text


def _read_base(text: str) -> str:
    if problem := branch_problem(text):
        raise ValueError(f"base {excerpt(text)} {problem}")
    return text


def _read_mode(text: str) -> str:
    name = MODE_SYNONYMS.get(text.lower(), text.lower())
    if name not in set(Mode):
        raise ValueError(f"unknown mode {excerpt(text)}; known modes: {', '.join(Mode)}")
    return str(name)


READERS: Mapping[Field, Callable[[str], str]] = {
    Field.AGENT: _read_agent,
    Field.MODEL: _read_model,
    Field.EFFORT: _read_effort,
    Field.REPOSITORY: _read_repository,
    Field.BASE: _read_base,
    Field.MODE: _read_mode,
}
