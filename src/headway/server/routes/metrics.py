"""`/metrics`: the metrics of the installation in the Prometheus text format."""

from typing import Final

from headway.server.web import Answer, Call, Route

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def metrics(call: Call) -> Answer:
    """Return the metrics of the whole installation; this needs a token for all tenants."""
    call.need_all_tenants()
    return Answer(await call.services.metrics.text(), media_type=MEDIA_TYPE)


_EXAMPLE: Final = """# HELP headway_oldest_undecided_seconds Age of the oldest undecided instant
# TYPE headway_oldest_undecided_seconds gauge
headway_oldest_undecided_seconds 0.0
"""

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/metrics",
        handler=metrics,
        role="viewer",
        summary="Metrics for Prometheus",
        what="Of all tenants and nodes, in the text format; a token for all tenants is needed.",
        tag="operations",
        answers={200: _EXAMPLE},
    ),
)
