"""Everything an agent can put into a repository so that git runs it; each payload leaves its name in a file."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.runner.publishing.conftest import PLAIN, Site, plain_git

HOOKS = (
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "pre-commit",
    "pre-push",
    "prepare-commit-msg",
    "push-to-checkout",
    "reference-transaction",
    "update",
)
# A key, and the payload it names; `!` makes git give it to a shell.
KEYS = {
    "core.fsmonitor": "fsmonitor",
    "core.sshCommand": "sshCommand",
    "core.askPass": "askPass",
    "core.editor": "editor",
    "core.pager": "pager",
    "core.gitProxy": "gitProxy",
    "core.alternateRefsCommand": "alternateRefsCommand",
    "sequence.editor": "sequenceEditor",
    "filter.evil.clean": "clean",
    "filter.evil.smudge": "smudge",
    "filter.lfs.clean": "lfsClean",
    "filter.lfs.process": "lfsProcess",
    "diff.external": "diffExternal",
    "diff.evil.textconv": "textconv",
    "diff.evil.command": "diffCommand",
    "merge.evil.driver": "mergeDriver",
    "mergetool.evil.cmd": "mergetool",
    "credential.helper": "!credential",
    "gpg.program": "gpg",
    "gpg.ssh.program": "gpgSsh",
    "gpg.ssh.defaultKeyCommand": "gpgSshKey",
    "alias.add": "!aliasAdd",
    "alias.update-index": "!aliasUpdateIndex",
    "alias.snap": "!alias",
    "submodule.nested.update": "!submodule",
    "lfs.customtransfer.evil.path": "lfsTransfer",
    "lfs.extension.evil.clean": "lfsExtension",
    "uploadpack.packObjectsHook": "packObjectsHook",
    "trailer.evil.command": "trailer",
    "interactive.diffFilter": "diffFilter",
    "pager.log": "pagerLog",
    "remote.origin.receivepack": "receivepack",
    "remote.origin.uploadpack": "uploadpack",
    "web.browser": "browser",
}
SETTINGS = {
    "commit.gpgSign": "true",
    "push.gpgSign": "true",
    "submodule.recurse": "true",
    "push.recurseSubmodules": "on-demand",
    "protocol.ext.allow": "always",
    "core.untrackedCache": "true",
    "core.splitIndex": "true",
    "extensions.partialClone": "origin",
    "remote.origin.promisor": "true",
}
ATTRIBUTES = "* filter=evil diff=evil merge=evil\n*.bin filter=lfs diff=lfs\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    directory: Path
    thief: Path  # where a redirected push would end

    @property
    def ran(self) -> set[str]:
        """The payloads that were run so far."""
        canary = self.directory / "canary"
        return set(canary.read_text().split()) if canary.exists() else set()

    def payload(self, name: str, prefix: str = "") -> str:
        path = self.directory / (prefix + name.removeprefix("!"))
        path.write_text(f'#!/bin/sh\necho "${{0##*/}}" >> {self.directory}/canary\nexit 0\n')
        path.chmod(0o755)
        return f"!{path}" if name.startswith("!") else str(path)

    def hooks(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for hook in HOOKS:
            (directory / hook).write_text(f"#!/bin/sh\necho hook:{hook} >> {self.directory}/canary\nexit 0\n")
            (directory / hook).chmod(0o755)


def mix_poison(directory: Path, site: Site) -> Poison:
    directory.mkdir()
    plain_git("init", "-q", "--bare", "--template=", str(directory / "thief.git"), cwd=directory)
    poison = Poison(directory=directory, thief=directory / "thief.git")
    _poison_settings(poison, site.workspace.git_dir / "config", str(site.remote))
    git_dir, tree = site.workspace.git_dir, site.tree
    poison.hooks(git_dir / "hooks")
    poison.hooks(directory / "hooks")
    poison.hooks(tree / "hooks")
    _poison_kept(poison, site)
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info" / "attributes").write_text(ATTRIBUTES)
    (git_dir / "info" / "exclude").write_text("work.txt\n")
    site.write(".gitattributes", ATTRIBUTES)
    site.write("docs/.gitattributes", ATTRIBUTES)
    site.write("picture.bin", "large\n")
    site.write(".claude/settings.json", '{"hooks": {"Stop": [{"command": "touch /tmp/never"}]}}\n')
    site.write(".lfsconfig", f"[lfs]\n\turl = {poison.thief}\n")
    return poison


def _poison_kept(poison: Poison, site: Site) -> None:
    """Our own repository lies beside the agent's: files in it that lead git to settings elsewhere."""
    common = poison.directory / "common.git"
    plain_git("init", "-q", "--bare", "--template=", str(common), cwd=poison.directory)
    _poison_settings(poison, common / "config", str(site.remote), "common-")
    poison.hooks(common / "hooks")
    kept = site.workspace.kept_repository
    poison.hooks(kept / "hooks")
    (kept / "commondir").write_text(f"{common}\n")
    (kept / "config.worktree").write_bytes((common / "config").read_bytes())
    (kept / "info").mkdir(exist_ok=True)
    (kept / "info" / "attributes").write_text(ATTRIBUTES)


