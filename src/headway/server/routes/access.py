"""The routes of the caller, of tokens and of the audit log."""

from typing import Final

from headway.operations.access import AuditLog, Identity, Tokens
from headway.server.operation_routes import routes_of
from headway.server.web import Route

ROUTES: Final[tuple[Route, ...]] = (
    *routes_of(Identity, "access"),
    *routes_of(Tokens, "access"),
    *routes_of(AuditLog, "access"),
)
