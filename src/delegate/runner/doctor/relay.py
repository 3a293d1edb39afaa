"""Examines the relay and its runners with one request; never starts the relay."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from ssl import cert_time_to_seconds
from typing import TYPE_CHECKING

from delegate import __version__
from delegate.client.client import SERVE_AGAIN, remote_target, unreachable
from delegate.client.http import HttpExchange, Target, request_bytes
from delegate.client.http_response import NotHttp
from delegate.client.proxies import ProxyRefused
from delegate.config.home_files import is_held, live_address, read_token
from delegate.config.values import mask_login
from delegate.errors import DelegateError, Forbidden, InsideAttempt, Unauthenticated
from delegate.runner.doctor.context import DoctorContext, format_age, quote_line
from delegate.runner.doctor.findings import DoctorSection, Finding

if TYPE_CHECKING:
    from delegate.client.responses import ProcessData, RelayData

RESPONSE_TIMEOUT = 3.0  # seconds of silence; shorter than an examination
RESPONSE_MAX = 16 * 1024 * 1024
TOKEN_PROBLEMS = frozenset({Unauthenticated.code, Forbidden.code, InsideAttempt.code})
CERTIFICATE_NOTICE = timedelta(days=14)
CLOCK_NOTE, CLOCK_PROBLEM = timedelta(seconds=2), timedelta(seconds=60)
RESTART = "`delegate down`, then `delegate up`"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFindings:
    findings: list[Finding]
    data: RelayData | None = None  # None: no relay runs, or its response is not valid


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayResponse:
    status: int
    date: str
    body: bytes
    sent_at: datetime
    received_at: datetime
    certificate_end: str | None = None  # None: without TLS


def ask_relay(context: DoctorContext) -> RelayFindings:
    """Blocks; does not retry."""
    try:
        where = _target(context)
    except DelegateError as problem:
        return RelayFindings(findings=[DoctorSection.RELAY.problem("relay", problem.message, problem.hint)])
    except ProxyRefused as error:
        found = unreachable(context.settings, context.settings.relay_url, error)
        return RelayFindings(findings=[DoctorSection.RELAY.problem("relay", found.message, found.hint)])
    if where is None:
        return RelayFindings(findings=_report_not_running(context))
    target, path, token = where
    try:
        response = request(target, f"{path}/api/relay", token)
    except (OSError, NotHttp) as error:
        found = unreachable(context.settings, "", error)
        why = "timed out" if isinstance(error, TimeoutError) else quote_line(found.data["why"])
        message = f"{_address(context, target)} does not answer: {why}"
        fix = _unreachable_fix(context) if context.settings.is_local else found.hint
        return RelayFindings(findings=[DoctorSection.RELAY.problem("relay", message, fix)])
    return _interpret_response(context, target, response)


def _target(context: DoctorContext) -> tuple[Target, str, str] | None:
    if not context.settings.is_local:
        return remote_target(context.settings)
    token = read_token(context.home)  # raises when others may read it, whether a relay runs or not
    address = live_address(context.home)
    return None if address is None else (Target(host="127.0.0.1", port=address.port), "", token)


def request(target: Target, path: str, token: str) -> RelayResponse:
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
    sent_at = datetime.now(UTC)
    with HttpExchange(target, request_bytes(target, "GET", path, headers, b""), RESPONSE_TIMEOUT) as response:
        received_at = datetime.now(UTC)
        body = response.read_all(RESPONSE_MAX)
        date = response.headers.get("date", "")
        return RelayResponse(
            status=response.status,
            date=date,
            body=body,
            sent_at=sent_at,
            received_at=received_at,
            certificate_end=response.certificate_end,
        )


def _report_not_running(context: DoctorContext) -> list[Finding]:
    if is_held(context.home.keeper_lock):
        return [DoctorSection.RELAY.warning("relay", "is just starting or stopping", "try again in a moment")]
    if context.home.served.exists():
        return [DoctorSection.RELAY.problem("relay", "is not running", SERVE_AGAIN)]
    findings = [DoctorSection.RELAY.note("relay", "is not running; the first task or `delegate up` starts it")]
    if not context.settings.database_url:
        return findings
    if find_spec("psycopg") is not None:
        return [*findings, DoctorSection.RELAY.ok("database", "postgresql")]
    message = "DELEGATE_DATABASE_URL names PostgreSQL, but its driver is not installed: the relay cannot start"
    return [*findings, DoctorSection.RELAY.problem("database", message, "pip install 'delegate[postgres]'")]


def _interpret_response(context: DoctorContext, target: Target, response: RelayResponse) -> RelayFindings:
    address = _address(context, target)
    try:
        if response.status >= 300:
            return RelayFindings(findings=[_explain_refusal(context, address, json.loads(response.body))])
        data: RelayData = json.loads(response.body)
        findings = [_version(context, address, data), *_check_certificate(context, response)]
        findings += [*check_clock(response), DoctorSection.RELAY.ok("token", "accepted")]
        findings += [DoctorSection.RELAY.ok("database", quote_line(data["database"])), *_check_runners(context, data)]
    except (ValueError, KeyError, TypeError):
        message = f"the server at {address} is not a Delegate relay"
        return RelayFindings(findings=[DoctorSection.RELAY.problem("relay", message, _unreachable_fix(context))])
    return RelayFindings(findings=findings, data=data)


def _explain_refusal(context: DoctorContext, address: str, problem: Mapping[str, object]) -> Finding:
    if problem["type"] in TOKEN_PROBLEMS:
        return DoctorSection.RELAY.problem("token", f"is not accepted by the relay at {address}", _token_fix(context))
    message = f"{address} refuses requests: {quote_line(str(problem['detail']))}"
    return DoctorSection.RELAY.problem("relay", message, quote_line(str(problem.get("hint") or "")))


def _check_certificate(context: DoctorContext, response: RelayResponse) -> list[Finding]:
    if response.certificate_end is None:
        return []
    end = datetime.fromtimestamp(cert_time_to_seconds(response.certificate_end), UTC)
    message = f"its certificate is valid until {end:%Y-%m-%d}"
    if end - context.now < CERTIFICATE_NOTICE:
        return [DoctorSection.RELAY.warning("TLS", message, "ask whoever runs the relay to renew it")]
    return [DoctorSection.RELAY.ok("TLS", message)]


def _version(context: DoctorContext, address: str, data: RelayData) -> Finding:
    if data["version"] == __version__:
        return DoctorSection.RELAY.ok("relay", f"{address}, version {__version__}")
    message = f"{address} runs version {quote_line(data['version'])}; this is version {__version__}"
    return DoctorSection.RELAY.warning("relay", message, _restart(context, "upgrade the older one"))


def check_clock(response: RelayResponse) -> list[Finding]:
    try:
        relay_time = parsedate_to_datetime(response.date).astimezone(UTC)
    except ValueError:
        return []  # no valid Date header
    skew = clock_skew(relay_time, response.sent_at, response.received_at)
    if abs(skew) <= CLOCK_NOTE:
        return [DoctorSection.RELAY.ok("clock", "agrees with the relay's")]
    message = f"differs from the relay's by {abs(skew).total_seconds():,.0f} s"
    fix = "set the clock, for example with `timedatectl set-ntp true`"
    if abs(skew) > CLOCK_PROBLEM:
        return [DoctorSection.RELAY.problem("clock", message, fix)]
    return [DoctorSection.RELAY.note("clock", message, fix)]


def clock_skew(relay_time: datetime, sent_at: datetime, received_at: datetime) -> timedelta:
    """How far the relay's clock is ahead of ours at least: it reports whole seconds, at some time in between."""
    if relay_time > received_at:
        return relay_time - received_at
    latest = relay_time + timedelta(seconds=1)
    return latest - sent_at if latest < sent_at else timedelta()


