"""Starting, keeping alive, draining and stopping, with real relays and runners."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fakes.audit import strays
from tests.fakes.world import PATIENCE, World, children_of, tree_of, wait_until

from delegate.config import home_files
from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.errors import InvalidField
from delegate.keeper import logs
from delegate.keeper.children import Child
from delegate.keeper.logs import open_log, rotate_logs
from delegate.keeper.runners import RunnerCount, parse_runner_count

LOST = "failed: lost_runner: "
HOLD = "while [ ! -e {} ]; do sleep 0.05; done"


def runner_pids(world: World) -> set[int]:
    return {runner["pid"] for runner in world.info()["processes"] if runner["state"] != "silent"}


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_up_tells_where_the_relay_is_and_starts_it_once(world: World) -> None:
    first, second = world.ok("up", "--runners", "1"), world.run("up", "--json")
    address = json.loads((world.home / "relay.json").read_text())

    assert first == f"relay at {address['url']}\n"
    assert json.loads(second.stdout) == {"url": address["url"], "started": False}
    assert world.ok("down") == "stopped\n"
    assert not (world.home / "relay.json").exists()
    wait_until(lambda: not strays(world.home))


def test_info_has_the_names_that_scripts_rely_on(world: World) -> None:
    world.ok("up", "--runners", "2")
    wait_until(lambda: len(runner_pids(world)) == 2)

    info = world.info()

    assert info["url"].startswith("http://127.0.0.1:")
    assert info["pid"] == world.relay_pid()
    assert {"version", "database", "runners"} <= set(info)
    assert all({"id", "name", "pid", "state"} <= set(runner) for runner in info["processes"])


@pytest.mark.promise("P8")
def test_a_relay_that_dies_comes_back_at_the_same_address(world: World) -> None:
    world.ok("up", "--runners", "1")
    before = world.info()

    os.kill(before["pid"], signal.SIGKILL)

    after = world.info()
    assert after["url"] == before["url"]
    assert after["pid"] != before["pid"]
    world.ok("delegate", "-a", "shell", "-f", "true")


@pytest.mark.parametrize("damage", ["{", None])
def test_an_address_that_was_damaged_or_lost_is_written_again(busy_world: World, damage: str | None) -> None:
    before = busy_world.info()
    address = busy_world.home / "relay.json"
    whole = address.read_text()
    address.unlink() if damage is None else address.write_text(damage)

    shown, after = busy_world.run("status"), busy_world.info()

    assert (shown.returncode, after["pid"], address.read_text()) == (0, before["pid"], whole)


def test_a_runner_that_dies_is_replaced(world: World) -> None:
    world.ok("up", "--runners", "1")
    (before,) = wait_until(lambda: runner_pids(world))

    os.kill(before, signal.SIGKILL)

    assert wait_until(lambda: (now := runner_pids(world)) and before not in now)
    world.ok("delegate", "-a", "shell", "-f", "true")


@pytest.mark.promise("P11")
def test_what_a_runner_and_its_supervisor_leave_behind_is_ended(world: World) -> None:
    world.ok("up", "--runners", "1")
    (runner,) = wait_until(lambda: runner_pids(world))
    pid_file = world.work / "daemon"
    world.submit(f"setsid env -i sh -c 'echo $$ > {pid_file}; trap \"\" TERM HUP; sleep 600' & wait")
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip())
    daemon = int(pid_file.read_text())
    assert daemon in tree_of(runner)

    # The supervisors first, and stopped: none of them may live to clean up.
    victims = [*children_of(runner), runner]
    for victim in victims:
        os.kill(victim, signal.SIGSTOP)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)

    assert wait_until(lambda: is_gone(daemon))


AS_ANOTHER_USER = """
setpriv --reuid 1 --clear-groups sleep 600 &
until [ "$(stat -c %u /proc/$!)" = 1 ]; do sleep 0.05; done
echo $! > other.new; mv other.new other
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
@pytest.mark.promise("P11")
def test_down_ends_beside_a_process_that_it_may_not_kill_and_names_it(world: World) -> None:
    up = ["setpriv", "--bounding-set", "-kill", sys.executable, "-m", "delegate", "up", "--runners", "1"]
    subprocess.run(up, env=world.environment, cwd=world.work, check=True, stdout=subprocess.DEVNULL)
    world.wait_for(world.submit(AS_ANOTHER_USER), "completed")
    other = int((world.work / "other").read_text())

    try:
        down = world.run("down", "--json")
        assert not is_gone(other)
    finally:
        os.kill(other, signal.SIGKILL)

    left = {"pid": other, "command": "sleep", "why": "it belongs to another user"}
    lines = [line.split(" ", 1)[1] for line in (world.home / "logs" / "keeper.log").read_text().splitlines()]
    assert json.loads(down.stdout)["left"] == [left]
    assert down.stderr.startswith(f"delegate: process {other} (sleep) still exists: it belongs to another user\n")
    assert [line for line in lines if f"pid={other}" in line] == [
        f"warning delegate.keeper.orphans orphan left pid={other} command=sleep why=it belongs to another user"
    ]


