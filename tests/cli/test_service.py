"""The units that start a paired runner with its machine, read by the programs that will read them."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from delegate.cli.service import launchd_plist, read_environment, service_command, systemd_unit, unit_path

ODD = {"PATH": '/opt/my tools:/home/"me"/bin:/usr/bin', "DELEGATE_HOME": "/home/me/100%/.delegate", "LANG": "C\\UTF"}
DOCS = Path(__file__).parents[2] / "docs" / "team.md"


def verify(path: Path, *options: str) -> str:
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(path.parent)}
    assert shutil.which("systemd-analyze"), "scripts/tools.py brings it"
    done = subprocess.run(
        ["systemd-analyze", "verify", *options, str(path)], capture_output=True, text=True, timeout=60, env=environ
    )
    return f"{done.returncode}{done.stdout}{done.stderr}"


@pytest.mark.real
def test_systemd_accepts_the_unit_without_a_word(tmp_path: Path) -> None:
    unit = tmp_path / "delegate-runner-default.service"
    unit.write_text(systemd_unit("default", service_command("default"), ODD))

    assert verify(unit, "--user", "--man=no") == "0"


@pytest.mark.real
def test_systemd_accepts_the_units_in_the_documentation(tmp_path: Path) -> None:
    units = re.findall(r"^```\n(\[Unit\]\n.*?)^```", DOCS.read_text(), re.M | re.S)
    assert units
    for number, text in enumerate(units):
        unit = tmp_path / f"relay{number}.service"
        # The program and the user of the example are not on this machine.
        unit.write_text(text.replace("/usr/local/bin/delegate", sys.executable).replace("User=delegate", "User=root"))

        assert verify(unit, "--man=no") == "0"


def test_launchd_gets_the_same_command_and_environment(tmp_path: Path) -> None:
    found = plistlib.loads(launchd_plist("default", service_command("default"), ODD, tmp_path / "log"))

    assert found["ProgramArguments"] == service_command("default")
    assert found["EnvironmentVariables"] == ODD
    assert found["RunAtLoad"] is True
    assert found["Label"] == "dev.delegate.runner.default"


def test_the_environment_of_an_installed_unit_can_be_read_back(tmp_path: Path) -> None:
    where = {"HOME": str(tmp_path)}
    path = unit_path(where, "default")
    path.parent.mkdir(parents=True)
    path.write_text(systemd_unit("default", service_command("default"), ODD))

    assert read_environment(where, "default") == ODD
    assert read_environment(where, "other") is None
