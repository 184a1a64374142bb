"""What every unit test has: patience with a slow machine."""

import pytest
from hypothesis import HealthCheck, settings

from headway.store import sqlite
from tests.support.waiting import DEADLINE_S

# How long an example takes says something about the machine only.
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("unit")


@pytest.fixture(autouse=True)
def patient_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stores wait as long as the machine needs. A test of giving up sets its own bounds."""
    for name in ("STATEMENT_S_MAX", "BUSY_S_MAX"):
        monkeypatch.setattr(sqlite, name, DEADLINE_S)
