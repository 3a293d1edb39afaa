"""The policy file of a paired runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from delegate.errors import BadPolicy
from delegate.placement import AcceptFrom, Policy
from delegate.preferences.policyfile import PolicyFile, read_policy, write_policy

WIDE = PolicyFile(
    rules=Policy(
        repositories=("github.com/acme/shop", 'odd"name'),
        directories=("/srv/ä b",),
        agents=("claude", "shell"),
        accept_from=(AcceptFrom.ME, AcceptFrom.LINEAR),
        in_place=True,
        shell=True,
    ),
    runners="3",
    privacy="full",
    tags=("gpu",),
    checkouts={"github.com/acme/shop": "/home/me/shop"},
)


@pytest.mark.parametrize("policy", [PolicyFile(), WIDE, PolicyFile(rules=Policy(repositories=None))])
def test_what_is_written_is_read(tmp_path: Path, policy: PolicyFile) -> None:
    path = tmp_path / "policy.toml"
    write_policy(path, policy)

    assert read_policy(path) == policy


def test_an_empty_file_is_the_narrow_default(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")

    assert read_policy(path) == PolicyFile()
    assert read_policy(path).describe() == "my tasks · no repository · claude, codex"


def test_repositories_are_one_name_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    repositories = 'repositories = ["Acme/Shop", "git@gitlab.example:team/x.git"]'
    path.write_text(f'{repositories}\n[checkouts]\n"Acme/Shop" = "~/shop"\n')

    assert read_policy(path).rules.repositories == ("github.com/acme/shop", "gitlab.example/team/x")
    assert read_policy(path).checkouts == {"github.com/acme/shop": str(Path("~/shop").expanduser())}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("shell = 1", "shell must be true or false"),
        ('repositories = "acme/shop"', "repositories must be a list of texts"),
        ("agents = [1]", "agents must be a list of texts"),
        ('accept_from = ["everyone"]', "accept_from must be made of me, members, linear, schedules"),
        ('privacy = "none"', "privacy must be one of minimal, summary, full"),
        ("runners = 0", "runners must be at least 1"),
        ('runners = "many"', "runners must be auto or a number from 0 to 256"),
        ("repository = []", "unknown key repository"),
        ("checkouts = 1", "checkouts must be a table of paths"),
        ('tags = ["a b"]', "tags must be made of letters"),
        ("shell = ", "not valid TOML"),
    ],
)
def test_an_invalid_file_is_refused_with_its_key(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)

    with pytest.raises(BadPolicy) as caught:
        read_policy(path)

    assert why in caught.value.message
    assert "accepts no task" in caught.value.hint


def test_a_missing_file_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match="the file is missing"):
        read_policy(tmp_path / "policy.toml")