def _check_runners(context: DoctorContext, data: RelayData) -> list[Finding]:
    if not context.settings.is_local and not data["processes"]:
        return [_report_counts(data)]
    runners = data["processes"]
    living = [runner for runner in runners if runner["state"] != "silent"]
    if not living:
        silent = f"all {len(runners)} are silent" if runners else "there are none"
        fix = _restart(context, "`delegate runner start` on a paired machine")
        return [DoctorSection.RELAY.problem("runners", f"{silent}: tasks would wait forever", fix)]
    states = Counter(runner["state"] for runner in living)
    states_text = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    findings = [DoctorSection.RELAY.ok("runners", f"{len(living)} ({states_text})")]
    findings += [_report_silent_runner(context, runner) for runner in runners if runner["state"] == "silent"]
    old = [runner["name"] for runner in living if runner["version"] != __version__]
    if old:
        message = f"{quote_line(', '.join(old))} run another version than {__version__}"
        findings.append(DoctorSection.RELAY.warning("runners", message, _restart(context, "upgrade the older ones")))
    return findings


def _report_counts(data: RelayData) -> Finding:
    online = data["runners"]["online"]
    if not online:
        fix = "pair a machine with the command of `delegate runner token`, or start a paired one"
        return DoctorSection.RELAY.problem("runners", "none is online: tasks would wait", fix)
    return DoctorSection.RELAY.ok("runners", f"{online} online")


def _report_silent_runner(context: DoctorContext, runner: ProcessData) -> Finding:
    quiet = context.now - datetime.fromisoformat(runner["seenAt"])
    message = f"{quote_line(runner['name'])} has been silent for {format_age(quiet)}"
    here = f"check the logs in {context.display_path(context.home.logs)}; {RESTART}"
    fix = here if context.settings.is_local else "check its machine and its network"
    return DoctorSection.RELAY.warning("runners", message, fix)


def report_missing_agent(context: DoctorContext, data: RelayData, agent: str) -> list[Finding]:
    """Runners search the PATH of the shell that started them, which may differ from the PATH here."""
    living = [runner for runner in data["processes"] if runner["state"] != "silent"]
    if not living or any(agent in runner["agents"] for runner in living):
        return []
    message = f"no runner finds {quote_line(agent)}, so the next task would wait"
    fix = _restart(
        context, "install it on the machine of a runner", f"restart from this shell, which finds it: {RESTART}"
    )
    return [DoctorSection.RELAY.problem("runners", message, fix)]


def _restart(context: DoctorContext, elsewhere: str, here: str = RESTART) -> str:
    return here if context.settings.is_local else elsewhere


def _address(context: DoctorContext, target: Target) -> str:
    return quote_line(mask_login(context.settings.relay_url)) or f"http://{target.authority}"


def _token_fix(context: DoctorContext) -> str:
    if context.settings.is_local:
        return RESTART
    return "set DELEGATE_TOKEN to a token of that relay"


def _unreachable_fix(context: DoctorContext) -> str:
    return (
        f"check the logs in {context.display_path(context.home.logs)}; {RESTART}"
        if context.settings.is_local
        else "check DELEGATE_RELAY_URL"
    )
