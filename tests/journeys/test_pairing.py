"""The pairing steps of the seed, with real relays and runners."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.fakes.certificates import Authority
from tests.fakes.github import living_github
from tests.fakes.scripted_agent import install
from tests.fakes.serving import free_port
from tests.fakes.team import Machine, Team, team_in
from tests.fakes.world import is_alive, lean_path, wait_until
from tests.git import run_git
from tests.journeys.shop import needed

from delegate.cli.service import read_environment

pytestmark = pytest.mark.slow
HOLD = "echo $$ > {0}.pid; while [ ! -e {0} ]; do sleep 0.05; done"


@pytest.fixture
def team() -> Iterator[Team]:
    with team_in(Path(tempfile.mkdtemp(prefix="delegate-team-")), TZ="UTC", COLUMNS="100") as made:
        yield made


def test_a_paired_machine_polls_at_once_and_says_what_it_does(team: Team) -> None:
    machine = team.machine("studio")
    said = machine.pair(team.relay.pairing_command("studio"), "--runners", "2", "--repository", "acme/shop")

    state = wait_until(lambda: (found := machine.runner())["state"] == "online" and found)

    assert said.startswith(f"paired as studio with {team.relay.url}; the token is in {machine.profile_home()}")
    assert 'repositories = ["github.com/acme/shop"]' in said
    assert said.endswith("studio polls for tasks\n")
    assert (state["name"], state["relayUrl"], state["problem"]) == ("studio", team.relay.url, "")
    assert state["slots"] == {"busy": 0, "total": 2}
    assert "  policy  my tasks · acme/shop · claude, codex\n" in machine.ok("runner", "status")
    listed = wait_until(lambda: (one := team.relay.runners()["studio"])["state"] == "online" and one)
    assert (listed["pairedBy"], listed["policy"]["repositories"]) == ("owner", ["github.com/acme/shop"])
    assert (listed["os"], listed["slots"]["total"]) == ("linux", 2)
    assert machine.ok("runner", "stop") == "stopped\n"
    assert machine.runner()["state"] == "stopped"


def test_two_profiles_and_the_local_pool_run_side_by_side(team: Team) -> None:
    machine = team.paired_machine("studio")
    machine.pair(team.relay.pairing_command("attic"), "--profile", "second", "--runners", "1")
    machine.accept_commands("second")
    wait_until(lambda: (team.relay.runners()["attic"]["policy"] or {}).get("shell"))

    tasks = [team.relay.shell_task(machine, "echo $DELEGATE_HOME", profile) for profile in ("default", "second")]
    own = machine.submit("echo $DELEGATE_HOME")

    ended = [team.relay.wait_for(task) for task in tasks]
    assert [task["status"] for task in ended] == ["completed", "completed"]
    assert machine.wait_for(own)["status"] == "completed"
    assert [json.loads(line)["profile"] for line in machine.ok("runner", "status", "--json").splitlines()] == [
        "default",
        "second",
    ]


@contextmanager
def network(name: str) -> Iterator[tuple[str, str]]:
    """A network namespace of its own; yields its name and the address of this machine as seen from there."""
    link, number = f"dv{os.getpid() % 100_000}", os.getpid() % 250
    ours, theirs = f"10.213.{number}.1", f"10.213.{number}.2"
    commands = [
        f"ip netns add {name}",
        f"ip link add {link}a type veth peer name {link}b netns {name}",
        f"ip addr add {ours}/24 dev {link}a",
        f"ip link set {link}a up",
        f"ip -n {name} addr add {theirs}/24 dev {link}b",
        f"ip -n {name} link set {link}b up",
        f"ip -n {name} link set lo up",
    ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True)
        yield name, ours
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", f"{link}a"], check=False, capture_output=True)


@pytest.mark.real
def test_a_machine_in_another_network_reaches_the_relay_over_tls_only(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a network")
    team = Team(tmp_path / "team", TZ="UTC")
    with network(f"delegate{os.getpid()}") as (name, address):
        authority, port = Authority(tmp_path), free_port()
        issued, url = authority.issue(address), f"https://{address}:{port}"
        tls = ("--tls-cert", str(issued.cert), "--tls-key", str(issued.key), "--public-url", url)
        team.relay.serve("--host", address, "--port", str(port), *tls)
        try:
            machine = team.machine("far", DELEGATE_HEARTBEAT="0.5")
            machine.prefix = ("ip", "netns", "exec", name)
            command = team.relay.pairing_command("far")
            assert command[3:5] == ["--relay-url", url]
            untrusted = machine.run(*command[1:])
            assert (untrusted.returncode, "--ca-file" in untrusted.stderr) == (6, True)
            machine.pair(command, "--runners", "1", "--ca-file", str(authority.file))
            machine.accept_commands()
            wait_until(lambda: (team.relay.runners()["far"]["policy"] or {}).get("shell"))

            task = team.relay.wait_for(team.relay.shell_task(machine, "ip -o addr show | grep -c 10.213"))

            assert task["status"] == "completed", task
            assert team.relay.ok("runner", "list").startswith("1 online · 1 idle")
            assert machine.ok("runner", "unpair") == "unpaired\n"
            assert team.relay.runners()["far"]["state"] == "revoked"
        finally:
            team.down()


def test_a_token_pairs_one_machine_once_within_its_time_and_at_its_own_relay(team: Team, tmp_path: Path) -> None:
    first, second = team.machine("first"), team.machine("second")
    command = team.relay.pairing_command("studio")
    first.pair(command)
    late = team.relay.pairing_command("late")
    with closing(sqlite3.connect(team.relay.home / "delegate.db")) as database:
        database.execute("UPDATE pairing_token SET expires_at = 1 WHERE used_at IS NULL")
        database.commit()

    used, expired = second.run(*command[1:]), second.run(*late[1:])
    other = Team(tmp_path / "other")
    other.relay.serve()
    try:
        foreign = other.relay.pairing_command("studio")[-1]
        wrong = second.run(*command[1:-1], foreign)
    finally:
        other.down()

    assert [done.returncode for done in (used, expired, wrong)] == [4, 4, 4]
    assert "this pairing token was already used" in used.stderr
    assert "this pairing token has expired: it is valid for 15 minutes" in expired.stderr
    assert f"the relay at {team.relay.url} does not know this pairing token" in wrong.stderr
    assert not second.profile_home().joinpath("pairing.json").exists()


@pytest.mark.parametrize("rounds", [1, pytest.param(25, marks=pytest.mark.soak)])
def test_a_revoked_runner_stops_its_agent_keeps_the_work_and_does_not_come_back(team: Team, rounds: int) -> None:
    for number in range(rounds):
        revoke_in_mid_task(team, f"studio-{number}")


def revoke_in_mid_task(team: Team, name: str) -> None:
    machine = team.paired_machine(name)
    task = team.relay.shell_task(machine, HOLD.format(machine.work / "go"))
    pid_file = machine.work / "go.pid"
    pid = int(wait_until(lambda: pid_file.exists() and pid_file.read_text().strip()))
    wait_until(lambda: machine.runner()["state"] == "running")
    assert machine.runner()["tasks"] == [{"taskId": task, "agent": "shell"}]

    team.relay.ok("runner", "revoke", name)

    wait_until(lambda: not is_alive(pid), 15)
    state = wait_until(lambda: (found := machine.runner())["state"] == "revoked" and found, 30)
    assert state["problem"] == f"the runner {name} was revoked"
    assert "delegate runner token" in state["hint"]
    assert f"{name} was revoked" in (machine.profile_home() / "logs" / "keeper.log").read_text()
    again = machine.run("runner", "start", "--foreground")
    assert (again.returncode, f"the runner {name} was revoked" in again.stderr) == (4, True)
    assert machine.ok("runner", "unpair").startswith("unpaired")


def test_a_copied_home_is_refused_while_the_original_works(team: Team) -> None:
    machine = team.paired_machine("studio")
    copy = team.machine("copy")
    shutil.copytree(machine.home, copy.home)
    shutil.rmtree(copy.profile_home() / "runners")

    refused = copy.run("runner", "start", "--foreground")

    assert refused.returncode == 5
    assert "the runner studio is already running on another machine" in refused.stderr
    assert copy.runner()["state"] == "refused"
    task = team.relay.wait_for(team.relay.shell_task(machine, "echo still here"))
    assert task["status"] == "completed"
    copy.pair(team.relay.pairing_command("second"))
    assert (copy.home / "machine").read_text() != (machine.home / "machine").read_text()


def test_a_version_that_is_too_far_apart_says_what_to_upgrade(team: Team) -> None:
    machine = team.machine("old")
    patch = machine.work / "site"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text("import delegate\ndelegate.__version__ = '9.9.0'\n")
    machine.environment["PYTHONPATH"] = str(patch)

    refused = machine.run(*team.relay.pairing_command("old")[1:])

    assert refused.returncode == 5
    assert "a runner of version 9.9.0 does not work with a relay of version" in refused.stderr
    assert "upgrade the relay to 9.9.0" in refused.stderr


def damage(path: Path, text: str | None) -> None:
    path.unlink() if text is None else path.write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("pairing.json", "{", "pairing.json cannot be used: it is damaged"),
        ("pairing.json", None, "profile default is not paired with a relay"),
        ("machine", None, "machine cannot be used: it is missing"),
        ("machine", "../x", "machine cannot be used: it is damaged"),
    ],
)
def test_a_damaged_profile_is_told_in_one_line(machine: Machine, name: str, text: str | None, line: str) -> None:
    path = (machine.home if name == "machine" else machine.profile_home()) / name
    before = path.read_text()
    damage(path, text)

    started = machine.run("runner", "start")

    path.write_text(before)
    path.chmod(0o600)
    assert started.returncode == 3
    assert line in started.stderr.splitlines()[0]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A paired machine whose runner does not run."""
    with team_in(Path(tempfile.mkdtemp(prefix="delegate-team-"))) as made:
        paired = made.paired_machine("studio")
        paired.ok("runner", "stop")
        yield paired


