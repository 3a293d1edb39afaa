from __future__ import annotations

from itertools import pairwise

import pytest

from delegate.errors import PreferenceConflict
from delegate.model import Choice, Field, Mode, Source
from delegate.preferences.labels import parse_labels, parse_tags
from delegate.preferences.repofile import RepoFile
from delegate.preferences.resolve import MAY_RUN_COMMANDS, PreferenceLayer, Preferences, apply_repository_file, resolve


def layer(source: Source, **values: str) -> PreferenceLayer:
    return PreferenceLayer(source=source, values={Field(name): value for name, value in values.items()})


def asked(**values: str) -> PreferenceLayer:
    return layer(Source.REQUEST, **values)


def labelled(**values: str) -> PreferenceLayer:
    return layer(Source.LABEL, **values)


def problems(*layers: PreferenceLayer) -> tuple[str, ...]:
    with pytest.raises(PreferenceConflict) as caught:
        resolve(layers)
    return caught.value.problems


def sources(preferences: Preferences) -> dict[str, str]:
    return {choice.field.value: choice.source.value for choice in preferences.choices}


# Who wins.


def test_without_a_preference_claude_works_in_place() -> None:
    decided = resolve([])

    assert (decided.agent, decided.model, decided.effort, decided.mode) == ("claude", None, None, Mode.IN_PLACE)
    assert sources(decided) == {"agent": "default", "mode": "default"}


@pytest.mark.parametrize(("weaker", "stronger"), list(pairwise(list(Source)[1:])))
def test_a_later_source_wins_over_the_one_before_it(weaker: Source, stronger: Source) -> None:
    decided = resolve([layer(stronger, base="stable"), layer(weaker, base="main")])

    assert decided.base == "stable"
    assert sources(decided)["base"] == stronger


def test_each_field_is_decided_by_itself() -> None:
    decided = resolve([labelled(model="claude-opus-4-6"), asked(effort="max", mode="pr"), labelled(repository="a/b")])

    assert (decided.model, decided.effort, decided.mode) == ("claude-opus-4-6", "max", Mode.PULL_REQUEST)
    assert decided.choices == (
        Choice(field=Field.AGENT, value="claude", source=Source.LABEL),
        Choice(field=Field.MODEL, value="claude-opus-4-6", source=Source.LABEL),
        Choice(field=Field.EFFORT, value="max", source=Source.REQUEST),
        Choice(field=Field.REPOSITORY, value="a/b", source=Source.LABEL),
        Choice(field=Field.MODE, value="pull_request", source=Source.REQUEST),
    )


def test_a_preference_that_was_overridden_is_noted() -> None:
    decided = resolve([labelled(model="claude-sonnet-4-5"), asked(model="opus")])

    assert decided.model == "opus"
    assert decided.notes == ("model sonnet-4-5 from a label is overridden by model opus from the request",)


def test_a_default_that_is_overruled_is_nothing_to_tell() -> None:
    assert resolve([layer(Source.RELAY, model="sonnet"), asked(model="opus")]).notes == ()


# Agent and model.


@pytest.mark.parametrize(
    ("model", "agent"),
    [
        ("claude-sonnet-4-5", "claude"),
        ("us.anthropic.claude-opus-4-6-v1:0", "claude"),
        ("opus", "claude"),
        ("sonnet[1m]", "claude"),
        ("claude-fable-5", "claude"),
        ("gpt-5.5", "codex"),
        ("o3", "codex"),
        ("o4-mini", "codex"),
        ("codex-mini-latest", "codex"),
        ("openai/gpt-5.5", "codex"),
    ],
)
def test_the_agent_follows_from_the_family_of_the_model(model: str, agent: str) -> None:
    decided = resolve([labelled(model=model)])

    assert (decided.agent, decided.model) == (agent, model)
    assert sources(decided)["agent"] == "label"


def test_an_unknown_model_is_passed_on_to_whatever_agent_there_is() -> None:
    assert resolve([asked(model="Kimi-K2")]).model == "Kimi-K2"
    assert resolve([asked(model="orion"), layer(Source.RELAY, agent="codex")]).agent == "codex"


def test_a_name_as_we_show_it_is_understood() -> None:
    assert resolve([asked(model="Sonnet-4-5")]).model == "claude-sonnet-4-5"


@pytest.mark.parametrize("source", [Source.RELAY, Source.PROJECT, Source.REPOSITORY_FILE])
def test_a_model_that_was_asked_overrules_a_standing_agent(source: Source) -> None:
    decided = resolve([layer(source, agent="codex"), labelled(model="claude-sonnet-4-5")])

    assert (decided.agent, decided.model) == ("claude", "claude-sonnet-4-5")
    assert "agent codex" in decided.notes[0]


def test_an_agent_that_was_asked_sets_a_standing_model_of_another_family_aside_and_says_so() -> None:
    decided = resolve([layer(Source.REPOSITORY_FILE, model="claude-opus-4-6"), asked(agent="codex")])

    assert (decided.agent, decided.model) == ("codex", None)
    assert decided.notes == ("model opus-4-6 from .delegate.toml is not used with codex",)


