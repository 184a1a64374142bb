"""List the contestants: Headway and its peers, each with the best settings that its documentation recommends."""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way to run jobs, on one kind of store."""

    name: str
    program: str
    store: str
    pace: int  # Jobs per second that one process drained on two cores; only sets the length of a run.
    environment: str = "main"
    root: Path = ROOT  # The checkout whose code runs.
    unsettled: str | None = None  # Cheap SQL count of the jobs whose completion is not committed yet.
    unfinished: str | None = None  # SQL count of the jobs that have not succeeded; may be slow.

    def command(self) -> list[str]:
        """Return the command line up to the step; append a step and its arguments."""
        if self.environment == "node":
            return ["node", str(ROOT / "bench" / "peers" / self.program)]
        return [str(self._python()), "-m", "bench.peers.drive", self.program]

    def missing(self) -> str | None:
        """Return what is missing to run this contestant, or None."""
        if self.store == "redis" and not shutil.which("redis-server"):
            return "there is no redis-server"
        if self.environment == "node":
            found = shutil.which("node") and (folder() / "node" / "node_modules" / "graphile-worker").is_dir()
        else:
            found = self._python().exists()
        return None if found else f"its environment is not in {folder()}"

    def _python(self) -> Path:
        if self.root != ROOT:
            return self.root / ".venv" / "bin" / "python"
        if self.environment == "headway":
            return Path(sys.executable)
        return folder() / self.environment / "bin" / "python"


def folder() -> Path:
    """Return the directory of the peers' environments."""
    return Path(os.environ.get("HEADWAY_PEERS") or ROOT / ".peers")


# Every job has started by the time these run, so every unsettled job has a lease.
_HEADWAY_UNSETTLED: Final = "select count(*) from headway_jobs where lease_until is not null"
_HEADWAY_UNFINISHED: Final = "select count(*) from headway_jobs where status <> 'COMPLETED'"


def headway(store: str) -> Contestant:
    """Return Headway on one kind of store."""
    return Contestant(
        name=f"headway-{store}",
        program="with_headway",
        store=store,
        pace=10_000,
        environment="headway",
        unsettled=_HEADWAY_UNSETTLED,
        unfinished=_HEADWAY_UNFINISHED,
    )


def earlier(store: str, root: Path) -> Contestant:
    """Return Headway as it is in another checkout."""
    return replace(headway(store), name=f"before-headway-{store}", root=root)


def _on_postgres(name: str, program: str, pace: int, unsettled: str | None, environment: str = "main") -> Contestant:
    return Contestant(
        name=name,
        program=program,
        store="postgresql",
        pace=pace,
        environment=environment,
        unsettled=unsettled,
        unfinished=unsettled,
    )


def _on_redis(name: str, program: str, pace: int, environment: str = "main") -> Contestant:
    return Contestant(name=name, program=program, store="redis", pace=pace, environment=environment)


_CHANCY: Final = "select count(*) from chancy_jobs where state <> 'succeeded'"
_PROCRASTINATE: Final = "select count(*) from procrastinate_jobs where status <> 'succeeded'"
_DBOS: Final = "select count(*) from dbos.workflow_status where status <> 'SUCCESS'"
_DBOS_SQLITE: Final = _DBOS.replace("dbos.", "")

PEERS: Final[dict[str, Contestant]] = {
    peer.name: peer
    for peer in (
        _on_postgres("pgqueuer", "with_pgqueuer", 8_000, "select count(*) from pgqueuer"),
        _on_postgres("pgqueuer-default", "with_pgqueuer", 3_000, "select count(*) from pgqueuer"),
        _on_postgres("chancy", "with_chancy", 2_500, _CHANCY),
        _on_postgres("huey-postgres", "with_huey", 800, None),  # Huey deletes a job from the store before it runs.
        _on_postgres("saq-postgres", "with_saq", 400, "select count(*) from saq_jobs", "redis5"),
        _on_postgres("procrastinate", "with_procrastinate", 270, _PROCRASTINATE),
        _on_postgres("dbos-postgres", "with_dbos", 300, _DBOS),
        _on_redis("dramatiq", "with_dramatiq", 2_000),
        _on_redis("taskiq-list", "with_taskiq", 1_800),
        _on_redis("taskiq-stream", "with_taskiq", 1_700),
        _on_redis("huey-redis", "with_huey", 1_700),
        _on_redis("saq-redis", "with_saq", 900, "redis5"),
        _on_redis("arq-fast", "with_arq", 900, "redis5"),
        _on_redis("arq-default", "with_arq", 200, "redis5"),
        _on_redis("celery-threads", "with_celery", 600),
        _on_redis("celery-prefork", "with_celery", 550),
        _on_redis("rq-simple", "with_rq", 150),
        _on_redis("rq-fork", "with_rq", 40),
        Contestant(name="huey-sqlite", program="with_huey", store="sqlite", pace=1_800),
        Contestant(
            name="dbos-sqlite",
            program="with_dbos",
            store="sqlite",
            pace=250,
            unsettled=_DBOS_SQLITE,
            unfinished=_DBOS_SQLITE,
        ),
        _on_postgres(
            "graphile-worker",
            "with_graphile.mjs",
            12_000,
            "select count(*) from graphile_worker._private_jobs",
            "node",
        ),
    )
}
TOP: Final = ("pgqueuer", "chancy", "huey-postgres", "dramatiq", "taskiq-list", "huey-sqlite", "graphile-worker")


class UnknownPeer(Exception):
    """No peer has that name."""


def chosen(text: str) -> tuple[list[Contestant], list[str]]:
    """Parse `all`, `top`, `none` or names; return the peers that can run here and a reason for each that cannot."""
    names: Iterable[str] = {"all": PEERS, "top": TOP, "none": ()}.get(text, text.split(","))
    unknown = set(names) - PEERS.keys()
    if unknown:
        raise UnknownPeer(f"no peer is named {min(unknown)!r}; known are all, top, none, {', '.join(PEERS)}")
    wanted = [PEERS[name] for name in names]
    absent = [f"{peer.name} ({reason})" for peer in wanted if (reason := peer.missing())]
    return [peer for peer in wanted if not peer.missing()], absent
