"""Which agent works, with which model and effort, on what: one answer from many wishes, and who decided each part.

A later source wins. A wish that cannot be fulfilled is a problem, told before anything runs; only a standing default
(of the relay, its caller, a project or a repository) gives way to what somebody asked for this very piece of work,
and says so.
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
    """What one source wants; `problems` are sentences about what it said and nobody can understand."""

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
    choices: tuple[Choice, ...]  # who decided each of them
    notes: tuple[str, ...] = ()  # sentences about wishes that gave way to stronger ones


@dataclass(slots=True)
class Findings:
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def resolve(layers: Sequence[PreferenceLayer]) -> Preferences:
    """Raises PreferenceConflict with every problem there is, not only with the first."""
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
    """What was decided without the repository's file, with what the file says where nobody stronger has spoken."""
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


# The wishes for one field, the strongest first.


def _candidates(one: Field, layers: Sequence[PreferenceLayer], found: Findings) -> list[Choice]:
    """The readable wishes; what is wrong with the strongest is a problem, what is weaker has lost anyway."""
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
                found.notes.append(f"{message}; {SOURCE_NAMES[strongest]} decides instead")
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
    """That a default is overruled is what a default is for."""
    return loser.source not in DEFAULT_SOURCES and loser.source is not winner.source and loser.value != winner.value


def _describe_override(loser: Choice, winner: Choice) -> str:
    lost, won = (f"{_describe_choice(one)} of {SOURCE_NAMES[one.source]}" for one in (loser, winner))
    return f"{lost} gives way to {won}"


def _source_prefix(source: Source) -> str:
    """Whoever asks for a piece of work does not see the defaults that join in."""
    return f"{SOURCE_NAMES[source]}: " if source in DEFAULT_SOURCES else ""


def _describe_duplicates(one: Field, source: Source, candidates: Sequence[Choice]) -> str:
    """As in "two executor labels: claude and codex"."""
    count = NUMBER_WORDS.get(len(candidates), str(len(candidates)))
    values = " and ".join(excerpt(short_model_name(candidate.value)) for candidate in candidates)
    if source is Source.LABEL:
        return f"{count} {LABEL_KEYS.get(one, one)} labels: {values}; leave one of them"
    return f"{SOURCE_NAMES[source]} names {count} of one kind ({one}): {values}; leave one of them"


def _describe_choice(choice: Choice) -> str:
    return f"{choice.field} {excerpt(short_model_name(choice.value) if choice.field is Field.MODEL else choice.value)}"


# Agent, model and effort belong together.


def _choose_agent_and_model(agent: Choice, models: Sequence[Choice], found: Findings) -> dict[Field, Choice]:
    """A model of a known family brings its agent; a default of another family gives way to an agent that was asked."""
    for model in models:
        maker = family(model.value)
        is_stronger = RANK[model.source] > RANK[agent.source]
        if maker is not None and is_stronger and agent.source in DEFAULT_SOURCES:
            if agent.source is not Source.DEFAULT and agent.value != maker:
                found.notes.append(f"{_describe_override(agent, model)}, which is of {maker}")
            return {Field.AGENT: Choice(field=Field.AGENT, value=maker, source=model.source), Field.MODEL: model}
        if _can_run(agent.value, maker):
            return {Field.AGENT: agent, Field.MODEL: model}
        if model.source in DEFAULT_SOURCES and RANK[model.source] < RANK[agent.source]:
            found.notes.append(
                f"{_describe_choice(model)} of {SOURCE_NAMES[model.source]} is not used with {agent.value}"
            )
            continue
        found.problems.append(_describe_mismatch(agent, model))
        break
    return {Field.AGENT: agent}


def _can_run(agent: str, maker: AgentName | None) -> bool:
    """Whether an agent may be given a model of this family; what is behind ACP, or unknown, only it can tell."""
    if agent == AgentName.SHELL:
        return False
    return maker is None or agent == maker or agent not in AGENT_TITLES


def _describe_mismatch(agent: Choice, model: Choice) -> str:
    if agent.value == AgentName.SHELL:
        return f"{_describe_choice(model)} cannot be used: a shell command has no model"
    sentence = f"{_describe_choice(model)} is not a {AGENT_TITLES[AgentName(agent.value)]} model"
    if agent.source is model.source:
        return f"{_source_prefix(agent.source)}{sentence}"
    return f"{sentence}: {SOURCE_NAMES[model.source]} wants the model, {SOURCE_NAMES[agent.source]} wants {agent.value}"


def _choose_effort(chosen: Mapping[Field, Choice], efforts: Sequence[Choice], found: Findings) -> dict[Field, Choice]:
    agent, model = chosen[Field.AGENT], chosen.get(Field.MODEL)
    by = max(RANK[choice.source] for choice in (agent, model) if choice is not None)
    for effort in efforts:
        problem = effort_problem(agent.value, model.value if model else None, effort.value)
        if problem is None:
            return {Field.EFFORT: effort}
        if effort.source in DEFAULT_SOURCES and RANK[effort.source] < by:
            found.notes.append(f"{_describe_choice(effort)} of {SOURCE_NAMES[effort.source]} is not used: {problem}")
            continue
        found.problems.append(f"{_source_prefix(effort.source)}{problem}")
        break
    return {}


# One value, read strictly; what cannot be read raises ValueError with a sentence.


def _read(one: Field, text: str, source: Source) -> str:
    value = READERS[one](text.strip())
    if one is Field.AGENT and value == AgentName.SHELL and source not in MAY_RUN_COMMANDS:
        # Otherwise the text of an issue, which anybody may have written, would run as commands.
        raise ValueError("the agent shell can be chosen by a request only, or for requests by settings")
    if one is Field.REPOSITORY and source in ISSUE_SOURCES and SHORT_NAME.fullmatch(value) is None:
        # Whoever may write an issue does not choose among the paths and the addresses that the runner can reach.
        raise ValueError(f"{SOURCE_NAMES[source]} must name the repository as owner/name, not {excerpt(value)}")
    return value


def _read_agent(text: str) -> str:
    name = text if text.startswith("acp:") else text.lower()
    name = AGENT_SYNONYMS.get(name, name)
    if not is_agent(name):
        raise ValueError(f"there is no agent {excerpt(text)}; known are {', '.join(AgentName)} and acp:<command>")
    return str(name)


def _read_model(text: str) -> str:
    if MODEL_NAME.fullmatch(text) is None:
        raise ValueError(f"{excerpt(text)} cannot be the name of a model")
    return full_model_name(text)


def _read_effort(text: str) -> str:
    if text.lower() not in EFFORTS:
        raise ValueError(f"there is no effort {excerpt(text)}; known are {', '.join(EFFORTS)}")
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
        raise ValueError(f"there is no mode {excerpt(text)}; known are {', '.join(Mode)}")
    return str(name)


READERS: Mapping[Field, Callable[[str], str]] = {
    Field.AGENT: _read_agent,
    Field.MODEL: _read_model,
    Field.EFFORT: _read_effort,
    Field.REPOSITORY: _read_repository,
    Field.BASE: _read_base,
    Field.MODE: _read_mode,
}