def test_the_next_standing_model_that_fits_is_taken() -> None:
    standing = [layer(Source.RELAY, model="gpt-5.5"), layer(Source.PROJECT, model="opus")]

    assert resolve([*standing, asked(agent="codex")]).model == "gpt-5.5"


def test_a_model_of_another_family_is_a_problem() -> None:
    assert problems(labelled(agent="codex"), labelled(model="claude-sonnet-4-5")) == (
        "model sonnet-4-5 is not a Codex model",
    )
    assert problems(asked(agent="claude", model="gpt-5.5")) == ("model gpt-5.5 is not a Claude model",)


@pytest.mark.parametrize(
    ("agent", "model"), [(Source.REQUEST, Source.LABEL), (Source.LABEL, Source.REQUEST), (Source.LABEL, Source.COMMENT)]
)
def test_two_people_who_fight_are_never_settled_by_dropping_one(agent: Source, model: Source) -> None:
    (problem,) = problems(layer(agent, agent="codex"), layer(model, model="opus"))

    assert problem.startswith("model opus is not a Codex model: ")


def test_an_acp_agent_takes_a_model_of_any_family() -> None:
    decided = resolve([asked(agent="acp:opencode acp", model="anthropic/claude-sonnet-4-5")])

    assert (decided.agent, decided.model) == ("acp:opencode acp", "anthropic/claude-sonnet-4-5")


def test_a_standing_acp_agent_gives_way_to_a_model_that_names_its_agent() -> None:
    assert resolve([layer(Source.RELAY, agent="acp:opencode"), labelled(model="opus")]).agent == "claude"


def test_a_shell_command_has_neither_model_nor_effort() -> None:
    assert problems(asked(agent="shell", model="opus")) == ("model opus is not supported for shell tasks",)
    assert problems(asked(agent="shell", effort="high")) == ("effort high is not supported for shell tasks",)
    assert resolve([layer(Source.RELAY, model="opus", effort="high"), asked(agent="shell")]).model is None


@pytest.mark.parametrize("source", [one for one in Source if one not in MAY_RUN_COMMANDS])
def test_only_a_request_or_settings_can_choose_the_shell(source: Source) -> None:
    (problem,) = problems(layer(source, agent="shell"))

    assert problem.endswith("the agent shell can only be chosen by a request or by settings")


@pytest.mark.parametrize("name", ["gemini", "", "acp:", "acp:sh;id", "claude codex", "\x1b[31mcodex"])
def test_an_unknown_agent_is_a_problem_and_no_other_runs_instead(name: str) -> None:
    (problem,) = problems(asked(agent=name))

    assert problem.startswith("unknown agent ")
    assert problem.isprintable()


def test_an_agent_is_known_by_the_name_of_its_program_too() -> None:
    assert resolve([labelled(agent="Claude-Code")]).agent == "claude"


# Fights within one source.


def test_two_executor_labels_are_a_problem() -> None:
    assert problems(labelled(agent="claude"), labelled(agent="codex")) == (
        "two executor labels: claude and codex; keep one of them",
    )


def test_the_same_label_twice_is_one() -> None:
    assert resolve([labelled(model="sonnet-4-5"), labelled(model="claude-sonnet-4-5")]).model == "claude-sonnet-4-5"


def test_an_answer_settles_what_the_labels_left_open() -> None:
    labels = [labelled(agent="claude"), labelled(agent="codex"), labelled(agent="nobody")]
    decided = resolve([*labels, layer(Source.COMMENT, agent="codex")])

    assert decided.agent == "codex"
    assert decided.notes == (
        "unknown agent nobody; known agents: claude, codex, shell and acp:<command>; the comment overrides it",
        "agent claude from a label is overridden by agent codex from the comment",
    )


def test_all_problems_are_reported_at_once() -> None:
    found = problems(labelled(agent="x"), labelled(effort="huge"), labelled(base="a;id"), labelled(mode="sideways"))

    assert [sentence.split()[:2] for sentence in found] == [
        ["unknown", "agent"],
        ["unknown", "effort"],
        ["base", "a;id"],
        ["unknown", "mode"],
    ]


def test_a_problem_found_while_reading_is_never_forgotten() -> None:
    assert problems(PreferenceLayer(source=Source.LABEL, problems=("what is this",)), asked(agent="codex")) == (
        "what is this",
    )


@pytest.mark.parametrize(
    "base", ["-x", "a;id", "a$(id)", "a b", "x/", ".x", "a\u202eb", "", "/" * 3, "x" * 300, "HEAD", "0" * 40]
)
def test_a_base_outside_our_grammar_is_a_problem(base: str) -> None:
    (problem,) = problems(asked(base=base))

    assert problem.startswith("base ")
    assert problem.isprintable()


