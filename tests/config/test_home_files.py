from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from delegate.config import home_files
from delegate.config.paths import Home
from delegate.errors import AlreadyRunning, DiskFull, HomeNotWritable, LoosePermissions


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_under_the_home_is_for_its_user_alone(tmp_path: Path) -> None:
    place = Home(tmp_path / "new" / "home")

    home_files.make_token(place)
    home_files.machine_id(place)
    os.close(home_files.lock_home(place, 0))
    home_files.write_private(place.address, "{}")

    made = list(place.root.rglob("*"))
    assert {path.name for path in made} == {"token", "machine", "keeper.lock", "relay.json"}
    assert {mode(path) for path in made} == {0o600}
    assert (mode(place.root), mode(place.root.parent)) == (0o700, 0o700)


def test_many_who_ask_first_get_the_same_machine_id(tmp_path: Path) -> None:
    place = Home(tmp_path / "home")

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: home_files.machine_id(place), range(64)))

    assert len(set(found)) == 1
    assert [path.name for path in place.root.iterdir()] == ["machine"]


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    place = Home(tmp_path)
    place.token.write_text("secret")
    place.token.chmod(0o644)

    with pytest.raises(LoosePermissions):
        home_files.read_token(place)
    with pytest.raises(LoosePermissions):
        home_files.make_token(place)


def test_a_home_that_is_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")

    with pytest.raises(HomeNotWritable) as caught:
        home_files.lock_home(Home(tmp_path / "home"), 0)

    assert caught.value.exit_code == 3
    assert str(tmp_path / "home") in caught.value.message


def test_a_full_disk_is_not_taken_for_a_missing_permission(tmp_path: Path) -> None:
    assert isinstance(home_files.explain_write_error(tmp_path, OSError(28, "No space left on device")), DiskFull)


def test_a_home_has_one_owner_at_a_time(tmp_path: Path) -> None:
    place = Home(tmp_path)
    lock = home_files.lock_home(place, 0)

    with pytest.raises(AlreadyRunning) as caught:
        home_files.lock_home(place, 0)
    assert str(os.getpid()) in caught.value.message

    os.close(lock)
    os.close(home_files.lock_home(place, 0))


def test_looking_at_a_lock_does_not_keep_its_next_owner_out(tmp_path: Path) -> None:
    place = Home(tmp_path)
    os.close(home_files.lock_home(place, 0))
    with ThreadPoolExecutor(8) as pool:
        looks = [pool.submit(home_files.is_held, place.keeper_lock) for _ in range(500)]

        lock = home_files.lock_home(place, 5)

        os.close(lock)
        assert all(look.exception() is None for look in looks)


def test_the_holder_of_a_lock_is_known_by_more_than_its_number(tmp_path: Path) -> None:
    place = Home(tmp_path)
    lock = home_files.lock_home(place, 0)

    found = home_files.lock_holder(place.keeper_lock)

    assert found is not None
    assert (found.pid, found.is_alive) == (os.getpid(), True)
    assert not home_files.LockHolder(pid=os.getpid(), started="another time").is_alive
    os.close(lock)
    assert home_files.lock_holder(place.keeper_lock) is None


def test_a_process_that_has_ended_has_no_start() -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()

    assert home_files.process_start(ended.pid) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"url": 1', '{"url": "x", "port": "y"}', "\0"])
def test_a_damaged_address_is_ignored(tmp_path: Path, text: str) -> None:
    place = Home(tmp_path)
    place.address.write_text(text)

    assert home_files.read_address(place) is None
