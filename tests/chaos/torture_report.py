"""Write docs/torture-report.md: the results of the last torture test of each engine."""

import json
import re
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

REPORT: Final = Path(__file__).parents[2] / "docs" / "torture-report.md"
KEPT: Final = re.compile(r"<!-- results: (.*) -->\n")
ORDER: Final = ("store", "redis", "etcd", "zookeeper", "consul", "rabbitmq")
LANES: Final = {
    "processes": "Processes",
    "store links": "Links to the store",
    "engine links": "Links to the engine",
    "servers": "Servers",
}
ROLES: Final = {
    "store": "the store alone",
    "redis": "Redis: leases, live progress, wake-up hints",
    "etcd": "etcd, three servers: leases",
    "zookeeper": "ZooKeeper: leases",
    "consul": "Consul: leases",
    "rabbitmq": "RabbitMQ: wake-up hints",
}

BEGINNING: Final = """\
# Torture report

The results of the last [torture test](testing.md#torture-tests) of each engine. `make torture` generates this page.

Setup: three nodes, each scheduler, worker and API in one process; PostgreSQL as the store; twenty schedules of two
seconds; a client that enqueues all the time; two busy cores for everything. The leader lease is 2 s, the worker lease
3 s. Several faults are active at almost any time, so the worst cases below are not those of a single fault.

```bash
make torture                                   # each engine in turn, three minutes each
make torture ARGS='--engine redis --seed 7'    # one engine, with the plan of a seed
```

"""

MEANING: Final = """\
- *Failover*: from the moment when a scheduler with a lease is killed or frozen to the moment when the lease is granted
  again, whatever else is broken at that time, including the database.
- *Decision delay*: from an instant to its decision, for instants that fired.
- *Recovery*: from the end of the last fault until all nodes send heartbeats, hold the leases and reach their servers,
  every due instant is decided and every acknowledged job has ended. More than 30 s would be a violation.
- *Stale attempts*: attempts whose code still ran after a later attempt had started, mostly under a frozen supervisor.
  None of their writes were accepted; *rejected outcomes* counts those that tried to write one.
"""


def update(outcome: dict[str, Any]) -> None:
    """Replace the last result of an engine in the report."""
    results = _read()
    outcome["on"] = datetime.now(UTC).date().isoformat()
    results[outcome["engine"]] = outcome
    REPORT.write_text(page(results))


def page(results: dict[str, dict[str, Any]]) -> str:
    """Write the page."""
    ordered = [results[engine] for engine in ORDER if engine in results]
    kept = json.dumps({result["engine"]: result for result in ordered}, separators=(",", ":"))
    parts = [BEGINNING, _summary(ordered), "\n", MEANING, _slowest(ordered), *_faults(ordered), *_violations(ordered)]
    return "".join(parts) + f"\n<!-- results: {kept} -->\n"


def lines_of(outcome: dict[str, Any]) -> list[str]:
    """Summarise a run in a few lines."""
    figures = outcome["figures"]
    return [
        f"  {sum(outcome['faults'].values())} faults in {outcome['seconds']:g} s: {outcome['faults']}",
        f"  {figures['decisions']} decisions under {figures['tokens']} tokens, at most {figures['late_s']:.1f} s late",
        f"  {figures['jobs']} jobs {figures['statuses']}, {figures['enqueued']} receipts",
        f"  attempts {figures['attempts']}, {figures['ran_on']} stale, {figures['refused']} outcomes rejected",
        f"  failover {_worst(outcome['fail_overs_s'])}; recovery after {outcome['recovery_s']:g} s",
        f"  during the slowest failover: {'; '.join(outcome['slowest'])}",
        f"  {len(outcome['violations'])} violations",
        *(f"  VIOLATION {violation}" for violation in outcome["violations"]),
    ]


def _read() -> dict[str, dict[str, Any]]:
    found = KEPT.search(REPORT.read_text()) if REPORT.exists() else None
    return json.loads(found[1]) if found else {}


