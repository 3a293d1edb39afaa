"""Brings the programs that tests and benchmarks run for real into .tools/, and writes down what cannot be had.

Nothing here fails a run on a laptop: a missing program is listed in .tools/missing.txt, the tests that need it skip.
With CI=true every one of them must be there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
MISSING = TOOLS / "missing.txt"
LOG = TOOLS / "install.log"
DEBIAN_PACKAGES = {  # the program, and the package it comes in
    "strace": "strace",
    "gh": "gh",
    "systemd-analyze": "systemd",
    "ip": "iproute2",
}
# The programs out of npm packages: the native one where there is one, since a Node launcher that is killed leaves the
# real program running. `codex` is the launcher all the same: people have that one, and the way leads from it.
NODE_PROGRAMS = {
    "claude": "@anthropic-ai/claude-code-{platform}*/claude",
    "codex": "@openai/codex/bin/codex.js",
    "codex-native": "@openai/codex-{platform}/vendor/*/bin/codex",
    "claude-agent-acp": "@agentclientprotocol/claude-agent-acp/dist/index.js",
    "opencode": "opencode-{platform}/bin/opencode",
}
# Seconds; a registry that does not answer must not hold up the tests for long. The peer compiles a C++ module.
NPM_TIMEOUT, APT_TIMEOUT, PEER_TIMEOUT = 300, 180, 900


class NotToBeHad(Exception):
    """Why a program is missing, in a few words for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFolder:
    """A folder of npm packages that tools/NAME locks and .tools/NAME holds."""

    name: str
    timeout: int
    runs_scripts: bool

    @property
    def place(self) -> Path:
        return TOOLS / self.name

    def install(self) -> None:
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise NotToBeHad("needs node and npm")
        source = ROOT / "tools" / self.name
        wanted = hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()
        stamp = self.place / "installed"
        if stamp.exists() and stamp.read_text() == wanted:
            return
        say(f"installing {self.name} programs from npm")
        self.place.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        for file in ("package.json", "package-lock.json"):
            shutil.copy(source / file, self.place / file)
        scripts = "--foreground-scripts" if self.runs_scripts else "--ignore-scripts"
        command = ["npm", "ci", scripts, "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
        run(command, cwd=self.place, timeout=self.timeout, extra=native_build())
        stamp.write_text(wanted)


NODE = NodeFolder(name="node", timeout=NPM_TIMEOUT, runs_scripts=False)
PEER = NodeFolder(name="peer", timeout=PEER_TIMEOUT, runs_scripts=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="store_true", help="bring the program that bench/ compares with instead")
    TOOLS.mkdir(exist_ok=True)
    LOG.unlink(missing_ok=True)
    if parser.parse_args().peer:
        return bring_peer()
    missing = bring_all()
    MISSING.write_text("".join(f"{line}\n" for line in missing))
    for line in missing:
        say(f"not to be had: {line}")
    return 1 if missing and os.environ.get("CI") == "true" else 0


def bring_peer() -> int:
    """The table says so when there is no peer; that is no failure."""
    try:
        PEER.install()
    except NotToBeHad as why:
        say(f"no peer to compare with: {why}")
    return 0


def bring_all() -> list[str]:
    missing = bring_node_programs()
    lacking = [program for program in DEBIAN_PACKAGES if shutil.which(program) is None]
    if lacking:
        try:
            bring_packages([DEBIAN_PACKAGES[program] for program in lacking])
        except NotToBeHad as why:
            missing += [f"{program}: {why}" for program in lacking if shutil.which(program) is None]
    return missing


def bring_node_programs() -> list[str]:
    try:
        NODE.install()
    except NotToBeHad as why:
        return [f"{name}: {why}" for name in NODE_PROGRAMS]
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower(), platform.machine())
    missing = []
    for name, pattern in NODE_PROGRAMS.items():
        found = sorted((NODE.place / "node_modules").glob(pattern.format(platform=f"{sys.platform}-{machine}")))
        if found:
            link(name, found[0])
        else:
            missing.append(f"{name}: there is no package for {sys.platform} on {machine}")
    return missing


def link(name: str, program: Path) -> None:
    place = TOOLS / "bin" / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(program)


def bring_packages(packages: Sequence[str]) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotToBeHad("installed by `make test` only as root, with apt-get")
    say(f"installing Debian packages: {' '.join(packages)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], timeout=APT_TIMEOUT, extra=quiet)
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], timeout=APT_TIMEOUT, extra=quiet)


def native_build() -> dict[str, str]:
    """Where node's headers and a compiler are at hand, compile at once instead of asking the network for a binary."""
    node, compiler = shutil.which("node"), shutil.which("c++")
    prefix = Path(node).resolve().parent.parent if node else None
    if compiler and prefix is not None and (prefix / "include" / "node" / "node.h").exists():
        return {"npm_config_nodedir": str(prefix), "npm_config_build_from_source": "true"}
    return {}


def run(command: Sequence[str], *, timeout: int, cwd: Path = ROOT, extra: Mapping[str, str]) -> None:
    """Run a program that may start others; when its time is over all of them end."""
    name = " ".join(command[:2])
    with LOG.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **extra},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise NotToBeHad(f"`{name}` took more than {timeout} s, see {LOG}") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        raise NotToBeHad(f"`{name}` failed with exit code {code}, see {LOG}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
