"""What an agent prints arrives once, in order and byte for byte, up to the stated limit."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.world import World, children_of, command_of, living, wait_until

pytestmark = pytest.mark.slow
MIB = 1024 * 1024
# Numbered lines with characters of one to four bytes, written in pieces that fall anywhere inside them.
PRINTER = """
import os, random, sys
dice = random.Random(10)
size = int(sys.argv[1])
text, n = bytearray(), 0
while len(text) < size:
    text += f"line {n} é € 𝄞 {'x' * dice.randrange(80)}\\n".encode()
    n += 1
place = 0
while place < len(text):
    piece = dice.randrange(1, 200_000)
    place += os.write(1, text[place:place + piece])
open("expected", "wb").write(text)
"""


def raw(world: World, task_id: str) -> bytes:
    command = [sys.executable, "-m", "delegate", "logs", "--raw", task_id]
    return subprocess.run(
        command, env=world.environment, cwd=world.work, capture_output=True, check=True, timeout=120
    ).stdout


@pytest.mark.promise("P10")
def test_fifty_megabytes_arrive_byte_for_byte_although_the_relay_is_killed_twice(world: World) -> None:
    world.ok("up", "--runners", "1")
    (world.work / "printer.py").write_text(PRINTER)
    task_id = world.submit(f"{sys.executable} printer.py {50 * MIB}", "-b", str(512 * MIB), "-t", "10m")

    for _ in range(2):
        before = world.task(task_id)["attempts"]
        seen = before[0]["outputBytes"] if before else 0
        wait_until(lambda seen=seen: (a := world.task(task_id)["attempts"]) and a[0]["outputBytes"] > seen)  # type: ignore[misc]
        os.kill(world.relay_pid(), signal.SIGKILL)

    ended = world.wait_for(task_id, patience=180)
    assert ended["status"] == "completed"
    expected = (world.work / "expected").read_bytes()
    assert hashlib.sha256(raw(world, task_id)).hexdigest() == hashlib.sha256(expected).hexdigest()
    world.ok("down")
    world.audit()


@pytest.mark.promise("P10")
def test_a_killed_runner_leaves_a_whole_beginning_and_the_next_attempt_a_whole_copy(world: World) -> None:
    world.ok("up", "--runners", "1")
    (world.work / "printer.py").write_text(PRINTER)
    gate = world.work / "go"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    command = f"{sys.executable} printer.py {2 * MIB}; touch printed; {wait}"
    task_id = world.submit(command, "--rerun", "-b", str(64 * MIB))
    wait_until((world.work / "printed").exists)
    runner = next(pid for pid in children_of(world.keeper_pid()) if "delegate.runner" in command_of(pid))

    os.kill(runner, signal.SIGKILL)
    gate.touch()
    ended = world.wait_for(task_id)

    expected = (world.work / "expected").read_bytes()
    assert (ended["status"], ended["attempt"]) == ("completed", 2)
    assert raw(world, task_id) == expected
    first = ended["attempts"][0]
    assert (first["state"], first["truncatedBytes"]) == ("lost", 0)


@pytest.mark.promise("P10")
def test_output_beyond_the_limit_is_cut_visibly_and_exactly(world: World) -> None:
    world.ok("up", "--runners", "1")
    (world.work / "printer.py").write_text(PRINTER)
    task_id = world.submit(f"{sys.executable} printer.py {8 * MIB}", "-b", str(MIB))

    ended = world.wait_for(task_id)

    expected = (world.work / "expected").read_bytes()
    head, tail = expected[: MIB // 8], expected[-(MIB - MIB // 8) :]
    missing = len(expected) - MIB
    assert ended["status"] == "completed"
    assert ended["attempts"][0]["truncatedBytes"] == missing
    assert raw(world, task_id) == head + f"\n[… {missing} bytes left out …]\n".encode() + tail


@pytest.mark.promise("P10")
def test_a_gigabyte_without_a_newline_neither_fails_nor_fills_memory(tmp_path: Path) -> None:
    with living(tmp_path / "home") as world:
        world.ok("up", "--runners", "1")
        task_id = world.submit("head -c 1000000000 /dev/zero; echo end", "-b", str(MIB))
        runner = wait_until(lambda: next((r["pid"] for r in world.processes()), None))
        peak = 0

        def over() -> bool:
            nonlocal peak
            peak = max(peak, memory_of(runner))
            return bool(world.task(task_id)["status"] == "completed")

        wait_until(over, 240)
        attempt = world.task(task_id)["attempts"][0]
        spool = sum(path.stat().st_size for path in (world.home / "runners").rglob("*") if path.is_file())
        assert (attempt["outputBytes"], attempt["truncatedBytes"]) == (1_000_000_004, 1_000_000_004 - MIB)
        assert raw(world, task_id).endswith(b"\0end\n")
        assert peak < 300 * MIB
        assert spool < 4 * MIB


def memory_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0
