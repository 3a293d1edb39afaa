"""Commands for the paired runners of this machine: start, status, stop, unpair, doctor."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from delegate.cli.commands.serve import wait_until_gone
from delegate.cli.context import CommandContext, command_options, examples
from delegate.cli.profiles import PROFILE_VARIABLES, paired_profiles, profile_context, profile_option
from delegate.cli.render.terminal import OutputStyle, fact_lines, format_duration, one_line, parse_time
from delegate.client.client import Client
from delegate.config import home_files
from delegate.config.pairing import DEFAULT_PROFILE, Pairing, check_machine, profile_home, read_pairing, remove_pairing
from delegate.config.paths import Home
from delegate.config.settings import erase_secrets
from delegate.errors import BadPairing, BadPolicy, DelegateError, LoosePermissions, NotPaired, Reported, RunnerRevoked
from delegate.keeper import __main__ as keeper
from delegate.keeper.paired_state import RunnerState, read_state
from delegate.keeper.start import start_paired
from delegate.placement import policy_data
from delegate.preferences.policyfile import PolicyFile, read_policy


@click.command(epilog=examples("delegate runner start", "delegate runner start --profile second --foreground"))
@profile_option
@click.option("--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C lets running tasks finish.")
@click.option("--install-service", is_flag=True, help="Start it with the machine from now on (systemd or launchd).")
@command_options
def start(context: CommandContext, profile: str, foreground: bool, install_service: bool) -> int:
    """Start the paired runner of this machine."""
    own = profile_context(context, profile)
    pairing = read_pairing(own.home)
    check_machine(own.home)
    if read_state(own.home).code == RunnerRevoked.code:
        raise RunnerRevoked(name=pairing.name)
    return begin(own, profile, foreground=foreground, service=install_service)


def begin(own: CommandContext, profile: str, *, foreground: bool, service: bool) -> int:
    """Start a paired runner: as a service, in the foreground, or in the background."""
    if service:
        from delegate.cli.service import install  # noqa: PLC0415  needed only here

        lines = install(own, profile)
        (own.print_details if own.as_json else own.print)(lines)
        return 0
    runners, problem = _runner_count(own.home)
    if problem is not None:
        own.say(problem.message, problem.hint)
    if foreground:
        return _run_in_foreground(own, runners)
    name = read_pairing(own.home).name
    is_new = start_paired(own.settings, runners=runners, environ=own.environ)
    line = f"{name} polls for tasks" + ("" if is_new else ", as before")
    own.print_result({"profile": profile, "started": is_new}, [line])
    if not own.as_json:
        own.say("`delegate runner status` shows what it does; it ends with `delegate runner stop` or this machine")
    return 0


def _runner_count(home: Home) -> tuple[str, BadPolicy | None]:
    """Without a valid policy the runner starts all the same: it reports to the relay why it accepts nothing."""
    try:
        return read_policy(home.policy).runners, None
    except BadPolicy as problem:
        return "auto", problem


def _run_in_foreground(own: CommandContext, runners: str) -> int:
    from delegate import log  # noqa: PLC0415  slow to load, and only a keeper logs

    def report(message: dict[str, Any]) -> None:  # Any: one line of JSON
        if "error" in message:
            own.say(message["error"]["message"], message["error"]["hint"] or "")
        else:
            own.say(
                f"polling {message['url']}. Ctrl-C lets running tasks finish; press it again to stop them now",
            )

    erase_secrets()
    os.environ.update({name: own.environ[name] for name in PROFILE_VARIABLES if name in own.environ})
    log.configure(own.settings.log_level)
    code = keeper.run_paired_keeper(own.settings, runners=runners, report=report)
    state = read_state(own.home)
    if state.code:
        own.say(state.problem, state.hint)
    return code


@click.command(epilog=examples("delegate runner status", "delegate runner status --profile second --json"))
@click.option("--profile", metavar="NAME", help="One profile. [default: all]")
@command_options
def status(context: CommandContext, profile: str | None) -> int:
    """Show the paired runners of this machine: state, relay, tasks, policy and problem."""
    names = [profile] if profile else paired_profiles(context.home)
    if not names:
        raise NotPaired(profile=DEFAULT_PROFILE, path=context.home.profile(DEFAULT_PROFILE).pairing)
    found = [_describe(profile_home(context.home, name), name) for name in names]
    if context.as_json:
        context.print_json_lines(found)
        return 0
    for number, one in enumerate(found):
        context.print([*([""] if number else []), *_page(one, context.style())])
    return 0


def _describe(home: Home, profile: str) -> dict[str, Any]:
    pairing: Pairing | None = None
    policy: PolicyFile | None = None
    problem: DelegateError | None = None
    try:
        pairing = read_pairing(home)
        check_machine(home)
        policy = read_policy(home.policy)
    except NotPaired:
        raise
    except (BadPairing, BadPolicy, LoosePermissions) as error:
        problem = error
    state = read_state(home)
    is_running = home_files.is_held(home.keeper_lock)
    return {
        "profile": profile,
        "name": pairing and pairing.name,
        "state": _state(state, is_running=is_running),
        "since": state.since if is_running else None,
        "relayUrl": pairing and pairing.relay_url,
        "pairedAt": pairing and pairing.paired_at,
        "pairedBy": pairing and pairing.paired_by,
        "slots": {"busy": len(state.tasks), "total": state.slots} if is_running else None,
        "tasks": [dict(task) for task in state.tasks] if is_running else [],
        "policy": policy and policy_data(policy.rules),
        "policyText": policy and policy.describe(),
        "problem": problem.message if problem else state.problem if is_running or state.code else "",
        "hint": problem.hint if problem else state.hint if is_running or state.code else "",
        "home": str(home.root),
    }


def _state(state: RunnerState, *, is_running: bool) -> str:
    if not is_running:
        return {"runner_revoked": "revoked", "runner_in_use": "refused"}.get(state.code, "stopped")
    if state.is_draining:
        return "draining"
    return "running" if state.tasks else "online"


def _page(found: dict[str, Any], style: OutputStyle) -> list[str]:
    slots = found["slots"]
    age = "" if not found["since"] else format_duration((style.now - parse_time(found["since"])).total_seconds())
    tasks = [f"{one_line(task['taskId'])} ({one_line(task['agent'])})" for task in found["tasks"]]
    facts = {
        "runner": f"{one_line(found['name'] or '?')} (profile {found['profile']})",
        "state": f"{found['state']}, for {age}" if age else found["state"],
        "relay": one_line(found["relayUrl"] or "?"),
        "paired": _describe_pairing(found, style.now),
        "slots": f"{slots['busy']} of {slots['total']} busy" if slots else "",
        "tasks": ", ".join(tasks),
        "policy": found["policyText"] or "accepts nothing",
        "problem": one_line(found["problem"]),
        "fix": one_line(found["hint"]) if found["problem"] else "",
    }
    return fact_lines({name: value for name, value in facts.items() if value}, style)


def _describe_pairing(found: dict[str, Any], now: datetime) -> str:
    if not found["pairedAt"]:
        return ""
    age = format_duration((now - parse_time(found["pairedAt"])).total_seconds())
    return f"{age} ago" + (f" by {one_line(found['pairedBy'])}" if found["pairedBy"] else "")


@click.command(epilog=examples("delegate runner stop", "delegate runner stop --now"))
@profile_option
@click.option("--now", is_flag=True, help="Stop running tasks now; those that may run again return to the queue.")
@command_options
def stop(context: CommandContext, profile: str, now: bool) -> int:
    """Let running tasks finish, then stop the paired runner; it stays paired."""
    own = profile_context(context, profile)
    is_stopped = _stop(own, now=now)
    own.print_result({"profile": profile, "stopped": is_stopped}, ["stopped" if is_stopped else "it was not running"])
    return 0


def _stop(own: CommandContext, *, now: bool) -> bool:
    holder = home_files.lock_holder(own.home.keeper_lock)
    if holder is None:
        return False
    if holder.is_alive:
        os.kill(holder.pid, signal.SIGQUIT if now else signal.SIGINT)
    wait_until_gone(own, holder)
    for one in home_files.surviving_processes(own.home, holder):
        own.say(f"process {one.pid} ({one.command}) still exists: {one.why}", f"`ps -fp {one.pid}` shows it")
    return True


@click.command(epilog=examples("delegate runner unpair", "delegate runner unpair --profile second --now"))
@profile_option
@click.option("--now", is_flag=True, help="Stop running tasks now instead of letting them finish.")
@command_options
def unpair(context: CommandContext, profile: str, now: bool) -> int:
    """Let running tasks finish, leave the relay and remove the token. Unpushed work stays."""
    own = profile_context(context, profile)
    home = own.home
    if not home.pairing.exists():
        raise NotPaired(profile=profile, path=home.pairing)
    from delegate.cli.service import uninstall  # noqa: PLC0415  needed only here

    uninstall(own, profile)
    _stop(own, now=now)
    is_told = _tell_relay(own)
    remove_pairing(home)
    home.runner_state.unlink(missing_ok=True)
    kept = [place for place in (home.workspaces, home.salvage) if place.is_dir() and any(place.iterdir())]
    if own.as_json:
        own.print_json({"profile": profile, "unpaired": True, "relayTold": is_told, "kept": list(map(str, kept))})
        return 0
    own.print(["unpaired"])
    for place in kept:
        own.print([f"work that was not pushed is in {place}"])
    return 0


def _tell_relay(own: CommandContext) -> bool:
    try:
        pairing = read_pairing(own.home)
        settings = replace(own.settings, relay_url=pairing.relay_url, token=pairing.token)
        Client(settings, patience=0.0).unpair_runner()
    except (DelegateError, Reported) as problem:
        if problem.code in {"runner_revoked", "unauthenticated"}:
            return True  # the relay has forgotten it already
        own.say(
            f"the relay was not told: {problem.message}", "`delegate runner revoke` removes the runner from its list"
        )
        return False
    return True
