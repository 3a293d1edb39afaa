"""`api_fuzz`: schemathesis, in all its phases, against what the relay says of itself.

DELEGATE_FUZZ_SECONDS makes it longer, DELEGATE_FUZZ_SEED different.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.linear_standin import LinearStandin
from tests.relay.peers import TOKEN, RelayProcess, client, runner_of, running_relay

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.promise("P17")]

ROOT = Path(__file__).parents[2]
SECONDS = int(os.environ.get("DELEGATE_FUZZ_SECONDS", "30"))
SEED = os.environ.get("DELEGATE_FUZZ_SEED", "1")
RUNNERS_OWN = "runners/(claim|attempts|tasks)"
STREAMS = "stream$|events$"  # they do not end by themselves
GOOD_BYE = "runners/leave"  # whoever says it has no token for the rest
# What JSON Schema cannot say, and we refuse although the document allows it: parking without a time, base64 of an
# odd length, a gap in the numbers.
BEYOND_SCHEMA = "positive_data_acceptance"


# There are rules that a schema cannot tell: between fields, as a model of another agent or a field that one kind of
# connection needs, and between tasks, as a retry of one that waited for what has failed.
CONFIG = """
[checks]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415, 422]

[[operations]]
include-name = "POST /api/tasks"
checks.positive_data_acceptance.expected-statuses = [200, 201, 409, 422]

[[operations]]
include-name = "POST /api/tasks/{task_id}/retry"
checks.positive_data_acceptance.expected-statuses = [200, 201, 404, 409, 422]

[[operations]]
include-name = "POST /api/tasks/{task_id}/resume"
checks.positive_data_acceptance.expected-statuses = [200, 201, 404, 409, 422]

[[operations]]
include-name = "POST /api/tasks/batch"
checks.positive_data_acceptance.expected-statuses = [201, 409, 422]

[[operations]]
include-name = "POST /api/schedules"
checks.positive_data_acceptance.expected-statuses = [200, 201, 409, 422]

[[operations]]
include-name = "POST /api/pipelines"
checks.positive_data_acceptance.expected-statuses = [200, 201, 409, 422]

[[operations]]
include-name = "POST /api/tokens"
checks.positive_data_acceptance.expected-statuses = [200, 201, 404, 409, 422]

[[operations]]
include-name = "POST /api/linear/connect"
checks.positive_data_acceptance.expected-statuses = [200, 409, 422]

[[operations]]
include-name = "POST /api/linear/map"
checks.positive_data_acceptance.expected-statuses = [200, 409, 422]
"""


# A parent for the relay, which it takes for its keeper. Not this process: what children of a keeper start is an agent,
# and refused the owner's token.
PARENT = """
import signal, subprocess, sys
relay = subprocess.Popen(sys.argv[1:], close_fds=False)
signal.signal(signal.SIGTERM, lambda *_: relay.terminate())
sys.exit(relay.wait())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzing:
    process: subprocess.Popen[bytes]
    report: Path


def fuzz(relay: RelayProcess, known: Path, name: str, *options: str) -> Fuzzing:
    command = [str(Path(sys.executable).with_name("st")), "--no-color", "run", f"{relay.url}/api/openapi.json"]
    limits = ["--max-time", str(SECONDS), "--request-timeout", "20", "--seed", SEED, "--checks", "all"]
    environ = os.environ | {
        "DELEGATE_FUZZ_KNOWN": str(known),
        "SCHEMATHESIS_HOOKS": "tests.relay.fuzz_hooks",
        "PYTHONPATH": str(ROOT),
    }
    known.with_name("schemathesis.toml").write_text(CONFIG)
    report = known.with_name(name)
    with report.open("wb") as output:
        process = subprocess.Popen(
            [*command, *limits, *options],
            cwd=known.parent,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Fuzzing(process=process, report=report)


@pytest.fixture
def own_relay(tmp_path: Path) -> Iterator[RelayProcess]:
    with (
        LinearStandin() as linear,
        running_relay(
            tmp_path, prefix=[sys.executable, "-c", PARENT], DELEGATE_LINEAR_API_URL=linear.api_url
        ) as started,
    ):
        yield started


@pytest.fixture
def fuzzings() -> Iterator[list[Fuzzing]]:
    started: list[Fuzzing] = []
    yield started
    for fuzzing in started:
        fuzzing.process.kill()
        fuzzing.process.wait()


async def test_nothing_the_document_allows_or_forbids_brings_the_relay_out_of_step(
    own_relay: RelayProcess, tmp_path: Path, fuzzings: list[Fuzzing]
) -> None:
    known = tmp_path / "known.json"
    async with client(own_relay.url) as owner, runner_of(owner) as runner:
        attempts = [await runner.take(agent="claude", worktree=number % 2 == 0) for number in range(100)]
        ids = {"task_id": [attempt.task_id for attempt in attempts], "attempt_id": [one.id for one in attempts]}
        known.write_text(json.dumps(ids))

        token, own = (
            ["--header", f"Authorization: Bearer {TOKEN}"],
            ["--header", f"Authorization: Bearer {runner.token}"],
        )
        fuzzings += [
            fuzz(own_relay, known, "owner", *token, "--exclude-path-regex", f"{STREAMS}|{RUNNERS_OWN}|{GOOD_BYE}"),
            fuzz(
                own_relay, known, "runner", *own, "--include-path-regex", RUNNERS_OWN, "--exclude-checks", BEYOND_SCHEMA
            ),
        ]

        for fuzzing in fuzzings:
            assert fuzzing.process.wait() == 0, fuzzing.report.read_text()
            assert "passed" in fuzzing.report.read_text()
        assert (await owner.get("/readyz")).status_code == 200

    assert "Traceback" not in own_relay.log
    assert "request failed" not in own_relay.log
