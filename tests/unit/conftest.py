"""Fixtures of all unit tests: generous timeouts for slow machines."""

import pytest
from hypothesis import HealthCheck, settings

from headway.store import sqlite
from tests.support.waiting import DEADLINE_S

# Hypothesis deadlines would only measure the machine.
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("unit")


@pytest.fixture(autouse=True)
def patient_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the store's timeouts, so that no test depends on the machine. Tests of timeouts set their own."""
    for name in ("STATEMENT_S_MAX", "BUSY_S_MAX"):
        monkeypatch.setattr(sqlite, name, DEADLINE_S)
