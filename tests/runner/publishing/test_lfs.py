"""Files in Git LFS: the objects go to the remote's own address before the pointers do.

git-lfs itself is a stand-in: a script that does what `git lfs push --object-id` does, with what git tells it.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.runner.publishing.conftest import KNOWN, Site, publication

from delegate.runner.git.program import read_git
from delegate.runner.publishing.lfs import upload_lfs_objects
from delegate.runner.publishing.push import PushRejected
from delegate.runner.workspaces.repositories import Repository

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P21")]
PROGRAM = """\
#!{python}
import json, pathlib, subprocess, sys, urllib.request
assert sys.argv[1:3] == ["push", "--object-id"], sys.argv
url, oids = sys.argv[3], sys.argv[4:]
def ask(*words):
    return subprocess.run(["git", *words], capture_output=True, text=True).stdout.strip()
def config(name):
    return ask("config", name)
directory = pathlib.Path(ask("rev-parse", "--git-dir"))
endpoint = config("lfs.url") or url + "/info/lfs"
for name in ("evil", "lfs-standalone-file"):
    program = config(f"lfs.customtransfer.{{name}}.path")
    if program and config("lfs.basictransfersonly") != "true":
        subprocess.run([program])
for oid in oids:
    path = directory / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
    if not path.exists():
        sys.exit(f"missing object: {{oid}}")
    urllib.request.urlopen(urllib.request.Request(f"{{endpoint}}/{{oid}}", data=path.read_bytes(), method="PUT"))
"""


@dataclass
class LfsServer:
    """Keeps what is put to it, by its whole path."""

    stored: dict[str, bytes] = field(default_factory=dict)
    url: str = ""


@pytest.fixture
def server() -> Iterator[LfsServer]:
    made = LfsServer()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            made.stored[self.path] = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{httpd.server_port}"
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield made
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
async def lfs_site(site: Site, server: LfsServer, tmp_path: Path) -> Site:
    program = tmp_path / "bin" / "git-lfs"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    path = f"{program.parent}:/usr/bin:/bin"
    git = await read_git({"PATH": path, "HOME": str(tmp_path / "user"), "no_proxy": "*"}, tmp_path / "with-lfs")
    remote = Repository(key="remote", url=f"{server.url}/acme/shop.git", name="acme/shop")
    return replace(site, git=git, workspace=replace(site.workspace, repository=remote))


def commit_to_lfs(site: Site, name: str, content: bytes) -> tuple[str, str]:
    """The object and the commit, as git-lfs leaves them."""
    oid = hashlib.sha256(content).hexdigest()
    store = site.workspace.git_dir / "lfs" / "objects" / oid[:2] / oid[2:4]
    store.mkdir(parents=True, exist_ok=True)
    (store / oid).write_bytes(content)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"
    return oid, site.agent_commits(name, pointer)


async def test_the_objects_of_all_outgoing_commits_are_uploaded(lfs_site: Site, server: LfsServer) -> None:
    first, _ = commit_to_lfs(lfs_site, "film.bin", b"the first cut")
    second, commit = commit_to_lfs(lfs_site, "film.bin", b"the second cut")
    await lfs_site.take()

    await upload_lfs_objects(lfs_site.git, lfs_site.workspace, commit)

    below = "/acme/shop.git/info/lfs"
    assert server.stored == {f"{below}/{first}": b"the first cut", f"{below}/{second}": b"the second cut"}


async def test_neither_the_tree_nor_the_agents_settings_redirect_the_upload(
    lfs_site: Site, server: LfsServer, tmp_path: Path
) -> None:
    lfs_site.agent_commits(".lfsconfig", f"[lfs]\n\turl = {server.url}/thief\n")
    lfs_site.agent("config", "lfs.url", f"{server.url}/thief")
    lfs_site.agent("config", "lfs.customtransfer.evil.path", f"touch {tmp_path / 'ran'}")
    lfs_site.agent("config", "lfs.standalonetransferagent", "evil")
    oid, commit = commit_to_lfs(lfs_site, "film.bin", b"a film")
    await lfs_site.take()

    await upload_lfs_objects(lfs_site.git, lfs_site.workspace, commit)

    assert list(server.stored) == [f"/acme/shop.git/info/lfs/{oid}"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["gone", "forged", "link"])
async def test_a_pointer_whose_object_is_not_there_is_refused(
    lfs_site: Site, server: LfsServer, tmp_path: Path, kind: str
) -> None:
    oid, commit = commit_to_lfs(lfs_site, "film.bin", b"a film")
    path = lfs_site.workspace.git_dir / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
    path.unlink()
    if kind == "forged":
        path.write_bytes(b"a fake")
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(b"a film")
        path.symlink_to(tmp_path / "elsewhere")
    await lfs_site.take()

    with pytest.raises(PushRejected, match=r"film\.bin, stored in Git LFS, could not be uploaded: missing object"):
        await upload_lfs_objects(lfs_site.git, lfs_site.workspace, commit)

    assert server.stored == {}


async def test_a_secret_in_an_object_is_found_before_it_is_uploaded(site: Site) -> None:
    commit_to_lfs(site, "film.bin", f"token = {KNOWN}".encode())

    draft = await publication(site).draft()

    assert draft is not None
    assert draft.verdict.denied == ("film.bin, in Git LFS, contains what looks like a secret",)
