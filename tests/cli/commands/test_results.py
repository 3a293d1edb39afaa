"""The commands about the results of a task, and the options of a submit, with a scripted relay."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tests.cli.scripted_relay import Run, answer, body_of, problem

from delegate.cli.commands.results import escape_line, paint_line
from delegate.cli.context import CommandContext
from delegate.cli.follow import AgentFollower, say_question

PATCH = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-old\n+né\x0cw\t\x1b[2J\n"
CHANGE = {"baseCommit": "1" * 40, "commit": "2" * 40, "patch": PATCH, "isCut": False}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command prints on a terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def show(reply: bytes, *words: str) -> str:
        with redirect_stdout(Terminal()) as screen:
            run(reply, *words)
        return screen.getvalue()

    return show


def test_a_diff_in_a_pipe_is_the_exact_patch(run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code, asked = run(answer(CHANGE), "diff", "task-1")

    assert (code, asked[0].line) == (0, "GET /api/tasks/task-1/diff HTTP/1.1")
    assert capfdbinary.readouterr() == (PATCH.encode(), b"")


def test_a_diff_on_a_terminal_is_coloured_and_harmless(shown: Callable[..., str]) -> None:
    assert shown(answer(CHANGE), "diff", "task-1").splitlines(keepends=True) == [
        "\x1b[1mdiff --git a/a.py b/a.py\x1b[0m\n",
        "\x1b[1m--- a/a.py\x1b[0m\n",
        "\x1b[1m+++ b/a.py\x1b[0m\n",
        "\x1b[36m@@ -1 +1 @@\x1b[0m\n",
        "\x1b[31m-old\x1b[0m\n",
        "\x1b[32m+né\\x0cw\t\\x1b[2J\x1b[0m\n",
    ]


def test_a_diff_without_colour_is_harmless_too(shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    assert shown(answer(CHANGE), "diff", "task-1").endswith("-old\n+né\\x0cw\t\\x1b[2J\n")


@pytest.mark.parametrize(("line", "shown"), [(" same", " same"), ("", ""), ("\\ No newline", "\\ No newline")])
def test_lines_that_did_not_change_have_no_colour(line: str, shown: str) -> None:
    assert (paint_line(line), escape_line(line)) == (shown, shown)


def test_a_diff_that_was_cut_says_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(answer({**CHANGE, "isCut": True}), "diff", "task-1")

    assert capsys.readouterr().err == (
        "delegate: the change is too long to be shown in full\n"
        "hint: the branch has all of it; `delegate status` shows its name\n"
    )


def test_a_task_without_a_change_says_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(problem("409 Conflict", "no_change", "task task-1 has no changes to show"), "diff", "task-1")

    assert (code, capsys.readouterr().err) == (5, "delegate: task task-1 has no changes to show\n")


def test_a_diff_as_json_is_one_object(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(answer(CHANGE), "diff", "--json", "task-1")

    assert json.loads(capsys.readouterr().out) == CHANGE


def test_the_prompt_is_printed_as_the_agent_got_it(run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    _, asked = run(answer({"text": "Fix it.\n\x1b[2J", "isRendered": True}), "prompt", "task-1")

    assert asked[0].line == "GET /api/tasks/task-1/prompt HTTP/1.1"
    assert capfdbinary.readouterr() == (b"Fix it.\n\x1b[2J\n", b"")


def test_a_prompt_that_was_not_rendered_is_marked_as_such(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(answer({"text": "Fix it.", "isRendered": False}), "prompt", "task-1")

    assert capsys.readouterr().err == "delegate: task-1 has not started yet, or its prompt was passed on unchanged\n"


def test_a_prompt_on_a_terminal_is_harmless(shown: Callable[..., str]) -> None:
    reply = answer({"text": "Fix it.\n\x1b[2J", "isRendered": True})

    assert shown(reply, "prompt", "task-1") == "Fix it.\n\\x1b[2J\n"


def test_a_resume_prints_the_new_id(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, asked = run(answer({"taskId": "task-2"}, "201 Created"), "resume", "task-1", "--context", "go\non")

    assert (code, capsys.readouterr().out) == (0, "task-2\n")
    assert asked[0].line == "POST /api/tasks/task-1/resume HTTP/1.1"
    assert body_of(asked) == {"context": "go\non"}


def test_a_resume_needs_no_words(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    _, asked = run(answer({"taskId": "task-2"}), "resume", "task-1", "--json")

    assert body_of(asked) == {}
    assert capsys.readouterr().out == '{"taskId":"task-2"}\n'


@pytest.mark.parametrize(
    ("context", "why"), [(" ", "is empty; describe what the agent should do"), ("\udcff", "is not UTF-8 text")]
)
def test_a_resume_with_words_that_are_none_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], context: str, why: str
) -> None:
    code, asked = run(b"", "resume", "task-1", "--context", context)

    assert (code, asked, capsys.readouterr().err) == (2, [], f"delegate: context: {why}\n")


def test_an_answer_is_sent_as_it_was_typed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, asked = run(answer({"taskId": "task-1"}), "answer", "task-1", "use", "SQLite")

    assert (code, capsys.readouterr().out) == (0, "task-1 answered\n")
    assert asked[0].line == "POST /api/tasks/task-1/answer HTTP/1.1"
    assert body_of(asked) == {"text": "use SQLite"}


def test_an_answer_comes_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("so:\n  ünd so\n".encode())))

    _, asked = run(answer({"taskId": "task-1"}), "answer", "task-1", "-")

    assert body_of(asked) == {"text": "so:\n  ünd so"}


def test_an_empty_answer_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, asked = run(b"", "answer", "task-1")

    assert (code, asked) == (2, [])
    assert capsys.readouterr().err == "delegate: answer: is empty; write what the agent needs to know\n"


def test_a_follower_sees_the_question(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"text": "Which one?", "options": ["a", "b"]}

    AgentFollower(CommandContext(environ={})).event(
        {"id": 1, "taskId": "task-1", "attemptId": None, "kind": "question", "at": "2026-01-01T00:00:00Z", "data": data}
    )

    assert capsys.readouterr().out == "asks: Which one? (a / b)\n"


def test_how_to_answer_is_shown_until_there_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"text": "Which one?", "options": [], "at": "2026-01-01T00:00:00Z"}
    task: Any = {"taskId": "task-1", "status": "waiting", "questions": [{**asked, "answer": None}]}
    answered: Any = {**task, "questions": [{**asked, "answer": "a"}]}

    say_question(CommandContext(environ={}), task)
    open_one = capsys.readouterr().err
    say_question(CommandContext(environ={}), answered)

    assert open_one == "delegate: task-1 waits for an answer\nhint: delegate answer task-1 TEXT\n"
    assert capsys.readouterr().err == ""


def test_dependencies_may_be_repeated_or_parted_by_commas(run: Run) -> None:
    words = "run npm test --depends-on task-a,task-b --depends-on task-b,,task-c --continue-from task-a"

    _, asked = run(answer({"taskId": "task-1"}), *words.split(), "--on-dependency-failure", "run")

    sent = body_of(asked)
    assert (sent["prompt"], sent["dependsOn"]) == ("npm test", ["task-a", "task-b", "task-c"])
    assert (sent["continueFrom"], sent["onDependencyFailure"]) == ("task-a", "run")


def test_the_options_of_a_submit_are_sent_as_they_were_typed(run: Run) -> None:
    options = "--pr --repository owner/name --base main --title parser --label bug --label delegate:codex -m o -e high"

    _, asked = run(answer({"taskId": "task-1"}), "delegate", *options.split(), "fix", "it")

    assert body_of(asked) == {
        "prompt": "fix it",
        "repository": "owner/name",
        "pr": True,
        "base": "main",
        "title": "parser",
        "labels": ["bug", "delegate:codex"],
        "model": "o",
        "effort": "high",
    }


def test_a_worktree_is_made_of_the_directory_one_stands_in(run: Run, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)

    _, asked = run(answer({"taskId": "task-1"}), "delegate", "--worktree", "fix it")

    sent = body_of(asked)
    assert (sent["worktree"], sent["workingDirectory"]) == (True, str(tmp_path))
    assert sent["machine"]


def test_a_repository_that_is_a_path_is_one_of_this_machine(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shop.git").mkdir()

    _, asked = run(answer({"taskId": "task-1"}), "delegate", "--pr", "--repository", "./shop.git", "fix it")

    sent = body_of(asked)
    assert (sent["repository"], "workingDirectory" in sent) == (str(tmp_path / "shop.git"), False)
    assert sent["machine"]


@pytest.mark.parametrize("option", ["title", "base", "repository", "model", "agent"])
def test_an_option_that_is_not_text_is_refused_by_name(
    run: Run, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, asked = run(b"", "delegate", f"--{option}", "a\udcff", "fix it")

    assert (code, asked, capsys.readouterr().err) == (2, [], f"delegate: --{option}: is not UTF-8 text\n")


def test_a_directory_that_is_not_text_is_refused_by_name(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a\udcff").mkdir()

    code, asked = run(b"", "delegate", "-w", str(tmp_path / "a\udcff"), "fix it")

    assert (code, asked) == (2, [])
    assert capsys.readouterr().err == "delegate: --working-directory: is not UTF-8 text\n"


def test_a_reason_that_is_not_text_is_refused_by_name(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, asked = run(b"", "cancel", "task-1", "a\udcff")

    assert (code, asked, capsys.readouterr().err) == (2, [], "delegate: reason: is not UTF-8 text\n")
