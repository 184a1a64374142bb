"""Parameters of the statements of needs, for the tests of query plans."""

import json
from typing import Any

from headway.core.instants import MINUTE

CLASS = {"queue": "default", "needs": "cpu=2"}
AFTER = {**CLASS, "limit": 500}
UNUSED = json.dumps([{"in_queue": "default", "for_needs": "cpu=2", "of_tenant": "t-7", "most": 1}])
LANES = json.dumps([{"of_tenant": "default", "of_key": "", "of_task": ""}])

# Statements of every second of a worker with an offer, and of the housekeeping.
HOT: dict[str, dict[str, Any]] = {
    "open_classes": AFTER,
    "lane_heads": {**CLASS, "skip": "[]", "lanes": LANES},
    "waiting_needs": AFTER,
    "parked_needs": AFTER,
    "claim_unoffered": {**CLASS, "node": "n", "lease": MINUTE, "limit": 500},
    "unpark_needs": AFTER,
    "prune_shares": {"shares": UNUSED, "most": 1},
}
ORDERED = {"open_classes", "waiting_needs", "parked_needs", "lane_heads"}
BY: dict[str, str] = {
    "lane_heads": "headway_jobs_lane",
    "claim_unoffered": "headway_jobs_lane",
    "unpark_needs": "headway_jobs_parked_needs",
}
# PostgreSQL does not show the plans of the steps of a loose scan; `test_needs.py` measures how much it reads.
UNDER_LOAD = ("open_classes", "lane_heads", "waiting_needs", "parked_needs")
