"""Queries about processes, answered by /proc on Linux."""

import contextlib
import os
import re
import signal
from pathlib import Path

PF_EXITING = 0x4


def has_ended(pid: int) -> bool:
    """Return whether a process will never run again: it is gone, or SIGKILL is pending."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    state, *more = rest.split()
    pending = [int(found, 16) for found in re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)", status, re.MULTILINE)]
    is_killed = any(found >> (signal.SIGKILL - 1) & 1 for found in pending)
    return state in "ZX" or bool(int(more[5]) & PF_EXITING) or is_killed


def is_alive(pid: int | str) -> bool:
    """Return whether a process exists and is not a zombie."""
    return state_of(pid) not in ("", "Z", "X")


def state_of(pid: int | str, thread: int | str | None = None) -> str:
    """Return the state of a process or of one of its threads as one letter: "T" is stopped, "" is gone."""
    folder = f"/proc/{pid}" if thread is None else f"/proc/{pid}/task/{thread}"
    try:
        return Path(f"{folder}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP has stopped a process with all its threads."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return {state_of(pid, thread) for thread in threads} - {""} == {"T"}


def marked(variable: str) -> set[int]:
    """Return the live processes that were started with this variable, `NAME=value`, in their environment."""
    needle, found = variable.encode(), set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0") and is_alive(entry.name):
                found.add(int(entry.name))
    return found


def minds(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has already installed a handler for this signal."""
    [caught] = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) >> (number - 1) & 1)
