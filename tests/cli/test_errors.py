"""What is typed wrong, and what the answer looks like: nothing here needs a relay."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from delegate.cli.context import CommandContext
from delegate.cli.main import COMMANDS, cli, main

TOP = click.Context(cli)


@pytest.fixture(autouse=True)
def _no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DELEGATE_RELAY_URL", "DELEGATE_TOKEN", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DELEGATE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ["stauts"],
            "delegate: no such command 'stauts'\nhint: did you mean `delegate status`?\n",
        ),
        (
            ["linear", "connect", "--client-id", "x"],
            "delegate: there is no terminal to ask for the client secret of the app\n"
            "hint: set LINEAR_CLIENT_SECRET in the environment\n",
        ),
        (
            ["xyzzy"],
            "delegate: no such command 'xyzzy'\nhint: `delegate help` lists the commands\n",
        ),
        (
            ["help", "staus"],
            "delegate: no such command 'staus'\nhint: did you mean `delegate status`?\n",
        ),
        (
            ["schedule", "lsit"],
            "delegate: no such command 'lsit'\nhint: did you mean `delegate schedule list`?\n",
        ),
        (
            ["schedule", "xyzzy"],
            "delegate: no such command 'xyzzy'\nhint: `delegate schedule --help` lists the commands\n",
        ),
        (
            ["help", "schedule", "creat"],
            "delegate: no such command 'creat'\nhint: did you mean `delegate schedule create`?\n",
        ),
        (
            ["help", "status", "all"],
            "delegate: no such command 'status all'\nhint: `delegate status --help` shows how it is used\n",
        ),
        (
            ["run", "--depends-on", " , ", "x"],
            "delegate: invalid value for '--depends-on': is empty; `delegate status` lists the tasks\n"
            "hint: `delegate run --help` shows how it is used\n",
        ),
        (
            ["schedule", "create", "-x do it"],
            "delegate: no such option '-x'\n"
            'hint: put -- before a prompt that starts with a dash: delegate schedule create -- "-…"\n',
        ),
        (
            ["schedule", "create", "x"],
            "delegate: no time is set for the schedule\n"
            'hint: add --cron "0 2 * * *" for every night at 2:00, --at +2h, or --after ID for another schedule\n',
        ),
        (
            ["schedule", "create", "x", "--at", "+2h", "--cron", "* * * * *"],
            "delegate: choose one of --cron and --at\nhint: --cron runs repeatedly, --at once\n",
        ),
        (
            ["schedule", "create", "x", "--at", "soon"],
            "delegate: --at: 'soon' is not a time; write it as 2030-02-19T08:00, 2030-02-19T08:00:00Z or +2h\n",
        ),
        (
            ["schedule", "create", "x", "--at", "2026-02-19"],
            "delegate: --at: '2026-02-19' has no time of day; write it as 2030-02-19T08:00, 2030-02-19T08:00:00Z "
            "or +2h\n",
        ),
        (
            ["schedule", "create", "x", "--at", "+999999999d"],
            "delegate: --at: +999999999d from now is after the year 9999\n",
        ),
        (
            ["schedule", "create", "x", "--cron", "* * * * *", "--expires-at", "+1d", "--timezone", "Europe/Berln"],
            "delegate: --timezone: unknown time zone 'Europe/Berln'; did you mean Europe/Berlin?\n",
        ),
        (
            ["schedule", "create", "x", "--cron", "* * * * *", "--timezone", "Mars/Base"],
            "delegate: --timezone: unknown time zone 'Mars/Base'; use a name like Europe/Berlin or UTC\n",
        ),
        (
            ["schedule", "create", "--cron", "* * * * *"],
            "delegate: prompt: is empty; describe what the agent should do\n",
        ),
        (
            ["pipeline", "only one"],
            "delegate: a pipeline has 2 to 20 steps, not 1\n"
            'hint: put quotes around each prompt: delegate pipeline "build it" "test it"\n',
        ),
        (
            ["pipeline", "one", "two", "--depends-on", "task-1"],
            "delegate: no such option '--depends-on'\n"
            "hint: the steps of a pipeline wait for each other; `delegate run` takes --depends-on\n",
        ),
        (
            ["run", "--at", "+1h", "x"],
            "delegate: no such option '--at'\nhint: `delegate schedule create` runs a task later, and takes --at\n",
        ),
        (
            ["pipeline", "one", " "],
            "delegate: step 2: is empty; describe what the agent should do\n",
        ),
        (
            ["pipeline", "one", "two", "--delay", "9999999m"],
            "delegate: invalid value for '--delay': must be from 0 ms to 31,622,400,000 ms (366 days), "
            "not 599,999,940,000\nhint: `delegate pipeline --help` shows how it is used\n",
        ),
        (
            ["status", "--tial"],
            "delegate: no such option '--tial'\nhint: `delegate status --help` shows how it is used\n",
        ),
        (
            ["logs"],
            "delegate: missing argument 'ID'\nhint: `delegate logs --help` shows how it is used\n",
        ),
        (
            ["logs", "-f", "--raw", "task-1"],
            "delegate: choose one of --tail, -f and --raw\nhint: `delegate logs --help` shows how it is used\n",
        ),
        (
            ["logs", "--raw", "--json", "task-1"],
            '{"error":"usage","message":"choose one of --raw and --json",'
            '"hint":"raw bytes are not JSON; without --raw, each line is a JSON object"}\n',
        ),
        (
            ["cancel", "task-1", "wrong", "task-2"],
            "delegate: task-2 comes after the reason\n"
            "hint: write the reason as --reason TEXT, or put it after all task ids\n",
        ),
        (
            ["cancel", "task-1", "wrong", "--reason", "branch"],
            "delegate: 'wrong' is not a task id, and --reason already gives the reason\n"
            "hint: write the reason as --reason TEXT\n",
        ),
        (
            ["delegate", "-x do it"],
            "delegate: no such option '-x'\n"
            'hint: put -- before a prompt that starts with a dash: delegate delegate -- "-…"\n',
        ),
        (
            ["delegate", "-p1 is broken"],
            "delegate: invalid value for '-p' / '--priority': '1 is broken' is not one of 'P0', 'P1', 'P2'\n"
            'hint: put -- before a prompt that starts with a dash: delegate delegate -- "-…"\n',
        ),
        (
            ["delegate", "-t", "0", "x"],
            "delegate: invalid value for '-t' / '--timeout': must be from 1,000 ms (1s) to 86,400,000 ms (24h), not 0\n"
            "hint: `delegate delegate --help` shows how it is used\n",
        ),
        (
            ["delegate", "-t", "soon", "x"],
            "delegate: invalid value for '-t' / '--timeout': a duration is milliseconds, or a number with s, m or h, "
            "such as 90s or 30m\n"
            "hint: `delegate delegate --help` shows how it is used\n",
        ),
        (["delegate"], "delegate: prompt: is empty; describe what the agent should do\n"),
        (["delegate", ""], "delegate: prompt: is empty; describe what the agent should do\n"),
        (["delegate", " \n", "\t"], "delegate: prompt: is empty; describe what the agent should do\n"),
        (
            ["delegate", "x" * 250_001],
            "delegate: prompt: has more than 250,000 characters; put the rest into a file\n",
        ),
        (["delegate", "\udcff"], "delegate: prompt: is not UTF-8 text\n"),
        (
            ["delegate", "x", "--prompt-file", "y"],
            "delegate: prompt: give it as arguments or with --prompt-file, not both\n",
        ),
        (
            ["delegate", "--prompt-file", "nowhere"],
            "delegate: --prompt-file: nowhere: no such file or directory\n",
        ),
        (
            ["delegate", "-w", "/nowhere/at/all", "x"],
            "delegate: --working-directory: /nowhere/at/all does not exist\n",
        ),
        (
            ["pipeline", "-w", "", "one", "two"],
            "delegate: --working-directory: is empty; name a directory, or leave it out for the current one\n",
        ),
        (
            ["schedule", "create", "--at", "+1h", "--repository", "/nowhere/at/all", "x"],
            "delegate: --repository: /nowhere/at/all does not exist\n",
        ),
        (
            ["run", "--continue-from", "task-1", "--continue-from", "task-2", "x"],
            "delegate: invalid value for '--continue-from': takes one task, not 2; --depends-on takes several\n"
            "hint: `delegate run --help` shows how it is used\n",
        ),
        (
            ["run", "--continue-from", "task-1,task-2", "x"],
            "delegate: invalid value for '--continue-from': takes one task, not 2; --depends-on takes several\n"
            "hint: `delegate run --help` shows how it is used\n",
        ),
        (
            ["run", "--continue-from", "", "x"],
            "delegate: invalid value for '--continue-from': is empty; `delegate status` lists the tasks\n"
            "hint: `delegate run --help` shows how it is used\n",
        ),
        (
            ["run", "-b", "1k", "x"],
            "delegate: invalid value for '-b' / '--max-output-buffer': must be a number of bytes from 1,024 to "
            "1,073,741,824, not 1k\nhint: `delegate run --help` shows how it is used\n",
        ),
        (
            ["run", "--max-turns", "0", "x"],
            "delegate: invalid value for '--max-turns': must be a whole number from 1 to 10,000, not 0\n"
            "hint: `delegate run --help` shows how it is used\n",
        ),
        (
            ["run", "--max-budget-usd", "much", "x"],
            "delegate: invalid value for '--max-budget-usd': must be US dollars, more than 0 and up to 1,000,000, "
            "not much\nhint: `delegate run --help` shows how it is used\n",
        ),
        (
            ["pipeline", "-", "test it", "-"],
            "delegate: only one step can be read from standard input\nhint: write the others as arguments\n",
        ),
        (
            ["pipeline", "one", "two", "--prompt-file", "plan.md"],
            "delegate: no such option '--prompt-file'\nhint: the steps of a pipeline are its arguments; - reads "
            "one from standard input; `delegate run` takes --prompt-file\n",
        ),
        (
            ["delegate", "-w", "/dev/null", "x"],
            "delegate: --working-directory: /dev/null is not a directory\n",
        ),
        (
            ["up", "--runners", "many"],
            "delegate: runners: must be auto or a number from 0 to 256\n",
        ),
        (
            ["serve", "--host", "0.0.0.0"],
            "delegate: the request was refused: plain HTTP on 0.0.0.0 would expose tokens on the network; give it a "
            "certificate (--tls-cert and --tls-key), or name the proxy that encrypts for it (--trusted-proxy)\n",
        ),
        (
            ["serve", "--public-url", "https://relay.example"],
            "delegate: the request was refused: nothing would answer at https://relay.example with TLS; give it a "
            "certificate (--tls-cert and --tls-key), or name the proxy that encrypts for it (--trusted-proxy)\n",
        ),
        (
            ["serve", "--trusted-proxy", "nginx"],
            "delegate: --trusted-proxy: must be addresses or networks such as 10.0.0.0/8, separated by commas\n",
        ),
        (
            ["restore"],
            "delegate: the request was refused: this replaces the database; add --yes to confirm\n",
        ),
    ],
)
def test_what_is_typed_wrong_gets_a_line_a_hint_and_exit_code_2(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == said


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        (["--json"], "delegate"),
        (["help", "--json"], "delegate"),
        (["help", "--json", "logs"], "delegate logs"),
    ],
)
def test_help_is_json_when_that_is_asked_for(
    typed: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 0

    printed = json.loads(capsys.readouterr().out)
    assert (printed["command"], printed["help"].startswith(f"Usage: {command} ")) == (command, True)


@pytest.mark.parametrize("group", ["schedule", "config", "mcp"])
def test_a_group_of_commands_alone_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([group]) == 0

    alone = capsys.readouterr()
    main(["help", group])
    assert (alone.out, alone.err) == (capsys.readouterr().out, "")


def test_in_a_directory_that_was_removed_no_entry_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert main(["mcp", "config", "--write"]) == 2

    assert capsys.readouterr().err == ("delegate: working directory: the current directory no longer exists\n")


def test_errors_are_json_when_the_output_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json", "--tial"]) == 2
    assert main(["delegate", "--json", ""]) == 2

    usage, refused = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert usage["error"] == "usage"
    assert refused == {
        "error": "invalid_field",
        "message": "prompt: is empty; describe what the agent should do",
        "hint": "",
    }


def test_a_setting_that_cannot_be_read_is_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELEGATE_TASK_TIMEOUT", "0")

    assert main(["status"]) == 3

    assert capsys.readouterr().err == (
        "delegate: DELEGATE_TASK_TIMEOUT=0: must be from 1,000 to 86,400,000\n"
        "hint: DELEGATE_TASK_TIMEOUT: how long an attempt may take, unless its task says otherwise\n"
    )


def test_nothing_running_is_an_error_for_info_but_not_for_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["down"]) == 0
    assert capsys.readouterr().err == f"delegate: no relay is running for {tmp_path / 'home'}\n"

    assert main(["info"]) == 6
    assert capsys.readouterr().err == (
        f"delegate: cannot reach the relay at {tmp_path / 'home'}: none is running for this DELEGATE_HOME\n"
        "hint: `delegate up` starts it\n"
    )
    assert not (tmp_path / "home").exists()


OF_THIS_HOME = {
    "up": "`delegate runner pair` runs its tasks on this machine",
    "down": "stop it on its own machine; `delegate runner stop` stops the runners of this one",
    "serve": "unset DELEGATE_RELAY_URL first",
    "backup": "run it on the machine of that relay",
    "restore": "run it on the machine of that relay",
}


@pytest.mark.parametrize("command", OF_THIS_HOME)
def test_commands_of_this_home_are_refused_for_a_relay_elsewhere_and_say_what_to_do(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELEGATE_RELAY_URL", "https://relay.example")

    assert main([command]) == 2

    assert capsys.readouterr().err == (
        f"delegate: the request was refused: `delegate {command}` is for the relay of {tmp_path / 'home'}, "
        f"but https://relay.example is set; {OF_THIS_HOME[command]}\n"
    )


def test_a_defect_is_one_line_and_a_traceback_only_with_v(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COMMANDS, "status", "nowhere")

    assert main(["status"]) == 70
    assert capsys.readouterr().err.splitlines() == [
        "delegate: this is a bug in Delegate: ModuleNotFoundError: No module named 'delegate.cli.nowhere'",
        "hint: run it again with -v to see a traceback, and please report it",
    ]

    assert main(["-v", "status"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("command", [*COMMANDS, "help"])
def test_every_command_has_an_example_in_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", command]) == 0
    described = capsys.readouterr().out
    assert main([command, "--help"]) == 0

    assert "  Examples:\n    " in described
    assert f"delegate {command}" in described.partition("Examples:")[2]
    assert capsys.readouterr().out == described


@pytest.mark.parametrize("group", [name for name in COMMANDS if isinstance(cli.get_command(TOP, name), click.Group)])
def test_every_command_of_a_group_has_an_example_in_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = cli.get_command(TOP, group)
    assert isinstance(found, click.Group)

    for name in found.list_commands(TOP):
        assert main(["help", group, name]) == 0
        described = capsys.readouterr().out
        assert main([group, name, "--help"]) == 0
        assert f"delegate {group} {name}" in described.partition("Examples:")[2]
        assert capsys.readouterr().out == described


@pytest.mark.parametrize("typed", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_every_command(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed) == 0

    listed = capsys.readouterr().out.partition("Commands:\n")[2]
    assert {line.split()[0] for line in listed.splitlines() if line.startswith("  ")} >= {*COMMANDS, "help"}


def test_words_of_a_relay_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    CommandContext(environ={}).say("it said \x1b[2J\u202e", "try\x9b")

    assert capsys.readouterr().err == "delegate: it said \\x1b[2J\\u202e\nhint: try\\x9b\n"


def test_a_variable_that_is_not_a_setting_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELEGATE_MAX_RUNERS", "2")

    main(["workspaces"])

    said = "delegate: DELEGATE_MAX_RUNERS is not a setting and has no effect\n"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["DELEGATE_TASK_ID", "DELEGATE_FAILPOINTS", "DELEGATE_GRACE"])
def test_a_known_variable_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv(name, "2")

    main(["workspaces"])

    assert "is not a setting" not in capsys.readouterr().err
