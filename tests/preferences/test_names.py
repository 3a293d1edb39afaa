from __future__ import annotations

import pytest

from delegate.errors import InvalidField
from delegate.preferences.names import branch_problem, repository_name, repository_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("owner/name", "https://github.com/owner/name.git"),
        ("owner/name.git", "https://github.com/owner/name.git"),
        ("https://git.example.org:8443/group/sub/name.git", "https://git.example.org:8443/group/sub/name.git"),
        ("http://127.0.0.1:8080/owner/name", "http://127.0.0.1:8080/owner/name"),
        ("ssh://git@host:2222/~me/name.git", "ssh://git@host:2222/~me/name.git"),
        ("git@github.com:owner/name.git", "git@github.com:owner/name.git"),
        ("/srv/git/my project.git", "/srv/git/my project.git"),
    ],
)
def test_the_address_for(text: str, url: str) -> None:
    assert repository_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "../other",
        "~/other",
        "owner/name/extra",
        "owner/..",
        "owner/.git",
        "owner/na..me",
        "owner/name.git%00",
        "owner/name\n",
        "ext::sh -c id",
        "ext::id",
        "file:///srv/name.git",
        "--config=core.sshCommand=id",
        "--upload-pack=id/x",
        "ssh://-oProxyCommand=id@host/x",
        "ssh://git@-host/x",
        "-git@host:x",
        "https:///host/x",
        "https://user:secret@host/owner/name",
        "https://host/owner/../name",
        "git://host/owner/name",
        "/",
        "/srv/../etc",
        "/srv/na\nme",
        "/srv/\u202ename",
        "owner/n\u0430me",
        "a/" + "b" * 1000,
    ],
)
def test_it_is_not_a_repository(text: str) -> None:
    with pytest.raises(InvalidField) as caught:
        repository_url(text)
    assert caught.value.field == "repository"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://github.com/owner/name.git", "owner/name"),
        ("https://host/group/sub/name", "sub/name"),
        ("ssh://git@host:22/owner/name.git", "owner/name"),
        ("git@github.com:owner/name.git", "owner/name"),
        ("gh:owner/name", "owner/name"),
        ("/srv/git/name.git", "name"),
        ("/home/me/name/.git", "name"),
        ("file:///srv/git/name.git", "name"),
    ],
)
def test_the_name_of(url: str, name: str) -> None:
    assert repository_name(url) == name


@pytest.mark.parametrize(("length", "is_valid"), [(1000, True), (1001, False)])
def test_a_repository_path_has_at_most_a_thousand_characters(length: int, is_valid: bool) -> None:
    path = "/" + "a" * (length - 1)

    if is_valid:
        assert repository_url(path) == path
    else:
        with pytest.raises(InvalidField, match="longer than 1,000 characters"):
            repository_url(path)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("größe/ä", "rename it with `git branch -m 'größe/ä' grosse/a`, and push it"), ("дом", ""), ("a b", "")],
)
def test_a_branch_name_outside_ascii_says_what_to_type(name: str, advice: str) -> None:
    problem = branch_problem(name)

    assert problem is not None
    assert problem.startswith("must be a branch name of ASCII letters, digits")
    assert problem.endswith(advice or "letter or digit")