BESIDE_A_STUCK_PROCESS = """
import json, subprocess, time
from delegate.keeper import orphans

watch = orphans.Orphans()
subprocess.run(["sh", "-c", "exec >&- 2>&-; sleep 600 &"], check=True)
kill, orphans.supervisor.send_signal = orphans.supervisor.send_signal, lambda *_: True  # it hears of it, and stays
orphans.KILL_TIMEOUT = 0.0
looks = [(watch.end(set()), [one.why for one in watch.survivors]) for _ in range(2)]
orphans.supervisor.send_signal = kill
while watch.survivors:
    watch.end(set())
print(json.dumps(looks))
"""


def test_a_process_that_was_killed_and_stays_does_not_hold_the_keeper() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_A_STUCK_PROCESS], capture_output=True, text=True, check=True, timeout=PATIENCE
    )

    assert json.loads(done.stdout) == [[False, ["it was killed but has not ended"]]] * 2
    assert done.stderr.splitlines() == ["orphan killed", "orphan left"]


KEEPER_WITH_STRANGERS = """
sleep 600 & echo $! > stranger
(until [ -e ready ]; do sleep 0.05; done; (setsid sh -c 'echo $$ > late.new; mv late.new late; sleep 600' &) ) &
exec "$0" -m delegate up --foreground --runners 1
"""


def test_a_keeper_leaves_strangers_alone_and_ends_what_is_its_own(world: World) -> None:
    command = ["sh", "-c", KEEPER_WITH_STRANGERS, sys.executable]
    keeping = subprocess.Popen(command, env=world.environment, cwd=world.work, stderr=subprocess.DEVNULL)
    wait_until((world.home / "relay.json").exists)
    (runner,) = wait_until(lambda: runner_pids(world))
    stranger = int((world.work / "stranger").read_text())
    world.submit("(setsid sh -c 'echo $$ > daemon.new; mv daemon.new daemon; sleep 600' &); sleep 600")
    daemon = int(wait_until(lambda: (world.work / "daemon").exists() and (world.work / "daemon").read_text()))
    (world.work / "ready").touch()
    late = int(wait_until(lambda: (world.work / "late").exists() and (world.work / "late").read_text()))

    victims = [*children_of(runner), runner]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            os.kill(victim, number)

    try:
        assert wait_until(lambda: is_gone(daemon))
        world.ok("down", "--now")
        assert not is_gone(stranger)
        assert not is_gone(late)
    finally:
        for pid in (stranger, late):
            os.kill(pid, signal.SIGKILL)
        keeping.wait(timeout=PATIENCE)


def test_a_supervisor_that_hangs_without_its_runner_is_ended_with_its_agent(world: World) -> None:
    world.ok("up", "--runners", "1")
    (runner,) = wait_until(lambda: runner_pids(world))
    task_id = world.submit("touch up; sleep 600")
    wait_until((world.work / "up").exists)
    below = [pid for pid in tree_of(runner) if pid != runner]

    for pid in children_of(runner):
        os.kill(pid, signal.SIGSTOP)
    os.kill(runner, signal.SIGKILL)

    assert wait_until(lambda: all(is_gone(pid) for pid in below))
    assert world.wait_for(task_id)["reason"] == "lost_runner"


def test_down_waits_for_the_running_task_and_names_it(world: World) -> None:
    world.ok("up", "--runners", "1")
    gate = world.work / "gate"
    task_id = world.submit(f"{HOLD.format(gate)}; echo done")
    world.wait_for(task_id, "running")

    stopping = world.popen("down")
    assert stopping.stderr is not None
    said = stopping.stderr.readline()
    gate.touch()
    out, more = stopping.communicate(timeout=PATIENCE)

    assert said.startswith(f"delegate: waiting for {task_id} (shell), until ")
    assert more == ""
    assert (out, stopping.returncode) == ("stopped\n", 0)
    assert world.task(task_id)["status"] == "completed"


