"""A client that enqueues all the time, through the store and the APIs of the nodes, and prints the acknowledgements.

    python -m tests.chaos.torture_client REST_S URL…

It has a few threads, so that one that waits for a response does not block the others. Every call has a key. A call that
fails is repeated over another route with the same key until one is acknowledged; then its key and the job's id are
printed. So each key is one job, whatever was lost on the way. Any other error ends the process.
"""

import itertools
import os
import sys
import threading
import time
import traceback
from typing import Any, Final

from headway import Headway, StoreError
from headway.client import Client
from tests.chaos.limits import options_of
from tests.chaos.witness import ATTEMPTS_MAX, HARMS

TRY_S_MAX: Final = "4s"
THREADS: Final = 3
OPTIONS: Final[dict[str, Any]] = {"max_attempts": ATTEMPTS_MAX}


def wanted(number: int) -> tuple[str, dict[str, Any]]:
    """Return the task and the arguments of a number."""
    if number % 20 == 19:
        return "labour", {"seconds": 4.0}  # Longer than the leases of the workers.
    if number % 11 == 10:
        return "harm", {"what": HARMS[number // 11 % len(HARMS)]}
    if number % 23 == 22:
        return "harm_loop", {"what": ("cancel", "stop")[number // 23 % 2]}
    return (
        ("breathe", {}),
        ("labour", {"seconds": 0.1}),
        ("errand", {}),
        ("breathe", {"seconds": 0.5}),
        ("stumble", {}),
    )[number % 5]


def enqueue_for_ever(thread: int, rest_s: float, urls: list[str]) -> None:
    """Enqueue one job after the other, each over as many routes as necessary."""
    app = Headway(name="client")
    clients = [Client(url, timeout=TRY_S_MAX, retry_for="0s") for url in urls]
    ways = itertools.cycle([None, *clients])
    for number in itertools.count():
        task, args = wanted(number)
        key = f"{thread}:{number}"
        options = {**OPTIONS, **({} if task.startswith("harm") else options_of(number))}
        while True:
            way = next(ways)
            try:
                if way is None:
                    job_id = app.enqueue_sync(task, args, key=key, **options).id
                else:
                    job_id = way.enqueue(task, args, key=key, **options)["id"]
                break
            except StoreError:
                time.sleep(0.05)
        os.write(sys.stdout.fileno(), f"{key} {job_id}\n".encode())
        time.sleep(rest_s)


def main(rest_s: float, urls: list[str]) -> None:
    """Enqueue until this process is ended, or something is wrong."""

    def run(thread: int) -> None:
        try:
            enqueue_for_ever(thread, rest_s, urls)
        except BaseException:  # noqa: BLE001 - whatever it is, it is told, and ends the process
            traceback.print_exc()
            os._exit(1)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