def poison_home(poison: Poison, url: str, *directories: Path) -> None:
    """Settings, hooks, attributes and pointers in every place from which a repository or a settings file is read."""
    common = poison.directory / "common.git"
    for directory in directories:
        settings = {directory / "config", *directory.glob("*config*")}
        for file in settings:
            _poison_settings(poison, file, url, "home-")
            with file.open("a") as opened:
                opened.write(f'[url "ext::{poison.payload("ext")} "]\n\tinsteadOf = {url}\n')
        poison.hooks(directory / "hooks")
        (directory / "commondir").write_text(f"{common}\n")
        (directory / "info").mkdir(exist_ok=True)
        (directory / "info" / "attributes").write_text(ATTRIBUTES)
        (directory / "objects" / "info").mkdir(parents=True, exist_ok=True)
        alternates = directory / "objects" / "info" / "alternates"
        alternates.unlink(missing_ok=True)
        os.mkfifo(alternates)  # git would wait for a writer


def _poison_settings(poison: Poison, config: Path, url: str, prefix: str = "") -> None:
    included = poison.directory / f"{prefix}included.gitconfig"
    included.write_text(_written("core.fsmonitor", poison.payload(f"{prefix}included")))
    settings = {
        **SETTINGS,
        **{key: poison.payload(name, prefix) for key, name in KEYS.items()},
        "core.hooksPath": str(poison.directory / "hooks"),
        "core.attributesFile": str(poison.directory / "attributes"),
        "core.excludesFile": str(poison.directory / "excludes"),
        "remote.origin.pushurl": str(poison.thief),
        f"url.{poison.thief}.insteadOf": url,
        f"url.{poison.thief}.pushInsteadOf": url,
    }
    (poison.directory / "attributes").write_text(ATTRIBUTES)
    (poison.directory / "excludes").write_text("work.txt\n")
    settings["include.path"] = str(included)
    with config.open("a") as file:
        file.writelines(_written(key, value) for key, value in settings.items())


def _written(key: str, value: str) -> str:
    section, _, rest = key.partition(".")
    middle, _, name = rest.rpartition(".")
    return f'[{section} "{middle}"]\n\t{name} = "{value}"\n' if middle else f'[{section}]\n\t{name} = "{value}"\n'


def nest(site: Site, poison: Poison, path: str) -> None:
    """A repository inside the tree, with settings of its own."""
    site.write(f"{path}/code.py", "inner\n")
    inner = site.tree / path
    plain_git("init", "-q", "--template=", cwd=inner)
    plain_git("add", ".", cwd=inner)
    plain_git("commit", "-qm", "inner", cwd=inner)
    _poison_settings(poison, inner / ".git" / "config", "nowhere", "nested-")
    poison.hooks(inner / ".git" / "hooks")


def run_plainly(site: Site, *commands: str) -> None:
    """What an unwary program would do in that tree; whether it succeeds does not matter."""
    environment = {**PLAIN, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "HOME": os.devnull}
    for command in commands:
        subprocess.run(["sh", "-c", command], cwd=site.tree, env=environment, capture_output=True, timeout=30)
