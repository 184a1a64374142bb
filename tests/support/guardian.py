"""Run one server, and end it when the process that requested it ends, in any way.

    python guardian.py '{"command": [...], "user": 101, "group": 104, "log": "...", "folder": "..."}'

The tests hold the other end of standard input. Each line on it is a signal number to pass on to the server, or `crash`
to kill the server with all its children. The end of input means that the tests have ended: the server is stopped and
its folder removed. So an interrupted, killed or crashed test run leaves nothing behind. The first line on standard
output is the server's process id.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

STOP_SECONDS = 60
PR_SET_PDEATHSIG = 1


def main() -> int:
    """Start the server, serve the requests on standard input, and return the server's exit status."""
    plan = json.loads(sys.argv[1])
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with open(plan["log"], "ab") as log:
        server = subprocess.Popen(
            plan["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=plan["folder"],
            user=plan["user"],
            group=plan["group"],
            extra_groups=None if plan["user"] is None else [],
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    print(server.pid, flush=True)
    while server.poll() is None:
        ready, _, _ = select.select([sys.stdin.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 64)
        elif requests := os.read(sys.stdin.fileno(), 4096):
            for request in requests.decode().split():
                _obey(server, request)
        else:
            _end(server)
            shutil.rmtree(plan["folder"], ignore_errors=True)
    return server.returncode


def _die_with_parent() -> None:
    """Let the kernel end the server if the guardian itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def _obey(server: subprocess.Popen[bytes], request: str) -> None:
    if request == "crash":
        _crash(server)
    else:
        server.send_signal(int(request))


def _end(server: subprocess.Popen[bytes]) -> None:
    """Stop the server, and kill it if that takes too long."""
    server.send_signal(signal.SIGQUIT)
    try:
        server.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        _crash(server)
        server.wait()


def _crash(server: subprocess.Popen[bytes]) -> None:
    """Kill the server and its children, as a power cut would, without any cleanup."""
    server.send_signal(signal.SIGSTOP)  # It must not start another child meanwhile.
    for pid in _children(server.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.kill()


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may contain anything; state and parent follow it.
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(status.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
