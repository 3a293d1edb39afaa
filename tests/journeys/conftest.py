from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.github import github as github
from tests.fakes.world import World, living

OWN_RELAY = "makes relays and machines of its own, the same with every --relay"
KEEPER = "the keeper of this machine's relay, which a relay elsewhere does not have"
PEER = "the relay recognises a process of a task by its connection, which needs both on one machine"
DATABASE = "the database in the home of the commands"
# What `pytest --relay=remote` leaves out, by file or test, and why: everything else runs in both forms.
LOCAL_ONLY = {
    "test_pairing.py": OWN_RELAY,
    "test_partition.py": OWN_RELAY,
    "test_serve_restart.py": OWN_RELAY,
    "test_start.py::test_two_ups_and_ten_submits_at_one_instant_make_one_relay_and_ten_tasks": KEEPER,
    "test_start.py::test_a_start_says_that_it_waits_for_a_keeper_that_never_gets_ready": KEEPER,
    "test_start.py::test_a_home_that_cannot_be_written_is_named": KEEPER,
    "test_start.py::test_a_damaged_database_is_named_and_left_as_it_is": DATABASE,
    "test_start.py::test_a_database_of_a_newer_version_is_refused": DATABASE,
    "test_start.py::test_a_backup_brings_back_what_a_damaged_file_has_lost": DATABASE,
    "test_spine.py::test_another_up_with_another_number_of_runners_says_that_nothing_changes": KEEPER,
    "test_killing.py::test_a_killed_keeper_takes_everything_down_and_the_next_command_continues": KEEPER,
    "test_killing.py::test_a_machine_whose_id_changed_sweeps_the_workspaces_of_its_old_id": KEEPER,
    "test_restart.py::test_a_relay_that_starts_before_its_postgresql_waits_for_it": KEEPER,
    "test_restart.py::test_a_keeper_does_not_give_up_while_the_database_is_busy": KEEPER,
    "test_attempt_tokens.py::test_the_owners_token_is_refused_to_every_process_of_a_task": PEER,
    "test_attempt_tokens.py::test_a_persons_token_is_refused_to_every_process_of_a_task": PEER,
    "test_attempt_tokens.py::test_the_token_of_another_task_is_refused": PEER,
    "test_attempt_tokens.py::test_an_owner_with_an_ipv6_socket_is_served": PEER,
    "test_attempt_tokens.py::test_codex_in_its_sandbox_has_its_own_token_and_no_use_for_the_owners": PEER,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--relay") != "remote":
        return
    if missing := [name for name in LOCAL_ONLY if not _is_there(*name.split("::"))]:
        raise pytest.UsageError(f"LOCAL_ONLY names what is not there: {', '.join(missing)}")
    left_out = [item for item in items if LOCAL_ONLY.keys() & _names(item)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _is_there(file: str, test: str = "") -> bool:
    path = Path(__file__).with_name(file)
    return path.exists() and f"def {test}" in path.read_text()


def _names(item: pytest.Item) -> set[str]:
    return {item.path.name, f"{item.path.name}::{getattr(item, 'originalname', item.name)}"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A home without anything running: the first command starts the relay."""
    with living(tmp_path / "home") as made:
        yield made
