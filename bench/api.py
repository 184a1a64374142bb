"""api: the HTTP API in its own process, with requests from this one.

    get       GET /api/jobs/{id} of many jobs, against a hello-world of the same framework on the same server, each at
              its best number of connections
    enqueue   POST /api/jobs, one at a time and several, against `task.enqueue` in this process
    follow    very many followers of some running jobs: does every end reach all of them, how late, with how much memory
    progress  a thousand progress updates a second from workers through the store to followers; no end may be missing

Client and server share the machine, on both sides of a comparison.
"""

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from functools import partial
from statistics import quantiles
from typing import Any, Final

from bench.figures import Figure, Target, compared, plain
from bench.places import Place, Run, database
from bench.tasks import open_app
from bench.watch import Watched
from bench.worker import worker_command
from headway import Headway

CONNECTIONS: Final = (16, 32, 64)
ENQUEUES_AT_ONCE: Final = 16
START_S_MAX: Final = 120.0
PATIENCE_S: Final = 120.0
READ_BYTES: Final = 1 << 16


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        figures += await _gets(place, run)
        figures += await _enqueues(place, run)
        figures += await _followers(place, run)
        figures += await _updates(place, run)
    return figures


# --- the server


@contextlib.asynccontextmanager
async def _server(*command: str) -> AsyncIterator[tuple[int, Watched]]:
    """Start a server that prints its address; return its port."""
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=PIPE, stdout=DEVNULL, limit=1 << 20)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_S_MAX):
            while b"listening" not in (line := await process.stderr.readline()):
                assert line, "the server ended before it listened"
        drained = asyncio.ensure_future(_drained(process.stderr))
        yield int(line.decode().split("http://")[1].split(":")[1].split()[0].strip('"}')), Watched(process.pid)
        drained.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _drained(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass


def api_server(url: str) -> Any:
    """Start an API."""
    return _server("-m", "headway", "api", "--store", url, "--port", "0")


def hello() -> None:
    """Run the framework's hello-world on the server that the API uses."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from headway.server.http_server import bind, url_of

    async def greet(_: Any) -> JSONResponse:
        return JSONResponse({"hello": "world"})

    listening = bind("127.0.0.1", 0)
    print(f"listening {url_of(listening)} ", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        Starlette(routes=[Route("/hello", greet)]),
        http="httptools",
        loop="uvloop",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listening])


# --- requests


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    assert head[9:12] in (b"200", b"201"), head + body
    return body


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def _post(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    headers = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + data


async def _rate(port: int, requests: Callable[[int], bytes], count: int, connections: int) -> float:
    """Send requests over several connections; return the responses per second."""
    numbers = iter(range(count))

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for number in numbers:
                await _request(reader, writer, requests(number))
        finally:
            writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(connections)))
    return count / (time.perf_counter() - started)


async def _gets(place: Place, run: Run) -> list[Figure]:
    count = run.size(6_000, 200)
    async with database(place) as url:
        async with open_app(url) as app:
            jobs = await app.tasks["nothing"].enqueue_many([{}] * 1_000)
            for job in jobs:
                await job.cancel()
        requests = [_get(f"/api/jobs/{job.id}") for job in jobs]
        ours: dict[int, list[float]] = {connections: [] for connections in CONNECTIONS}
        theirs: dict[int, list[float]] = {connections: [] for connections in CONNECTIONS}
        async with api_server(url) as (port, _), _server("-c", "from bench.api import hello; hello()") as (other, _):
            for _ in range(run.repetitions + 1):  # The first round is for warming up.
                for connections in CONNECTIONS:
                    theirs[connections].append(await _rate(other, lambda _: _get("/hello"), count, connections))
                    ours[connections].append(
                        await _rate(port, lambda n: requests[n % len(requests)], count, connections)
                    )
    what, target = "GET of one job against hello-world", Target(">=", 0.6, of_ratio=True)
    figures = [
        compared(
            "api",
            place.name,
            f"{what}, {connections} connections",
            ours[connections][1:],
            theirs[connections][1:],
            "/s",
            target,
        )
        for connections in CONNECTIONS
    ]
    what = f"{what}, each at its best"
    return [*figures, compared("api", place.name, what, _best(ours), _best(theirs), "/s", target)]


def _best(rates: dict[int, list[float]]) -> list[float]:
    """Return the highest rate of each round but the first."""
    return [max(of_round) for of_round in zip(*rates.values(), strict=True)][1:]


async def _enqueues(place: Place, run: Run) -> list[Figure]:
    figures = []
    for at_once in (1, ENQUEUES_AT_ONCE):
        ours, theirs = await _enqueued(place, run, at_once)
        what = f"POST of one job against enqueue, {at_once} at a time"
        target = Target(">=", 0.5, of_ratio=True)
        figures.append(compared("api", place.name, what, ours, theirs, "/s", target))
    return figures


async def _enqueued(place: Place, run: Run, at_once: int) -> tuple[list[float], list[float]]:
    """Enqueue jobs over several connections, and by several callers in this process; return both rates."""
    count = run.size(1_000, 50)
    ours, theirs = [], []
    async with database(place) as url, open_app(url) as app, api_server(url) as (port, _):
        body = _post("/api/jobs", {"type": "nothing", "args": {}})

        async def enqueue(numbers: Iterator[int]) -> None:
            for _ in numbers:
                await app.tasks["nothing"].enqueue()

        for _ in range(run.repetitions + 1):
            started, numbers = time.perf_counter(), iter(range(count))
            await asyncio.gather(*(enqueue(numbers) for _ in range(at_once)))
            theirs.append(count / (time.perf_counter() - started))
            ours.append(await _rate(port, lambda _: body, count, at_once))
    return ours[1:], theirs[1:]


# --- followers


class _Follower(asyncio.Protocol):
    """One connection with an event stream, read as cheaply as possible, since the server's work is measured."""

    def __init__(self, job_id: str, heard: Callable[[str, bytes], None]) -> None:
        self._request = _get(f"/api/jobs/{job_id}/events").replace(
            b"\r\n\r\n", b"\r\nAccept: text/event-stream\r\n\r\n"
        )
        self._job_id = job_id
        self._heard = heard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._heard(self._job_id, data)


async def follow_all(port: int, job_ids: list[str], count: int, heard: Callable[[str, bytes], None]) -> list[Any]:
    """Open this many followers of the jobs; return the connections."""
    loop = asyncio.get_running_loop()
    opened = []
    for number in range(count):
        job_id = job_ids[number % len(job_ids)]
        transport, _ = await loop.create_connection(partial(_Follower, job_id, heard), "127.0.0.1", port)
        opened.append(transport)
    return opened


@contextlib.asynccontextmanager
async def work(url: str, concurrency: int) -> AsyncIterator[Headway]:
    """Run a worker, and yield an app to enqueue with."""
    async with open_app(url) as app, worker_command(url, "--concurrency", concurrency):
        yield app


async def _followers(place: Place, run: Run) -> list[Figure]:
    jobs, count, seconds = run.size(100, 10), run.size(5_000, 50), run.size(15, 3)
    late: list[float] = []
    done = 0

    def heard(_: str, data: bytes) -> None:
        nonlocal done
        now = time.time()
        for part in data.split(b"event: ")[1:]:
            if part.startswith(b"done"):
                done += 1
            if part.startswith(b"progress") and (at := part.find(b'"updated_at":"')) > 0:
                late.append(
                    now - datetime.fromisoformat(part[at + 14 : part.index(b'"', at + 14)].decode()).timestamp()
                )

    async with database(place) as url, work(url, jobs) as app, api_server(url) as (port, server):
        made = await app.tasks["sleeper"].enqueue_many([{"seconds": seconds + run.size(25, 3)}] * jobs)
        opened = await follow_all(port, [job.id for job in made], count, heard)
        late.clear()
        await asyncio.sleep(seconds)
        told, memory = list(late), server.memory_mb()
        async with asyncio.timeout(PATIENCE_S):
            while done < count:
                await asyncio.sleep(0.1)
        for transport in opened:
            transport.close()
    p95 = quantiles(told, n=20)[-1] if len(told) > 20 else 99.0
    what = f"{count:,} followers of {jobs} jobs"
    return [
        plain("api", place.name, f"{what}: progress told after, p95", [p95 * 1_000], "ms", Target("<", 1_000)),
        plain("api", place.name, f"{what}: events told", [len(told) / seconds], "/s"),
        plain("api", place.name, f"{what}: memory of the API, resident", [memory], "MB", Target("<", 300)),
        plain("api", place.name, f"{what}: ends that were not told", [count - done], "", Target("<=", 0)),
    ]


async def _updates(place: Place, run: Run) -> list[Figure]:
    jobs, seconds = run.size(500, 20), run.size(10, 3)
    done: set[str] = set()

    def heard(job_id: str, data: bytes) -> None:
        if b"event: done" in data:
            done.add(job_id)

    async with database(place) as url, work(url, jobs) as app, api_server(url) as (port, _):
        made = await app.tasks["sleeper"].enqueue_many([{"seconds": seconds}] * jobs)
        opened = await follow_all(port, [job.id for job in made], jobs, heard)
        async with asyncio.timeout(PATIENCE_S):
            while len(done) < jobs:
                await asyncio.sleep(0.1)
        for transport in opened:
            transport.close()
        versions = [(await job.refresh()).job.version for job in made]
    updates = sum(versions) / seconds
    return [
        plain(
            "api", place.name, "progress updates through the whole path", [updates], "/s", Target(">=", jobs * 2 * 0.9)
        ),
        plain("api", place.name, "ends of these that were not told", [jobs - len(done)], "", Target("<=", 0)),
    ]
