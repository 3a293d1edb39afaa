"""Packs a wheel from the relay's own installed files, so that a machine can be paired with exactly this version."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import delegate
from delegate import __version__

PACKAGE = "delegate"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip file can have
FILE_MODE = 0o100644 << 16
METADATA_FILES = ("METADATA", "entry_points.txt")
WHEEL = "Wheel-Version: 1.0\nGenerator: delegate\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWheel:
    name: str
    sha256: str  # hexadecimal
    data: bytes

    @property
    def path(self) -> str:
        return f"/dist/{self.name}"


@cache  # an upgrade of the installed files must not change what a running relay serves
def served_wheel() -> ServedWheel:
    data = pack({**package_files(Path(delegate.__file__).parent), **metadata_files()})
    return ServedWheel(
        name=f"{PACKAGE}-{__version__}-py3-none-any.whl", sha256=hashlib.sha256(data).hexdigest(), data=data
    )


def package_files(package: Path) -> dict[str, bytes]:
    """Return the files of the package by their path in the wheel, without what Python or an editor left there."""
    return {f"{PACKAGE}/{path.relative_to(package).as_posix()}": path.read_bytes() for path in _walk(package)}


def _walk(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__" or path.suffix == ".pyc":
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path


def metadata_files() -> dict[str, bytes]:
    """Return the files of the dist-info directory. Those of the installation describe where it came from."""
    installed, root = distribution(PACKAGE), f"{PACKAGE}-{__version__}.dist-info"
    texts = {name: installed.read_text(name) or "" for name in METADATA_FILES}
    texts["METADATA"] = re.sub(r"^Version: .*$", f"Version: {__version__}", texts["METADATA"], count=1, flags=re.M)
    found = {f"{root}/{name}": text.encode() for name, text in {**texts, "WHEEL": WHEEL}.items()}
    for file in installed.files or ():
        inner = file.as_posix().partition(".dist-info/licenses/")[2]
        if inner:
            found[f"{root}/licenses/{inner}"] = Path(str(file.locate())).read_bytes()
    return found


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return the same bytes for the same files on every machine: sorted, without times, not compressed."""
    record_name = next(name for name in files if name.endswith("/WHEEL")).replace("/WHEEL", "/RECORD")
    lines = [f"{name},sha256={_digest(files[name])},{len(files[name])}" for name in sorted(files)]
    record = "\n".join([*lines, f"{record_name},,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in [*sorted(files.items()), (record_name, record)]:
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr, entry.create_system = FILE_MODE, 3
            archive.writestr(entry, data)
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
