"""Examines a paired runner: its pairing, its policy, its relay, and what its service's environment lacks."""

from __future__ import annotations

import json
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from delegate import __version__
from delegate.client.client import remote_target
from delegate.client.http_response import NotHttp
from delegate.config.pairing import Pairing, check_machine, read_pairing
from delegate.config.values import mask_login
from delegate.errors import BadPolicy, DelegateError
from delegate.preferences.policyfile import read_policy
from delegate.runner.doctor.context import DoctorContext, quote_line
from delegate.runner.doctor.findings import DoctorSection, Finding
from delegate.runner.doctor.relay import RelayFindings, check_clock, request

UNREACHABLE_FIX = "check the network and the relay; a private authority needs `--ca-file` when pairing"


def ask_paired_relay(context: DoctorContext) -> RelayFindings:
    """Blocks; does not retry."""
    findings = [*_check_policy(context), *_check_ssh_agent(context)]
    try:
        pairing = read_pairing(context.home)
        check_machine(context.home)
    except DelegateError as problem:
        return RelayFindings(
            findings=[*findings, DoctorSection.RELAY.problem("pairing", problem.message, problem.hint)]
        )
    message = f"{quote_line(pairing.name)} at {quote_line(mask_login(pairing.relay_url))}"
    return RelayFindings(
        findings=[*findings, DoctorSection.RELAY.ok("pairing", message), *_check_relay(context, pairing)]
    )


def _check_policy(context: DoctorContext) -> list[Finding]:
    try:
        policy = read_policy(context.home.policy)
    except BadPolicy as problem:
        return [DoctorSection.SETTINGS.problem("policy", problem.message, problem.hint)]
    if policy.rules.repositories == () and not policy.rules.in_place:
        fix = f'add one to {context.display_path(context.home.policy)}: repositories = ["github.com/acme/shop"]'
        return [DoctorSection.SETTINGS.warning("policy", "accepts no repository, so the runner gets no task", fix)]
    missing = [path for path in policy.checkouts.values() if not Path(path).is_dir()]
    if missing:
        message = f"{quote_line(missing[0])} in [checkouts] is not a directory"
        return [DoctorSection.SETTINGS.warning("policy", message, "files to carry are not found without it")]
    return [DoctorSection.SETTINGS.ok("policy", policy.describe())]


def _check_ssh_agent(context: DoctorContext) -> list[Finding]:
    """A service keeps the address that the agent had when it was installed."""
    address = context.environ.get("SSH_AUTH_SOCK")
    if not address:
        return []
    with suppress(OSError):
        if stat.S_ISSOCK(Path(address).stat().st_mode):
            return []
    message = f"SSH_AUTH_SOCK names {quote_line(address)}, where no SSH agent listens: remotes over ssh may fail"
    fix = "start the agent; for a service, run `delegate runner start --install-service` again"
    return [DoctorSection.SETTINGS.warning("ssh agent", message, fix)]


def _check_relay(context: DoctorContext, pairing: Pairing) -> list[Finding]:
    address = quote_line(mask_login(pairing.relay_url))
    try:
        settings = replace(context.settings, relay_url=pairing.relay_url, token=pairing.token)
        target, path, token = remote_target(settings)
        response = request(target, f"{path}/healthz", token)
        found = json.loads(response.body)
        version = quote_line(str(found["version"]))
    except (OSError, NotHttp) as error:
        message = f"{address} does not answer: {quote_line(str(error))}"
        return [DoctorSection.RELAY.problem("relay", message, UNREACHABLE_FIX)]
    except (ValueError, KeyError, TypeError):
        return [DoctorSection.RELAY.problem("relay", f"the server at {address} is not a Delegate relay")]
    message = f"{address}, version {version}"
    if version == __version__:
        return [DoctorSection.RELAY.ok("relay", message), *check_clock(response)]
    fix = "use the same version on both sides; one minor version apart works"
    return [DoctorSection.RELAY.note("relay", f"{message}; this is {__version__}", fix), *check_clock(response)]
