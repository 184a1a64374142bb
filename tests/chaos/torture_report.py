"""docs/torture-report.md: what the last torture of each engine has shown, written by the torture itself."""

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
    "redis": "Redis: leases, live values, hints",
    "etcd": "etcd, three servers: leases",
    "zookeeper": "ZooKeeper: leases",
    "consul": "Consul: leases",
    "rabbitmq": "RabbitMQ: hints",
}

BEGINNING: Final = """\
# Torture report

What the last [torture](testing.md#torture) of each engine has shown, written by the torture itself.

Three nodes, each scheduler, worker and API in one process; PostgreSQL as the store; twenty schedules of two seconds; a
client that enqueues all the time; two busy cores for everything. The leader lease is 2 s, the worker lease 3 s. Several
faults are under way at nearly any time, so the worst cases below are not those of one fault alone.

```bash
make torture                                   # each engine in turn, three minutes each
make torture ARGS='--engine redis --seed 7'    # one engine, with the plan of a seed
```

"""

MEANING: Final = """\
- *Fail-over*: from the moment a scheduler that held a lease is killed or frozen to the moment the lease is granted
  anew, whatever else is broken meanwhile: the database may be, too.
- *Late*: from an instant to its decision, for instants that fired.
- *Well again*: from the end of the last fault until all nodes beat, hold the leases, miss none of their servers, every
  due instant is decided and every acknowledged job has ended. More than 30 s would be a violation.
- *Stale attempts*: those whose code still ran when a later attempt had begun, mostly under a frozen supervisor. Nothing
  that they wrote was accepted; *refused outcomes* are the ones that tried.
"""


def update(outcome: dict[str, Any]) -> None:
    """Put the outcome of one engine in the place of its last one."""
    results = _read()
    outcome["on"] = datetime.now(UTC).date().isoformat()
    results[outcome["engine"]] = outcome
    ordered = [results[engine] for engine in ORDER if engine in results]
    kept = json.dumps({result["engine"]: result for result in ordered}, separators=(",", ":"))
    parts = [BEGINNING, _summary(ordered), "\n", MEANING, _slowest(ordered), *_faults(ordered), *_violations(ordered)]
    REPORT.write_text("".join(parts) + f"\n<!-- results: {kept} -->\n")


def lines_of(outcome: dict[str, Any]) -> list[str]:
    """Say in a few lines what became of a run."""
    figures = outcome["figures"]
    return [
        f"  {sum(outcome['faults'].values())} faults in {outcome['seconds']:g} s: {outcome['faults']}",
        f"  {figures['decisions']} decisions under {figures['tokens']} tokens, at most {figures['late_s']:.1f} s late",
        f"  {figures['jobs']} jobs {figures['statuses']}, {figures['enqueued']} receipts",
        f"  attempts {figures['attempts']}, {figures['ran_on']} stale, {figures['refused']} outcomes refused",
        f"  fail-over {_worst(outcome['fail_overs_s'])}; well again after {outcome['recovery_s']:g} s",
        f"  during the slowest fail-over: {'; '.join(outcome['slowest'])}",
        f"  {len(outcome['violations'])} violations",
        *(f"  VIOLATION {violation}" for violation in outcome["violations"]),
    ]


def _read() -> dict[str, dict[str, Any]]:
    found = KEPT.search(REPORT.read_text()) if REPORT.exists() else None
    return json.loads(found[1]) if found else {}


def _summary(results: list[dict[str, Any]]) -> str:
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "Seed": lambda r: str(r["seed"]),
        "Day": lambda r: r["on"],
        "Minutes of faults": lambda r: f"{r['seconds'] / 60:.1f}",
        "Faults": lambda r: f"{sum(r['faults'].values()):,}",
        "Shards": lambda r: "locks" if r["mode"] == "lock" else str(r["shards"]),
        "`coordination_fallback`": lambda r: "" if r["engine"] in ("store", "rabbitmq") else r["fallback"],
        "Decisions": lambda r: f"{r['figures']['decisions']:,}",
        "Tokens they were made under": lambda r: f"{r['figures']['tokens']:,}",
        "Jobs": lambda r: f"{r['figures']['jobs']:,}",
        "Acknowledged to the client": lambda r: f"{r['figures']['enqueued']:,}",
        "Attempts": lambda r: f"{sum(r['figures']['attempts'].values()):,}",
        "Leases of jobs run out": lambda r: f"{r['figures']['attempts'].get('expired', 0):,}",
        "Stale attempts": lambda r: f"{r['figures']['ran_on']:,}",
        "Refused outcomes": lambda r: f"{r['figures']['refused']:,}",
        "Fail-over, worst (median, number)": lambda r: _worst(r["fail_overs_s"]),
        "Late, worst": lambda r: f"{r['figures']['late_s']:.1f} s",
        "Well again after": lambda r: f"{r['recovery_s']:.1f} s",
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
    """Say what was wrong during the slowest fail-over of each: it is mostly the others who could not take over."""
    told = [f"- {r['engine']}: {'; '.join(r['slowest'])}\n" for r in results if r.get("slowest")]
    return "".join(["\nWhat was under way during the slowest fail-over:\n\n", *told]) if told else ""


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
        "\n*mute*: what a node says is held back, and arrives late; *deaf*: what it is told is; *black hole*: both, and"
        "\nno reset; *lose answers*: what it says arrives, and no answer comes; *flap*: refused and taken in turns."
        "\n*clock*: it steps by hours, runs sixty times as fast or stands still, through libfaketime; under that the"
        "\nclient of ZooKeeper is too slow to be of use, so with ZooKeeper the clocks are right.\n"
    )
    return parts


def _violations(results: list[dict[str, Any]]) -> list[str]:
    if not any(r["violations"] for r in results):
        return []
    found = [f"\n- {r['engine']}: `{text.splitlines()[0]}`" for r in results for text in r["violations"]]
    return ["\n## Violations\n", *found, "\n"]
