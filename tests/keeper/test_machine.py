from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.world import wait_until

from delegate.keeper.machine import MachineState, available_memory, cpu_times, measure_descendants
from delegate.runner.process.cgroups import Groups

MIB = 1024 * 1024
TICK = os.sysconf("SC_CLK_TCK")
ELSEWHERE = 7  # times as much as on our own CPU


def write_proc(proc: Path, *, busy: int, idle: int, available_kib: int = 1024) -> None:
    """All that is counted is on one of our CPUs, and another, that we may not use, is busy."""
    first, *others = sorted(os.sched_getaffinity(0))
    lines = [f"cpu{first} {busy} 0 0 {idle} 0 0 0 0 7 7", *(f"cpu{other} 0 0 0 0 0 0 0 0 0 0" for other in others)]
    elsewhere = f"cpu{max(first, *others, 1) + 1} {ELSEWHERE * (busy + idle)} 0 0 0 0 0 0 0 0 0"
    total = f"cpu  {ELSEWHERE * (busy + idle) + busy} 0 0 {idle} 0 0 0 0 7 7"
    (proc / "stat").write_text("\n".join([total, *lines, elsewhere, "intr 1 2 3", "ctxt 5"]))
    (proc / "meminfo").write_text(f"MemTotal: 9 kB\nMemFree: 5 kB\nMemAvailable: {available_kib} kB\n")


def test_the_share_in_use_is_a_mean_over_the_last_seconds(tmp_path: Path) -> None:
    machine = MachineState(lambda: 0.0, tmp_path, Groups())
    write_proc(tmp_path, busy=0, idle=0)
    machine.sample(0.0)
    write_proc(tmp_path, busy=100, idle=300)
    first = machine.sample(2.0).cpu
    write_proc(tmp_path, busy=400, idle=400)
    second = machine.sample(4.0).cpu
    write_proc(tmp_path, busy=500, idle=700)
    third = machine.sample(6.0).cpu

    assert (first, second, third) == (0.25, 0.5, 400 / 800)


def test_what_our_own_processes_need_to_start_does_not_count(tmp_path: Path) -> None:
    spent = [0.0, 1.5]
    machine = MachineState(lambda: spent.pop(0), tmp_path, Groups())
    write_proc(tmp_path, busy=0, idle=0)
    machine.sample(0.0)
    write_proc(tmp_path, busy=2 * TICK, idle=2 * TICK)

    assert machine.sample(2.0).cpu == 0.125


def test_a_container_may_have_less_than_the_machine(tmp_path: Path) -> None:
    write_proc(tmp_path, busy=0, idle=0, available_kib=4 * 1024)
    group = tmp_path / "group"
    group.mkdir()
    files = {
        "memory.max": f"{3 * MIB}",
        "memory.current": f"{MIB}",
        "cpu.max": "50000 100000",
        "cpu.stat": "usage_usec 0",
    }
    for name, text in files.items():
        (group / name).write_text(text)
    machine = MachineState(lambda: 0.0, tmp_path, Groups(unified=(group,)))
    before = machine.sample(0.0)
    (group / "cpu.stat").write_text("usage_usec 400000\n")

    assert (before.cores, before.available) == (0.5, 2 * MIB)
    assert machine.sample(1.0).cpu == 0.8


def test_this_machine_can_be_looked_at() -> None:
    times = cpu_times()

    assert 0 < times.busy < times.total
    assert available_memory() > MIB
    assert MachineState(lambda: 0.0).sample(0.0).cores >= 0.1


def test_what_a_family_uses_is_counted_with_all_its_children() -> None:
    eat = "import time; held = bytearray(b'x') * (64 * 2**20); print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {eat!r}])"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        try:
            used = wait_until(lambda: measure_descendants(program.pid))
            (child,) = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        finally:
            program.kill()
        os.kill(int(child), 9)

    assert 64 * MIB <= used.memory < 128 * MIB
    assert measure_descendants(program.pid) is not None
