"""HTTP endpoints of one service, tried in order until one answers; and a subscription to them.

A call has a time limit for all its requests. The endpoint that answered last is tried first and may use half of the
remaining time, the next one half of the rest, the last one all of it: a server that has vanished costs one call a part
of its time, and later calls try other endpoints first.
"""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from headway.adapters.adapter_url import AdapterUrl
from headway.core.clock import Clock, cancel_until_done
from headway.core.errors import EngineUnavailable
from headway.core.instants import SECOND, Duration

CALL_S_MIN: Final = 1.0
CALL_S_MAX: Final = 3.0
CALL_PART: Final = 4  # Share of a lease: the caller needs time left to renew its lease in the store.
CONNECT_S_MAX: Final = 2.0  # For a subscription.
CONNECTIONS_MAX: Final = 32
LISTEN_AGAIN_S: Final = 0.2
LISTEN_AGAIN_S_MAX: Final = 3.0
TEXT_LENGTH_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """A response; it may be a refusal, which every endpoint would repeat."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body in one line, for people."""
        return in_one_line(self.body.decode(errors="replace"))


class Endpoints:
    """The endpoints of an address. `trouble` returns why a response does not count and another endpoint is tried."""

    def __init__(
        self,
        engine: str,
        address: AdapterUrl,
        *,
        clock: Clock,
        node: str,
        trouble: Callable[[EndpointReply], str | None],
    ) -> None:
        self._engine = engine
        self._tls: ssl.SSLContext | bool = address.tls() if address.scheme.endswith("s") else True
        scheme = "https" if address.scheme.endswith("s") else "http"
        self._urls = [f"{scheme}://{_host(host)}:{port}" for host, port in address.endpoints]
        self._agent = re.sub(r"[^!-~]", "-", f"headway-{node}")
        self._clock = clock
        self._trouble = trouble
        self._session: aiohttp.ClientSession | None = None
        self._at = 0  # The endpoint that answered last.
        self._listens_at = 0

    def deadline(self, duration: Duration | None = None) -> float:
        """Return the monotonic deadline of a call: well before a lease of this duration expires."""
        call_s = CALL_S_MAX if duration is None else duration / SECOND / CALL_PART
        return self._clock.monotonic() + min(max(call_s, CALL_S_MIN), CALL_S_MAX)

    async def ask(
        self, method: str, path: str, *, until: float, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> EndpointReply:
        """Return the first response that counts; raise `EngineUnavailable` if there is none in time."""
        troubles: dict[str, None] = {}
        first, last_turn = self._at, len(self._urls) - 1
        for turn in range(len(self._urls) + 1):  # Retried once: the server may just have closed the connection.
            at = (first + turn) % len(self._urls)
            seconds = until - self._clock.monotonic()
            if seconds <= 0:
                break
            try:
                async with (
                    asyncio.timeout(seconds / 2 if turn < last_turn else seconds),
                    self._request(method, self._urls[at] + path, data=body, headers=headers) as response,
                ):
                    answer = EndpointReply(response.status, await response.read())
            except asyncio.CancelledError:
                if self._at == at:  # The caller gave up first; try another endpoint next time.
                    self._at = (at + 1) % len(self._urls)
                raise
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                troubles[f"{self._urls[at]}: {_words(error)}"] = None
            else:
                trouble = self._trouble(answer)
                if trouble is None:
                    self._at = at
                    return answer
                troubles[f"{self._urls[at]}: {trouble}"] = None
        raise EngineUnavailable(f"{self._engine} does not answer: {'; '.join(troubles) or 'no time was left'}")

    @asynccontextmanager
    async def listen(
        self, method: str, path: str, *, quiet_s: float, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a streaming or long-polling response; after `quiet_s` of silence it counts as lost."""
        url = self._urls[self._listens_at]
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX, sock_read=quiet_s)
        try:
            async with self._request(method, url + path, data=body, headers=headers, timeout=limits) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError, EngineUnavailable) as error:
            self._listens_at = (self._listens_at + 1) % len(self._urls)
            raise EngineUnavailable(f"{self._engine} at {url}: {_words(error)}") from error

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def _request(self, method: str, url: str, **options: Any) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:  # Created on first use: it belongs to the event loop that runs then.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls, limit=CONNECTIONS_MAX),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": self._agent},
                timeout=aiohttp.ClientTimeout(total=None),  # Our own timeout covers all of it.
            )
        return self._session.request(method, url, allow_redirects=False, **options)


class Subscription:
    """A subscription that reconnects; `follow` listens until the connection is lost."""

    def __init__(self, follow: Callable[[Callable[[], None]], Awaitable[None]], *, clock: Clock) -> None:
        self._follow = follow
        self._clock = clock
        self._failures = 0
        self._hear: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, hear: Callable[[], None], name: str) -> None:
        """Call `hear` from now on."""
        self._hear = hear
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=name)

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            await cancel_until_done(self._task)

    def _tell(self) -> None:
        self._failures = 0
        if self._hear is not None:
            self._hear()

    async def _run(self) -> None:
        while True:
            with suppress(EngineUnavailable):  # Calls for locks report it; here it only delays wake-ups.
                await self._follow(self._tell)
            self._failures += 1
            rest_s = self._clock.backoff_s(self._failures + 1, first_s=LISTEN_AGAIN_S, most_s=LISTEN_AGAIN_S_MAX)
            await self._clock.rest(rest_s, asyncio.Event())


def in_one_line(text: str) -> str:
    """Shorten a server's message to one line."""
    return " ".join(text.split())[:TEXT_LENGTH_MAX]


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _words(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientSSLError():
            return in_one_line(str(error))
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number))) if number > 0:
            return os.strerror(number)
    return in_one_line(str(error)) or type(error).__name__
