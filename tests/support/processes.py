"""Questions about processes, which Linux answers in /proc."""

import re
import signal
from pathlib import Path

PF_EXITING = 0x4


def has_ended(pid: int) -> bool:
    """Say whether nothing of a process will ever run again: it is gone, or SIGKILL is on its way to it."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    state, *more = rest.split()
    pending = [int(found, 16) for found in re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)", status, re.MULTILINE)]
    is_killed = any(found >> (signal.SIGKILL - 1) & 1 for found in pending)
    return state in "ZX" or bool(int(more[5]) & PF_EXITING) or is_killed


def minds(pid: int, number: signal.Signals) -> bool:
    """Say whether a process has come so far that it answers this signal itself."""
    [caught] = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) >> (number - 1) & 1)
