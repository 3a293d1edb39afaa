from __future__ import annotations

import pytest

from delegate.errors import PreferenceConflict
from delegate.model import Field, Source
from delegate.preferences.labels import parse_label, parse_labels, parse_tags
from delegate.preferences.resolve import resolve


@pytest.mark.parametrize(
    ("label", "field", "value"),
    [
        ("delegate:claude-sonnet-4-5", Field.MODEL, "claude-sonnet-4-5"),
        ("delego:claude-sonnet-4-5", Field.MODEL, "claude-sonnet-4-5"),
        ("Delegate: codex", Field.AGENT, "codex"),
        ("delegate:claude-code", Field.AGENT, "claude-code"),
        ("delegate:acp:opencode acp", Field.AGENT, "acp:opencode acp"),
        ("delegate:high", Field.EFFORT, "high"),
        ("delegate:kimi-k2", Field.MODEL, "kimi-k2"),
        ("delegate:anthropic/claude-opus-4-6", Field.MODEL, "anthropic/claude-opus-4-6"),
        ("delegate:effort=high", Field.EFFORT, "high"),
        ("delegate:executor/codex", Field.AGENT, "codex"),
        ("delegate:base=release/2.0", Field.BASE, "release/2.0"),
        ("executor/codex", Field.AGENT, "codex"),
        ("Executor / codex", Field.AGENT, "codex"),
        ("model/gpt-5.5", Field.MODEL, "gpt-5.5"),
        ("thinking/xhigh", Field.EFFORT, "xhigh"),
        ("repo/acme/shop", Field.REPOSITORY, "acme/shop"),
    ],
)
def test_a_label_is_one_preference(label: str, field: Field, value: str) -> None:
    layer = parse_label(label)

    assert layer is not None
    assert (layer.source, dict(layer.values), layer.problems) == (Source.LABEL, {field: value}, ())


@pytest.mark.parametrize(
    "label", ["bug", "delegate", "delegated:codex", "base/main", "my model/x", '"><img src=x onerror=alert(1)>', ""]
)
def test_a_label_that_is_not_ours_is_passed_over(label: str) -> None:
    assert parse_label(label) is None


@pytest.mark.parametrize("label", ["delegate:", "delego:  ", "executor/", "delegate:model=", "delegate:efort=high"])
def test_a_label_of_ours_that_says_nothing_we_know_is_a_problem(label: str) -> None:
    layer = parse_label(label)

    assert layer is not None
    assert not layer.values
    assert label.strip().split()[0] in layer.problems[0]


def test_a_slip_in_a_key_is_answered_with_the_nearest() -> None:
    (layer,) = parse_labels(["delegate:efort=high"])

    assert layer.problems == ("the label delegate:efort=high has an unknown key; did you mean effort?",)


def test_a_label_with_control_characters_is_shown_without_effect() -> None:
    with pytest.raises(PreferenceConflict) as caught:
        resolve(parse_labels(["delegate:\x1b]0;x\x07=\nCo-authored-by: x"]))

    assert caught.value.problems == ("\\x1b]0;x\\x07=\\nCo-authored-by: x is not a valid model name",)


def test_tags_are_found_in_running_text() -> None:
    text = "Do it with delegate:codex, please (delegate:effort=high).\n\nDELEGATE:base=develop"

    layers = parse_tags(text, Source.DESCRIPTION)

    assert [dict(layer.values) for layer in layers] == [
        {Field.AGENT: "codex"},
        {Field.EFFORT: "high"},
        {Field.BASE: "develop"},
    ]
    assert {layer.source for layer in layers} == {Source.DESCRIPTION}


@pytest.mark.parametrize(
    "text",
    ["delegate: fix it", "we delegate:", "https://x.test/delegate:codex", "undelegate:codex", "a.delegate:codex"],
)
def test_prose_that_only_looks_similar_is_not_a_tag(text: str) -> None:
    assert parse_tags(text, Source.COMMENT) == ()


@pytest.mark.parametrize(
    "text",
    [
        "`delegate:codex`",
        "```\ndelegate:codex\n```",
        "~~~\ndelegate:codex",
        "> delegate:codex",
        "<!-- delegate:codex -->",
        "<!-- delegate:codex",
    ],
)
def test_a_tag_in_code_a_quotation_or_a_hidden_comment_is_noted_but_not_followed(text: str) -> None:
    (layer,) = parse_tags(f"words\n{text}\n", Source.COMMENT)

    assert layer.values == {}
    assert layer.notes == ("delegate:codex in the comment is in code, a quotation or a hidden comment: ignored",)


def test_a_tag_after_code_is_followed() -> None:
    (layer, _) = parse_tags("see `delegate:claude`, but:\n```\nx\n```\ndelegate:codex", Source.COMMENT)

    assert layer.values == {Field.AGENT: "codex"}


def test_an_unknown_word_in_running_text_is_a_problem_that_says_how_to_write_it() -> None:
    (layer,) = parse_tags("see delegate:8080", Source.DESCRIPTION)

    assert layer.problems == (
        "delegate:8080 in the description is not a known agent, effort or model; "
        "if 8080 is a model, write delegate:model=8080",
    )


def test_a_long_text_is_read_in_one_go() -> None:
    text = "`delegate: " * 50_000 + "<!-" * 50_000 + " delegate:codex"

    assert parse_tags(text, Source.DESCRIPTION)[0].values == {Field.AGENT: "codex"}
