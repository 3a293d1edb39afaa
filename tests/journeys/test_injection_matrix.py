"""Hostile text in every field that takes text: refused by name, or kept, shown and passed on as nothing but text."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes import recorded, scripted_agent
from tests.fakes.hostile import CLOSING, EVERYTHING, LEADING, NAMES, OSC_52, REPOSITORIES, WORDS, active, driving
from tests.fakes.recorded import Call
from tests.fakes.world import lean_path
from tests.journeys.shop import Market, Shop, audited_market, open_shop

from delegate.errors import BadRepoFile, PreferenceConflict
from delegate.preferences.repofile import parse
from delegate.preferences.resolve import apply_repository_file
from delegate.runner.prompts.sanitize import reveal_hidden

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.promise("P19")]

ONE_LINE = tuple(text for text in EVERYTHING if text.isprintable())
ALL = "\n".join(EVERYTHING)
TITLE = " ".join(ONE_LINE)[:1_000]
AN_ID = re.compile(
    r"(?<=/pulls/)\d+|task-[0-9a-f]{10}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{40}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bazaar:
    """A market whose programs note how they are called; its agents do what their prompt says."""

    market: Market
    log: Path

    @property
    def calls(self) -> list[Call]:
        return recorded.calls(self.log)


@pytest.fixture(scope="module")
def bazaar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bazaar]:
    place = tmp_path_factory.mktemp("market")
    agent = str(scripted_agent.install(place / "agents"))
    programs = {name: str(shutil.which(name)) for name in ("git", "gh")}
    recorded.install(place / "bin", place / "calls", **programs, claude=agent, codex=agent)
    wrapped = {
        "PATH": f"{place / 'bin'}:{lean_path()}",
        "DELEGATE_CLAUDE_COMMAND": "claude",
        "DELEGATE_CODEX_COMMAND": "codex",
    }
    with audited_market(place, "git", "gh", runners=2, **wrapped) as market:
        yield Bazaar(market=market, log=place / "calls")


@pytest.fixture(scope="module")
def api(bazaar: Bazaar) -> Iterator[httpx2.Client]:
    world = bazaar.market.world
    headers = {"Authorization": f"Bearer {world.token}"}
    with httpx2.Client(base_url=world.url, headers=headers, verify=world.tls or True) as client:
        yield client


# What the relay takes and what it shows. No runner may have these tasks.

NOT_OURS = {"prompt": "p", "agent": "claude", "workingDirectory": "/nowhere", "machine": "nobody", "pr": True}
ISSUE = {"key": "PER-1", "title": "t"}
# Each field, and what stands in it before the hostile text.
PLACES = (
    ("prompt", ""),
    ("title", ""),
    ("issue.key", ""),
    ("issue.title", ""),
    ("issue.url", ""),
    ("issue.url", "https://example.test/"),
    ("base", ""),
    ("base", "release/"),
    ("model", ""),
    ("agent", ""),
    ("agent", "acp:"),
    ("effort", ""),
    ("permissionMode", ""),
    ("priority", ""),
    ("machine", ""),
    ("workingDirectory", ""),
    ("workingDirectory", "/"),
    ("requestKey", ""),
    ("repository", ""),
    ("repository", "owner/"),
    ("repository", "https://example.test/"),
    ("repository", "/srv/"),
    ("labels", ""),
    ("labels", "delegate:"),
    ("labels", "repo/"),
    ("labels", "executor/"),
    ("labels", "delegate:base="),
)


def request(field: str, text: str) -> dict[str, Any]:
    if field == "labels":
        return {**NOT_OURS, "labels": [text]}
    if field.startswith("issue."):
        return {**NOT_OURS, "issue": {**ISSUE, field.partition(".")[2]: text}}
    elsewhere = {"workingDirectory": None} if field == "repository" else {}
    return {**NOT_OURS, **elsewhere, field: text}


def kept(task: dict[str, Any], field: str) -> object:
    value: Any = task
    for part in field.split("."):
        value = value[part]
    return value


def fault(answer: httpx2.Response, field: str, text: str) -> str | None:
    """What is wrong with the way in which a text was taken or refused."""
    body = answer.json()
    if answer.status_code in (200, 201):
        is_shown = field not in ("labels", "requestKey")
        return None if not is_shown or kept(body, field) == text else f"kept as {kept(body, field)!r}"
    if answer.status_code != 422:
        return f"answered with {answer.status_code}"
    words = f"{body.get('field', '')} {body['detail']}"
    if not words.isprintable() or len(words) > 1_000 or (field == "repository" and "hunter2" in words):
        return f"refused with {words!r}"
    is_named = body.get("field", "").startswith(field)
    is_conflict = field == "labels" and body["type"] == "preference_conflict"
    return None if is_named or is_conflict else f"refused without its name: {words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    field: str
    text: str
    answer: httpx2.Response


@pytest.fixture(scope="module")
def answered(api: httpx2.Client) -> list[Answered]:
    """Every text in every field."""
    asked = [(field, before + text) for field, before in PLACES for text in EVERYTHING]
    return [
        Answered(field=field, text=text, answer=api.post("/api/tasks", json=request(field, text)))
        for field, text in asked
    ]


@pytest.fixture(scope="module")
def taken(answered: list[Answered]) -> list[dict[str, Any]]:
    """The tasks that could be made of hostile text."""
    return [one.answer.json() for one in answered if one.answer.status_code == 201]


def test_each_text_is_refused_by_name_or_kept_as_it_is(answered: list[Answered], taken: list[dict[str, Any]]) -> None:
    found = [(one.field, one.text[:80], fault(one.answer, one.field, one.text)) for one in answered]

    assert [fault for fault in found if fault[-1] is not None] == []
    assert {task["prompt"] for task in taken} >= set(EVERYTHING)


def test_texts_beyond_the_limits_are_refused_by_name(api: httpx2.Client) -> None:
    images = "![x](https://evil.test/x.png)\n" * 300
    comments = "".join(f"Comment {number}: me too\n" for number in range(5_000))

    long = api.post("/api/tasks", json={**NOT_OURS, "prompt": "x" * 2_000_000})
    many = api.post("/api/tasks", json={**NOT_OURS, "prompt": images + comments})

    assert (long.status_code, long.json()["field"]) == (422, "prompt")
    assert (many.status_code, many.json()["prompt"]) == (201, images + comments)


def test_what_was_kept_is_shown_to_programs_as_it_is_and_to_people_without_effect(
    bazaar: Bazaar, api: httpx2.Client, taken: list[dict[str, Any]]
) -> None:
    world = bazaar.market.world
    everywhere = {
        **NOT_OURS,
        "prompt": ALL,
        "title": TITLE,
        "issue": {**ISSUE, "title": TITLE},
        "machine": TITLE[:200],
    }
    one = api.post("/api/tasks", json=everywhere).json()

    listed = {
        task["taskId"]: task["prompt"]
        for task in map(json.loads, world.ok("status", "--json", "-n", "10000").strip().split("\n"))
    }

    assert {task["taskId"]: task["prompt"] for task in taken}.items() <= listed.items()
    assert world.ok("prompt", one["taskId"]) == f"{ALL}\n".replace("\r", "\n")  # as Python reads a pipe
    for words in (
        ("status", "-n", "10000"),
        ("status", "--json", "-n", "10000"),
        ("status", one["taskId"]),
        ("status", one["taskId"], "--json"),
        ("prompt", one["taskId"]),
        ("info",),
    ):
        assert driving(world.on_a_terminal(*words)) == []


def test_a_reason_to_cancel_is_kept_as_it_is_and_shown_without_effect(
    bazaar: Bazaar, api: httpx2.Client, taken: list[dict[str, Any]]
) -> None:
    world = bazaar.market.world
    reasons = {task["taskId"]: EVERYTHING[number % len(EVERYTHING)] for number, task in enumerate(taken)}

    answers = {
        task_id: api.post(f"/api/tasks/{task_id}/cancel", json={"reason": reasons[task_id]}) for task_id in reasons
    }

    assert {task_id: answer.json()["message"] for task_id, answer in answers.items()} == reasons
    assert driving(world.on_a_terminal("status", "-n", "10000")) == []
    for task_id, reason in list(reasons.items())[: len(EVERYTHING)]:
        if not reason.isprintable():
            assert driving(world.on_a_terminal("logs", task_id)) == []


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("title", "bug\nCo-authored-by: x"),
        ("base", "--upload-pack=touch pwned"),
        ("repository", "ext::sh -c id"),
        ("model", "a$(id)"),
        ("agent", OSC_52),
        ("label", "delegate:base=a..b"),
    ],
)
def test_the_command_line_refuses_by_name(bazaar: Bazaar, option: str, text: str) -> None:
    refused = bazaar.market.world.run("delegate", "--pr", "--repository=acme/shop", f"--{option}={text}", "--", "-x")

    assert (refused.returncode, refused.stdout) == (2, "")
    assert {"label": "base"}.get(option, option) in refused.stderr
    assert driving(refused.stderr) == []


@pytest.mark.parametrize("key", ["agent", "model", "effort", "base"])
def test_a_repositorys_file_decides_nothing_by_hostile_text(key: str) -> None:
    answers = {text: decided(key, text) for text in EVERYTHING}

    taken = [text for text, refusal in answers.items() if refusal is None]
    assert [text for text in taken if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", text)] == []
    refusals = [refusal for refusal in answers.values() if refusal is not None]
    assert [refusal for refusal in refusals if key not in refusal or not refusal.isprintable()] == []


def toml(text: str) -> str:
    return "".join(['"', *(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in text), '"'])


def decided(key: str, text: str) -> str | None:
    """Why a value is not taken; None when it is."""
    try:
        apply_repository_file((), parse(f"{key} = {toml(text)}\n".encode()))
    except (BadRepoFile, PreferenceConflict) as refused:
        return refused.message
    return None


# What programs are called with. A hostile task calls them exactly as a harmless one does.

SUMMARY = "All is done as it was wanted."


def script(*steps: dict[str, Any], summary: str = SUMMARY) -> str:
    said = [{"say": summary}, {"result": summary}, {"end_of_input": True}]
    return json.dumps({"steps": [{"init": {}}, *steps, {"touch": "new.txt"}, *said]})


def normal(call: Call, shop: Shop, branches: Sequence[str]) -> list[str]:
    """The words of a call without what differs between two harmless tasks."""
    words = []
    for word in call.arguments:
        plain = word.replace(str(shop.clone), "<clone>").replace(str(shop.world.home), "<home>")
        for branch in branches:
            plain = plain.replace(branch, "<branch>")
        plain = re.sub(r"<home>/runners/\d+/spool/[\w-]+/", "<spool>/", plain)
        plain = re.sub(r"(<home>[\w./-]*?/)[\w.-]*(?=[\"/,\]]|$)", r"\1<name>", AN_ID.sub("<id>", plain))
        words.append("--title=<title>" if call.program == "gh" and plain.startswith("--title=") else plain)
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What the programs were called with during some tasks."""

    words: set[tuple[str, str]]  # of each program
    names: set[tuple[str, str]]  # of variables
    titles: list[str]


