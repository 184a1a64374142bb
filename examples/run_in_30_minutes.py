"""Run something later: in half an hour, or at a given time; and once only, by an idempotency key."""

import tempfile
from datetime import UTC, datetime

from headway import DuplicateKey, Headway

app = Headway(f"sqlite:///{tempfile.mkdtemp()}/headway.db")


@app.task
def remind(customer: int, text: str = "your cart misses you") -> None: ...


job = remind.options(delay="30m").enqueue_sync(customer=7)
print(job.status, job.run_at - job.created_at)

job = remind.options(at=datetime(2027, 1, 1, 9, tzinfo=UTC), key="new-year-7").enqueue_sync(7, text="happy new year")
print(job.status, job.run_at, job.args)

again = remind.options(at="2027-01-01T09:00Z", key="new-year-7").enqueue_sync(7, text="happy new year")
print("same key, same arguments, same job:", again.id == job.id)
try:
    remind.options(key="new-year-7").enqueue_sync(8)
except DuplicateKey:
    print("same key, other arguments: refused")

print(job.cancel_sync("moved away").status)

# SCHEDULED 0:30:00
# SCHEDULED 2027-01-01 09:00:00+00:00 {'customer': 7, 'text': 'happy new year'}
# same key, same arguments, same job: True
# same key, other arguments: refused
# CANCELLED
