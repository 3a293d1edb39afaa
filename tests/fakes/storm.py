"""Killing the processes of a world, by what they are."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress

from tests.fakes.world import World, children_of, command_of


def relay(world: World) -> list[int]:
    return [world.relay_pid()]


def runners(world: World) -> list[int]:
    return [pid for pid in children_of(world.keeper_pid()) if "delegate.runner" in command_of(pid)]


def supervisors(world: World) -> list[int]:
    return [pid for runner in runners(world) for pid in children_of(runner) if "supervisor" in command_of(pid)]


def agents(world: World) -> list[int]:
    return [pid for supervisor in supervisors(world) for pid in children_of(supervisor)]


KINDS: list[Callable[[World], list[int]]] = [relay, runners, supervisors, agents]


def strike(world: World, kinds: list[Callable[[World], list[int]]], dice: random.Random) -> None:
    victims = []
    for kind in kinds:
        with suppress(OSError, ValueError):
            victims += [dice.choice(found) for found in [kind(world)] if found]
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
