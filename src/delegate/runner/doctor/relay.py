"""The relay and its runners, as one question to it tells; it is never started."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from delegate import __version__
from delegate.client.client import remote_target
from delegate.client.http import Exchange, Target, request_bytes
from delegate.client.http_response import NotHttp
from delegate.config.home_files import is_held, live_address, read_token
from delegate.config.values import without_login
from delegate.errors import DelegateError
from delegate.runner.doctor.case import Case, spoken_age, told
from delegate.runner.doctor.findings import Finding, Part

if TYPE_CHECKING:
    from delegate.client.responses import RelayData, RunnerData

ANSWER_TIME = 3.0  # seconds of silence; less than an examination has
ANSWER_MAX = 16 * 1024 * 1024
CLOCK_NOTE, CLOCK_PROBLEM = timedelta(seconds=2), timedelta(seconds=60)
RESTART = "`delegate down`, then `delegate up`"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLook:
    findings: list[Finding]
    data: RelayData | None = None  # None: none runs, or it did not answer as one


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    status: int
    date: str
    body: bytes
    asked_at: datetime
    heard_at: datetime


def ask_relay(case: Case) -> RelayLook:
    """Blocks; nothing is tried twice."""
    try:
        where = _target(case)
    except DelegateError as problem:
        return RelayLook(findings=[Part.RELAY.problem("relay", problem.message, problem.hint)])
    if where is None:
        return RelayLook(findings=_not_running(case))
    target, path, token = where
    try:
        heard = _ask(target, path, token)
    except (OSError, NotHttp) as error:
        message = f"{_address(case, target)} does not answer: {told(str(error))}"
        return RelayLook(findings=[Part.RELAY.problem("relay", message, _where_to_look(case))])
    return _understood(case, target, heard)


def _target(case: Case) -> tuple[Target, str, str] | None:
    if not case.settings.is_local:
        return remote_target(case.settings)
    token = read_token(case.home)  # raises when others may read it, whether a relay runs or not
    address = live_address(case.home)
    return None if address is None else (Target(host="127.0.0.1", port=address.port), "", token)


def _ask(target: Target, path: str, token: str) -> Heard:
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
    asked_at = datetime.now(UTC)
    with Exchange(target, request_bytes(target, "GET", f"{path}/api/relay", headers, b""), ANSWER_TIME) as answer:
        heard_at = datetime.now(UTC)
        body = answer.read_all(ANSWER_MAX)
        date = answer.headers.get("date", "")
        return Heard(status=answer.status, date=date, body=body, asked_at=asked_at, heard_at=heard_at)


def _not_running(case: Case) -> list[Finding]:
    if is_held(case.home.keeper_lock):
        return [Part.RELAY.warning("relay", "is just starting or stopping", "ask again in a moment")]
    findings = [Part.RELAY.note("relay", "is not running: the first task starts it, or `delegate up`")]
    if not case.settings.database_url:
        return findings
    if find_spec("psycopg") is not None:
        return [*findings, Part.RELAY.ok("database", "postgresql")]
    message = "DELEGATE_DATABASE_URL names PostgreSQL, but its driver is not installed: the relay could not start"
    return [*findings, Part.RELAY.problem("database", message, "pip install 'delegate[postgres]'")]


def _understood(case: Case, target: Target, heard: Heard) -> RelayLook:
    address = _address(case, target)
    if heard.status in {401, 403}:
        message = f"is not accepted by the relay at {address}"
        return RelayLook(findings=[Part.RELAY.problem("token", message, _token_fix(case))])
    try:
        data: RelayData = json.loads(heard.body)
        findings = [_version(address, data), *_clock(heard), Part.RELAY.ok("token", "accepted")]
        findings += [Part.RELAY.ok("database", told(data["database"])), *_runners(case, data)]
    except (ValueError, KeyError, TypeError):
        message = f"{address} does not answer as a relay does"
        return RelayLook(findings=[Part.RELAY.problem("relay", message, _where_to_look(case))])
    return RelayLook(findings=findings, data=data)


def _version(address: str, data: RelayData) -> Finding:
    if data["version"] == __version__:
        return Part.RELAY.ok("relay", f"{address}, version {__version__}")
    message = f"{address} runs version {told(data['version'])}, this is {__version__}"
    return Part.RELAY.warning("relay", message, RESTART)


def _clock(heard: Heard) -> list[Finding]:
    try:
        told_at = parsedate_to_datetime(heard.date).astimezone(UTC)
    except ValueError:
        return []  # it does not tell
    skew = clock_skew(told_at, heard.asked_at, heard.heard_at)
    if abs(skew) <= CLOCK_NOTE:
        return [Part.RELAY.ok("clock", "agrees with the relay's")]
    message = f"differs from the relay's by {abs(skew).total_seconds():,.0f} s"
    fix = "set the clock, as with `timedatectl set-ntp true`"
    if abs(skew) > CLOCK_PROBLEM:
        return [Part.RELAY.problem("clock", message, fix)]
    return [Part.RELAY.note("clock", message, fix)]


def clock_skew(told_at: datetime, asked_at: datetime, heard_at: datetime) -> timedelta:
    """How far the relay's clock surely is ahead of ours: it tells whole seconds, and answers at some time between."""
    if told_at > heard_at:
        return told_at - heard_at
    latest = told_at + timedelta(seconds=1)
    return latest - asked_at if latest < asked_at else timedelta()


def _runners(case: Case, data: RelayData) -> list[Finding]:
    runners = data["runners"]
    living = [runner for runner in runners if runner["state"] != "silent"]
    if not living:
        silent = f"all {len(runners)} are silent" if runners else "there is none"
        return [Part.RELAY.problem("runners", f"{silent}: tasks would wait for ever", RESTART)]
    states = Counter(runner["state"] for runner in living)
    words = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    findings = [Part.RELAY.ok("runners", f"{len(living)} ({words})")]
    findings += [_silent(case, runner) for runner in runners if runner["state"] == "silent"]
    old = [runner["name"] for runner in living if runner["version"] != __version__]
    if old:
        message = f"{told(', '.join(old))} of another version than {__version__}"
        findings.append(Part.RELAY.warning("runners", message, RESTART))
    return findings


def _silent(case: Case, runner: RunnerData) -> Finding:
    quiet = case.now - datetime.fromisoformat(runner["seenAt"])
    message = f"{told(runner['name'])} has been silent for {spoken_age(quiet)}"
    return Part.RELAY.warning("runners", message, f"look into {case.place(case.home.logs)}; {RESTART}")


def agent_missing(data: RelayData, agent: str) -> list[Finding]:
    """It is here, but runners look on the PATH of the shell that started them, which need not be this one."""
    living = [runner for runner in data["runners"] if runner["state"] != "silent"]
    if not living or any(agent in runner["agents"] for runner in living):
        return []
    message = f"no runner has {told(agent)}, so the next task would wait"
    return [Part.RELAY.problem("runners", message, f"in this shell, which has it: {RESTART}")]


def _address(case: Case, target: Target) -> str:
    return told(without_login(case.settings.relay_url)) or f"http://{target.authority}"


def _token_fix(case: Case) -> str:
    if case.settings.is_local:
        return RESTART
    return "set DELEGATE_TOKEN to a token of that relay"


def _where_to_look(case: Case) -> str:
    return (
        f"look into {case.place(case.home.logs)}; {RESTART}" if case.settings.is_local else "check DELEGATE_RELAY_URL"
    )
