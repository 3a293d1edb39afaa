"""The wheel that a relay serves is what it runs itself, byte for byte."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import httpx2
import pytest
from tests.fakes.world import lean_path
from tests.relay.peers import RelayProcess, client, problem_of

import delegate
from delegate import __version__
from delegate.relay import wheel
from delegate.relay.wheel import pack, served_wheel

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools" / "uv" / "bin" / "uv"


def test_it_has_exactly_the_files_that_the_relay_runs() -> None:
    with zipfile.ZipFile(io.BytesIO(served_wheel().data)) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
        rows = list(csv.reader(io.StringIO(packed[f"delegate-{__version__}.dist-info/RECORD"].decode())))

    package = Path(delegate.__file__).parent
    sources = {f"delegate/{path.relative_to(package)}" for path in package.rglob("*.py")}
    assert sources <= set(packed)
    assert packed["delegate/relay/wheel.py"] == (package / "relay" / "wheel.py").read_bytes()
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in packed)
    assert [row[0] for row in rows] == list(packed)
    for name, digest, size in rows[:-1]:
        expected = urlsafe_b64encode(hashlib.sha256(packed[name]).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={expected}", str(len(packed[name])))


def test_the_same_files_make_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"delegate/b.py": b"2", "delegate/a.py": b"1", "delegate-1.dist-info/WHEEL": b"3"}

    assert pack(files) == pack(dict(reversed(files.items())))
    assert wheel.served_wheel.__wrapped__() == served_wheel()


async def test_it_is_served_without_a_token(relay: RelayProcess) -> None:
    mine = served_wheel()
    async with httpx2.AsyncClient(base_url=relay.url, trust_env=False) as nobody:
        answer = await nobody.get(mine.path)
        other = await nobody.get("/dist/delegate-9.9.9-py3-none-any.whl")

    assert (answer.status_code, hashlib.sha256(answer.content).hexdigest()) == (200, mine.sha256)
    assert mine.name == f"delegate-{__version__}-py3-none-any.whl"
    problem_of(other, 404, "no_such_route")


@pytest.mark.parametrize("name", ["..%2f..%2ftoken", "%00", "delegate.db", ".."])
async def test_no_other_file_is_served(relay: RelayProcess, name: str) -> None:
    async with client(relay.url) as owner:
        assert (await owner.get(f"/dist/{name}")).status_code == 404


def uv(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": lean_path(), "UV_CACHE_DIR": str(home / "cache"), "NO_PROXY": "127.0.0.1"}
    return subprocess.run([str(UV), *words], text=True, capture_output=True, timeout=300, env=environ)


@pytest.mark.slow
@pytest.mark.real
def test_a_bare_machine_installs_it_and_serves_the_same(relay: RelayProcess, tmp_path: Path) -> None:
    mine = served_wheel()
    place = tmp_path / "environment"
    python = place / "bin" / "python"
    assert uv("venv", "--python", sys.executable, str(place), home=tmp_path).returncode == 0
    install = ("pip", "install", "--python", str(python))

    forged = uv(*install, "--no-deps", f"{relay.url}{mine.path}#sha256={'0' * 64}", home=tmp_path)
    done = uv(*install, f"delegate @ {relay.url}{mine.path}#sha256={mine.sha256}", home=tmp_path)
    version = subprocess.run([place / "bin" / "delegate", "--version"], text=True, capture_output=True, check=True)
    script = "from delegate.relay.wheel import served_wheel; print(served_wheel().sha256)"
    again = subprocess.run([python, "-c", script], text=True, capture_output=True, check=True, cwd=tmp_path)

    assert forged.returncode != 0
    assert "hash mismatch" in forged.stderr.lower()
    assert done.returncode == 0, done.stderr
    assert __version__ in version.stdout
    assert again.stdout.strip() == mine.sha256
