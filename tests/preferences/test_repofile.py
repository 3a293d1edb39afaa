from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.docs.pages import page

from delegate.errors import BadRepoFile
from delegate.model import Field
from delegate.preferences.repofile import ENTRIES_MAX, KEYS, SIZE_MAX, RepoFile, parse

WHOLE = """
agent = "codex"
model = "gpt-5.5"
effort = "high"
base = "develop"
setup = ["npm ci"]
setup_timeout = "20m"
checks = ["npm test", "npm run lint"]
check_timeout = "90s"
check_turns = 3
carry = [".env"]
draft = true
protected = ["deploy/"]
prompt = "Money is counted in cents."
budget_usd = 5
"""


def refused(text: str | bytes) -> BadRepoFile:
    with pytest.raises(BadRepoFile) as caught:
        parse(text)
    return caught.value


def outcome(text: str | bytes) -> str:
    try:
        parse(text)
    except BadRepoFile as problem:
        return problem.message
    return "read"


def test_every_key_is_read() -> None:
    file = parse(WHOLE)

    assert file == RepoFile(
        agent="codex",
        model="gpt-5.5",
        effort="high",
        base="develop",
        setup=("npm ci",),
        setup_timeout=timedelta(minutes=20),
        checks=("npm test", "npm run lint"),
        check_timeout=timedelta(seconds=90),
        check_turns=3,
        carry=(".env",),
        draft=True,
        protected=("deploy/",),
        prompt="Money is counted in cents.",
        budget_usd=5.0,
    )
    assert {line.split(" ")[0] for line in WHOLE.strip().splitlines()} == set(KEYS)


def test_the_example_in_the_documentation_is_a_good_file() -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", page("docs/delegate-toml.md").text, re.M | re.S)

    assert parse(example).checks == ("npm test", "npm run lint")


@pytest.mark.parametrize("text", ["", "\n", b"", "\ufeff# nothing\n", b"\xef\xbb\xbf"])
def test_an_empty_file_sets_no_preferences(text: str | bytes) -> None:
    assert parse(text) == RepoFile()


def test_the_keys_of_the_file_are_named_as_preferences() -> None:
    assert parse('agent = "codex"\nbase = " develop "').preferences == {Field.AGENT: "codex", Field.BASE: "develop"}
    assert RepoFile().preferences == {}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("chekcs", "checks"),
        ("check", "checks"),
        ("check-turns", "check_turns"),
        ("Model", "model"),
        ("budget", "budget_usd"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(name: str, near: str) -> None:
    problem = refused(f"draft = true\n{name} = 1\n")

    assert problem.message == f".delegate.toml, line 2: unknown key {name}; did you mean {near}?"
    assert (problem.code, problem.exit_code) == ("bad_repository_file", 3)


def test_an_unknown_key_that_is_like_none_is_answered_with_all() -> None:
    assert refused("zzz = 1").message.endswith(f"known keys: {', '.join(KEYS)}")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("agent = 1", "agent must be a string in quotes, not 1"),
        ('agent = ""', "agent must be one line of text"),
        ('base = "a\\nb"', "base must be one line of text"),
        ('checks = "make test"', 'checks must be a list of strings, as in ["…"], not "make test"'),
        ("checks = [1]", "checks must contain only strings, but entry 1 is 1"),
        ('checks = ["a", " "]', "checks entry 2 must have 1 to 4,000 characters and no NUL"),
        ("draft = 1", "draft must be true or false, not 1"),
        ('draft = "yes"', 'draft must be true or false, not "yes"'),
        ("check_turns = true", "check_turns must be a whole number from 0 to 10, not true"),
        ("check_turns = 11", "check_turns must be a whole number from 0 to 10, not 11"),
        ("check_turns = 1.5", "check_turns must be a whole number from 0 to 10, not 1.5"),
        ("budget_usd = 0", "budget_usd must be a positive number of US dollars, not 0"),
        ("budget_usd = nan", "budget_usd must be a positive number of US dollars, not nan"),
        ("budget_usd = -1", "budget_usd must be a positive number of US dollars, not -1"),
        ("check_timeout = 90", 'check_timeout must be a duration with a unit, as in "90s", "30m" or "2h", not 90'),
        (
            'check_timeout = "90"',
            'check_timeout must be a duration with a unit, as in "90s", "30m" or "2h", not "90"',
        ),
        ('check_timeout = "1e9 h"', 'check_timeout must be a duration, as in "90s", "30m" or "2h", not "1e9 h"'),
        ('setup_timeout = "25h"', "setup_timeout must be from 1s to 24h"),
        ("[checks]", 'checks must be a list of strings, as in ["…"], not a table'),
        ("prompt = 2026-01-01", "prompt must be a string in quotes, not 2026-01-01"),
    ],
)
def test_a_wrong_value_is_reported_with_its_key_and_line(line: str, why: str) -> None:
    assert refused(f"# first\n\n{line}\n").message == f".delegate.toml, line 3: {why}"


def test_the_line_is_left_out_where_it_is_unknown() -> None:
    problem = refused('prompt = """\ndraft = true\n"""\ndraft = 1\n')

    assert problem.message == ".delegate.toml: draft must be true or false, not 1"


@pytest.mark.parametrize(
    "text",
    [
        "agent",
        "agent = ",
        "a = 1\na = 2",
        "when = 2026-02-30",
        "checks = [",
        "agent = 'a\x00b'",
        "\tagent\t=\tcodex",
    ],
)
def test_what_is_not_toml_is_reported_with_its_position(text: str) -> None:
    problem = refused(text)

    assert "is not valid TOML" in problem.message
    assert "at line" not in problem.message


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff\xfea\x00", "is not UTF-8 at byte 0"),
        (b"#" * (SIZE_MAX + 1), "is larger than 65,536 bytes"),
        (b"check_turns = " + b"9" * 5_000, "contains a value that is too large or nested too deeply"),
        (b"checks = " + b"[" * 20_000, "too deep"),
        (b"checks = [" + b'"x",' * (ENTRIES_MAX + 1) + b"]", "at most 100 entries"),
        (b'prompt = "' + b"x" * 20_001 + b'"', "at most 20,000 characters"),
    ],
)
def test_a_file_that_no_person_wrote_is_refused(data: bytes, why: str) -> None:
    assert why in refused(data).message


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_whatever_the_file_holds_it_is_read_or_refused(data: bytes | str) -> None:
    assert outcome(data) == "read" or outcome(data).startswith(".delegate.toml")
    assert outcome(data).isprintable()


@given(st.sampled_from(list(KEYS)), st.from_regex(r"[\[\]{}\"'0-9a-z=.,\n -]{0,30}", fullmatch=True))
def test_whatever_a_key_is_set_to_it_is_read_or_refused(name: str, value: str) -> None:
    assert outcome(f"{name} = {value}") == "read" or outcome(f"{name} = {value}").startswith(".delegate.toml")
