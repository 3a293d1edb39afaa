"""The HTTP routes for runners."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from tests.relay.peers import Runner, chunk, client, fact, numbers, problem_of, runner_of

from delegate import __version__
from delegate.wire.basics import CHUNK_MAX

pytestmark = pytest.mark.anyio

ASSIGNMENT_KEYS = {
    "attemptId",
    "taskId",
    "fence",
    "number",
    "agent",
    "model",
    "effort",
    "permissionMode",
    "prompt",
    "workingDirectory",
    "timeoutMs",
    "maxOutput",
    "rerun",
    "summaries",
    "submittedBy",
    "isOwners",
    "origin",
    "createdAt",
    "usageBefore",
    "budgetUsd",
    "maxTurns",
    "mode",
    "repository",
    "base",
    "title",
    "issue",
    "context",
    "choices",
    "lineage",
    "checkpoint",
    "continuedTask",
    "questions",
    "effects",
    "resumeSession",
    "nextSeq",
}


async def test_a_runner_learns_its_id_its_token_and_the_timings(owner: httpx2.AsyncClient) -> None:
    body = {"slot": "1", "name": "r", "machine": "m", "pid": 1, "version": "0", "agents": ["shell"]}

    answer = (await owner.post("/api/runners/register", json=body)).json()

    assert set(answer) == {"slotId", "runnerId", "token", "timings"}
    assert answer["token"].startswith("dst_")
    assert answer["timings"] == {"heartbeat": 0.5, "lease": 2.0, "reclaimAfter": 5.0}


async def test_registering_again_keeps_the_id_and_voids_the_token_before(runner: Runner) -> None:
    slot = runner.id.rpartition("-")[2]
    body = {"slot": slot, "name": "r", "machine": runner.machine, "pid": 2, "version": "0", "agents": []}

    answer = (await runner.owner.post("/api/runners/register", json=body)).json()

    assert answer["slotId"] == runner.id
    problem_of(await runner.http.get("/api/runners/attempts"), 401, "unauthenticated")


async def test_a_claim_gives_the_whole_assignment(runner: Runner) -> None:
    submitted = await runner.submit(
        agent="claude", model="opus", effort="low", permissionMode="plan", timeout=9_000, maxTurns=3, maxBudgetUsd=2
    )

    assignment = await runner.ask()

    assert assignment is not None
    assert set(assignment) == ASSIGNMENT_KEYS
    assert (assignment["taskId"], assignment["fence"], assignment["number"]) == (submitted["taskId"], 1, 1)
    assert (assignment["timeoutMs"], assignment["maxTurns"], assignment["budgetUsd"]) == (9_000, 3, 2.0)
    assert (assignment["nextSeq"], assignment["resumeSession"]) == (0, None)


async def test_a_claim_without_work_is_answered_with_nothing(runner: Runner) -> None:
    assert await runner.ask() is None


async def test_the_more_urgent_task_is_claimed_first_and_the_older_one_of_two(runner: Runner) -> None:
    submitted = [(await runner.submit(priority=priority))["taskId"] for priority in ("P2", "P1", "P0", "P1")]

    claimed = [assignment["taskId"] for _ in range(4) if (assignment := await runner.ask())]

    assert claimed == [submitted[2], submitted[1], submitted[3], submitted[0]]


async def test_a_runner_takes_only_tasks_of_agents_it_has_and_has_not_parked(runner: Runner) -> None:
    await runner.submit(agent="claude")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()

    assert await runner.ask(agents=["shell"]) is None
    assert await runner.ask(parked={"claude": later}) is None
    assert await runner.ask() is not None


async def test_a_task_of_another_machine_is_not_claimed(runner: Runner) -> None:
    async with runner_of(runner.owner) as stranger:
        await stranger.submit()

        assert await runner.ask() is None


async def test_a_claim_id_of_another_runner_gives_nothing_away(runner: Runner) -> None:
    await runner.submit()
    claim_id = runner.new_claim()
    await runner.ask(claim_id)

    async with runner_of(runner.owner, runner.machine) as rival:
        assert await rival.ask(claim_id) is None


async def test_a_restarted_runner_finds_what_it_holds(runner: Runner) -> None:
    attempt = await runner.take()

    held = (await runner.http.get("/api/runners/attempts")).json()

    (assignment,) = held["assignments"]
    assert set(assignment) == ASSIGNMENT_KEYS
    assert (assignment["attemptId"], assignment["fence"]) == (attempt.id, attempt.fence)


async def test_recorded_items_are_numbered_and_repeating_them_changes_nothing(runner: Runner) -> None:
    attempt = await runner.take()
    items = [fact(0, "session", sessionId="s-1", model="m"), chunk(1, b"out")]

    answers = [await attempt.record(*items), await attempt.record(*items), await attempt.record(*items, fact(2))]

    assert [answer["nextSeq"] for answer in answers] == [2, 2, 3]
    raw = await runner.owner.get(f"/api/tasks/{attempt.task_id}/output/raw")
    assert raw.content == b"out"
    assert [event["kind"] for event in (await attempt.detail())["events"]][2:] == ["session", "message"]


async def test_a_gap_in_the_numbers_is_refused(runner: Runner) -> None:
    attempt = await runner.take()

    response = await attempt.tell("record", items=[fact(0), fact(2)])

    assert "expects event 1, not 2" in problem_of(response, 409, "gap_expected_seq")["detail"]
    assert (await attempt.renew())["nextSeq"] == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (fact(0, text="a"), fact(0, text="b")),
        (fact(0), fact(0, "warning")),
        (chunk(0, b"abc"), chunk(0, b"abd")),
        (fact(0), chunk(0, b"x")),
    ],
    ids=["other data", "other kind", "other output", "output for an event"],
)
async def test_a_number_used_twice_for_different_things_is_refused(
    runner: Runner, first: dict[str, object], second: dict[str, object]
) -> None:
    attempt = await runner.take()
    await attempt.record(first)

    response = await attempt.tell("record", items=[second])

    assert "already has an event 0 with different content" in problem_of(response, 409, "event_conflict")["detail"]


async def test_a_stretch_that_the_runner_skipped_is_counted(runner: Runner) -> None:
    attempt = await runner.take()
    skipped = {"seq": 1, "through": 4, "bytes": 500, "at": "2026-01-01T00:00:00Z", "kind": "skipped"}

    answer = await attempt.record(chunk(0, b"a"), skipped, chunk(5, b"b"))

    assert answer["nextSeq"] == 6
    raw = await runner.owner.get(f"/api/tasks/{attempt.task_id}/output/raw")
    assert raw.content == "a\n[… 500 bytes left out …]\nb".encode()


async def test_finishing_needs_every_item_unless_the_runner_says_some_are_lost(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.record(fact(0))

    refused = await attempt.tell("finish", nextSeq=3, outcome="completed", reason="done")
    await attempt.finish(3, outputIncomplete=True)

    problem_of(refused, 409, "gap_expected_seq")
    assert (await attempt.detail())["task"]["status"] == "completed"


async def test_the_same_end_reported_twice_is_one_end(runner: Runner) -> None:
    attempt = await runner.take()

    await attempt.finish(exitCode=0)
    await attempt.finish(exitCode=0)

    assert [event["kind"] for event in (await attempt.detail())["events"]].count("finished") == 1


async def test_another_end_after_the_end_is_refused(runner: Runner) -> None:
    attempt = await runner.take()
    await attempt.finish()

    response = await attempt.tell("finish", nextSeq=0, outcome="failed", reason="crashed")

    problem_of(response, 409, "stale_fence")
    assert (await attempt.detail())["task"]["status"] == "completed"


@pytest.mark.parametrize("verb", ["renew", "record"])
async def test_nothing_is_reported_after_the_end(runner: Runner, verb: str) -> None:
    attempt = await runner.take()
    await attempt.finish()

    response = await attempt.tell(verb, **({"items": [fact(0)]} if verb == "record" else {}))

    assert "stop working" in problem_of(response, 409, "stale_fence")["hint"]


async def test_a_limit_parks_the_task_until_its_reset(runner: Runner) -> None:
    attempt = await runner.take(agent="claude")
    reset = datetime.now(UTC) + timedelta(hours=1)

    await attempt.finish(outcome="parked", reason="usage_limit", notBefore=reset.isoformat(), sessionId="s-1")

    shown = (await attempt.detail())["task"]
    assert (shown["status"], shown["attempt"], shown["sessionId"]) == ("queued", 0, "s-1")
    assert datetime.fromisoformat(shown["notBefore"]) == reset
    assert "parked until" in shown["why"]
    assert await runner.ask() is None


@pytest.mark.parametrize(
    "body", [{"reason": "usage_limit"}, {"reason": "done", "notBefore": "2030-01-01T00:00:00Z"}], ids=["no time", "why"]
)
async def test_parking_needs_a_time_and_a_reason_that_parks(runner: Runner, body: dict[str, str]) -> None:
    attempt = await runner.take()

    response = await attempt.tell("finish", nextSeq=0, outcome="parked", **body)

    assert problem_of(response, 422, "invalid_field")["field"] == "outcome"


@pytest.mark.parametrize("end", ["finish", "finish after the first", "cancel", "lost"])
async def test_a_message_that_was_accepted_and_that_no_agent_got_is_told(runner: Runner, end: str) -> None:
    attempt = await runner.take(agent="claude")
    for text in ("use tabs", "use spaces"):
        sent = await runner.owner.post(f"/api/tasks/{attempt.task_id}/messages", json={"text": text})
        assert sent.status_code == 202
    first = (await attempt.renew())["messages"][0]["id"]

    match end:
        case "finish":
            await attempt.finish()
        case "finish after the first":
            await attempt.finish(messagesSeen=first)
        case "cancel":
            await attempt.tell("release", reason="handed_back")
            await runner.owner.post(f"/api/tasks/{attempt.task_id}/cancel", json={})
        case _:
            await runner.owner.post(f"/api/tasks/{attempt.task_id}/cancel", json={})
            await attempt.tell("release", reason="lost_runner")

    told = [event["data"]["text"] for event in (await attempt.detail())["events"] if event["kind"] == "warning"]
    expected = ["a message arrived too late: use tabs", "a message arrived too late: use spaces"]
    assert told == (expected[1:] if end == "finish after the first" else expected)


async def test_a_task_handed_back_goes_to_the_next_claim_and_costs_no_attempt(runner: Runner) -> None:
    attempt = await runner.take()

    response = await attempt.tell("release", reason="handed_back", message="going down")
    assignment = await runner.ask()

    assert response.status_code == 200
    assert assignment is not None
    assert (assignment["taskId"], assignment["fence"], assignment["number"]) == (attempt.task_id, 2, 1)


async def test_a_command_lost_with_its_runner_fails(runner: Runner) -> None:
    attempt = await runner.take()

    await attempt.tell("release", reason="lost_runner", message="killed")

    shown = (await attempt.detail())["task"]
    assert (shown["status"], shown["reason"]) == ("failed", "lost_runner")
    assert shown["advice"]


async def test_a_lost_agent_task_is_claimed_again_with_its_session(runner: Runner) -> None:
    attempt = await runner.take(agent="claude")
    await attempt.record(fact(0, "session", sessionId="session-7", model="m"))

    await attempt.tell("release", reason="lost_runner")
    assignment = await runner.ask()

    assert assignment is not None
    assert (assignment["number"], assignment["resumeSession"]) == (2, "session-7")


async def test_a_runner_that_leaves_is_not_listed_and_its_token_is_void(
    runner: Runner,
) -> None:
    answer = await runner.http.post("/api/runners/leave", json={})

    assert answer.json() == {"slotId": runner.id}
    pool = await runner.listed()
    assert pool["slots"] == {"busy": 0, "total": 0}
    problem_of(await runner.http.get("/api/runners/attempts"), 401, "unauthenticated")


@pytest.mark.parametrize(("size", "is_taken"), [(CHUNK_MAX, True), (CHUNK_MAX + 1, False), (CHUNK_MAX + 2, False)])
async def test_the_stated_limit_of_an_output_item_is_the_enforced_one(
    runner: Runner, size: int, is_taken: bool
) -> None:
    attempt = await runner.take()

    response = await attempt.tell("record", items=[chunk(0, b"x" * size)])

    if is_taken:
        assert response.status_code == 200
    else:
        assert "has more than 262,144 bytes of output" in problem_of(response, 422, "invalid_field")["detail"]


MACHINE = {"machine": "mbp-1", "version": __version__, "policy": {"repositories": "*"}}


async def test_a_machine_is_paired_once_and_its_processes_register_with_its_token(owner: httpx2.AsyncClient) -> None:
    name = f"mbp-{next(numbers)}"
    invited = (await owner.post("/api/pairing-tokens", json={"name": name})).json()

    async with client(str(owner.base_url), invited["pairingToken"]) as machine:
        paired = await machine.post("/api/runners/pair", json=MACHINE)
        again = await machine.post("/api/runners/pair", json=MACHINE)
        forbidden = await machine.get("/api/tasks")

    answer = paired.json()
    assert (paired.status_code, answer["name"], answer["pairedBy"]) == (201, name, "owner")
    assert answer["relayVersion"] == __version__
    assert invited["command"].endswith(f" --pairing-token {invited['pairingToken']}")
    problem_of(again, 410, "pairing_token_used")
    problem_of(forbidden, 403, "forbidden")
    async with client(str(owner.base_url), answer["token"]) as runner:
        body = {"slot": "1", "name": "x", "machine": "mbp-1", "pid": 1, "version": __version__, "agents": []}
        slot = (await runner.post("/api/runners/register", json=body)).json()
        assert slot["runnerId"] == answer["runnerId"]
        stolen = await runner.post("/api/runners/register", json={**body, "machine": "mbp-2"})
        problem_of(stolen, 409, "runner_in_use")
        problem_of(await runner.post("/api/runners/claim", json={}), 403, "forbidden")


@pytest.mark.promise("P8")
async def test_a_revoked_runner_is_refused_from_its_next_call_on(owner: httpx2.AsyncClient) -> None:
    name = f"mbp-{next(numbers)}"
    invited = (await owner.post("/api/pairing-tokens", json={"name": name})).json()
    async with client(str(owner.base_url), invited["pairingToken"]) as machine:
        paired = (await machine.post("/api/runners/pair", json=MACHINE)).json()
    async with client(str(owner.base_url), paired["token"]) as runner:
        body = {"slot": "1", "name": "x", "machine": "mbp-1", "pid": 1, "version": __version__, "agents": []}
        slot = (await runner.post("/api/runners/register", json=body)).json()
        beat = await runner.post("/api/runners/heartbeat", json=MACHINE)
        assert (beat.status_code, beat.json()["drain"]) == (200, False)
        elsewhere = await runner.post("/api/runners/heartbeat", json={**MACHINE, "machine": "mbp-2"})
        problem_of(elsewhere, 403, "forbidden")

        revoked = await owner.post(f"/api/runners/{name}/revoke", json={})

        assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
        problem_of(await runner.post("/api/runners/heartbeat", json=MACHINE), 401, "runner_revoked")
        problem_of(await runner.post("/api/runners/register", json=body), 401, "runner_revoked")
        async with client(str(owner.base_url), slot["token"]) as process:
            problem_of(await process.get("/api/runners/attempts"), 401, "runner_revoked")


async def test_a_runner_that_is_named_like_the_id_of_another_unpairs_only_itself(owner: httpx2.AsyncClient) -> None:
    async def pair(name: str) -> dict[str, str]:
        invited = (await owner.post("/api/pairing-tokens", json={"name": name})).json()
        async with client(str(owner.base_url), invited["pairingToken"]) as machine:
            return dict((await machine.post("/api/runners/pair", json=MACHINE)).json())

    victim = await pair(f"mbp-{next(numbers)}")
    impostor = await pair(victim["runnerId"])
    async with client(str(owner.base_url), impostor["token"]) as runner:
        left = await runner.post("/api/runners/unpair", json={})
    async with client(str(owner.base_url), victim["token"]) as runner:
        beat = await runner.post("/api/runners/heartbeat", json=MACHINE)

    assert (left.status_code, left.json()["runnerId"]) == (200, impostor["runnerId"])
    assert beat.status_code == 200, beat.text


async def test_the_list_of_runners_is_read_in_pages(owner: httpx2.AsyncClient) -> None:
    async with runner_of(owner), runner_of(owner), runner_of(owner):
        names: list[str] = []
        cursor = ""
        while True:
            page = (await owner.get(f"/api/runners?limit=2{cursor}")).json()
            names += [runner["name"] for runner in page["runners"]]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"

    assert len(names) == len(set(names)) >= 3
    assert page["counts"]["online"] >= 3
    problem_of(await owner.get("/api/runners?cursor=r1"), 422, "invalid_field")
