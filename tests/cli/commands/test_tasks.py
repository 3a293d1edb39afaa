"""The commands about tasks, with a real relay and real runners."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.world import PATIENCE, World, wait_until

from delegate.cli.follow import exit_code
from delegate.config.home_files import host_name

HOLD = "while [ ! -e {} ]; do sleep 0.05; done"
ID = re.compile(r"task-[0-9a-f]{10}")


def exact(world: World, *words: str, input: bytes = b"") -> tuple[int, bytes, bytes]:
    """A command whose output is compared byte by byte."""
    command = [sys.executable, "-m", "delegate", *words]
    done = subprocess.run(
        command, env=world.environment, cwd=world.work, input=input, capture_output=True, timeout=PATIENCE
    )
    return done.returncode, done.stdout, done.stderr


def with_id(text: str) -> str:
    return ID.sub("task-ID", text)


def test_delegating_prints_the_id_and_nothing_else(busy_world: World) -> None:
    done = busy_world.run("delegate", "-a", "shell", "echo", "several", "words")

    assert (with_id(done.stdout), done.stderr) == ("task-ID\n", "")
    assert busy_world.wait_for(done.stdout.strip())["prompt"] == "echo several words"


def test_a_prompt_comes_from_standard_input_or_from_a_file(busy_world: World) -> None:
    (busy_world.work / "prompt.txt").write_text("echo fröm a file\n")

    piped = exact(busy_world, "delegate", "-a", "shell", "-f", "-", input="echo 'pïped'; echo twice\n".encode())
    filed = exact(busy_world, "delegate", "-a", "shell", "-f", "--prompt-file", "prompt.txt")

    assert piped[:2] == (0, "pïped\ntwice\n".encode())
    assert filed[:2] == (0, "fröm a file\n".encode())


def test_every_option_reaches_the_task(busy_world: World) -> None:
    (busy_world.work / "inside").mkdir()
    options = "-a claude -p P0 -w inside -t 2h -b 4096 --max-turns 3 --max-budget-usd 0.5 --rerun"

    task = json.loads(
        busy_world.ok("delegate", *options.split(), "--permission-mode", "plan", "--json", "--", "-v; true")
    )

    wanted = {
        "prompt": "-v; true",
        "agent": "claude",
        "priority": "P0",
        "workingDirectory": str(busy_world.work / "inside"),
        "timeout": 7_200_000,
        "maxOutputBuffer": 4096,
        "maxTurns": 3,
        "maxBudgetUsd": 0.5,
        "rerun": True,
        "permissionMode": "plan",
    }
    assert {name: task[name] for name in wanted} == wanted


def test_following_keeps_both_streams_and_every_byte(busy_world: World) -> None:
    command = r"printf 'out\377\000\033[2J'; printf 'err\376' >&2"

    code, out, err = exact(busy_world, "delegate", "-a", "shell", "-f", command)
    task_id = busy_world.tasks()[0]["taskId"]
    logged = exact(busy_world, "logs", task_id)
    raw = exact(busy_world, "logs", "--raw", task_id)

    assert (code, out) == (0, b"out\xff\x00\x1b[2J")
    assert err.endswith(b"submitted\nerr\xfe")
    assert logged == (0, b"out\xff\x00\x1b[2J", b"err\xfe")
    assert sorted(raw[1]) == sorted(b"out\xff\x00\x1b[2Jerr\xfe")


@pytest.mark.parametrize(
    ("prompt", "options", "code", "said"),
    [
        ("exit 7", [], 7, "failed: command_failed: the command ended with exit code 7"),
        ("kill -9 $$", [], 137, "failed: "),
        ("sleep 30", ["-t", "1s"], 124, "failed: timeout: "),
    ],
)
def test_following_ends_with_the_exit_code_of_the_task(
    busy_world: World, prompt: str, options: list[str], code: int, said: str
) -> None:
    done = busy_world.run("delegate", "-a", "shell", "-f", *options, prompt)

    assert done.returncode == code
    assert said in done.stderr


def test_a_cancelled_task_ends_its_follower_with_130(busy_world: World) -> None:
    following = busy_world.popen("delegate", "-a", "shell", "-f", "echo up; sleep 60")
    assert following.stdout is not None
    following.stdout.readline()
    task_id = busy_world.tasks()[0]["taskId"]

    cancelled = busy_world.run("cancel", task_id, "wrong", "branch")

    assert cancelled.stdout == f"{task_id} cancelled\n"
    _, err = following.communicate(timeout=PATIENCE)
    assert following.returncode == 130
    assert "cancel requested: wrong branch" in err


def test_a_task_that_has_ended_cannot_be_cancelled(busy_world: World) -> None:
    task_id = busy_world.submit("true")
    busy_world.wait_for(task_id)

    done = busy_world.run("cancel", task_id)

    assert done.returncode == 5
    assert done.stderr.startswith(f"delegate: task {task_id} is completed")


def test_several_tasks_are_cancelled_together_for_one_reason(busy_world: World) -> None:
    first, second = busy_world.submit("sleep 60"), busy_world.submit("sleep 60")

    done = busy_world.run("cancel", first, second, "--json", "--reason", "wrong branch")

    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [(task["taskId"], task["status"], task["message"]) for task in printed] == [
        (first, "cancelled", "wrong branch"),
        (second, "cancelled", "wrong branch"),
    ]


def test_a_task_that_cannot_be_cancelled_does_not_keep_the_others_from_it(busy_world: World) -> None:
    ended, running = busy_world.submit("true"), busy_world.submit("sleep 60")
    busy_world.wait_for(ended)

    done = busy_world.run("cancel", ended, "task-none", running, "enough")

    assert (done.returncode, done.stdout) == (5, f"{running} cancelled\n")
    said = [line for line in done.stderr.splitlines() if line.startswith("delegate: ")]
    assert said == [f"delegate: task {ended} is completed: it cannot be cancelled", "delegate: no task task-none"]


@pytest.mark.parametrize(("prompt", "code"), [("true", 0), ("exit 7", 7)])
def test_following_the_logs_ends_with_the_exit_code_of_the_task(busy_world: World, prompt: str, code: int) -> None:
    task_id = busy_world.submit(prompt)

    followed = busy_world.run("logs", "-f", task_id)

    assert followed.returncode == code
    assert busy_world.run("logs", task_id).returncode == 0


def test_interrupting_a_follower_leaves_its_task_alone(busy_world: World) -> None:
    gate = busy_world.work / "gate-interrupt"
    following = busy_world.popen("delegate", "-a", "shell", "-f", f"echo up; {HOLD.format(gate)}; echo done")
    assert following.stdout is not None
    following.stdout.readline()

    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=PATIENCE)

    task_id = busy_world.tasks()[0]["taskId"]
    assert following.returncode == 130
    assert err.splitlines()[-2:] == [
        f"delegate: {task_id} keeps running in the background",
        f"hint: `delegate logs -f {task_id}` follows it, `delegate cancel {task_id}` stops it",
    ]
    assert busy_world.task(task_id)["status"] == "running"
    gate.touch()
    assert busy_world.wait_for(task_id)["status"] == "completed"


def test_a_follower_survives_the_death_of_the_relay(busy_world: World) -> None:
    gate = busy_world.work / "gate-relay"
    following = busy_world.popen("delegate", "-a", "shell", "-f", f"echo before; {HOLD.format(gate)}; echo after")
    assert following.stdout is not None
    assert following.stdout.readline() == "before\n"
    relay = busy_world.relay_pid()

    os.kill(relay, signal.SIGKILL)
    wait_until(lambda: busy_world.relay_pid() != relay)
    gate.touch()

    assert following.stdout.read() == "after\n"
    assert following.wait(PATIENCE) == 0
    following.communicate()


def test_logs_are_there_during_the_run(busy_world: World) -> None:
    gate = busy_world.work / "gate-logs"
    task_id = busy_world.submit(f"echo one; echo two; {HOLD.format(gate)}; echo three")
    wait_until(lambda: busy_world.ok("logs", task_id) == "one\ntwo\n")

    tail = busy_world.ok("logs", "--tail", "1", task_id)
    following = busy_world.popen("logs", "-f", task_id)
    gate.touch()

    assert tail == "two\n"
    assert following.communicate(timeout=PATIENCE)[0] == "one\ntwo\nthree\n"
    assert busy_world.ok("logs", "--tail", "2", task_id) == "two\nthree\n"


def test_logs_as_json_are_one_object_a_line(busy_world: World) -> None:
    task_id = busy_world.submit("echo one; echo two >&2")
    busy_world.wait_for(task_id)

    tail = [json.loads(line) for line in busy_world.ok("logs", "--json", "--tail", "9", task_id).splitlines()]
    followed = [json.loads(line) for line in busy_world.ok("logs", "--json", task_id).splitlines()]

    assert sorted((line["stream"], line["text"]) for line in tail) == [("stderr", "two"), ("stdout", "one")]
    assert [entry["kind"] for entry in followed][:3] == ["submitted", "claimed", "started"]
    assert {(e["stream"], e["text"]) for e in followed if e["kind"] == "output"} == {
        ("stdout", "one\n"),
        ("stderr", "two\n"),
    }


def test_the_table_and_the_page_show_what_happened(busy_world: World) -> None:
    busy_world.run("delegate", "-a", "shell", "-f", "exit 3")
    task_id = busy_world.tasks()[0]["taskId"]

    table = busy_world.ok("status", "-n", "1").splitlines()
    page = re.sub(r"\d\d:\d\d:\d\d|\d{4}-\d\d-\d\d|process \d+|\d\.\ds", "…", busy_world.ok("status", task_id))

    assert table[0] == "TASK             STATUS  P   AGENT  AGE   PROMPT"
    assert re.fullmatch(rf"{task_id}  failed  P2  shell  \d\.\ds  exit 3", table[1])
    assert table[2] == "  command_failed: the command ended with exit code 3"
    assert page.splitlines() == [
        f"{task_id}  failed",
        "",
        "  prompt     exit 3",
        "  agent      shell",
        "  decided    agent shell (request), mode in_place (default)",
        f"  directory  {busy_world.work}",
        "  reason     command_failed, exit code 3",
        "  message    the command ended with exit code 3",
        "  hint       read its output with `delegate logs`, then run the task again with `delegate retry`",
        "  submitted  … …, P2",
        f"  ran        … on {host_name()}, attempt 1",
        "",
        "  …  submitted",
        f"  …  claimed by {host_name()}, attempt 1",
        "  …  started /bin/sh, …",
        "  …  failed (command_failed, exit code 3): the command ended with exit code 3",
    ]


def test_a_task_as_json_has_its_attempts_and_its_timeline(busy_world: World) -> None:
    task_id = busy_world.submit("true")
    busy_world.wait_for(task_id)

    lines = busy_world.ok("status", "--json", task_id).splitlines()
    task = json.loads(lines[0])

    assert len(lines) == 1
    assert (task["taskId"], task["status"], task["exitCode"]) == (task_id, "completed", 0)
    assert [attempt["number"] for attempt in task["attempts"]] == [1]
    assert [event["kind"] for event in task["timeline"]] == ["submitted", "claimed", "started", "finished"]


def test_a_retry_is_a_new_task_that_knows_the_old_one(busy_world: World) -> None:
    old = busy_world.submit("exit 1")
    busy_world.wait_for(old)

    new = busy_world.ok("retry", old).strip()

    assert new != old
    assert busy_world.wait_for(new)["retryOf"] == old


def test_the_examples_for_the_shell_run_as_they_are_written(world: World, tmp_path: Path) -> None:
    (tmp_path / "npm").write_text('#!/bin/sh\necho "npm $*" >> npm.log\ntest "$*" != "run deploy" -o -e approved\n')
    (tmp_path / "npm").chmod(0o755)
    world.environment.update(DELEGATE_DEFAULT_AGENT="shell", PATH=f"{tmp_path}:{world.environment['PATH']}")

    build = world.ok("delegate", "npm run build", "--priority", "P1").strip()
    test = world.ok("delegate", "npm test", "--depends-on", build).strip()
    deploy = world.ok("delegate", "npm run deploy", "--depends-on", test).strip()
    failed = world.wait_for(deploy)
    (world.work / "approved").touch()
    resumed = world.ok("resume", deploy, "--context", "Try a different approach this time").strip()

    assert (failed["status"], world.wait_for(resumed)["status"]) == ("failed", "completed")
    assert (world.work / "npm.log").read_text().splitlines() == [
        "npm run build",
        "npm test",
        "npm run deploy",
        "npm run deploy",
    ]
    assert [line.split()[-3:] for line in world.ok("status", "--tree", test).splitlines()] == [
        ["npm", "run", "build"],
        ["completed", "npm", "test"],
        ["npm", "run", "deploy"],
        ["npm", "run", "deploy"],
    ]
    assert f"  resumes     {deploy}\n" in world.ok("status", resumed)


def test_more_tasks_than_a_page_holds_can_be_listed(busy_world: World) -> None:
    for _ in range(3):
        busy_world.submit("true")

    shown = busy_world.run("status", "-n", "2")

    assert shown.stderr == "delegate: only the newest 2 are shown; -n shows more\n"
    assert len(busy_world.ok("status", "-n", "9999", "--json").splitlines()) > 2


@pytest.mark.parametrize(
    "surroundings",
    [
        {"LC_ALL": "C"},
        {"PYTHONIOENCODING": "ascii"},
        {"COLUMNS": "20"},
        {"NO_COLOR": "1", "TERM": "dumb"},
        {"COLUMNS": "", "TERM": ""},
    ],
)
def test_status_works_wherever_it_is_typed(busy_world: World, surroundings: dict[str, str]) -> None:
    busy_world.submit("echo 'ä 日本 …'")

    done = subprocess.run(
        [sys.executable, "-m", "delegate", "status"],
        env={**busy_world.environment, **surroundings},
        cwd=busy_world.work,
        capture_output=True,
        timeout=PATIENCE,
    )

    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert b"task-" in done.stdout


@pytest.mark.parametrize(("closed", "code"), [("0", 0), ("2", 0), ("0,2", 0), ("1", 2), ("0,1,2", 2)])
def test_only_a_closed_standard_output_is_refused_before_its_result_is_lost(
    busy_world: World, closed: str, code: int
) -> None:
    before = len(busy_world.ok("status", "-n", "9999", "--json").splitlines())
    close = "".join(f" {number}>&-" for number in closed.split(","))

    done = subprocess.run(
        ["sh", "-c", f'"$0" -m delegate delegate -a shell true{close}', sys.executable],
        env=busy_world.environment,
        cwd=busy_world.work,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )

    assert done.returncode == code
    assert ("standard output is closed; redirect it" in done.stderr) == (closed == "1")
    assert len(busy_world.ok("status", "-n", "9999", "--json").splitlines()) == before + (code == 0)


def test_a_reader_that_leaves_ends_a_follower_quietly(busy_world: World) -> None:
    command = '"$0" -m delegate delegate -a shell -f "while echo y; do :; done" | head -1'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable],
        env=busy_world.environment,
        cwd=busy_world.work,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    task_id = busy_world.tasks()[0]["taskId"]
    busy_world.ok("cancel", task_id)

    assert done.stdout == "y\n"
    assert with_id(done.stderr) == "delegate: task-ID submitted\n"


def test_on_a_terminal_output_cannot_drive_it(busy_world: World) -> None:
    command = r"printf '\033[31mred\033[0m \033]52;c;c2VjcmV0\007\033[2Jend\n'"
    ours, theirs = os.openpty()

    following = busy_world.popen("delegate", "-a", "shell", "-f", command, stdout=theirs)
    os.close(theirs)
    _, err = following.communicate(timeout=PATIENCE)

    assert os.read(ours, 4096) == b"\x1b[31mred\x1b[0m end\r\n\x1b[0m"
    assert "submitted" in err
    os.close(ours)


def test_json_on_a_terminal_cannot_drive_it_and_is_the_same_json(busy_world: World) -> None:
    hostile = "true # \x9b2J \u202eevil\u2066 \U000e0041 grün"
    task_id = busy_world.submit(hostile)
    busy_world.wait_for(task_id)

    shown = busy_world.on_a_terminal("status", "--json", task_id)

    assert shown.rstrip("\n").isprintable()
    assert "grün" in shown
    assert json.loads(shown)["prompt"] == hostile


def test_json_of_a_follower_keeps_characters_that_come_in_pieces(busy_world: World) -> None:
    gate = busy_world.work / "second-half"
    command = rf"printf 'gr\303'; {HOLD.format(gate)}; printf '\274n \342\202'"
    following = busy_world.popen("delegate", "-a", "shell", "-f", "--json", command)
    assert following.stdout is not None
    lines: list[str] = []
    while not any('"kind":"output"' in line for line in lines):
        lines.append(following.stdout.readline())
    gate.touch()
    out, _ = following.communicate(timeout=PATIENCE)

    items = [json.loads(line) for line in [*lines, *out.splitlines()]]

    assert "".join(item["text"] for item in items if item.get("kind") == "output") == "grün \ufffd"


def test_no_heavy_module_is_loaded_to_show_the_status(busy_world: World) -> None:
    heavy = [
        "pydantic",
        "rich",
        "http.client",
        "delegate.wire",
        "delegate.model",
        "subprocess",
        "logging",
        "ssl",
        "asyncio",
        "zoneinfo",
        "delegate.cli.commands.submit",
    ]
    program = (
        "import sys; from delegate.cli.main import main; main(sys.argv[1:]); "
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    task_id = busy_world.tasks()[0]["taskId"]

    for words in (["status"], ["status", task_id], ["logs", "--tail", "3", task_id]):
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            env=busy_world.environment,
            cwd=busy_world.work,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.stderr.splitlines()[-1] == "[]", words


def test_the_working_directory_is_the_present_one(busy_world: World, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(busy_world.work)
    done = subprocess.run(
        [sys.executable, "-m", "delegate", "delegate", "-a", "shell", "-f", "-w", "link", "pwd -L; pwd -P"],
        env=busy_world.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert done.stdout.splitlines()[-1] == str(busy_world.work.resolve())


@pytest.mark.parametrize(
    ("status", "reason", "given", "wanted"),
    [
        ("completed", "done", 0, 0),
        ("completed", "done", None, 0),
        ("failed", "command_failed", 7, 7),
        ("failed", "crashed", -9, 137),
        ("failed", "agent_error", 0, 1),
        ("failed", "not_installed", None, 1),
        ("failed", "timeout", None, 124),
        ("failed", "timeout", 143, 124),
        ("cancelled", "cancelled", 0, 130),
    ],
)
def test_a_follower_exits_as_scripts_expect(status: str, reason: str, given: int | None, wanted: int) -> None:
    assert exit_code({"status": status, "reason": reason, "exitCode": given}) == wanted  # type: ignore[typeddict-item]