def test_down_now_puts_a_running_task_that_may_run_again_back_into_the_queue(world: World) -> None:
    world.ok("up", "--runners", "1")
    task_id = world.submit("touch up; sleep 600", "--rerun")
    wait_until((world.work / "up").exists)
    world.wait_for(task_id, "running")

    said = world.ok("down", "--now")
    wait_until(lambda: not strays(world.home))
    world.ok("up", "--runners", "0")

    assert said == f"stopped\n{task_id} is back in the queue\n"
    task = world.task(task_id)
    assert (task["status"], task["attempt"]) == ("queued", 0)


def test_down_now_tells_what_became_of_each_task_and_of_none_when_none_ran(world: World) -> None:
    world.ok("up", "--runners", "2")
    ended = world.wait_for(world.submit("true"))
    lost, kept = world.submit("touch up-1; sleep 600"), world.submit("touch up-2; sleep 600", "--rerun")
    for name in ("up-1", "up-2"):
        wait_until((world.work / name).exists)

    said = json.loads(world.ok("down", "--now", "--json"))
    world.ok("up", "--runners", "0")
    nothing = world.ok("down", "--now")

    assert (ended["status"], nothing) == ("completed", "stopped\n")
    assert said["tasks"] == [
        {"taskId": lost, "status": "failed", "reason": "lost_runner"},
        {"taskId": kept, "status": "queued", "reason": None},
    ]


def test_interrupting_down_twice_stops_now(world: World) -> None:
    world.ok("up", "--runners", "1")
    task_id = world.submit("sleep 600")
    world.wait_for(task_id, "running")
    stopping = world.popen("down")
    assert stopping.stderr is not None
    stopping.stderr.readline()

    stopping.send_signal(signal.SIGINT)
    said = stopping.stderr.readline()
    stopping.send_signal(signal.SIGINT)
    out, _ = stopping.communicate(timeout=PATIENCE)

    assert said == "delegate: still waiting for running tasks; press Ctrl-C again to stop them now\n"
    assert (out.startswith(f"stopped\n{task_id} {LOST}"), stopping.returncode) == (True, 0)


def test_in_the_foreground_an_interrupt_drains_and_a_second_one_stops(world: World) -> None:
    keeping = world.popen("up", "--foreground", "--runners", "1", start_new_session=True)
    assert keeping.stderr is not None
    while not (line := keeping.stderr.readline()).startswith("delegate: relay at"):
        assert line, "it ended"
    gate = world.work / "gate"
    task_id = world.submit(HOLD.format(gate))
    world.wait_for(task_id, "running")

    os.killpg(keeping.pid, signal.SIGINT)  # as a terminal does it
    wait_until(lambda: world.info()["processes"][0]["state"] in {"draining", "busy"})
    assert world.task(task_id)["status"] == "running"
    os.killpg(keeping.pid, signal.SIGINT)

    keeping.communicate(timeout=PATIENCE)
    assert keeping.returncode == 0
    wait_until(lambda: not strays(world.home))


