"""Real scheduler processes and somebody who kills and freezes them."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LEASE_S = 2.0
STOP_S_MAX = 15.0


def headway(*arguments: str, store: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Call the command line as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "headway", *arguments],
        env=environment(store),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def environment(store: str, **more: str) -> dict[str, str]:
    """Return an environment in which only this store is known."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    return clean | {"HEADWAY_STORE": store, **more}


@dataclass(slots=True)
class Arena:
    """A few schedulers on one store; every fault is drawn from the seed."""

    store: str
    logs: Path
    seed: int
    mode: str = "leader"
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    started: int = 0

    def start(self, **more: str) -> subprocess.Popen[bytes]:
        """Start one more scheduler, with more in its environment."""
        self.started += 1
        log = (self.logs / f"scheduler-{self.started}.log").open("wb")
        env = environment(
            self.store,
            HEADWAY_LEADER_LEASE=f"{LEASE_S}s",
            HEADWAY_COORDINATION_MODE=self.mode,
            HEADWAY_NODE=f"scheduler-{self.started}",
            **more,
        )
        process = subprocess.Popen([sys.executable, "-m", "headway", "scheduler"], env=env, stdout=log, stderr=log)
        log.close()
        self.processes.append(process)
        return process

    def torment(self, seconds: float) -> None:
        """Kill, freeze and stop at random, and always start anew, until the time is up."""
        chance = random.Random(self.seed)
        end = time.monotonic() + seconds
        bag: list[Callable[[random.Random], None]] = []
        while time.monotonic() < end:
            if not bag:  # All kinds come in every round, in another order.
                bag = [self._kill, self._kill, self._freeze, self._freeze, self._terminate]
                chance.shuffle(bag)
            time.sleep(chance.uniform(0.3, 2.0))
            bag.pop()(chance)

    def stop(self) -> None:
        """End every process that was started here."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes:
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_S_MAX)

    def _pick(self, chance: random.Random) -> subprocess.Popen[bytes]:
        return chance.choice([process for process in self.processes if process.poll() is None])

    def _kill(self, chance: random.Random) -> None:
        victim = self._pick(chance)
        victim.kill()
        victim.wait(STOP_S_MAX)
        self._count("killed")
        self.start()

    def _freeze(self, chance: random.Random) -> None:
        victim = self._pick(chance)
        victim.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(LEASE_S * 1.2, LEASE_S * 2.5))
        victim.send_signal(signal.SIGCONT)
        self._count("frozen")

    def _terminate(self, chance: random.Random) -> None:
        victim = self._pick(chance)
        victim.terminate()
        victim.wait(STOP_S_MAX)
        self._count("terminated")
        self.start()

    def _count(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1
