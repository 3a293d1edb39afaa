"""What the fuzzer must know of the relay: no request waits, and half of them name things that exist."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import schemathesis

KNOWN: dict[str, list[str]] = json.loads(Path(os.environ["DELEGATE_FUZZ_KNOWN"]).read_text())
WAIT_MAX = 60
dice = random.Random(0)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    for name, ids in KNOWN.items():
        if name in (case.path_parameters or {}) and dice.random() < 0.5:
            case.path_parameters[name] = dice.choice(ids)
    case.body = with_plain_integers(case.body)
    if isinstance(case.body, dict):
        if case.path in {"/api/tasks", "/api/schedules"}:
            give_a_place(case.body)
        if "fence" in case.body and dice.random() < 0.5:
            case.body["fence"] = 1
        if case.path.endswith(("/claim", "/renew")) and is_good_wait(case.body.get("wait", WAIT_MAX)):
            case.body["wait"] = 0


def give_a_place(body: dict[str, Any]) -> None:
    """A task needs one, in one of two ways; that is more than the document can say."""
    if all(body.get(name) is None for name in ("repository", "workingDirectory")):
        body["workingDirectory"] = "/tmp"
        if body.get("machine") is None:
            body["machine"] = "nowhere"


def with_plain_integers(value: Any) -> Any:
    """To JSON Schema 1.0 is an integer; we take it for what it is."""
    match value:
        case dict():
            return {key: with_plain_integers(part) for key, part in value.items()}
        case list():
            return [with_plain_integers(part) for part in value]
        case float() if value.is_integer():
            return int(value)
    return value


def is_good_wait(wait: object) -> bool:
    """A wrong one stays as it is: it must be refused."""
    return isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= WAIT_MAX
