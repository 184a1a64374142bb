"""Permissions of the files of a SQLite store, which contain arguments, results and logs of jobs.

SQLite gives `-wal`, `-shm` and `-journal` the permissions of the database file, so its mode decides for all of them.
Existing files keep their permissions, which may be intended. `exposures` only warns about them.
"""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
SIBLINGS: Final = ("", "-wal", "-shm", "-journal")


def create_private(path: str) -> None:
    """Create an empty database file with mode 600, whatever the umask is.

    An existing file is left alone. SQLite reports why a file cannot be created when it opens it.
    """
    if path == ":memory:":
        return
    with suppress(OSError):
        number = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, PRIVATE)
        try:
            os.fchmod(number, PRIVATE)  # A strict umask may have cleared too many bits.
        finally:
            os.close(number)


def exposures(path: str) -> Iterator[str]:
    """Yield a warning, with its cure, for files and a folder that other users of the machine can access."""
    if path == ":memory:":
        return
    folder = Path(path).absolute().parent
    exposed = [name for suffix in SIBLINGS if _is_exposed(Path(name := path + suffix))]
    if exposed:
        names = ", ".join(exposed)
        yield f"other users of this machine can read or write {names}; run `chmod 600 {' '.join(exposed)}`"
    with suppress(OSError):
        if _others(folder.stat()) & stat.S_IWOTH:
            yield (
                f"other users of this machine can write into the folder {folder} and replace the store; run"
                f" `chmod go-w {folder}`, or keep the store in a folder of its own"
            )


def _is_exposed(file: Path) -> bool:
    try:
        return bool(_others(file.stat()) & (stat.S_IROTH | stat.S_IWOTH))
    except OSError:
        return False


def _others(found: os.stat_result) -> int:
    """Return the permission bits of everyone but the owner; a private group of the owner does not count."""
    others = found.st_mode & stat.S_IRWXO
    return others if _is_private_group(found.st_uid, found.st_gid) else others | (found.st_mode & stat.S_IRWXG) >> 3


def _is_private_group(uid: int, gid: int) -> bool:
    """Return whether the owner is the only member of the group, as in user private groups."""
    try:
        owner, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return owner.pw_gid == gid and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}