def calls_of(bazaar: Bazaar, since: int, shop: Shop, tasks: Sequence[dict[str, Any]]) -> Calls:
    branches = sorted(
        {event["data"]["branch"] for task in tasks for event in task["timeline"] if event["kind"] == "workspace"}
    )
    assert [branch for branch in branches if not re.fullmatch(r"[a-z0-9-]+", branch)] == []
    calls = bazaar.calls[since:]
    return Calls(
        words={(call.program, word) for call in calls for word in normal(call, shop, branches)},
        names={(call.program, name) for call in calls for name in call.names},
        titles=[
            word.removeprefix("--title=")
            for call in calls
            for word in call.arguments
            if call.program == "gh" and word.startswith("--title=")
        ],
    )


CARRYING = 'checks = ["true"]\nsetup = ["true"]\ncarry = [".env"]\nprotected = ["deploy/"]\n'


def harmless_tasks(shop: Shop) -> list[dict[str, Any]]:
    """One of each kind: to a pull request, resumed, failed and kept, and one whose base is not there."""
    asked = [
        shop.submit(f"Do it.\n{script()}", agent="claude", model="a-model"),
        shop.submit("Do it.", agent="codex", model="a-model"),
        shop.submit(f"Do it.\n{script({'touch': 'x'}, {'exit': 3})}", agent="claude"),
        shop.submit("Do it.", agent="claude", base="nothing-of-that-name"),
    ]
    ended = [shop.world.wait_for(task_id) for task_id in asked]
    resumed = shop.world.wait_for(shop.world.ok("resume", asked[0], "--context", "And this.").strip())
    return [*ended, resumed]


