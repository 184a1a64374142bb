"""Audit Headway's ledger with plain SQL and arithmetic: every instant has exactly one decision."""

import sqlite3
import tempfile
import time
from datetime import datetime

from headway import Every, Headway

file = f"{tempfile.mkdtemp()}/headway.db"
app = Headway(f"sqlite:///{file}", name="ticker")
INTERVAL_MS = 100

app.put_schedule_sync("ticks", task="tick", trigger=Every("100ms"))
time.sleep(1)
app.remove_schedule_sync("ticks")  # A change first decides what is due.


def millis(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


covered: list[int] = []
for first, last, count in sqlite3.connect(file).execute(
    "select instant, coalesce(until, instant), count from headway_occurrences_v where schedule = 'ticks'"
):
    instants = range(millis(first), millis(last) + 1, INTERVAL_MS)
    assert len(instants) == count, "the count of a record matches the instants it covers"
    covered += instants

print("several decisions:", len(covered) >= 9)
print("duplicates:", len(covered) - len(set(covered)))
print("gaps:", len(range(min(covered), max(covered) + 1, INTERVAL_MS)) - len(set(covered)))

# several decisions: True
# duplicates: 0
# gaps: 0
