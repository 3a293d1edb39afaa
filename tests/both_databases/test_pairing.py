"""A machine becomes a runner with a token that works once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest
from tests.both_databases.scene import LEASE, Scene

from delegate import __version__
from delegate.errors import (
    PairingTokenExpired,
    PairingTokenUsed,
    RunnerInUse,
    RunnerNameUsed,
    Unauthenticated,
    VersionMismatch,
)
from delegate.model import OWNER, Actor, PersonId, Runner, RunnerSlot
from delegate.placement import AcceptFrom, Policy
from delegate.queue.fleet import (
    MachineFacts,
    SlotFacts,
    check_version,
    create_pairing_token,
    pair,
    register_slot,
)
from delegate.store.runners import get_runner, runner_of_token, slot_of_token

pytestmark = pytest.mark.anyio
AT_ONCE = 50
MAREK = Actor(name="marek", person_id=PersonId("user-1"))
FACTS = MachineFacts(
    machine="mbp-1",
    version=__version__,
    os="macOS 15.1",
    policy=Policy(repositories=("github.com/acme/shop",), accept_from=(AcceptFrom.ME, AcceptFrom.LINEAR)),
    tags=("gpu",),
    slots=2,
)


async def invite(scene: Scene, name: str = "marek-mbp") -> str:
    await create_pairing_token(scene.database, name, f"hash-of-{name}", by=MAREK, now=scene.now)
    return f"hash-of-{name}"


async def paired(scene: Scene, name: str = "marek-mbp", facts: MachineFacts = FACTS) -> Runner:
    return await pair(scene.database, await invite(scene, name), facts, f"token-of-{name}", scene.now)


async def register(
    scene: Scene,
    *,
    slot: str = "1",
    instance: str = "boot-1",
    token: str = "token-of-marek-mbp",
    machine: str = "mbp-1",
) -> RunnerSlot:
    facts = replace(FACTS, machine=machine)
    process = SlotFacts(runner_name="x", slot=slot, pid=7, agents=("claude", "shell"), instance=instance, facts=facts)
    token_hash = f"slot-{slot}-{instance}"
    return await register_slot(
        scene.database, process, runner_hash=token, token_hash=token_hash, lease=LEASE, now=scene.now
    )


async def test_a_paired_machine_is_a_runner_with_what_it_reported(scene: Scene) -> None:
    runner = await paired(scene)

    found = await scene.database.read(lambda c: runner_of_token(c, "token-of-marek-mbp"))
    assert found == runner
    assert (found.name, found.machine, found.paired_by, found.policy) == (
        "marek-mbp",
        "mbp-1",
        MAREK.person_id,
        FACTS.policy,
    )
    assert (found.os, found.tags, found.slots, found.is_paired) == ("macOS 15.1", ("gpu",), 2, True)


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 100))])
async def test_of_fifty_that_use_one_token_at_the_same_time_one_is_paired(scene: Scene, number: int) -> None:
    pairing_hash = await invite(scene, f"studio-{number}")
    won: list[Runner] = []
    refused: list[Exception] = []

    async def exchange(number: int) -> None:
        try:
            won.append(await pair(scene.database, pairing_hash, FACTS, f"token-{number}", scene.now))
        except (PairingTokenUsed, RunnerNameUsed) as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        for number in range(AT_ONCE):
            group.start_soon(exchange, number)

    assert (len(won), len(refused)) == (1, AT_ONCE - 1)
    assert {type(error) for error in refused} == {PairingTokenUsed}
    assert await scene.database.read(lambda c: get_runner(c, won[0].id)) == won[0]


async def test_a_token_is_valid_for_fifteen_minutes(scene: Scene) -> None:
    early, late = await invite(scene, "early"), await invite(scene, "late")
    issued = scene.now

    scene.now = issued + timedelta(minutes=15) - timedelta(microseconds=1)
    await pair(scene.database, early, FACTS, "token-early", scene.now)
    scene.now = issued + timedelta(minutes=15)
    with pytest.raises(PairingTokenExpired):
        await pair(scene.database, late, FACTS, "token-late", scene.now)


async def test_an_unknown_token_pairs_nothing(scene: Scene) -> None:
    with pytest.raises(Unauthenticated):
        await pair(scene.database, "hash-of-nothing", FACTS, "token", scene.now)


async def test_two_runners_do_not_have_one_name(scene: Scene) -> None:
    waiting = await invite(scene)
    await create_pairing_token(scene.database, "marek-mbp", "other-hash", by=OWNER, now=scene.now)
    await pair(scene.database, waiting, FACTS, "token-1", scene.now)

    with pytest.raises(RunnerNameUsed):
        await pair(scene.database, "other-hash", FACTS, "token-2", scene.now)
    with pytest.raises(RunnerNameUsed):
        await create_pairing_token(scene.database, "marek-mbp", "third-hash", by=OWNER, now=scene.now)


async def test_the_slots_of_a_pairing_belong_to_one_runner(scene: Scene) -> None:
    runner = await paired(scene)

    first, second = await register(scene), await register(scene, slot="2")

    assert (first.id, second.id) == (f"{runner.id}-1", f"{runner.id}-2")
    assert first.runner.id == second.runner.id == runner.id


async def test_a_restarted_process_gets_its_slot_back_and_voids_the_token_before(scene: Scene) -> None:
    await paired(scene)
    before = await register(scene)

    again = await register(scene)

    assert again.id == before.id


@pytest.mark.parametrize("slot", ["1", "2"])
async def test_a_copy_of_a_living_runner_is_refused_and_takes_nothing_from_it(scene: Scene, slot: str) -> None:
    await paired(scene)
    first = await register(scene)

    with pytest.raises(RunnerInUse, match="already running on another machine"):
        await register(scene, slot=slot, instance="boot-2")

    living = await scene.database.read(lambda c: slot_of_token(c, "slot-1-boot-1"))
    assert living is not None
    assert living.id == first.id


async def test_after_a_reboot_the_runner_registers_once_the_old_processes_are_silent(scene: Scene) -> None:
    await paired(scene)
    await register(scene)

    scene.now += LEASE
    again = await register(scene, instance="boot-2")

    assert again.instance == "boot-2"


async def test_the_token_of_a_runner_is_bound_to_its_machine(scene: Scene) -> None:
    await paired(scene)

    with pytest.raises(RunnerInUse, match="paired with another machine"):
        await register(scene, machine="thief-1")


async def test_an_unknown_runner_registers_nothing(scene: Scene) -> None:
    with pytest.raises(Unauthenticated):
        await register(scene, token="token-of-nobody")


async def test_a_pool_is_one_runner_with_a_free_name(scene: Scene) -> None:
    await paired(scene, "studio")

    async def join(machine: str, slot: str) -> RunnerSlot:
        process = SlotFacts(
            runner_name="studio",
            slot=slot,
            pid=7,
            agents=("shell",),
            instance=None,
            facts=MachineFacts(machine=machine, version=__version__),
        )
        return await register_slot(
            scene.database, process, runner_hash=None, token_hash=machine + slot, lease=LEASE, now=scene.now
        )

    one, two, other = await join("studio-a1", "1"), await join("studio-a1", "2"), await join("studio-b2", "1")

    assert one.runner.id == two.runner.id != other.runner.id
    assert (one.runner.name, other.runner.name) == ("studio-a1", "studio-b2")
    assert not one.runner.is_paired


def apart(major: int = 0, minor: int = 0) -> str:
    own = [int(part) for part in __version__.split(".")[:2]]
    return f"{own[0] + major}.{own[1] + minor}.7"


async def test_a_runner_one_minor_version_apart_works_and_others_learn_what_to_upgrade() -> None:
    for fine in (__version__, apart(minor=1), apart()):
        check_version(fine)
    with pytest.raises(VersionMismatch) as newer:
        check_version(apart(minor=2))
    with pytest.raises(VersionMismatch) as newest:
        check_version(apart(major=1))
    with pytest.raises(VersionMismatch) as unreadable:
        check_version("latest")

    assert f"upgrade the relay to {apart(minor=2)}" in newer.value.hint
    assert f"upgrade the relay to {apart(major=1)}" in newest.value.hint
    assert f"upgrade the runner to {__version__}" in unreadable.value.hint
