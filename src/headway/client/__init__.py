"""The HTTP client: `Client` for scripts and threads, `AsyncClient` for asyncio, with the same methods.

    from headway.client import Client

    with Client("https://headway.example.com", token="hw_…") as client:      # else HEADWAY_SERVER and HEADWAY_TOKEN
        job = client.enqueue("video.transcode", {"input": "s3://uploads/v.mp4"})
        for event in client.watch(job["id"]):
            print(event.kind, event.data.get("progress"))
        print(client.wait(job["id"]))

Calls return the JSON objects of the API and raise the errors of `headway.core.errors`. A call whose response is lost is
repeated if that is safe. Enqueuing a job is safe: the job gets an idempotency key if it has none.
"""

import ssl
from types import TracebackType
from typing import Self

from headway.client.calls import Calls
from headway.client.follow import Event
from headway.client.transport import AwaitingWire, BlockingWire
from headway.core.clock import Clock
from headway.core.instants import DurationLike

__all__ = ["AsyncClient", "Client", "Event"]


class Client(Calls[BlockingWire]):
    """A blocking client of the API. Threads may share one.

    `timeout` is how long one request may take, `retry_for` how long to try again in all.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        timeout: DurationLike = "30s",
        retry_for: DurationLike = "30s",
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(BlockingWire(server, token, timeout=timeout, retry_for=retry_for, clock=clock, tls=tls))

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(Calls[AwaitingWire]):
    """An asynchronous client of the API; await every call, or iterate over it with `async for`.

    `timeout` is how long one request may take, `retry_for` how long to try again in all.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        timeout: DurationLike = "30s",
        retry_for: DurationLike = "30s",
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(AwaitingWire(server, token, timeout=timeout, retry_for=retry_for, clock=clock, tls=tls))

    async def close(self) -> None:
        """Close the connections."""
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