@pytest.fixture(scope="module")
def stall(bazaar: Bazaar, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = open_shop(bazaar.market, tmp_path_factory.mktemp("stall"))
    shop.seed({".delegate.toml": CARRYING})
    (shop.clone / ".env").write_text("NAME=value\n")
    return shop


@pytest.fixture(scope="module")
def usual(bazaar: Bazaar, stall: Shop) -> Calls:
    """How the programs are called for harmless tasks."""
    since = len(bazaar.calls)
    tasks = harmless_tasks(stall)
    assert [task["reason"] for task in tasks] == ["done", "crashed", "crashed", "setup_error", "done"]
    return calls_of(bazaar, since, stall, tasks)


def test_prompts_titles_and_issues_reach_programs_only_as_text(bazaar: Bazaar, stall: Shop, usual: Calls) -> None:
    since = len(bazaar.calls)
    asked = [
        stall.submit(
            f"{text}\n{ALL}\n{script(summary=f'{text}{chr(10)}{ALL}')}",
            agent="claude",
            **({"title": text} if number % 2 else {"issue": {"key": "PER-1", "title": f"{text} {TITLE}"[:1_000]}}),
        )
        for number, text in enumerate((*LEADING, CLOSING))
    ]
    tasks = [stall.world.wait_for(task_id) for task_id in asked]

    assert [(task["status"], task["message"]) for task in tasks if task["status"] != "completed"] == []
    seen = calls_of(bazaar, since, stall, tasks)
    assert seen.words - usual.words == set()
    assert seen.names - usual.names == set()
    pulls = {pull.url: pull for pull in stall.pulls}
    published = [pulls[task["result"]["pullRequest"]] for task in tasks]
    assert sorted(seen.titles) == sorted(pull.title for pull in published)
    for task, pull in zip(tasks, published, strict=True):
        commit = stall.git(
            "log", "-1", "--format=%B", task["result"]["branch"], cwd=stall.github.bare(stall.repository)
        )
        # A number in the user's own words is the task's own.
        own = {"Fixes #1", "closes acme/other#2", "Closes #1"} if task["title"] else set()
        assert {*active(pull.title), *active(pull.body), *active(commit)} <= own
        assert reveal_hidden(ALL) in stall.world.ok("prompt", task["taskId"])
        for words in (("status",), ("status", task["taskId"]), ("logs", task["taskId"]), ("prompt", task["taskId"])):
            assert driving(stall.world.on_a_terminal(*words)) == []
        assert driving(stall.world.on_a_terminal("diff", task["taskId"])) == []


def test_what_is_added_and_said_meanwhile_reaches_the_agent_only_as_text(
    bazaar: Bazaar, api: httpx2.Client, stall: Shop, usual: Calls
) -> None:
    since = len(bazaar.calls)
    first = stall.submit(f"Listen.\n{script({'touch': 'ready'}, {'read': len(EVERYTHING)})}", agent="claude")
    stall.wait_for_file(first, "ready")

    for text in EVERYTHING:
        api.post(f"/api/tasks/{first}/messages", json={"text": text}).raise_for_status()
    messaged = stall.world.wait_for(first)
    resumed = api.post(f"/api/tasks/{first}/resume", json={"context": ALL}).json()["taskId"]
    stall.world.wait_for(resumed, "running")
    for _ in EVERYTHING:
        api.post(f"/api/tasks/{resumed}/messages", json={"text": "/clear"}).raise_for_status()
    again = stall.world.wait_for(resumed)

    assert [task["status"] for task in (messaged, again)] == ["completed", "completed"], (
        messaged["message"],
        again["message"],
    )
    said = [event["data"]["text"] for event in messaged["timeline"] if event["kind"] == "message"][: len(EVERYTHING)]
    assert [text for text, words in zip(EVERYTHING, said, strict=True) if reveal_hidden(text) not in words] == []
    assert {words.splitlines()[0] for words in said} == {said[0].splitlines()[0]}
    assert again["context"] == ALL
    assert reveal_hidden(ALL) in stall.world.ok("prompt", resumed)
    seen = calls_of(bazaar, since, stall, [messaged, again])
    assert seen.words - usual.words == set()
    assert seen.names - usual.names == set()
    for task_id in (first, resumed):
        for words in ("status", "logs", "prompt"):
            assert driving(stall.world.on_a_terminal(words, task_id)) == []


def test_a_name_that_passes_the_grammar_is_still_only_a_name(bazaar: Bazaar, stall: Shop, usual: Calls) -> None:
    since = len(bazaar.calls)
    bases, models = ("MAIN", "con", "LPT1"), ("a..b", "HEAD", "a[1]@b:c")
    asked = [stall.submit("Do it.", agent="claude", base=text) for text in bases]
    runs = [stall.submit(f"Do it.\n{script()}", agent="claude", model=text) for text in models]
    runs.append(stall.submit("Do it.", agent="codex", model=models[-1]))
    refused = [stall.world.wait_for(task_id) for task_id in asked]
    tasks = [stall.world.wait_for(task_id) for task_id in runs]

    assert {task["reason"] for task in refused} == {"setup_error"}
    assert [text for text, task in zip(bases, refused, strict=True) if text not in task["message"]] == []
    seen = calls_of(bazaar, since, stall, tasks)
    passed = {("claude", text) for text in models} | {("git", f"refs/tags/{text}") for text in bases}
    assert seen.words - usual.words == {*passed, ("codex", f'model="{models[-1]}"')}
    for call in bazaar.calls[since:]:
        if call.program == "claude" and "--model" in call.arguments:
            assert call.arguments[call.arguments.index("--model") + 1] in models


def test_the_values_of_a_repositorys_file_reach_programs_only_as_text(
    bazaar: Bazaar, stall: Shop, usual: Calls
) -> None:
    since = len(bazaar.calls)
    patterns = ", ".join(map(toml, [*NAMES, *REPOSITORIES, *WORDS[:4]]))
    checks = ", ".join(toml(f"true # {text}") for text in (OSC_52, *WORDS[:12]))
    file = f"prompt = {toml(ALL)}\nprotected = [{patterns}]\ncarry = [{patterns}]\nchecks = [{checks}]\n"
    stall.seed({".delegate.toml": file}, branch="hostile")

    task = stall.deliver(f"Do it.\n{script()}", agent="claude", base="hostile")

    assert task["status"] == "completed", task["message"]
    seen = calls_of(bazaar, since, stall, [task])
    assert seen.words - usual.words == {("gh", "--base=hostile")}
    (pull,) = [pull for pull in stall.pulls if pull.url == task["result"]["pullRequest"]]
    assert active(pull.title) + active(pull.body) == []
    assert ALL.replace("\r", "\n") in stall.world.ok("prompt", task["taskId"])
    assert driving(stall.world.on_a_terminal("status", task["taskId"])) == []
    assert driving(stall.world.on_a_terminal("prompt", task["taskId"])) == []


@pytest.mark.parametrize("key", ["agent", "model", "effort", "base"])
def test_a_hostile_value_in_a_repositorys_file_is_reported_by_its_key(bazaar: Bazaar, tmp_path: Path, key: str) -> None:
    since = len(bazaar.calls)
    shop = open_shop(bazaar.market, tmp_path)
    shop.seed({".delegate.toml": f'{key} = "--upload-pack=touch pwned"\n'})

    task = shop.deliver("Do it.", agent=None)

    assert (task["status"], task["reason"]) == ("failed", "setup_error")
    assert key in task["message"]
    assert [call for call in bazaar.calls[since:] if any("upload-pack" in word for word in call.arguments)] == []


def test_nothing_was_run_by_a_name(bazaar: Bazaar) -> None:
    """Comes last: `pwned` is what those texts would have made, wherever they were run."""
    world = bazaar.market.world
    places = [*world.work.parent.rglob("pwned"), world.work / "pwned", Path.cwd() / "pwned", Path("/pwned")]

    assert [path for path in places if path.exists()] == []
