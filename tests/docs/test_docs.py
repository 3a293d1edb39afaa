"""The documentation says what the code does: nothing is missing, nothing is made up."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

import click
import pytest
from scripts import client_types
from tests.docs.generated import proofs, refreshed
from tests.docs.pages import ROOT, SOURCE, Page, all_pages, codes_in, page, table_rows

from delegate.cli.main import cli
from delegate.config.paths import Home
from delegate.config.settings import Settings, setting_spec
from delegate.config.values import SettingSpec
from delegate.errors import DelegateError
from delegate.model import PROMPT_MAX, EventKind
from delegate.relay.app import make_app
from delegate.relay.requests import Relay
from delegate.states import Reason
from delegate.wire import basics, runners, schedules, shared_models, tasks

PAGES = all_pages()
SHARED_OPTIONS = {"--json", "-v", "--verbose", "-h", "--help"}
OTHER_VARIABLES = {
    "DELEGATE_TASK_ID",
    "DELEGATE_ATTEMPT_ID",
    "DELEGATE_CONTEXT",
    "DELEGATE_FAILPOINTS",
    "DELEGATE_SECRET_KEY",
}
ROUTE = re.compile(r"(?:GET|POST|PUT|PATCH|DELETE) /\S*")
MODULE = re.compile(r"[a-z_]+(?:/[a-z_0-9]+)*(?:\.py|/)")
RANGE = re.compile(r"`([\d.]+)` to `([\d.]+)`")
NO_DEFAULT = "none"
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
README_BYTES = 8000


@cache
def source_trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(SOURCE.rglob("*.py"))]


# Links, modules and generated parts.


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_no_link_is_dead(one: Page) -> None:
    assert [link for link in one.links if not leads_somewhere(one, link)] == []


def leads_somewhere(one: Page, link: str) -> bool:
    if "://" in link:
        return True
    target, _, anchor = link.partition("#")
    path = (one.path.parent / target).resolve() if target else one.path
    return path.exists() and (not anchor or anchor in Page(path).anchors)


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_every_module_that_is_named_exists(one: Page) -> None:
    named = {code for code in one.codes if MODULE.fullmatch(code)} - {f"{place.name}/" for place in home_places()}

    assert {name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()} == set()


def home_places() -> list[Path]:
    root = Path("home")
    found = [getattr(Home(root), name) for name, value in vars(Home).items() if isinstance(value, property)]
    return [place for place in found if place.parent == root]


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_generated_parts_are_as_the_code_has_them(one: Page) -> None:
    assert one.text == refreshed(one.text), "run: .venv/bin/python -m tests.docs.generated"


def test_the_client_types_are_as_wire_has_them() -> None:
    assert client_types.TARGET.read_text(encoding="utf-8") == client_types.render(), "run: make client-types"


def test_every_page_is_reachable_from_the_readme() -> None:
    linked, pending = set(), [page("README.md")]
    while pending:
        one = pending.pop()
        linked.add(one.path)
        found = [(one.path.parent / link.partition("#")[0]).resolve() for link in one.links if "://" not in link]
        pending += [Page(path) for path in set(found) - linked if path.suffix == ".md" and path.is_file()]

    assert {one.name for one in PAGES if one.path not in linked} == set()


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_every_picture_exists(one: Page) -> None:
    assert [name for name in PICTURE.findall(one.prose) if not (one.path.parent / name).is_file()] == []


def test_the_readme_is_short() -> None:
    assert len(page("README.md").text.encode()) <= README_BYTES


# Commands.


@cache
def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def test_every_command_has_its_section() -> None:
    sections = {
        title.removeprefix("delegate ") for title in page("docs/cli.md").headings if title.startswith("delegate ")
    }

    assert sections == set(commands())


BORROWS = "](#delegate-run)"  # a command that takes a task's options need not repeat them


@pytest.mark.parametrize("name", commands())
def test_every_option_of_a_command_is_described_and_no_other(name: str) -> None:
    described = described_options(name)
    borrowed = described_options("run") if BORROWS in section_of(name) else set()
    existing = {option for _, leaf in leaves(name) for parameter in options_of(leaf) for option in parameter.opts}

    assert described - existing == set()
    assert existing - described - borrowed - SHARED_OPTIONS == set()


def section_of(name: str) -> str:
    return page("docs/cli.md").section(f"delegate {name}")


def described_options(name: str) -> set[str]:
    return {code for row in table_rows(section_of(name)) for code in codes_in(row[0])}


def leaves(name: str) -> list[tuple[str, click.Command]]:
    """The command, or the group and every command in it, each with the words that call it."""
    found = commands()[name]
    if not isinstance(found, click.Group):
        return [(name, found)]
    context = click.Context(found)
    inner = {word: found.get_command(context, word) for word in found.list_commands(context)}
    return [(name, found), *((f"{name} {word}", command) for word, command in inner.items() if command is not None)]


def options_of(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


@pytest.mark.parametrize("name", commands())
def test_every_command_has_an_example(name: str) -> None:
    shown = section_of(name)

    assert [words for words, _ in leaves(name) if not re.search(rf"^\$ .*\bdelegate {words}\b", shown, re.M)] == []


# Settings.


def setting_rows() -> dict[str, list[str]]:
    rows = [row for row in page("docs/configuration.md").rows if len(row) == 4]
    return {code: row for row in rows for code in codes_in(row[0])}


def settings() -> list[tuple[str, SettingSpec, Any]]:
    return [(entry.name, setting_spec(entry.name), entry.default) for entry in fields(Settings)]


def test_every_variable_of_a_setting_is_described_and_no_other() -> None:
    existing = {variable for _, source, _ in settings() for variable in source.variables}

    assert set(setting_rows()) == existing


@pytest.mark.parametrize(("name", "source", "default"), settings(), ids=[name for name, _, _ in settings()])
def test_the_default_of_a_setting_is_right(name: str, source: SettingSpec, default: object) -> None:
    documented = setting_rows()[source.variables[0]][1]

    if documented == NO_DEFAULT:
        assert default in ("", None, ())
    else:
        assert source.parse(documented.strip("`")) == default


@pytest.mark.parametrize(("name", "source", "default"), settings(), ids=[name for name, _, _ in settings()])
def test_the_range_of_a_setting_is_right(name: str, source: SettingSpec, default: object) -> None:
    documented = RANGE.search(setting_rows()[source.variables[0]][2])
    if documented is None:
        return

    assert [float(source.parse(end)) for end in documented.groups()] == [float(end) for end in documented.groups()]
    for outside in (int(documented[1]) - 1, int(documented[2]) + 1):
        with pytest.raises(ValueError, match="must be from"):
            source.parse(str(outside))


def test_every_setting_is_read_somewhere() -> None:
    read = {
        node.attr
        for path, tree in source_trees()
        if path != SOURCE / "config" / "settings.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("settings")
    }

    assert {name for name, _, _ in settings()} - read == set()


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
def test_every_variable_that_is_named_exists(one: Page) -> None:
    existing = {variable for _, source, _ in settings() for variable in source.variables} | OTHER_VARIABLES
    named = set(re.findall(r"\bDELEGATE_[A-Z_]+\b", one.text))

    assert named - existing == set()


def test_every_file_of_the_home_is_described() -> None:
    section = page("docs/storage.md").section("Files in the home")
    documented = {code.rstrip("/") for row in table_rows(section) for code in codes_in(row[0])}

    assert {place.name for place in home_places() if place.suffix != ".lock"} - documented == set()


# Errors.


@cache
def error_classes() -> list[type[DelegateError]]:
    found: list[type[DelegateError]] = [DelegateError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return found


@cache
def names_called() -> set[str]:
    nodes = [node for _, tree in source_trees() for node in ast.walk(tree)]
    raised = {node.exc.id for node in nodes if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name)}
    return raised | {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def visible_errors() -> dict[str, tuple[str, str]]:
    """Code, HTTP status and exit code of whatever can be met; families that are never raised cannot."""
    called = names_called()
    met = [kind for kind in error_classes() if not kind.__subclasses__() or kind.__name__ in called]
    return {kind.code: (str(kind.status), str(kind.exit_code)) for kind in met if kind.code != DelegateError.code}


def reported_codes() -> set[str]:
    """Codes that are written as text where an error has no class of its own."""
    return {
        str(keyword.value.value)
        for _, tree in source_trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reported"
        for keyword in node.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    }


def test_every_error_is_in_the_table_with_its_status_and_exit_code() -> None:
    rows = {row[0].strip("`"): (row[1], row[2]) for row in page("docs/troubleshooting.md").rows if len(row) == 5}
    documented = {code: numbers for code, numbers in rows.items() if code not in reported_codes()}

    assert documented == visible_errors()
    assert reported_codes() <= set(rows)


def test_every_exit_code_is_described() -> None:
    section = page("docs/cli.md").section("Exit codes")
    documented = {code for row in table_rows(section) for code in re.findall(r"\d+", row[0])}

    assert {exit_code for _, exit_code in visible_errors().values()} <= documented


# The protocol.


def routes() -> set[str]:
    relay = Relay(settings=Settings(), database=cast(Any, None), token_hash="", started_at=datetime.now(UTC))
    found = {
        f"{method} {route.path}"
        for route in cast(Any, make_app(relay)).routes
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert len(found) > 15
    return found


def test_every_route_is_in_the_protocol_and_no_other() -> None:
    documented = {title.strip("`") for title in page("docs/protocol.md").headings if ROUTE.fullmatch(title.strip("`"))}

    assert documented == routes()


MODELS = [
    kind
    for module in (shared_models, tasks, schedules, runners)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, basics.Wire) and kind.__module__ == module.__name__
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_that_travels_is_in_the_protocol(model: type[basics.Wire]) -> None:
    words = set(re.findall(r"\w+", " ".join(codes_in(page("docs/protocol.md").text))))
    named = {field.alias or name for name, field in model.model_fields.items()}

    assert named - words - {"title", "detail", "type"} == set()


def test_every_event_kind_is_in_the_protocol_and_no_other() -> None:
    section = page("docs/protocol.md").section("Event kinds")

    writers = {row[0].strip("`"): row[1] for row in table_rows(section)}

    assert set(writers) == set(EventKind)
    assert {kind for kind, writer in writers.items() if writer == "runner"} == set(get_args(runners.RecordedKind))


def test_the_limits_in_the_protocol_are_those_of_the_code() -> None:
    section = page("docs/protocol.md").section("Limits")

    limits = (
        PROMPT_MAX,
        basics.BODY_MAX,
        basics.RECORD_BODY_MAX,
        basics.ITEMS_MAX,
        basics.CHUNK_MAX,
        basics.SKIPPED_MAX,
    )
    for limit in limits:
        assert f"{limit:,}" in section


def test_every_reason_is_in_the_table() -> None:
    section = page("docs/agents.md").section("Reasons")

    assert {row[0].strip("`") for row in table_rows(section)} == set(Reason)


# Promises.


def promised() -> set[str]:
    titles = page("docs/promises.md").headings
    return {found[0] for title in titles if (found := re.match(r"P\d+(?=: )", title))}


def test_every_promise_is_proven_by_a_test() -> None:
    assert promised() - set(proofs()) == set()


def test_every_promise_that_a_test_cites_is_on_the_page() -> None:
    assert set(proofs()) - promised() == set()


def test_every_promise_lists_its_tests() -> None:
    text = page("docs/promises.md").text

    assert {number for number in promised() if f"<!-- generated: tests {number} -->" not in text} == set()
