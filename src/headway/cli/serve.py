"""`headway scheduler`, `headway worker`, `headway serve`: run one process in one role or in all of them.

Start: open the store (and wait for it while it is down), write the app's schedules to it, run the node. A worker starts
a child first, since only its process imports the app, never the supervisor's: the child reports which tasks and
schedules there are, and which store.

Graceful shutdown, at SIGTERM or SIGINT: stop deciding and claiming, let running jobs end within the grace period, hand
back the rest and the leases, deregister the node, exit with 0. A second signal hands jobs back at once. A third one
kills the process, and its leases expire by themselves.
"""

from typing import Annotated

import typer

from headway.cli.log import EventLog
from headway.cli.session import Session, new_command
from headway.wiring.processes import run_scheduler, run_worker

NodeOption = Annotated[str | None, typer.Option("--node", metavar="NAME", help="The display name of this node.")]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--coordination-mode",
        metavar="MODE",
        help="leader (one scheduler per shard decides) or lock (all evaluate, a lock per instant).",
    ),
]
ShardsOption = Annotated[
    str | None,
    typer.Option(
        "--shards", "--scheduler-shards", metavar="N", help="Number of shards (leases) over which schedules are spread."
    ),
]
LeaseOption = Annotated[
    str | None,
    typer.Option(
        "--leader-lease", metavar="DURATION", help="Leader lease: how long until a silent leader is replaced."
    ),
]
PollOption = Annotated[
    str | None, typer.Option("--poll", metavar="DURATION", help="Poll interval when no notification arrives.")
]
QueuesOption = Annotated[
    str | None, typer.Option("--queues", metavar="A,B", help="Claim jobs only from these queues (default: all).")
]
ConcurrencyOption = Annotated[
    str | None, typer.Option("--concurrency", metavar="N", help="How many async jobs run at the same time (100).")
]
ProcessesOption = Annotated[
    str | None, typer.Option("--processes", metavar="N", help="How many processes run def tasks (one per core).")
]
WorkerLeaseOption = Annotated[
    str | None,
    typer.Option(
        "--worker-lease", metavar="DURATION", help="Worker lease: how long until a silent worker loses its jobs."
    ),
]
OfferOption = Annotated[
    str | None,
    typer.Option("--offer", metavar="K=V,…", help="What jobs with needs may use here: cpu=8,memory=32G (nothing)."),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label", "--labels", metavar="K=V", help="A label of this worker: zone=eu. Several times, or with commas."
    ),
]
HostOption = Annotated[
    str | None,
    typer.Option("--host", metavar="ADDRESS", help="Bind address of the API (127.0.0.1); others require a token."),
]
PortOption = Annotated[
    str | None, typer.Option("--port", metavar="N", help="Port of the API (8480); 0 picks a free one.")
]
GraceOption = Annotated[
    str | None, typer.Option("--grace", metavar="DURATION", help="How long running jobs may take after SIGTERM.")
]


def joined(labels: list[str] | None) -> str | None:
    """Return labels that were given one by one as one setting."""
    return None if labels is None else ",".join(labels)


async def scheduler(
    session: Session,
    node: NodeOption = None,
    coordination_mode: ModeOption = None,
    shards: ShardsOption = None,
    leader_lease: LeaseOption = None,
    poll: PollOption = None,
) -> None:
    """Decide the schedules of the store, as one of any number of schedulers.

    With --app (or HEADWAY_APP) the schedules declared in the app are written to the store first. Logs go to stderr.
    SIGTERM and Ctrl-C hand over the leases, so that the next scheduler decides at once.
    """
    settings = session.settings(
        node=node,
        coordination_mode=coordination_mode,
        scheduler_shards=shards,
        leader_lease=leader_lease,
        poll=poll,
    )
    await run_scheduler(settings, session.app(), EventLog.on_stderr(as_json=session.as_json))


async def worker(
    session: Session,
    queues: QueuesOption = None,
    concurrency: ConcurrencyOption = None,
    processes: ProcessesOption = None,
    offer: OfferOption = None,
    label: LabelOption = None,
    worker_lease: WorkerLeaseOption = None,
    grace: GraceOption = None,
    node: NodeOption = None,
    poll: PollOption = None,
) -> None:
    """Run the jobs of the app's tasks, as one of any number of workers.

    Needs --app (or HEADWAY_APP), or tasks in headway.toml. User code runs in child processes; this process keeps the
    leases, whatever happens there. SIGTERM and Ctrl-C let running jobs end within --grace; a second signal hands them
    back.
    """
    settings = session.loaded(
        node=node,
        queues=queues,
        concurrency=concurrency,
        processes=processes,
        offer=offer,
        labels=joined(label),
        worker_lease=worker_lease,
        grace=grace,
        poll=poll,
    )
    log = EventLog.on_stderr(as_json=session.as_json)
    await run_worker(settings, log, store=session.store_url, schedules=False)


async def serve(
    session: Session,
    queues: QueuesOption = None,
    concurrency: ConcurrencyOption = None,
    processes: ProcessesOption = None,
    offer: OfferOption = None,
    label: LabelOption = None,
    worker_lease: WorkerLeaseOption = None,
    grace: GraceOption = None,
    node: NodeOption = None,
    coordination_mode: ModeOption = None,
    shards: ShardsOption = None,
    leader_lease: LeaseOption = None,
    poll: PollOption = None,
    host: HostOption = None,
    port: PortOption = None,
) -> None:
    """Run scheduler, worker and API in one process, as one of any number of them.

    Needs --app (or HEADWAY_APP), or tasks in headway.toml. The app's schedules are written to the store first. Where
    another process already has the API's port, this one leaves the API to it, and takes over when that one ends.
    """
    settings = session.loaded(
        node=node,
        queues=queues,
        concurrency=concurrency,
        processes=processes,
        offer=offer,
        labels=joined(label),
        worker_lease=worker_lease,
        grace=grace,
        coordination_mode=coordination_mode,
        scheduler_shards=shards,
        leader_lease=leader_lease,
        poll=poll,
        host=host,
        port=port,
    )
    log = EventLog.on_stderr(as_json=session.as_json)
    await run_worker(settings, log, store=session.store_url, schedules=True, api="must" if port else "may")


app = new_command(serve)
