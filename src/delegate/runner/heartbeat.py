"""The heartbeat of a paired runner: tells the relay its agents and its policy, and learns its name and orders."""

from __future__ import annotations

import logging
import os
import platform

import anyio

from delegate import __version__
from delegate.config.home_files import acquire_lock, machine_id
from delegate.config.pairing import rename_pairing
from delegate.config.paths import Home
from delegate.config.values import parse_runners
from delegate.errors import BadPolicy, DelegateError, RunnerRevoked, VersionMismatch
from delegate.placement import policy_data
from delegate.runner.agents.probes import list_agents
from delegate.runner.context import RunnerContext
from delegate.runner.policy import PolicyGuard
from delegate.wire.fleet import HeartbeatRequest
from delegate.wire.runners import PolicyView, RunnerAgentView

log = logging.getLogger(__name__)

TURN_POLL = 1.0  # seconds after which another process takes over from one that has ended
INTERVAL = 20.0  # seconds: an idle runner is shown as online if it was seen within a minute
AGENTS_INTERVAL = 24 * 3600.0  # seconds; starting every agent's program takes a while


async def send_heartbeats(runner_context: RunnerContext, policy: PolicyGuard) -> None:
    """One process of the machine does it at a time. Runs until cancelled; raises RunnerRevoked and VersionMismatch."""
    home = Home(runner_context.settings.home)
    while (lock := _take_turn(home)) is None:  # noqa: ASYNC110  the kernel offers no event to wait for
        await anyio.sleep(TURN_POLL)
    try:
        await _send_heartbeats(runner_context, policy, home)
    finally:
        os.close(lock)


def _take_turn(home: Home) -> int | None:
    try:
        return acquire_lock(home.heartbeat_lock, 0)
    except DelegateError as problem:  # a full disk
        log.warning("heartbeat not sent", extra={"why": problem.message})
        return None


async def _send_heartbeats(runner_context: RunnerContext, policy: PolicyGuard, home: Home) -> None:
    agents: list[RunnerAgentView] = []
    agents_at = float("-inf")
    while True:
        if anyio.current_time() - agents_at >= AGENTS_INTERVAL:
            listed = await list_agents(runner_context.agents.values(), runner_context.environ)
            agents, agents_at = [RunnerAgentView.model_validate(agent) for agent in listed], anyio.current_time()
        try:
            response = await runner_context.link.heartbeat(_describe(runner_context, policy, agents))
            runner_context.keeper_link.report_drain(drains=response.drain)
            rename_pairing(home, response.name)
        except (RunnerRevoked, VersionMismatch):
            raise
        except DelegateError as problem:
            log.warning("heartbeat not sent", extra={"why": problem.message})
        with anyio.move_on_after(min(INTERVAL, runner_context.link.timings.heartbeat)):
            await runner_context.policy_refused.wait()


def _describe(runner_context: RunnerContext, policy: PolicyGuard, agents: list[RunnerAgentView]) -> HeartbeatRequest:
    described = {
        "machine": machine_id(Home(runner_context.settings.home)),
        "os": platform.system().lower(),
        "architecture": platform.machine().lower(),
        "version": __version__,
        "agents": agents,
    }
    try:
        found = policy.read()
    except BadPolicy as problem:
        return HeartbeatRequest.model_validate({**described, "problem": problem.message})
    return HeartbeatRequest.model_validate(
        {
            **described,
            "policy": PolicyView.model_validate(policy_data(found.rules)),
            "privacy": found.privacy,
            "tags": list(found.tags),
            "slots": parse_runners(found.runners) or os.cpu_count() or 1,
        }
    )