def test_without_a_policy_nothing_is_accepted_and_everybody_is_told(team: Team) -> None:
    machine = team.paired_machine("studio")
    policy = machine.profile_home() / "policy.toml"
    text = policy.read_text()
    policy.unlink()

    wait_until(lambda: "policy.toml" in (team.relay.runners()["studio"]["problem"] or ""))
    task = team.relay.shell_task(machine, "echo never")

    assert "policy.toml: the file is missing" in machine.runner()["problem"]
    assert "accepts nothing" in machine.ok("runner", "status")
    policy.write_text(text)
    assert team.relay.wait_for(task)["status"] == "completed"


def test_a_task_that_the_file_no_longer_accepts_goes_back(team: Team) -> None:
    """The relay's copy of the policy is older than the file: the machine decides."""
    machine = team.paired_machine("studio")
    policy = machine.profile_home() / "policy.toml"
    for runner in sorted((machine.profile_home() / "runners").iterdir()):
        assert runner.name == "1"
    policy.write_text(policy.read_text().replace("shell = true", "shell = false"))

    task = team.relay.shell_task(machine, f"touch {machine.work / 'ran'}")

    wait_until(lambda: not team.relay.runners()["studio"]["policy"]["shell"])
    assert team.relay.task(task)["status"] == "queued"
    assert not (machine.work / "ran").exists()


