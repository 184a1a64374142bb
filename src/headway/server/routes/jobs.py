"""The routes of jobs: those of the operations; showing a job can also long-poll or stream."""

from typing import Final

from headway.operations.job_reads import visible_job
from headway.operations.jobs import Jobs
from headway.server.operation_routes import routes_of
from headway.server.routes.streams import LIVE, SINCE, Stream, events_of_job, job_answer, wait_for_change
from headway.server.web import Answer, Call, Param

WAIT: Final = Param("wait", "how long to wait for a change (long polling)", "duration", example="30s")


async def get_job(call: Call) -> Answer | Stream:
    """Show one job; with `wait`, when it has changed (long polling). A client that accepts a stream gets one."""
    if call.accepts("text/event-stream"):
        return await events_of_job(call)
    job = await visible_job(call.caller, call.path("job_id"))
    if "wait" in call.query:
        job = await wait_for_change(call, job)
    return await job_answer(call, job)


ROUTES: Final = routes_of(
    Jobs,
    "jobs",
    {"get_job": {"handler": get_job, "query": (WAIT, SINCE, LIVE), "headers": ("Accept", "Last-Event-ID")}},
)
