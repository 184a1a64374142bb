"""Loaded by every Python under libfaketime (it is in PYTHONPATH): there time.sleep fails with EINVAL, always.

Debian's libfaketime does not get along with a sleep until a monotonic time, which is what Python asks for since 3.11.
Code that sleeps, such as ZooKeeper's client, would fail for a reason that no real clock causes.
"""

import threading
import time
from typing import SupportsIndex


def _sleep(seconds: float | SupportsIndex, /) -> None:
    threading.Event().wait(float(seconds))


time.sleep = _sleep