@pytest.mark.real
def test_a_task_on_a_paired_runner_ends_in_a_pull_request_with_the_files_of_that_machine(team: Team) -> None:
    needed("git", "gh")
    with living_github(team.root / "github") as github:
        programs = team.root / "bin"
        install(programs)
        path = f"{programs}{os.pathsep}{lean_path()}"
        machine = team.paired_machine("studio", **{**github.env, "PATH": path, "ANTHROPIC_API_KEY": "test-key"})
        github.seed("acme/shop", {"shop.py": "x = 1\n", ".gitignore": ".env\n", ".delegate.toml": 'carry = [".env"]\n'})
        clone = machine.work / "clone"
        run_git("clone", "-q", github.url("acme/shop"), str(clone), cwd=machine.work, env=machine.environment)
        (clone / ".env").write_text("PORT=8080\n")
        with (machine.profile_home() / "policy.toml").open("a") as policy:
            policy.write(f'"acme/shop" = "{clone}"\n')
        steps = [{"init": {}}, {"shell": "cp .env copied.txt"}, {"result": "Copied it."}]

        body = {"prompt": json.dumps({"steps": steps}), "agent": "claude", "pr": True, "repository": "acme/shop"}
        task = team.relay.wait_for(team.relay.post("/api/tasks", body)["taskId"])

        assert (task["status"], task["reason"]) == ("completed", "done"), task["message"]
        (pull,) = github.pulls("acme/shop")
        assert task["result"]["pullRequest"] == f"https://github.com/acme/shop/pull/{pull.number}"
        copied = run_git("show", f"{task['result']['branch']}:copied.txt", cwd=github.bare("acme/shop"))
        assert copied.strip() == "PORT=8080"