def _summary(results: list[dict[str, Any]]) -> str:
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "Seed": lambda r: str(r["seed"]),
        "Date": lambda r: r["on"],
        "Minutes of faults": lambda r: f"{r['seconds'] / 60:.1f}",
        "Faults": lambda r: f"{sum(r['faults'].values()):,}",
        "Shards": lambda r: "locks" if r["mode"] == "lock" else str(r["shards"]),
        "`coordination_fallback`": lambda r: "" if r["engine"] in ("store", "rabbitmq") else r["fallback"],
        "Decisions": lambda r: f"{r['figures']['decisions']:,}",
        "Fencing tokens used": lambda r: f"{r['figures']['tokens']:,}",
        "Jobs": lambda r: f"{r['figures']['jobs']:,}",
        "Jobs acknowledged to the client": lambda r: f"{r['figures']['enqueued']:,}",
        "Attempts": lambda r: f"{sum(r['figures']['attempts'].values()):,}",
        "Expired job leases": lambda r: f"{r['figures']['attempts'].get('expired', 0):,}",
        "Stale attempts": lambda r: f"{r['figures']['ran_on']:,}",
        "Rejected outcomes": lambda r: f"{r['figures']['refused']:,}",
        "Failover, worst (median, count)": lambda r: _worst(r["fail_overs_s"]),
        "Decision delay, worst": lambda r: f"{r['figures']['late_s']:.1f} s",
        "Recovery": lambda r: f"{r['recovery_s']:.1f} s",
        "**Violations**": lambda r: f"**{len(r['violations'])}**",
    }
    lines = [
        "| | " + " | ".join(r["engine"] for r in results) + " |",
        "|---|" + "---|" * len(results),
        *(f"| {name} | " + " | ".join(of(r) for r in results) + " |" for name, of in rows.items()),
    ]
    roles = "; ".join(f"*{r['engine']}*: {ROLES[r['engine']]}" for r in results)
    return "\n".join(lines) + f"\n\n{roles}.\n"


def _worst(seconds: list[float]) -> str:
    if not seconds:
        return "none seen"
    return f"{max(seconds):.1f} s ({statistics.median(seconds):.1f} s, {len(seconds)})"


def _slowest(results: list[dict[str, Any]]) -> str:
    """List the faults during the slowest failover of each engine; mostly the other nodes could not take over."""
    told = [f"- {r['engine']}: {'; '.join(r['slowest'])}\n" for r in results if r.get("slowest")]
    return "".join(["\nFaults active during the slowest failover:\n\n", *told]) if told else ""


def _faults(results: list[dict[str, Any]]) -> list[str]:
    parts = ["\n## Faults by kind\n"]
    for lane, title in LANES.items():
        kinds = sorted({kind for r in results for kind in r["faults"] if kind.startswith(f"{lane}: ")})
        if not kinds:
            continue
        parts.append(f"\n| {title} | " + " | ".join(r["engine"] for r in results) + " |\n")
        parts.append("|---|" + "---|" * len(results) + "\n")
        for kind in kinds:
            counts = " | ".join(str(r["faults"].get(kind, "")) for r in results)
            parts.append(f"| {kind.partition(': ')[2]} | {counts} |\n")
    parts.append(
        "\n*mute*: what a node sends is held back and arrives late; *deaf*: the same for what it receives;"
        "\n*black hole*: both, without a reset; *lose answers*: requests arrive, responses are dropped; *flap*:"
        "\nconnections are refused and accepted in turn. *clock*: the clock steps by hours, runs sixty times as fast or"
        "\nstands still (libfaketime); ZooKeeper's client is too slow under that, so its runs have correct clocks.\n"
    )
    return parts


def _violations(results: list[dict[str, Any]]) -> list[str]:
    if not any(r["violations"] for r in results):
        return []
    found = [f"\n- {r['engine']}: `{text.splitlines()[0]}`" for r in results for text in r["violations"]]
    return ["\n## Violations\n", *found, "\n"]
