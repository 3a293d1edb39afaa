"""`delegate runner pair`: makes this machine a runner of a relay elsewhere."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import click

from delegate import __version__
from delegate.cli.commands.runner_machine import begin
from delegate.cli.context import CommandContext, command_options, examples
from delegate.cli.profiles import profile_context, profile_option
from delegate.cli.render import terminal
from delegate.client.client import Client
from delegate.config import home_files
from delegate.config.pairing import Pairing, profile_home, read_pairing, write_pairing
from delegate.config.paths import Home
from delegate.config.values import mask_login, parse_relay_url, parse_runners
from delegate.errors import (
    AlreadyPaired,
    BadPairing,
    DelegateError,
    InvalidField,
    LoosePermissions,
    NotPaired,
    RelayUnreachable,
    Reported,
    RunnerInUse,
    RunnerRevoked,
)
from delegate.keeper.paired_state import read_state
from delegate.keeper.scaling import FleetShape
from delegate.placement import ANY_REPOSITORY as EVERY
from delegate.placement import AcceptFrom, Policy, policy_data, repository_key
from delegate.preferences.policyfile import PRIVACY, PolicyFile, write_policy
from delegate.tokens import PAIRING_PREFIX

ACCEPT_FROM = tuple(AcceptFrom)
CLOCK_TOLERANCE = timedelta(seconds=60)  # as in `delegate doctor`
# After these a profile may be paired again: its former pairing is of no use.
USELESS = frozenset({RunnerRevoked.code, RunnerInUse.code})
NEW_TOKEN = "get a new one with `delegate runner token`"  # noqa: S105
EXPLAINED = {
    "pairing_token_used": f"this pairing token was already used; {NEW_TOKEN}",
    "pairing_token_expired": f"this pairing token has expired: it is valid for 15 minutes; {NEW_TOKEN}",
    "unauthenticated": "the relay at {url} does not know this pairing token: it is incomplete, or from another relay",
}


@click.command(
    epilog=examples(
        "delegate runner pair --relay-url https://relay.example --pairing-token drs_pair_…",
        "delegate runner pair --relay-url … --pairing-token … --repository acme/shop --install-service",
        "delegate runner pair --relay-url … --pairing-token … --profile second --all-repositories",
    )
)
@click.option("--relay-url", required=True, metavar="URL", help="The relay, as the pairing command names it.")
@click.option("--pairing-token", required=True, metavar="TOKEN", help="The one-time token; valid for 15 minutes.")
@profile_option
@click.option("--runners", metavar="N|auto", default="auto", help="Tasks at once. [default: auto]")
@click.option("--repository", metavar="NAME", multiple=True, help="A repository that it accepts; repeatable.")
@click.option("--all-repositories", is_flag=True, help="Accept every repository.")
@click.option(
    "--accept-from",
    metavar="WHO",
    multiple=True,
    help=f"Whose tasks it accepts: {', '.join(ACCEPT_FROM)}; repeatable. [default: me]",
)
@click.option("--tag", metavar="TAG", multiple=True, help="A tag for `delegate run --tag`; repeatable.")
@click.option("--privacy", metavar="LEVEL", default="summary", help="What it reports: minimal, summary or full.")
@click.option("--ca-file", metavar="FILE", help="Certificates (PEM) of the authority that signed the relay's.")
@click.option("--install-service", is_flag=True, help="Start the runner with the machine (systemd or launchd).")
@click.option("--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C lets running tasks finish.")
@command_options
def pair(context: CommandContext, /, profile: str, **given: Any) -> int:  # Any: the values of the options above
    """Make this machine a runner of a relay: exchange the token, write the policy, and start to poll."""
    url = _check_arguments(given)
    home = profile_home(context.home, profile)
    _check_unpaired(home, profile)
    home_files.make_directory(home.root)
    _look_at_relay(context, url, given["ca_file"])
    policy = _policy(context, given)
    machine = _machine(home)
    answer = _exchange(context, url, given, _description(context, machine, policy))
    pairing = Pairing(
        relay_url=url,
        runner_id=answer["runnerId"],
        name=answer["name"],
        token=answer["token"],
        paired_by=answer.get("pairedBy") or "",
        paired_at=datetime.now(UTC).isoformat(),
        ca_file=str(Path(given["ca_file"]).absolute()) if given["ca_file"] else None,
    )
    home.runner_state.unlink(missing_ok=True)
    is_in_keyring = write_pairing(home, pairing, uses_keyring=not given["install_service"])
    former = write_policy(home.policy, policy)
    _print_result(context, home, pairing, policy, former, is_in_keyring=is_in_keyring)
    return begin(
        profile_context(context, profile), profile, foreground=given["foreground"], service=given["install_service"]
    )


def _check_arguments(given: Mapping[str, Any]) -> str:
    """Check everything before the token is used up; returns the URL."""
    for name, value, known in (
        ("--privacy", given["privacy"], PRIVACY),
        *(("--accept-from", one, ACCEPT_FROM) for one in given["accept_from"]),
    ):
        if value not in known:
            raise InvalidField(field=name, why=f"must be one of {', '.join(known)}, not {value}")
    try:
        if parse_runners(given["runners"]) == 0:
            raise ValueError("must be at least 1")
    except ValueError as error:
        raise InvalidField(field="--runners", why=str(error)) from error
    if not given["pairing_token"].startswith(PAIRING_PREFIX) or not given["pairing_token"].isascii():
        raise InvalidField(field="--pairing-token", why=f"must start with {PAIRING_PREFIX}; {NEW_TOKEN}")
    if given["ca_file"] and not Path(given["ca_file"]).is_file():
        raise InvalidField(field="--ca-file", why=f"{given['ca_file']} does not exist")
    try:
        return parse_relay_url(given["relay_url"]).rstrip("/")
    except ValueError as error:
        raise InvalidField(field="--relay-url", why=str(error)) from error


def _check_unpaired(home: Home, profile: str) -> None:
    """Refuse a profile that is paired; one whose pairing cannot be used may be paired again."""
    try:
        known = read_pairing(home)
    except (NotPaired, BadPairing, LoosePermissions):
        return
    if read_state(home).code not in USELESS:
        raise AlreadyPaired(profile=profile, name=known.name, url=mask_login(known.relay_url))


def _machine(home: Home) -> str:
    """The id of this machine for this profile; a copied home gets its own."""
    if read_state(home).code == RunnerInUse.code:
        home.machine.unlink(missing_ok=True)
    return home_files.machine_id(home)


def _client(
    context: CommandContext, url: str, token: str, ca_file: str | None, *, patience: float = float("inf")
) -> Client:
    changed: dict[str, Any] = {"relay_url": url, "token": token}
    if ca_file:
        changed["ca_file"] = Path(ca_file).absolute()
    return Client(replace(context.settings, **changed), notice=context.say_once, patience=patience)


def _look_at_relay(context: CommandContext, url: str, ca_file: str | None) -> None:
    """Before the token is used: whether a relay answers, and whether the clocks agree."""
    try:
        health = _client(context, url, PAIRING_PREFIX, ca_file, patience=0.0).health()
    except RelayUnreachable as error:
        raise _explain(error, url) from error
    except Reported as error:
        raise RelayUnreachable(url=url, why=error.message, advice="check the relay's URL") from error
    if health.body.get("status") != "ok" or "version" not in health.body:
        raise RelayUnreachable(url=url, why="the server there is not a Delegate relay", advice="check the relay's URL")
    try:
        skew = parsedate_to_datetime(health.date).astimezone(UTC) - datetime.now(UTC)
    except ValueError:
        return  # no valid Date header
    if abs(skew) > CLOCK_TOLERANCE:
        direction = "behind" if skew > timedelta() else "ahead of"
        context.say(
            f"this machine's clock is {terminal.format_duration(abs(skew).total_seconds())} {direction} the relay's: "
            "times in timelines will be wrong",
            "set the clock, for example with `timedatectl set-ntp true`",
        )


def _explain(error: RelayUnreachable, url: str) -> DelegateError:
    why = str(error.data.get("why", ""))
    if "CERTIFICATE_VERIFY_FAILED" in why or "certificate" in why.lower():
        advice = "if a private authority signed it, name its certificates with --ca-file; also check this clock"
        return RelayUnreachable(url=url, why=why, advice=advice)
    if "name or service not known" in why or "name resolution" in why or "nodename nor servname" in why:
        return RelayUnreachable(url=url, why="there is no such host", advice="check the spelling, and the network")
    if "status" in why or "response" in why:
        why = f"the server there is not a Delegate relay ({why})"
    return RelayUnreachable(url=url, why=why, advice="check the relay's URL, and that the relay runs")


def _policy(context: CommandContext, given: Mapping[str, Any]) -> PolicyFile:
    wanted = (EVERY,) if given["all_repositories"] else tuple(given["repository"]) or _ask_for_repositories(context)
    names = None if EVERY in wanted else tuple(dict.fromkeys(map(repository_key, wanted)))
    accept_from = tuple(map(AcceptFrom, given["accept_from"])) or (AcceptFrom.ME,)
    return PolicyFile(
        rules=Policy(repositories=names, accept_from=accept_from),
        runners=given["runners"],
        privacy=given["privacy"],
        tags=given["tag"],
    )


def _ask_for_repositories(context: CommandContext) -> tuple[str, ...]:
    if context.as_json or not (sys.stdin and sys.stdin.isatty() and terminal.is_terminal(sys.stderr)):
        return ()
    text = click.prompt(
        "Repositories that this runner accepts, such as acme/shop (several: with spaces; * for all; empty: none yet)",
        default="",
        show_default=False,
        err=True,
    )
    return tuple(str(text).replace(",", " ").split())


def _description(context: CommandContext, machine: str, policy: PolicyFile) -> dict[str, Any]:
    import anyio  # noqa: PLC0415  the runner takes long to load

    from delegate.runner.agents import agents  # noqa: PLC0415
    from delegate.runner.agents.probes import list_agents  # noqa: PLC0415

    fixed = parse_runners(policy.runners)
    shape = FleetShape.of(cores=os.cpu_count() or 1, fixed=fixed, ceiling=fixed or 8)
    return {
        "machine": machine,
        "os": platform.system().lower(),
        "architecture": platform.machine().lower(),
        "version": __version__,
        "agents": anyio.run(list_agents, agents(context.settings).values(), context.environ),
        "policy": policy_data(policy.rules),
        "privacy": policy.privacy,
        "tags": list(policy.tags),
        "slots": shape.base,
    }


def _exchange(
    context: CommandContext, url: str, given: Mapping[str, Any], described: Mapping[str, Any]
) -> dict[str, str]:
    try:
        return _client(context, url, given["pairing_token"], given["ca_file"]).pair_runner(described)
    except Reported as error:
        if error.code in EXPLAINED:
            raise Reported(
                code=error.code, message=EXPLAINED[error.code].format(url=url), exit_code=error.exit_code
            ) from error
        raise


def _print_result(
    context: CommandContext,
    home: Home,
    pairing: Pairing,
    policy: PolicyFile,
    former: Path | None,
    *,
    is_in_keyring: bool,
) -> None:
    if context.as_json:
        context.print_json(
            {
                "runnerId": pairing.runner_id,
                "name": pairing.name,
                "relayUrl": pairing.relay_url,
                "profile": home.root.name,
                "home": str(home.root),
                "policy": policy_data(policy.rules),
            }
        )
        return
    where = "the system's keyring" if is_in_keyring else str(home.pairing)
    context.print([f"paired as {pairing.name} with {pairing.relay_url}; the token is in {where}"])
    context.print(["", f"policy, in {home.policy}:", *(f"  {line}" for line in _rules_of(home.policy))])
    if former is not None:
        context.print([f"the former policy is in {former}"])
    if policy.rules.repositories == ():
        context.say(
            "this runner accepts no repository yet, so it will get no task",
            f'add one to {home.policy}: repositories = ["github.com/acme/shop"]',
        )
    context.print([""])


def _rules_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith(("#", "[checkouts]"))]
