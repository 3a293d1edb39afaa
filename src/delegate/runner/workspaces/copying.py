"""Copies a file, sharing its blocks with the original where the file system can."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
from pathlib import Path

FICLONE = 0x40049409  # Linux: share all blocks of another file until one of the two changes
CLONE_UNSUPPORTED = {
    errno.EOPNOTSUPP,
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOTTY,
    errno.ENOSYS,
    errno.EPERM,
    errno.ETXTBSY,
}


def copy_file(source: int, target: int) -> None:
    """Fill the open file `target` with the content of the open file `source`, and give it its mode and time."""
    if not _try_clone(source, target):
        with open(source, "rb", closefd=False) as read, open(target, "wb", closefd=False) as written:
            shutil.copyfileobj(read, written)
    found = os.fstat(source)
    os.fchmod(target, found.st_mode & 0o777)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _try_clone(source: int, target: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno in CLONE_UNSUPPORTED:
            return False
        raise
    return True


def copy_path(source: str, target: str) -> str:
    """The same for paths, as a `copy_function` of `shutil.copytree`; the target must not exist."""
    read = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(read).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", source)
        written = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            copy_file(read, written)
        finally:
            os.close(written)
    finally:
        os.close(read)
    return target


def copy_tree(source: Path, target: Path, *, without: str | None = None) -> None:
    """Copies a directory, a file or a link to a path that must not exist.

    Skips pipes and sockets, and everything named `without`.
    """

    def list_ignored(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if name == without or not _has_content(Path(directory) / name)]

    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=copy_path, ignore=list_ignored)
    else:
        copy_path(str(source), str(target))


def _has_content(path: Path) -> bool:
    mode = path.lstat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
