"""`headway scheduler`, `headway worker`, `headway serve`: one process in one role or both, to its last lease.

Start: open the store (and wait for it while it is down), bring the app's schedules into it, run the node. A worker
starts a child first, since its process imports the app and the supervisor's never does: the child tells which tasks
and schedules there are, and which store.

Stop, at SIGTERM or SIGINT: decide no more and take no more jobs, let what runs end within the grace, hand back the rest
and the leases, say goodbye, exit with 0. At a second signal jobs are handed back at once; a third one ends the
process without a word, and then the leases run out by themselves.
"""

from typing import Annotated

import typer

from headway.cli.log import EventLog
from headway.cli.session import Session, new_command
from headway.wiring.processes import run_scheduler, run_worker

NodeOption = Annotated[str | None, typer.Option("--node", metavar="NAME", help="What people call this process.")]
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
    typer.Option("--shards", "--scheduler-shards", metavar="N", help="Over how many leases schedules are spread."),
]
LeaseOption = Annotated[
    str | None, typer.Option("--leader-lease", metavar="DURATION", help="How long a silent leader is waited for.")
]
PollOption = Annotated[
    str | None, typer.Option("--poll", metavar="DURATION", help="How often to look where no wake-up arrives.")
]
QueuesOption = Annotated[
    str | None, typer.Option("--queues", metavar="A,B", help="Take jobs only from these queues; else from all.")
]
ConcurrencyOption = Annotated[
    str | None, typer.Option("--concurrency", metavar="N", help="How many async jobs run at the same time (100).")
]
ProcessesOption = Annotated[
    str | None, typer.Option("--processes", metavar="N", help="How many processes run def tasks (one per core).")
]
WorkerLeaseOption = Annotated[
    str | None, typer.Option("--worker-lease", metavar="DURATION", help="How long a silent worker is waited for.")
]
HostOption = Annotated[
    str | None,
    typer.Option("--host", metavar="ADDRESS", help="Where the API listens (127.0.0.1); others want a token."),
]
PortOption = Annotated[
    str | None, typer.Option("--port", metavar="N", help="The port of the API (8480); 0 takes a free one.")
]
GraceOption = Annotated[
    str | None, typer.Option("--grace", metavar="DURATION", help="How long running jobs may take after SIGTERM.")
]


async def scheduler(
    session: Session,
    node: NodeOption = None,
    coordination_mode: ModeOption = None,
    shards: ShardsOption = None,
    leader_lease: LeaseOption = None,
    poll: PollOption = None,
) -> None:
    """Decide the schedules of the store, as one of any number of schedulers.

    With --app (or HEADWAY_APP) the schedules declared in the app are brought into the store first. What happens is
    told on stderr. SIGTERM and Ctrl-C hand the leases over, so that the next scheduler decides at once.
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
    worker_lease: WorkerLeaseOption = None,
    grace: GraceOption = None,
    node: NodeOption = None,
    poll: PollOption = None,
) -> None:
    """Run the jobs of the app's tasks, as one of any number of workers.

    Needs --app (or HEADWAY_APP), or tasks in headway.toml. User code runs in child processes; this one keeps the
    leases, whatever happens there. SIGTERM and Ctrl-C let running jobs end within --grace; a second signal hands them
    back.
    """
    settings = session.loaded(
        node=node,
        queues=queues,
        concurrency=concurrency,
        processes=processes,
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
    """Be scheduler, worker and API in one process, as one of any number of them.

    Needs --app (or HEADWAY_APP), or tasks in headway.toml. The app's schedules are brought into the store first. Where
    another process has the API's port already, this one leaves the API to it, and takes over when that one ends.
    """
    settings = session.loaded(
        node=node,
        queues=queues,
        concurrency=concurrency,
        processes=processes,
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
