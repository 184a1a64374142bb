"""The plan of faults, drawn from a seed before anything starts: the same seed gives the same plan on any machine.

Faults come in independent lanes: processes, links to the store, links to the engine, servers, and rows that are edited
by hand. Faults of one lane follow one another; faults of different lanes overlap. Every kind of a lane comes once in
each round.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LEASE_S: Final = 2.0
DOWN_S: Final = (0.0, 2.0)
PAST_LEASE_S: Final = (LEASE_S * 1.2, LEASE_S * 2.5)
LINK_S: Final = (0.5, 6.0)
LINK_LONG_S: Final = (10.0, 14.0)  # Longer than the timeout of a statement.
LONG_IN: Final = 0.08

# A kind and how long it lasts.
PROCESS_FAULTS: Final[Mapping[str, tuple[float, float]]] = {
    "kill": DOWN_S,
    "kill child": (0.0, 0.0),
    "freeze": PAST_LEASE_S,
    "freeze supervisor": PAST_LEASE_S,
    "terminate": DOWN_S,
    "pause child": (0.6, 8.0),
    "clog log": (1.0, 6.0),  # Its log is not read.
    "clock": (1.0, 3.0),
}
LINK_FAULTS: Final = ("slow", "cut", "refuse", "black hole", "mute", "deaf", "lose answers", "flap")
STORE_FAULTS: Final[Mapping[str, tuple[float, float]]] = {"postgresql crash": (0.0, 3.0)}
# Nonsense for the row of a job that is about to run.
ABSURD_ROWS: Final = (
    "attempt = 2147483647",
    "version = 9223372036854775807",
    "run_at = -9223372036854775808",
    "created_at = 9223372036854775807",
    "failures = 2147483647, max_attempts = -1",
    'options = \'{"timeout":-5,"backoff":[9,-9]}\'',
    "args = repeat('[', 100000)",
    "args = repeat('x', 70000000)",
    "priority = -2147483648, tags = 'no JSON'",
)
CLOCKS: Final = ("-7200", "+7200", "+0 x60", "2027-03-28 00:59:58", "+90", "-90")  # The fourth clock is frozen.
FLAP_S: Final = 0.4


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: when, where (the number of a node; for links, 0 is the client's), and for how long."""

    lane: str
    at_s: float
    kind: str
    place: int
    lasts_s: float
    detail: str = ""

    @property
    def words(self) -> str:
        """Return its description."""
        lane = f"{self.lane[:-1]}, " if self.lane.endswith(" links") else ""
        where = "" if self.lane in ("servers", "rows") else ", client" if self.place == 0 else f", node {self.place}"
        return f"{lane}{self.kind}{where}"

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.at_s:7.2f} s  {self.words} for {self.lasts_s:.2f} s{detail}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a seed determines."""

    seed: int
    engine: str
    seconds: float
    shards: int
    faults: tuple[Fault, ...]

    def lanes(self) -> dict[str, list[Fault]]:
        """Return the faults of each lane in order."""
        lanes: dict[str, list[Fault]] = {}
        for fault in self.faults:
            lanes.setdefault(fault.lane, []).append(fault)
        return lanes


def draw(
    seed: int,
    engine: str,
    seconds: float,
    *,
    nodes: int,
    engine_faults: Mapping[str, tuple[float, float]],
    has_clocks: bool = True,
) -> Plan:
    """Draw a plan. `engine_faults` are the kinds of faults of the engine's own servers."""
    kinds = [kind for kind in PROCESS_FAULTS if kind != "clock" or has_clocks]
    faults = [
        *_processes(random.Random(f"{seed} processes"), seconds, nodes, kinds),
        *_links(random.Random(f"{seed} store links"), seconds, "store links", range(nodes + 1)),
        *_servers(random.Random(f"{seed} servers"), seconds, {**STORE_FAULTS, **engine_faults}),
        *_rows(random.Random(f"{seed} rows"), seconds),
    ]
    if engine_faults:
        faults += _links(random.Random(f"{seed} engine links"), seconds, "engine links", range(1, nodes + 1))
    shards = random.Random(f"{seed} shards").choice((1, 3))
    ordered = tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.lane)))
    return Plan(seed=seed, engine=engine, seconds=seconds, shards=shards, faults=ordered)


def _processes(chance: random.Random, seconds: float, nodes: int, kinds: Sequence[str]) -> list[Fault]:
    faults, at_s = [], 0.0
    for kind in _rounds(chance, kinds, seconds):
        at_s += chance.uniform(0.3, 2.0)
        lasts_s = chance.uniform(*PROCESS_FAULTS[kind])
        detail = chance.choice(CLOCKS) if kind == "clock" else ""
        if at_s + lasts_s > seconds:
            break
        faults.append(Fault("processes", at_s, kind, chance.randint(1, nodes), lasts_s, detail))
        at_s += lasts_s
    return faults


def _links(chance: random.Random, seconds: float, lane: str, places: Sequence[int]) -> list[Fault]:
    faults, at_s = [], 0.0
    for kind in _rounds(chance, LINK_FAULTS, seconds):
        at_s += chance.uniform(0.2, 1.5)
        lasts_s = chance.uniform(*(LINK_LONG_S if chance.random() < LONG_IN and seconds > 60 else LINK_S))
        detail = f"{chance.uniform(0.05, 0.4):.2f} s each way" if kind == "slow" else ""
        if kind == "cut":
            lasts_s = 0.0
        if at_s + lasts_s > seconds:
            break
        faults.append(Fault(lane, at_s, kind, chance.choice(places), lasts_s, detail))
        at_s += lasts_s
    return faults


def _servers(chance: random.Random, seconds: float, kinds: Mapping[str, tuple[float, float]]) -> list[Fault]:
    faults, at_s = [], 0.0
    for kind in _rounds(chance, tuple(kinds), seconds):
        at_s += chance.uniform(2.0, 5.0)
        lasts_s = chance.uniform(*kinds[kind])
        if at_s + lasts_s > seconds:
            break
        faults.append(Fault("servers", at_s, kind, 0, lasts_s))
        at_s += lasts_s
    return faults


def _rows(chance: random.Random, seconds: float) -> list[Fault]:
    faults, at_s = [], 0.0
    for row in _rounds(chance, ABSURD_ROWS, seconds):
        at_s += chance.uniform(1.0, 4.0)
        if at_s > seconds:
            break
        faults.append(Fault("rows", at_s, "absurd row", 0, 0.0, row))
    return faults


def _rounds(chance: random.Random, kinds: Sequence[str], seconds: float) -> list[str]:
    """Return every kind once per round, in random order, for more rounds than fit into the time."""
    drawn: list[str] = []
    for _ in range(round(seconds) + 1):
        one_round = list(kinds)
        chance.shuffle(one_round)
        drawn += one_round
    return drawn
