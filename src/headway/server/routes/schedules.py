"""The routes of schedules and of the audit of the ledger."""

from typing import Final

from headway.operations.ledger_audit import Ledger
from headway.operations.schedules import Schedules
from headway.server.operation_routes import routes_of

ROUTES: Final = (*routes_of(Schedules, "schedules"), *routes_of(Ledger, "operations"))
