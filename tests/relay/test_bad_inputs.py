"""Bad inputs of the API's bodies, addresses and queries: each is refused by name, on both databases."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.fakes import hostile
from tests.relay.peers import Attempt, RelayProcess, Runner, chunk, client, fact, problem_of, runner_of, task

from delegate.wire.basics import BODY_MAX, RECORD_BODY_MAX

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P17")]

INVALID, MALFORMED = (422, "invalid_field"), (400, "malformed_json")
CONFLICT = (422, "preference_conflict")
JSON = {"content-type": "application/json"}
NUL = "a\x00b"
LONG = "x" * 10_001
HUGE_INTEGER = 10**40
CHANGE = {"baseCommit": "1" * 40, "commit": "2" * 40, "patch": ""}


@pytest.fixture
async def runner(either_relay: RelayProcess) -> AsyncIterator[Runner]:
    async with client(either_relay.url) as owner, runner_of(owner) as registered:
        yield registered


def with_(**fields: Any) -> str:
    return json.dumps(task(**fields))


def without(name: str) -> str:
    return json.dumps({key: value for key, value in task().items() if key != name})


def spliced(name: str, literal: str) -> str:
    """A body in which one field has a literal that json.dumps would not write."""
    return json.dumps(task(**{name: "HERE"})).replace('"HERE"', literal)


SUBMITS: list[tuple[str, str | bytes, tuple[int, str], str | None]] = [
    ("no prompt", without("prompt"), INVALID, "prompt"),
    ("empty prompt", with_(prompt=""), INVALID, "prompt"),
    ("blank prompt", with_(prompt=" \n\t "), INVALID, "prompt"),
    ("invisible prompt", with_(prompt="\u200b\u200d\ufeff\u2060"), INVALID, "prompt"),
    ("prompt too long", with_(prompt="x" * 250_001), INVALID, "prompt"),
    ("NUL in the prompt", with_(prompt=NUL), INVALID, "prompt"),
    ("prompt as number", with_(prompt=5), INVALID, "prompt"),
    ("prompt as null", with_(prompt=None), INVALID, "prompt"),
    ("lone surrogate", '{"prompt": "\\ud800"}', MALFORMED, None),
    ("lone surrogate in a name", '{"\\ud800": 1}', MALFORMED, None),
    ("unknown agent", with_(agent="nobody"), (422, "unknown_agent"), "agent"),
    ("NUL in the agent", with_(agent=NUL), (422, "unknown_agent"), "agent"),
    ("priority as number", with_(priority=10**9), INVALID, "priority"),
    ("priority as boolean", with_(priority=True), INVALID, "priority"),
    ("priority as word", with_(priority="high"), INVALID, "priority"),
    ("model with a space", with_(model="opus 4"), INVALID, "model"),
    ("model like an option", with_(model="--help"), INVALID, "model"),
    ("NUL in the model", with_(model=NUL), INVALID, "model"),
    ("unknown effort", with_(effort="much"), INVALID, "effort"),
    ("relative directory", with_(workingDirectory="src"), INVALID, "workingDirectory"),
    ("NUL in the directory", with_(workingDirectory="/a\x00b"), INVALID, "workingDirectory"),
    ("directory too long", with_(workingDirectory="/" + "x" * 4_096), INVALID, "workingDirectory"),
    ("no machine", without("machine"), INVALID, "machine"),
    ("NUL in the machine", with_(machine=NUL), INVALID, "machine"),
    ("control character in the machine", with_(machine="a\nb"), INVALID, "machine"),
    ("timeout 0", with_(timeout=0), INVALID, "timeout"),
    ("negative timeout", with_(timeout=-1), INVALID, "timeout"),
    ("timeout of a fraction", with_(timeout=1_500.5), INVALID, "timeout"),
    ("timeout as text", with_(timeout="1500"), INVALID, "timeout"),
    ("timeout of 40 digits", with_(timeout=HUGE_INTEGER), INVALID, "timeout"),
    ("timeout as 1e400", spliced("timeout", "1e400"), INVALID, "timeout"),
    ("timeout of 5,000 digits", spliced("timeout", "1" * 5_000), MALFORMED, None),
    ("output limit too small", with_(maxOutputBuffer=1), INVALID, "maxOutputBuffer"),
    ("budget 0", with_(maxBudgetUsd=0), INVALID, "maxBudgetUsd"),
    ("budget -0", spliced("maxBudgetUsd", "-0"), INVALID, "maxBudgetUsd"),
    ("budget as 1e400", spliced("maxBudgetUsd", "1e400"), INVALID, "maxBudgetUsd"),
    ("budget as NaN", spliced("maxBudgetUsd", "NaN"), INVALID, "maxBudgetUsd"),
    ("budget as text", with_(maxBudgetUsd="5"), INVALID, "maxBudgetUsd"),
    ("budget as boolean", with_(maxBudgetUsd=True), INVALID, "maxBudgetUsd"),
    ("turns 0", with_(maxTurns=0), INVALID, "maxTurns"),
    ("rerun as number", with_(rerun=1), INVALID, "rerun"),
    ("command with a permission mode", with_(permissionMode="plan"), CONFLICT, None),
    ("command with a limit of turns", with_(maxTurns=3), CONFLICT, None),
    ("command with a limit of money", with_(maxBudgetUsd=0.5), CONFLICT, None),
    ("empty model", with_(model=""), INVALID, "model"),
    ("unknown default agent", with_(agent=None, defaultAgent="nobody"), (422, "unknown_agent"), "defaultAgent"),
    ("rerun as text", with_(rerun="yes"), INVALID, "rerun"),
    ("NUL in the request key", with_(requestKey=NUL), INVALID, "requestKey"),
    ("empty request key", with_(requestKey=""), INVALID, "requestKey"),
    ("unknown field", with_(colour="red"), INVALID, "colour"),
    ("field in snake case beside its other name", with_(working_directory="/tmp"), INVALID, "working_directory"),
    ("100,000 keys", json.dumps({f"k{number}": 0 for number in range(100_000)}), INVALID, None),
    ("arrays 10,000 deep", "[" * 10_000 + "]" * 10_000, MALFORMED, None),
    ("objects 10,000 deep", '{"a":' * 10_000 + "1" + "}" * 10_000, MALFORMED, None),
    ("empty body", "", MALFORMED, None),
    ("null", "null", INVALID, "body"),
    ("array", "[]", INVALID, "body"),
    ("string", '"x"', INVALID, "body"),
    ("half an object", '{"prompt": "x"', MALFORMED, None),
    ("two objects", "{}{}", MALFORMED, None),
    ("comment", '{"prompt": "x" /* hi */}', MALFORMED, None),
    ("not UTF-8", b'{"prompt": "\xff"}', MALFORMED, None),
    ("UTF-16", with_().encode("utf-16"), MALFORMED, None),
    ("byte order mark", b"\xef\xbb\xbf" + with_().encode(), MALFORMED, None),
]


@pytest.mark.parametrize(
    ("body", "refusal", "field"), [case[1:] for case in SUBMITS], ids=[case[0].replace(" ", "-") for case in SUBMITS]
)
async def test_a_submit_that_cannot_be_taken_is_refused_by_name(
    runner: Runner, body: str | bytes, refusal: tuple[int, str], field: str | None
) -> None:
    response = await runner.owner.post("/api/tasks", content=body, headers=JSON)

    problem = problem_of(response, *refusal)
    if field is not None:
        assert problem["field"] == field


@pytest.mark.parametrize("is_escaped", [True, False])
async def test_the_longest_prompt_of_the_widest_characters_is_taken(runner: Runner, is_escaped: bool) -> None:
    prompt = "\N{GRINNING FACE}" * 250_000
    body = json.dumps(task(prompt=prompt), ensure_ascii=is_escaped)

    response = await runner.owner.post("/api/tasks", content=body, headers=JSON)

    assert response.json()["prompt"] == prompt


async def test_foreign_text_is_echoed_short_and_escaped(runner: Runner) -> None:
    response = await runner.owner.post("/api/tasks", json=task(**{"\x1b[31m" + "x" * 5_000: 1}))

    problem = problem_of(response, *INVALID)
    assert "\x1b" not in problem["detail"] + problem["field"]
    assert len(problem["field"]) < 100


GRAMMAR = "must be a branch name of ASCII letters, digits, dots, hyphens and underscores"
BRANCHES = [
    *hostile.NO_BRANCHES,
    *("a/x.lock", "/x", "a//b", "a b", "a\nb", "a:b", "a~1", "a^", "a*", "a\\b", "", "a" * 64),
]


@pytest.mark.parametrize("name", BRANCHES, ids=range(len(BRANCHES)))
async def test_a_base_that_is_not_a_branch_is_refused_with_the_grammar(runner: Runner, name: str) -> None:
    response = await runner.owner.post("/api/tasks", json=task(pr=True, base=name))

    problem = problem_of(response, *INVALID)
    assert problem["field"] == "base"
    assert GRAMMAR in problem["detail"]


REPOSITORIES = [
    *hostile.REPOSITORIES,
    "owner",
    "owner/",
    "-o/name",
    "owner/na me",
    "owner/n\u0430me;id",
    "https://host/../../x",
    "git@host:../x",
    "owner/name\nCo-authored-by: x",
    "",
    "x" * 1_001,
]


@pytest.mark.parametrize("name", REPOSITORIES, ids=range(len(REPOSITORIES)))
async def test_a_repository_that_cannot_be_one_is_refused(runner: Runner, name: str) -> None:
    body = {"prompt": "hi", "pr": True, "repository": name}

    problem = problem_of(await runner.owner.post("/api/tasks", json=body), *INVALID)

    assert problem["field"] == "repository"
    assert "hunter2" not in problem["detail"]


IMPOSSIBLE: list[tuple[str, dict[str, Any], str]] = [
    ("no place at all", {"workingDirectory": None, "machine": None}, "workingDirectory"),
    ("a machine without a place", {"workingDirectory": None}, "workingDirectory"),
    ("a directory and a repository", {"repository": "o/n", "pr": True}, "repository"),
    ("a path of nobody", {"workingDirectory": None, "machine": None, "repository": "/srv/x"}, "machine"),
    ("a base in place", {"base": "main"}, "base"),
    ("a title of two lines", {"title": "a\nCo-authored-by: x"}, "title"),
    ("a title of nothing", {"title": "\u200b "}, "title"),
    ("a title too long", {"title": "x" * 1_001}, "title"),
    ("an issue of two lines", {"issue": {"key": "PER-1", "title": "a\u2028b"}}, "issue.title"),
    ("an issue with an odd key", {"issue": {"key": "PER-1;id", "title": "a"}}, "issue.key"),
    ("an issue that runs", {"issue": {"key": "P-1", "title": "a", "url": "javascript:alert(1)"}}, "issue.url"),
    ("51 labels", {"labels": ["x"] * 51}, "labels"),
    ("NUL in a label", {"labels": [NUL]}, "labels.0"),
    ("worktree as a word", {"worktree": "yes"}, "worktree"),
]


@pytest.mark.parametrize(
    ("wrong", "field"), [case[1:] for case in IMPOSSIBLE], ids=[case[0].replace(" ", "-") for case in IMPOSSIBLE]
)
async def test_a_request_that_cannot_be_fulfilled_is_refused_by_name(
    runner: Runner, wrong: dict[str, Any], field: str
) -> None:
    response = await runner.owner.post("/api/tasks", json=task(**wrong))

    assert problem_of(response, *INVALID)["field"] == field


async def test_preferences_that_fight_each_other_are_refused_with_every_problem(runner: Runner) -> None:
    wrong = {"agent": "codex", "model": "sonnet-4-5", "labels": ["thinking/much", "thinking/high"]}

    problem = problem_of(await runner.owner.post("/api/tasks", json=task(**wrong)), 422, "preference_conflict")

    assert "model sonnet-4-5 is not a Codex model" in problem["detail"]
    assert "much" in problem["detail"]


@pytest.mark.parametrize("label", ['"><img src=x onerror=alert(1)>', "bug\nCo-authored-by: x", "\x1b[31m", "x" * 1_000])
async def test_a_label_that_is_not_for_us_is_passed_over(runner: Runner, label: str) -> None:
    response = await runner.owner.post("/api/tasks", json=task(labels=[label]))

    assert response.status_code == 201
    assert [choice["field"] for choice in response.json()["choices"]] == ["agent", "mode"]


ATTEMPT_FIELDS: list[tuple[str, str, dict[str, Any], str]] = [
    *[
        (f"{verb} with fence {fence!r}", verb, {"fence": fence}, "fence")
        for verb in ("renew", "record", "finish", "release", "effect")
        for fence in (0, -1, 2**63, "1", 1.5, None, True)
    ],
    ("renew that waits for ever", "renew", {"wait": 61}, "wait"),
    ("renew that waits backwards", "renew", {"wait": -1}, "wait"),
    ("renew with a wait as text", "renew", {"wait": "1"}, "wait"),
    ("renew with negative message id", "renew", {"messagesSeen": -1}, "messagesSeen"),
    ("renew with an unknown field", "renew", {"beat": 1}, "beat"),
    ("record nothing", "record", {"items": []}, "items"),
    ("record 1,001 items", "record", {"items": [fact(number) for number in range(1_001)]}, "items"),
    ("record with seq -1", "record", {"items": [fact(-1)]}, "items.0.seq"),
    ("record with seq 2^63", "record", {"items": [fact(2**63)]}, "items.0.seq"),
    ("record with seq as text", "record", {"items": [fact(0) | {"seq": "0"}]}, "items.0.seq"),
    ("record the 30th of February", "record", {"items": [fact(0, at="2026-02-30T00:00:00Z")]}, "items.0.at"),
    ("record at 24:60", "record", {"items": [fact(0, at="2026-02-03T24:60:00Z")]}, "items.0.at"),
    ("record in the year 10000", "record", {"items": [fact(0, at="10000-01-01T00:00:00Z")]}, "items.0.at"),
    ("record before the year 1", "record", {"items": [fact(0, at="0001-01-01T00:00:00+14:00")]}, "items.0.at"),
    ("record after the year 9999", "record", {"items": [fact(0, at="9999-12-31T23:59:59-14:00")]}, "items.0.at"),
    ("record without a zone", "record", {"items": [fact(0, at="2026-01-01T00:00:00")]}, "items.0.at"),
    ("record at a number", "record", {"items": [fact(0) | {"at": 1_700_000_000}]}, "items.0.at"),
    ("record an unknown kind", "record", {"items": [fact(0, "party")]}, "items.0.kind"),
    ("record an end that only the relay writes", "record", {"items": [fact(0, "finished")]}, "items.0.kind"),
    ("record data with NUL", "record", {"items": [fact(0, text=NUL)]}, "items.0.data"),
    ("record data with NUL in a name", "record", {"items": [fact(0) | {"data": {NUL: 1}}]}, "items.0.data"),
    ("record data with NUL deep inside", "record", {"items": [fact(0, a=[{"b": [NUL]}])]}, "items.0.data"),
    ("record data with 40 digits", "record", {"items": [fact(0, n=HUGE_INTEGER)]}, "items.0.data"),
    ("record data as list", "record", {"items": [fact(0) | {"data": []}]}, "items.0.data"),
    ("record an unknown stream", "record", {"items": [chunk(0, b"", "stdin")]}, "items.0.stream"),
    ("record output of half a byte", "record", {"items": [chunk(0, b"") | {"output": "abc"}]}, "items.output"),
    ("record output that is not base64", "record", {"items": [chunk(0, b"") | {"output": "é==="}]}, "items.output"),
    ("record more bytes than there are", "record", {"items": [fact(0, "skipped") | {"bytes": 2**62}]}, "items.0.bytes"),
    (
        "skip backwards",
        "record",
        {"items": [{"seq": 5, "through": 3, "at": "2026-01-01T00:00:00Z", "kind": "skipped"}]},
        "items.through",
    ),
    ("record output of an event", "record", {"items": [fact(0) | {"output": "aGk="}]}, "items.0"),
    ("record a gap of an event", "record", {"items": [fact(0) | {"through": 3}]}, "items.0"),
    ("finish with an unknown outcome", "finish", {"outcome": "fine"}, "outcome"),
    ("finish with an unknown reason", "finish", {"reason": "because"}, "reason"),
    ("finish as completed because of a failure", "finish", {"reason": "timeout"}, "outcome"),
    ("finish as completed because of a cancel", "finish", {"reason": "cancelled"}, "outcome"),
    ("finish as failed because it is done", "finish", {"outcome": "failed"}, "outcome"),
    ("finish as cancelled because of a crash", "finish", {"outcome": "cancelled", "reason": "crashed"}, "outcome"),
    ("finish what was handed back", "finish", {"outcome": "failed", "reason": "handed_back"}, "reason"),
    ("finish with NUL in the message", "finish", {"message": NUL}, "message"),
    ("finish with a message too long", "finish", {"message": LONG}, "message"),
    ("finish with NUL in the session", "finish", {"sessionId": NUL}, "sessionId"),
    ("finish with exit code 256", "finish", {"exitCode": 256}, "exitCode"),
    ("finish with negative tokens", "finish", {"usage": {"inputTokens": -1}}, "usage.inputTokens"),
    ("finish with tokens of 40 digits", "finish", {"usage": {"turns": HUGE_INTEGER}}, "usage.turns"),
    ("finish with negative cost", "finish", {"usage": {"costUsd": -1}}, "usage.costUsd"),
    ("finish with a date as notBefore", "finish", {"notBefore": "2026-02-03"}, "notBefore"),
    ("release with another reason", "release", {"reason": "done"}, "reason"),
    ("release with NUL in the message", "release", {"message": NUL}, "message"),
    (
        "release for another agent after a loss",
        "release",
        {"reason": "lost_runner", "wantsAgent": "codex"},
        "wantsAgent",
    ),
    ("finish with a commit that is none", "finish", {"result": {"commit": "HEAD"}}, "result.commit"),
    ("finish with a branch like an option", "finish", {"result": {"branch": "--force"}}, "result.branch"),
    ("finish with a negative count", "finish", {"result": {"files": -1}}, "result.files"),
    ("finish with NUL in the summary", "finish", {"result": {"summary": NUL}}, "result.summary"),
    ("finish with a patch too long", "finish", {"change": CHANGE | {"patch": "x" * 400_001}}, "change.patch"),
    ("finish with a change without a commit", "finish", {"change": {"patch": ""}}, "change.baseCommit"),
    (
        "finish with 51 lines in the checkpoint",
        "finish",
        {"checkpoint": {"outputTail": ["x"] * 51}},
        "checkpoint.outputTail",
    ),
    (
        "finish with a file of 2,000 characters",
        "finish",
        {"checkpoint": {"dirtyFiles": ["x" * 2_000]}},
        "checkpoint.dirtyFiles.0",
    ),
    ("effect of an unknown kind", "effect", {"kind": "rumour"}, "kind"),
    ("effect in an unknown state", "effect", {"state": "hoped"}, "state"),
    ("effect on a branch like an option", "effect", {"target": "--delete"}, "target"),
    ("effect with half a commit", "effect", {"expected": "abc"}, "expected"),
    ("effect with NUL in its name", "effect", {"externalId": NUL}, "externalId"),
]
GOOD: dict[str, dict[str, Any]] = {
    "renew": {},
    "record": {"items": [fact(0)]},
    "finish": {"nextSeq": 0, "outcome": "completed", "reason": "done"},
    "release": {"reason": "handed_back"},
    "effect": {"kind": "push", "state": "intent", "target": "work-1"},
}


@pytest.fixture
async def attempt(runner: Runner) -> Attempt:
    return await runner.take(agent="claude")


async def standing(attempt: Attempt) -> dict[str, Any]:
    """All there is to see but `why`: a lease may run out while so much is read, and then it says that."""
    detail = await attempt.detail()
    detail["task"].pop("why", None)
    return detail


async def test_every_report_that_cannot_be_taken_is_refused_by_name_and_changes_nothing(attempt: Attempt) -> None:
    before = await standing(attempt)

    for name, verb, wrong, field in ATTEMPT_FIELDS:
        response = await attempt.tell(verb, **{**GOOD[verb], **wrong})

        assert (name, response.status_code) == (name, 422)
        assert (name, problem_of(response, *INVALID)["field"]) == (name, field)

    assert await standing(attempt) == before


RAW_DATA = {
    "1e400": '{"n": 1e400}',
    "NaN": '{"n": NaN}',
    "a lone surrogate": '{"n": "\\udfff"}',
    "5,000 digits": f'{{"n": {"1" * 5_000}}}',
    "30 levels": '{"n":' * 30 + "1" + "}" * 30,
    "190 levels": '{"n":' * 190 + "1" + "}" * 190,
    "10,000 levels": '{"n":' * 10_000 + "1" + "}" * 10_000,
}


@pytest.mark.parametrize("data", RAW_DATA.values(), ids=RAW_DATA.keys())
async def test_data_of_an_event_that_could_not_be_read_back_is_refused(attempt: Attempt, data: str) -> None:
    body = json.dumps({"fence": 1, "items": [fact(0) | {"data": "HERE"}]}).replace('"HERE"', data)
    address = f"/api/runners/attempts/{attempt.id}/record"

    response = await attempt.runner.http.post(address, content=body, headers=JSON)

    assert response.status_code in {400, 422}
    assert response.json()["type"] in {"malformed_json", "invalid_field"}


async def test_data_of_an_event_comes_back_as_it_was_sent(attempt: Attempt) -> None:
    data: dict[str, Any] = {
        "text": 'é\u2028\U0001f600\\"\n',
        "n": -0.0,
        "big": 2**63,
        "list": [[], {}, None, True],
        "deep": [[[[1]]]],
    }

    await attempt.record(fact(0, **data))

    assert (await attempt.detail())["events"][-1]["data"] == data


OTHERS: list[tuple[str, str, dict[str, Any], str]] = [
    ("cancel with NUL", "/api/tasks/{task}/cancel", {"reason": NUL}, "reason"),
    ("cancel with a reason too long", "/api/tasks/{task}/cancel", {"reason": LONG}, "reason"),
    ("resume with NUL", "/api/tasks/{task}/resume", {"context": NUL}, "context"),
    ("resume with nothing to add", "/api/tasks/{task}/resume", {"context": ""}, "context"),
    ("resume with NUL in the key", "/api/tasks/{task}/resume", {"requestKey": NUL}, "requestKey"),
    ("retry with NUL", "/api/tasks/{task}/retry", {"requestKey": NUL}, "requestKey"),
    ("empty message", "/api/tasks/{task}/messages", {"text": ""}, "text"),
    ("message with NUL", "/api/tasks/{task}/messages", {"text": NUL}, "text"),
    ("register without a name", "/api/runners/register", {"name": ""}, "name"),
    ("register with NUL in the machine", "/api/runners/register", {"machine": NUL}, "machine"),
    ("register with NUL in the version", "/api/runners/register", {"version": NUL}, "version"),
    ("register with NUL in an agent", "/api/runners/register", {"agents": [NUL]}, "agents.0"),
    ("register with 21 agents", "/api/runners/register", {"agents": ["a"] * 21}, "agents"),
    ("register with NUL in the slot", "/api/runners/register", {"slot": NUL}, "slot"),
    ("register with a path as machine", "/api/runners/register", {"machine": "../x"}, "machine"),
    ("register with every machine", "/api/runners/register", {"machine": "*"}, "machine"),
    ("register with a path as name", "/api/runners/register", {"name": "../x"}, "name"),
    ("pair with every name", "/api/pairing-tokens", {"name": "*"}, "name"),
    ("pair with a path as name", "/api/pairing-tokens", {"name": "../x"}, "name"),
    ("pair without a name", "/api/pairing-tokens", {"name": ""}, "name"),
    ("pair with a newline in the name", "/api/pairing-tokens", {"name": "a\nb"}, "name"),
    ("register with pid 0", "/api/runners/register", {"pid": 0}, "pid"),
    ("register with pid 2^63", "/api/runners/register", {"pid": 2**63}, "pid"),
]


@pytest.mark.parametrize(
    ("path", "wrong", "field"), [case[1:] for case in OTHERS], ids=[case[0].replace(" ", "-") for case in OTHERS]
)
async def test_what_an_owner_sends_is_refused_by_name(
    runner: Runner, path: str, wrong: dict[str, Any], field: str
) -> None:
    good = (
        {"slot": "1", "name": "r", "machine": "m", "pid": 1, "version": "0", "agents": []} if "register" in path else {}
    )

    response = await runner.owner.post(path.format(task="task-0123456789"), json={**good, **wrong})

    assert problem_of(response, *INVALID)["field"] == field


CLAIMS: list[tuple[dict[str, Any], str]] = [
    ({"claimId": "short"}, "claimId"),
    ({"claimId": "with space in it"}, "claimId"),
    ({"claimId": "nul-in-it-\x00"}, "claimId"),
    ({"agents": [NUL]}, "agents.0"),
    ({"agents": "shell"}, "agents"),
    ({"parked": {"claude": "tomorrow"}}, "parked.claude"),
    ({"parked": {"claude": "9999-12-31T23:59:59-14:00"}}, "parked.claude"),
    ({"wait": 61}, "wait"),
    ({"wait": True}, "wait"),
]


async def test_claims_that_cannot_be_taken_are_refused_by_name(runner: Runner) -> None:
    for wrong, field in CLAIMS:
        body = {"claimId": "claim-0001", "agents": ["shell"], "wait": 0, **wrong}

        response = await runner.http.post("/api/runners/claim", json=body)

        assert problem_of(response, *INVALID)["field"] == field, wrong


ODD_IDS = [
    "x" * 10_000,
    "..",
    "%2e%2e",
    "%00",
    "a%00b",
    "%F0%9F%98%80",
    "%ff",
    "%ED%A0%80",
    "task-1%0a",
    "task-none",
    "*",
]
TASK_ADDRESSES = [
    ("GET", "/api/tasks/{id}"),
    ("GET", "/api/tasks/{id}/output"),
    ("GET", "/api/tasks/{id}/output/raw"),
    ("GET", "/api/tasks/{id}/stream"),
    ("GET", "/api/tasks/{id}/stream?from=now"),
    ("POST", "/api/tasks/{id}/cancel"),
    ("GET", "/api/tasks/{id}/diff"),
    ("GET", "/api/tasks/{id}/prompt"),
    ("POST", "/api/tasks/{id}/retry"),
    ("POST", "/api/tasks/{id}/resume"),
    ("POST", "/api/tasks/{id}/messages"),
]


@pytest.mark.parametrize("odd", ODD_IDS, ids=range(len(ODD_IDS)))
async def test_a_task_that_cannot_exist_is_not_found(runner: Runner, odd: str) -> None:
    for method, address in TASK_ADDRESSES:
        body: dict[str, Any] = {"json": {"text": "hi"} if "messages" in address else {}} if method == "POST" else {}
        response = await runner.owner.request(method, address.format(id=odd), **body)

        assert response.status_code == 404, (method, address)
        assert problem_of(response, 404, response.json()["type"])["type"] in {"no_such_task", "no_such_route"}


@pytest.mark.parametrize("odd", ODD_IDS, ids=range(len(ODD_IDS)))
async def test_an_attempt_that_cannot_exist_is_not_found(runner: Runner, odd: str) -> None:
    for verb, good in GOOD.items():
        response = await runner.http.post(f"/api/runners/attempts/{odd}/{verb}", json={"fence": 1, **good})

        assert problem_of(response, 404, response.json()["type"])["type"] in {"no_such_attempt", "no_such_route"}


CURSORS = [
    "",
    "t",
    "5",
    "x5",
    "t0",
    "t-1",
    "t1.5",
    "t1%20",
    "t1%0a",
    "t%D9%A3",
    "t" + "9" * 19,
    "%00",
    "%ff",
    "%ED%A0%80",
]
QUERIES = [
    *[f"cursor={cursor}" for cursor in CURSORS],
    *[f"limit={limit}" for limit in ("0", "-1", "101", "1000000000", "x", "", "1e2", "%00", "9" * 50)],
    *[f"status={status}" for status in ("", "blocked", "%00", "QUEUED", "%ff")],
]


@pytest.mark.parametrize("query", QUERIES)
async def test_a_query_that_was_not_made_here_is_refused(runner: Runner, query: str) -> None:
    response = await runner.owner.get(f"/api/tasks?{query}")

    assert problem_of(response, *INVALID)["field"] == query.partition("=")[0]


@pytest.mark.parametrize("last", ["x", "e1", "e1-o", "e-1-o1", "e1-o" + "9" * 19, "e1-o1-o1", "\xb2"])
async def test_a_place_in_a_stream_that_was_not_made_here_is_refused(runner: Runner, last: str) -> None:
    submitted = await runner.submit()
    headers = {b"last-event-id": last.encode("latin-1")}

    response = await runner.owner.get(f"/api/tasks/{submitted['taskId']}/stream", headers=headers)

    assert problem_of(response, *INVALID)["field"] == "Last-Event-ID"


@pytest.mark.parametrize("path", ["/api/tasks/x/stream?from=here", "/api/events?from=1", "/api/tasks/x/output?tail=0"])
async def test_other_queries_are_checked_too(runner: Runner, path: str) -> None:
    parameter = path.partition("?")[2].partition("=")[0]

    assert problem_of(await runner.owner.get(path), *INVALID)["field"] == parameter


async def in_chunks(size: int) -> AsyncIterator[bytes]:
    yield b'{"prompt": "'
    for _ in range(size // 65_536):
        yield b"x" * 65_536
    yield b'"}'


@pytest.mark.parametrize(
    ("path", "limit"), [("/api/tasks", BODY_MAX), ("/api/runners/attempts/att-0/record", RECORD_BODY_MAX)]
)
async def test_a_body_above_the_limit_is_refused_with_and_without_a_length(
    runner: Runner, path: str, limit: int
) -> None:
    token = runner.token if "runners" in path else None
    http = runner.http if token else runner.owner

    declared = await http.post(path, content=b" " * (limit + 1), headers=JSON)
    chunked = await http.post(path, content=in_chunks(limit + 65_536), headers=JSON)

    assert str(limit) in problem_of(declared, 413, "too_large")["detail"]
    problem_of(chunked, 413, "too_large")


async def test_nothing_of_all_this_was_a_defect(either_relay: RelayProcess, owner: httpx2.AsyncClient) -> None:
    """Runs last in this file: no traceback, no 500 in the log of either relay."""
    assert (await owner.get("/readyz")).status_code == 200
    assert "Traceback" not in either_relay.log
    assert "request failed" not in either_relay.log
