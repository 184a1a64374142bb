"""Who may read and write the files of a SQLite store: arguments, results and logs of jobs are in them.

SQLite gives `-wal`, `-shm` and `-journal` the permissions of the database file, so that one decides for all of them.
Files that exist already keep their permissions: somebody may have shared them on purpose. They are only warned about.
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
    """Create an empty database file that only its owner may read and write, whatever the umask is.

    One that exists is left alone, and what keeps it from being created is said by SQLite when it opens the file.
    """
    if path == ":memory:":
        return
    with suppress(OSError):
        number = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, PRIVATE)
        try:
            os.fchmod(number, PRIVATE)  # A strict umask may have taken too much away.
        finally:
            os.close(number)


def exposures(path: str) -> Iterator[str]:
    """Yield a sentence for each file, and the folder, that other users of the machine can reach; it names the cure."""
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
    """Return what anybody but the owner may do, as the bits for others; a group of the owner alone does not count."""
    others = found.st_mode & stat.S_IRWXO
    return others if _is_private_group(found.st_uid, found.st_gid) else others | (found.st_mode & stat.S_IRWXG) >> 3


def _is_private_group(uid: int, gid: int) -> bool:
    """Say whether a group has the owner as its only member, as the first group of people on many systems has."""
    try:
        owner, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return owner.pw_gid == gid and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}