MANAGERS = {
    "systemd": ["sh", "-c", 'SYSTEMD_EXEC_PID=$$ exec "$0" "$@"'],
    "process 1": ["unshare", "--pid", "--fork", "--mount-proc"],
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a pid namespace")
@pytest.mark.parametrize("manager", MANAGERS)
def test_one_term_from_systemd_or_to_process_1_hands_back_at_once(world: World, manager: str) -> None:
    up = [sys.executable, "-m", "delegate", "up", "--foreground", "--runners", "1"]
    keeping = subprocess.Popen(
        [*MANAGERS[manager], *up], env=world.environment, cwd=world.work, stderr=subprocess.DEVNULL
    )
    wait_until((world.home / "relay.json").exists)
    keeper = keeping.pid if manager == "systemd" else children_of(keeping.pid)[0]
    task_id = world.submit("touch up; sleep 600", "--rerun")
    wait_until((world.work / "up").exists)

    os.kill(keeper, signal.SIGTERM)

    keeping.wait(timeout=PATIENCE)
    wait_until(lambda: not strays(world.home))
    world.ok("up", "--runners", "0")
    task = world.task(task_id)
    assert (task["status"], task["attempt"]) == ("queued", 0)


def killed_tree(keeper: int) -> None:
    tree = tree_of(keeper)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in tree:
            with suppress(ProcessLookupError):  # it may hand back and end meanwhile
                os.kill(pid, number)
    wait_until(lambda: all(is_gone(pid) for pid in tree))


@pytest.mark.promise("P5")
def test_a_keeper_that_is_killed_after_it_was_asked_to_stop_counts_no_attempt(world: World) -> None:
    gate, started = world.work / "gate", world.work / "started"
    task_id = world.submit(f"touch {started}; {HOLD.format(gate)}", "--rerun")
    for _ in range(3):
        wait_until(started.exists)
        os.kill(world.keeper_pid(), signal.SIGTERM)
        wait_until(lambda: "stop requested" in (world.home / "logs" / "keeper.log").read_text())
        killed_tree(world.keeper_pid())
        started.unlink()
        (world.home / "logs" / "keeper.log").unlink()
        world.ok("up")
    gate.touch()

    task = world.wait_for(task_id)
    assert (task["status"], task["attempt"]) == ("completed", 1)


@pytest.mark.parametrize("is_agent_first", [False, True], ids=["keeper first", "agent first"])
def test_a_term_to_every_process_at_once_is_not_taken_for_a_crash_of_the_agent(
    world: World, *, is_agent_first: bool
) -> None:
    world.ok("up", "--runners", "1")
    task_id = world.submit("echo $$ >pid; mv pid up; sleep 600", "--rerun")
    wait_until((world.work / "up").exists)
    tree = tree_of(world.keeper_pid())
    agent = int((world.work / "up").read_text())
    if is_agent_first:
        for pid in tree_of(agent):
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: is_gone(agent))

    for pid in tree:  # as a system does that shuts down
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    wait_until(lambda: all(is_gone(pid) for pid in tree))
    world.ok("up", "--runners", "0")
    task = world.task(task_id)
    assert (task["status"], task["attempt"]) == ("queued", 0)


def test_when_the_keeper_is_killed_everything_stops_and_the_next_command_starts_again(world: World) -> None:
    world.ok("up", "--runners", "1")
    before = world.info()
    task_id = world.submit("sleep 600", "--rerun")
    world.wait_for(task_id, "running")
    everything = tree_of(world.keeper_pid())

    os.kill(world.keeper_pid(), signal.SIGKILL)

    wait_until(lambda: all(is_gone(pid) for pid in everything))
    assert world.task(task_id)["status"] in {"queued", "running"}
    assert world.info()["url"] == before["url"]


def test_when_the_home_is_removed_everything_stops(world: World) -> None:
    world.ok("up", "--runners", "1")
    wait_until(lambda: runner_pids(world))  # one that starts makes files while they are removed
    everything = tree_of(world.keeper_pid())

    shutil.rmtree(world.home)

    assert wait_until(lambda: all(is_gone(pid) for pid in everything))


def test_a_database_that_cannot_be_used_ends_the_keeper_and_is_reported_to_the_caller(world: World) -> None:
    home_files.make_directory(world.home)
    (world.home / "delegate.db").write_bytes(b"not a database" * 100)

    up = world.run("up")
    foreground = world.run("up", "--foreground")

    assert (up.returncode, foreground.returncode) == (3, 3)
    assert up.stderr.startswith(f"delegate: the database {world.home / 'delegate.db'} cannot be used: ")
    assert len(up.stderr.splitlines()) == 2
    wait_until(lambda: not strays(world.home))


