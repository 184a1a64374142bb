"""Real scheduler processes, and faults that kill and freeze them."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.store import Store, open_driver
from headway.store.migrations import migrate as apply_migrations
from tests.support import evidence
from tests.support.waiting import DEADLINE_S

LEASE_S = 2.0
FREEZE_S = (LEASE_S * 1.2, LEASE_S * 2.5)
REST_S = (0.2, 1.2)
STOP_S_MAX = DEADLINE_S

T = TypeVar("T")


def headway(*arguments: str, store: str, timeout: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "headway", *arguments],
        env=environment(store),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def environment(store: str, **more: str) -> dict[str, str]:
    """Return an environment that names only this store."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    return clean | {"HEADWAY_STORE": store, **more}


def migrate(store: str) -> None:
    """Migrate a store to the current schema in this process: a separate command would take ten times as long."""

    async def apply() -> None:
        driver = open_driver(store, node="tests")
        try:
            await apply_migrations(driver)
        finally:
            await driver.close()

    patiently(apply)


def with_store(store: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run a coroutine function with a store in this process, in a thread without an event loop."""

    async def do() -> T:
        opened = await Store.open(store, Clock())
        try:
            return await work(opened)
        finally:
            await opened.close()

    return patiently(do)


def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Run something repeatable, and retry while a slow machine keeps the store from answering in time."""

    async def do() -> T:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return await work()
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)

    return asyncio.run(do())


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
        """Start another scheduler, with extra environment variables."""
        self.started += 1
        log = self._log(self.started)
        env = environment(
            self.store,
            HEADWAY_LEADER_LEASE=f"{LEASE_S}s",
            HEADWAY_COORDINATION_MODE=self.mode,
            HEADWAY_NODE=f"scheduler-{self.started}",
            **more,
        )
        with log.open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", "headway", "scheduler"], env=env, stdout=out, stderr=out)
        evidence.watch(f"{log.parent.name}/{log.name}", log)
        self.processes.append(process)
        return process

    def said(self, words: str) -> int:
        """Count the lines with these words in the logs of all schedulers."""
        logs = [self._log(number).read_text(errors="replace") for number in range(1, self.started + 1)]
        return sum(words in line for log in logs for line in log.splitlines())

    def torment(self, rounds: int) -> None:
        """Kill, freeze and stop at random, and always restart. Every kind comes once per round, in random order."""
        chance = random.Random(self.seed)
        for _ in range(rounds):
            bag: list[Callable[[random.Random], None]]
            bag = [self._kill, self._kill, self._freeze, self._freeze, self._terminate]
            chance.shuffle(bag)
            for strike in bag:
                time.sleep(chance.uniform(*REST_S))
                strike(chance)

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

    def _log(self, number: int) -> Path:
        return self.logs / f"scheduler-{number}.log"

    def _pick(self, chance: random.Random) -> subprocess.Popen[bytes]:
        living = [process for process in self.processes if process.poll() is None]
        assert living, "all schedulers have ended by themselves"
        return chance.choice(living)

    def _kill(self, chance: random.Random) -> None:
        victim = self._pick(chance)
        victim.kill()
        victim.wait(STOP_S_MAX)
        self._count("killed")
        self.start()

    def _freeze(self, chance: random.Random) -> None:
        victim = self._pick(chance)
        victim.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(*FREEZE_S))
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