def test_a_stop_waits_for_the_task_and_unpairing_tells_the_relay(team: Team) -> None:
    machine = team.paired_machine("studio")
    go = machine.work / "go"
    task = team.relay.shell_task(machine, HOLD.format(go))
    wait_until((machine.work / "go.pid").exists)

    stopping = machine.popen("runner", "unpair")
    wait_until(lambda: machine.runner()["state"] == "draining")
    go.touch()

    assert stopping.communicate(timeout=60)[0] == "unpaired\n"
    assert team.relay.task(task)["status"] == "completed"
    assert team.relay.runners()["studio"]["state"] == "revoked"
    assert not (machine.profile_home() / "pairing.json").exists()


def test_a_keeper_that_is_killed_leaves_nothing_behind_and_starts_again(team: Team) -> None:
    machine = team.paired_machine("studio")
    keeper = json.loads((machine.profile_home() / "runner.json").read_text())["pid"]

    os.kill(keeper, signal.SIGKILL)

    wait_until(lambda: machine.runner()["state"] == "stopped")
    machine.ok("runner", "start")
    task = team.relay.wait_for(team.relay.shell_task(machine, "echo again"))
    assert task["status"] == "completed"


def managed(team: Team) -> Path:
    """Programs that stand for a service manager: they only say yes."""
    programs = team.root / "manager"
    programs.mkdir()
    for name in ("systemctl", "loginctl"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    return programs


def test_the_service_runs_as_its_unit_says_and_finds_the_agents_of_the_shell(team: Team) -> None:
    home, programs = team.root / "user", team.root / "bin"
    home.mkdir()
    install(programs)
    path = os.pathsep.join([str(programs), str(managed(team)), lean_path()])
    machine = team.machine("studio", PATH=path, HOME=str(home), ANTHROPIC_API_KEY="never-in-a-unit")
    machine.environment.pop("XDG_CONFIG_HOME", None)
    said = machine.pair(team.relay.pairing_command("studio"), "--all-repositories", "--install-service")
    unit = home / ".config" / "systemd" / "user" / "delegate-runner-default.service"
    text = unit.read_text()
    (command,) = [line.removeprefix("ExecStart=") for line in text.splitlines() if line.startswith("ExecStart=")]
    environment = read_environment(machine.environment, "default")

    assert f"installed {unit}" in said
    assert "never-in-a-unit" not in text
    assert environment is not None
    service = subprocess.Popen(
        shlex.split(command), env={"HOME": str(home), **environment}, cwd=home, stderr=subprocess.DEVNULL
    )
    try:
        listed = wait_until(lambda: (one := team.relay.runners()["studio"])["state"] == "online" and one)
        assert "claude" in {agent["name"] for agent in listed["agents"]}
        checked = machine.run("doctor", "--profile", "default", "--json")
        found = {line["subject"]: line for line in map(json.loads, checked.stdout.splitlines())}
        assert "environment of the service" in checked.stderr
        assert found["claude"]["level"] == "problem"  # it has a key in the shell, and none in the service
        assert (found["pairing"]["level"], found["policy"]["level"], found["relay"]["level"]) == ("ok", "ok", "ok")
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(60) == 0
    assert machine.runner()["state"] == "stopped"
    assert machine.ok("runner", "unpair") == "unpaired\n"
    assert not unit.exists()


def test_the_token_of_the_machine_is_not_in_what_it_reports(team: Team) -> None:
    machine = team.paired_machine("studio", "--privacy", "full")
    token = json.loads((machine.profile_home() / "pairing.json").read_text())["token"]

    task = team.relay.wait_for(team.relay.shell_task(machine, f"cat {machine.profile_home()}/pairing.json; echo told"))

    output = team.relay.ok("logs", task["taskId"])
    assert "told" in output
    assert token not in output
    log = machine.ok("runner", "logs")  # there is no local pool
    assert log.startswith("studio · delegate runner v")
    assert "info task received" in log
    assert "claimed job runner=studio attempt=1" in log
