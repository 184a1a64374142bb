"""What a seed determines: the number of nodes, the settings, the schedules, the rate of faults."""

import random
from dataclasses import dataclass
from typing import Final

import msgspec

from headway.core.instants import SECOND, Duration, Instant, isoformat, parse_instant
from headway.core.jobs import NewJob
from headway.core.lifecycle import Backoff
from headway.core.limits import Limit
from headway.core.schedules import Missed, Overlap, Rate, ScheduleSpec
from headway.core.settings import Settings
from headway.core.triggers import After, At, Cron, Every, Trigger

LIMITED: Final = 0.5  # Of all seeds.
QUEUES: Final = ("default", "slow")
CHILDREN: Final = "children"  # The queue of child jobs.
TENANTS: Final = ("default", "acme", "globex")
ACCOUNTS: Final = ("account-1", "account-2", "account-3")
TASKS: Final = {"work": "loop", "heavy": "process", "rare": "loop"}  # The kind of slot of each task.

# A few minutes before DST changes, and an ordinary day.
_STARTS: Final = tuple(
    parse_instant(text)
    for text in (
        "2027-03-28T00:57:30Z",  # Berlin goes forward at 01:00.
        "2027-10-31T00:57:30Z",  # Berlin goes back at 01:00.
        "2027-11-07T05:58:00Z",  # New York goes back at 06:00.
        "2027-10-02T15:28:00Z",  # Lord Howe goes forward by half an hour at 15:30.
        "2027-12-31T23:58:20Z",
        "2027-06-16T09:41:07.123456Z",
    )
)
_ZONES: Final = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
_CRONS: Final = (
    ("* * * * *", None),
    ("* * * * *", "*/10"),
    ("* * * * *", "*/3"),
    ("*/2 * * * *", "5,35"),
    ("0,30,59 * * * *", None),
    ("30 2 * * *", "*/15"),
    ("0-10 3 * * *", "0,20"),
    ("*/20 */5 * * * * *", None),
)
_LIMITS: Final = (
    "queue:slow",
    "queue:slow",
    "queue:children",
    "queue:*",
    "task:heavy",
    "task:heavy",
    "task:w*",
    "tenant:*",
    "tenant:*",
    "tenant:acme",
    "account-*",
    "account-*",
    "account-1",
    "account-2",
)
_RATES: Final = ("3/5s", "2/2s", "5/4s", "1/s")
_INTERVALS: Final = (1, 2, 5, 7, 10, 20, 30, 60, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishaps:
    """The probability of each fault, per call of the store."""

    before: float
    after: float
    freeze: float
    crash: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The parameters of one simulated world."""

    seed: int
    start: Instant
    nodes: int
    workers: int
    schedules: int
    settings: Settings
    wake_ups: str
    chaos_s: float
    outages: int
    mishaps: Mishaps
    has_limits: bool  # Whether jobs have tenants and limits; the other worlds know of neither.

    @classmethod
    def of(cls, seed: int) -> "Scenario":
        """Draw the parameters from a seed."""
        chance = random.Random(f"scenario {seed}")
        settings = Settings(
            coordination_mode="lock" if chance.random() < 0.3 else "leader",
            scheduler_shards=chance.choice((1, 1, 2, 3)),
            leader_lease=chance.choice((4, 6, 10)) * SECOND,
            worker_lease=chance.choice((4, 8)) * SECOND,
            poll=chance.choice((1, 2, 3)) * SECOND,
            grace=chance.choice((0, 1, 4)) * SECOND,
            retention=chance.choice((60, 90)) * SECOND if chance.random() < 0.15 else Settings().retention,
        )
        harm = chance.choice((0.3, 1.0, 2.0))
        return cls(
            seed=seed,
            start=chance.choice(_STARTS) + chance.randrange(20 * SECOND),
            nodes=chance.choice((2, 2, 3, 3, 4)),
            workers=chance.choice((1, 2, 2, 3)),
            schedules=chance.randint(3, 6),
            settings=settings,
            wake_ups=chance.choice(("notify", "notify", "watch", "poll")),
            chaos_s=chance.uniform(60, 140) if chance.random() < 0.9 else chance.uniform(300, 400),
            outages=chance.choice((0, 1, 1, 2)),
            mishaps=Mishaps(before=0.004 * harm, after=0.004 * harm, freeze=0.002 * harm, crash=0.001 * harm),
            has_limits=random.Random(f"limits {seed}").random() < LIMITED,
        )

    @property
    def lease_s(self) -> float:
        """Return the length of a node's lease in seconds."""
        return self.settings.leader_lease / SECOND

    @property
    def job_lease_s(self) -> float:
        """Return the length of a job's lease in seconds."""
        return self.settings.worker_lease / SECOND

    @property
    def poll_s(self) -> float:
        """Return the poll interval in seconds."""
        return self.settings.poll / SECOND

    @property
    def shards(self) -> int:
        """Return the number of shards with a lease of their own."""
        return self.settings.scheduler_shards if self.settings.coordination_mode == "leader" else 0


def draw_spec(chance: random.Random, now: Instant) -> ScheduleSpec:
    """Draw a schedule that has instants within minutes."""
    start = now + chance.randint(1, 60) * SECOND if chance.random() < 0.1 else None
    return ScheduleSpec(
        task=chance.choices(tuple(TASKS), (6, 3, 1))[0],
        trigger=_trigger(chance, now),
        queue=chance.choice(QUEUES),
        priority=chance.randint(0, 2),
        max_attempts=chance.choice((1, 1, 2, 3)),
        backoff=Backoff(first=SECOND, most=4 * SECOND),
        overlap=chance.choice(tuple(Overlap)),
        queue_limit=chance.randint(1, 3),
        missed=chance.choice(tuple(Missed)),
        deadline=_maybe(chance, 0.3, 3, 60),
        grace=chance.choice((0, 1, 3, 10, 60)) * SECOND,
        catch_up_limit=chance.choice((2, 5, 20)),
        catch_up_rate=Rate.parse("1/s") if chance.random() < 0.2 else None,
        jitter=_maybe(chance, 0.3, 1, 8) or 0,
        start=start,
        end=None if chance.random() < 0.9 else max(now, start or 0) + chance.randint(30, 200) * SECOND,
    )


def draw_limit(chance: random.Random) -> Limit:
    """Draw a limit of one of the names that jobs have."""
    name = chance.choice(_LIMITS)
    kind = chance.choice(("concurrency", "concurrency", "rate", "burst", "both"))
    return Limit.build(
        name,
        concurrency=chance.randint(1, 3) if kind in ("concurrency", "both") else None,
        rate=None if kind == "concurrency" else chance.choice(_RATES),
        burst=chance.randint(1, 4) if kind == "burst" else None,
    )


def with_limits(job: NewJob, chance: random.Random) -> NewJob:
    """Give a job a tenant, and perhaps the key of a limit."""
    key = chance.choice(ACCOUNTS) if chance.random() < 0.5 else ""
    return msgspec.structs.replace(job, tenant=chance.choice(TENANTS), limit_key=key)


def _maybe(chance: random.Random, likely: float, low: int, high: int) -> Duration | None:
    return chance.randint(low, high) * SECOND if chance.random() < likely else None


def _trigger(chance: random.Random, now: Instant) -> Trigger:
    kind = chance.choice(("every", "every", "cron", "cron", "after", "after", "at"))
    match kind:
        case "every":
            interval = chance.choice(_INTERVALS)
            return Every(interval, now - chance.randrange(100 * SECOND)) if chance.random() < 0.3 else Every(interval)
        case "cron":
            expr, seconds = chance.choice(_CRONS)
            return Cron(expr, chance.choice(_ZONES), chance.choice(("shift", "skip", "both")), seconds)
        case "after":
            return After(chance.choice((1, 2, 5, 15)))
        case _:
            return At(isoformat(now + chance.randint(2, 120) * SECOND))