@pytest.mark.parametrize(
    "name", ["../other", "owner/name/extra", "owner/..", "ext::sh -c id", "--config=x", "", "a/b\n"]
)
def test_a_repository_outside_our_grammar_is_a_problem(name: str) -> None:
    (problem,) = problems(asked(repository=f"{name}%00"))

    assert problem.startswith("repository ")
    assert problem.isprintable()


@pytest.mark.parametrize("source", [Source.LABEL, Source.DESCRIPTION, Source.COMMENT])
def test_an_issue_names_a_repository_by_owner_and_name_only(source: Source) -> None:
    assert resolve([layer(source, repository="acme/shop")]).repository == "acme/shop"
    for elsewhere in ("/home/user/private", "https://elsewhere.test/a/b.git", "git@elsewhere.test:a/b.git"):
        (problem,) = problems(layer(source, repository=elsewhere))
        assert "must name the repository as owner/name" in problem


def test_the_error_carries_every_sentence() -> None:
    with pytest.raises(PreferenceConflict) as caught:
        resolve([labelled(agent="claude"), labelled(agent="codex"), asked(effort="huge")])

    assert (caught.value.code, caught.value.status, caught.value.exit_code) == ("preference_conflict", 422, 2)
    assert all(sentence in caught.value.message for sentence in caught.value.problems)
    assert len(caught.value.problems) == 2


# Effort.


def test_an_effort_that_the_agent_does_not_know_is_a_problem() -> None:
    assert problems(asked(agent="codex", effort="max")) == (
        "effort max is not supported by Codex; use one of minimal, low, medium, high, xhigh",
    )
    assert problems(asked(effort="minimal")) == (
        "effort minimal is not supported by Claude; use one of low, medium, high, xhigh, max",
    )


def test_a_standing_effort_that_does_not_fit_is_set_aside_and_reported() -> None:
    decided = resolve([layer(Source.RELAY, effort="max"), asked(agent="codex")])

    assert decided.effort is None
    assert decided.notes[0].startswith("effort max from the relay's settings is not used: ")


# The repository's file.


def test_the_file_fills_what_no_source_above_it_decided() -> None:
    before = resolve([asked(mode="pr", effort="low")])

    after = apply_repository_file(
        before.choices, RepoFile(agent="codex", model="gpt-5.5", effort="high", base="develop")
    )

    assert (after.agent, after.model, after.effort, after.base) == ("codex", "gpt-5.5", "low", "develop")
    assert sources(after) == {
        "agent": ".delegate.toml",
        "model": ".delegate.toml",
        "effort": "request",
        "base": ".delegate.toml",
        "mode": "request",
    }


def test_the_file_overrules_the_relay_and_the_project_but_no_label() -> None:
    before = resolve([layer(Source.RELAY, agent="codex"), layer(Source.PROJECT, base="main"), labelled(effort="low")])

    after = apply_repository_file(before.choices, RepoFile(agent="claude", base="develop", effort="max"))

    assert (after.agent, after.base, after.effort) == ("claude", "develop", "low")


def test_a_model_that_was_asked_keeps_its_agent_whatever_the_file_says() -> None:
    before = resolve([labelled(model="claude-sonnet-4-5")])

    assert apply_repository_file(before.choices, RepoFile(agent="codex")).agent == "claude"


def test_filling_twice_changes_nothing_more() -> None:
    file = RepoFile(agent="codex", effort="high")
    once = apply_repository_file(resolve([asked(mode="worktree")]).choices, file)

    assert apply_repository_file(once.choices, file) == once


def test_an_empty_file_changes_nothing() -> None:
    before = resolve([asked(agent="codex", model="gpt-5.5"), labelled(effort="high")])

    assert apply_repository_file(before.choices, RepoFile()).choices == before.choices


def test_what_is_wrong_in_the_file_is_a_problem_that_names_it() -> None:
    with pytest.raises(PreferenceConflict) as caught:
        apply_repository_file(resolve([]).choices, RepoFile(agent="codex", model="opus", effort="huge"))

    assert caught.value.problems == (
        ".delegate.toml: unknown effort huge; known efforts: minimal, low, medium, high, xhigh, max",
        ".delegate.toml: model opus is not a Codex model",
    )


def test_an_effort_that_was_asked_is_not_dropped_for_an_agent_that_the_file_brings() -> None:
    with pytest.raises(PreferenceConflict, match="effort max is not supported by Codex"):
        apply_repository_file(resolve([asked(effort="max")]).choices, RepoFile(agent="codex"))


# From an issue to a decision.


def test_labels_and_tags_of_an_issue_are_decided_together() -> None:
    layers = [
        *parse_labels(["bug", "delego:claude-sonnet-4-5", "thinking/high", "repo/acme/shop"]),
        *parse_tags("Please use delegate:effort=medium.", Source.DESCRIPTION),
    ]

    decided = resolve([*layers, asked(mode="pull_request")])

    assert (decided.agent, decided.model, decided.effort) == ("claude", "claude-sonnet-4-5", "medium")
    assert (decided.repository, decided.mode) == ("acme/shop", Mode.PULL_REQUEST)