def test_a_command_waits_for_an_absent_database_and_then_says_so(world: World) -> None:
    world.environment["DELEGATE_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/none"

    done = world.run("up")

    assert done.returncode == 6
    assert "the database is not responding" in done.stderr
    assert "Traceback" not in done.stderr
    wait_until(lambda: not strays(world.home))


def test_serve_is_a_relay_alone_that_clients_find(world: World) -> None:
    serving = world.popen("serve")
    wait_until((world.home / "relay.json").exists)

    task = world.task(world.submit("true"))
    refused = world.run("up", "--foreground")
    serving.send_signal(signal.SIGINT)
    printed, _ = serving.communicate(timeout=PATIENCE)

    assert (task["status"], bool(task["why"]), printed) == ("queued", True, "")
    assert refused.returncode == 5
    assert refused.stderr.startswith(f"delegate: Delegate is already running for {world.home} (process {serving.pid})")
    assert not (world.home / "relay.json").exists()


def test_a_relay_can_be_named_by_its_address(world: World) -> None:
    world.ok("up", "--runners", "1")
    world.environment["DELEGATE_RELAY_URL"] = world.info()["url"]

    done = world.run("delegate", "-a", "shell", "-f", "echo there")
    world.environment["DELEGATE_TOKEN"] = "0" * 64
    refused = world.run("status")
    del world.environment["DELEGATE_RELAY_URL"]  # or it could not be stopped

    assert (done.returncode, done.stdout) == (0, "there\n")
    assert (refused.returncode, refused.stderr) == (
        4,
        "delegate: the relay does not accept this token\n"
        "hint: `delegate login URL` stores another one; or set DELEGATE_TOKEN, or use the DELEGATE_HOME of the relay\n",
    )


def test_a_relay_alone_has_the_token_of_its_home_whatever_is_set(world: World) -> None:
    world.environment["DELEGATE_TOKEN"] = "0" * 64
    serving = world.popen("serve")
    wait_until((world.home / "relay.json").exists)

    task = world.task(world.submit("true"))
    serving.send_signal(signal.SIGINT)
    serving.communicate(timeout=PATIENCE)

    assert task["status"] == "queued"


def test_a_token_in_the_file_does_not_lock_its_user_out(world: World) -> None:
    world.ok("config", "set", "token", "of-another-relay")

    first = world.run("run", "-a", "shell", "-f", "echo one")
    world.ok("config", "set", "token", "--unset")
    second = world.run("run", "-a", "shell", "-f", "echo two")

    assert (first.returncode, first.stdout) == (0, "one\n"), first.stderr
    assert (second.returncode, second.stdout) == (0, "two\n")


def test_serve_says_that_its_port_is_taken(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        done = world.run("serve", "--port", str(port))

    assert done.returncode == 2
    assert f"port {port} cannot be used: address already in use" in done.stderr


def test_a_backup_into_a_directory_that_is_not_there_is_refused(world: World) -> None:
    missing = world.work / "nope"

    done = world.run("backup", str(missing / "copy.db"))

    assert (done.returncode, missing.exists()) == (2, False)
    assert f"directory {missing} does not exist; create it first" in done.stderr


def test_a_database_is_restored_only_while_nothing_runs(world: World) -> None:
    task_id = world.submit("true")
    world.wait_for(task_id)
    copy = world.ok("backup").strip()

    refused = world.run("restore", "--yes", copy)
    world.ok("down")
    later = world.ok("restore", "--yes", copy)

    assert refused.returncode == 5
    assert later == f"{copy}\n"
    assert world.task(task_id)["status"] == "completed"


def test_a_child_is_started_again_more_and_more_slowly_until_it_lives() -> None:
    child = Child(name="relay", arguments=[])

    waits = []
    for _ in range(8):
        child.started_at = 100.0
        child.handle_exit(100.5)
        waits.append(round(child.due - 100.5, 3))
    child.handle_exit(111.0)

    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert child.due - 111.0 == pytest.approx(0.1)


@pytest.mark.parametrize("text", ["-1", "257", "many", "1.5", "", "²"])
def test_a_number_of_runners_is_auto_or_small(text: str) -> None:
    with pytest.raises(InvalidField):
        parse_runner_count(text, Settings())


def test_a_number_that_was_said_beats_the_setting() -> None:
    settings = Settings(max_runners=3)

    assert parse_runner_count(None, settings) == RunnerCount(fixed=None, ceiling=3)
    assert parse_runner_count("auto", settings) == RunnerCount(fixed=None, ceiling=None)
    assert parse_runner_count("256", settings) == RunnerCount(fixed=256, ceiling=256)


def test_a_large_log_is_put_aside_and_one_old_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_MAX", 10)
    place = Home(tmp_path)

    for text in (b"first and long", b"second and long", b"third"):
        descriptor = open_log(place, "relay")
        os.write(descriptor, text)
        os.close(descriptor)

    assert {path.name: path.read_text() for path in place.logs.iterdir()} == {
        "relay.log": "third",
        "relay.old.log": "second and long",
    }


def test_a_log_that_grows_while_it_is_written_to_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_MAX", 10)
    place = Home(tmp_path)
    descriptor = open_log(place, "relay")

    for text in (b"0123456789 the end of it", b"short"):
        os.write(descriptor, text)
        rotate_logs(place)
    os.write(descriptor, b" and on")
    os.close(descriptor)

    assert {path.name: path.read_text() for path in place.logs.iterdir()} == {
        "relay.log": "short and on",
        "relay.old.log": " end of it",
    }
    assert {path.stat().st_mode & 0o777 for path in place.logs.iterdir()} == {0o600}


def test_the_keeper_loads_little(world: World) -> None:
    program = "import sys, delegate.keeper; print([m for m in ('click', 'pydantic', 'anyio') if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
