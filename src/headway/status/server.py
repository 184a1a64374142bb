"""The HTTP server around the API: one socket, bound before anything else, and an orderly end of every stream."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headway.errors import InvalidConfig, StoreUnavailable
from headway.status.api import Api

GRACEFUL_S: Final = 3
BACKLOG: Final = 2_048
MESSAGE_BYTES_MAX: Final = 64 << 10


class _Quiet(uvicorn.Server):
    """Signals belong to whoever runs us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


class _Gathering:
    """A transport that sends the head of an answer together with its body: one packet, and one wake-up of who reads it.

    A head that says how long the body is waits for it, since it comes at once; that of a stream does not wait.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held = b""

    def write(self, data: bytes) -> None:
        """Send this soon, after what waits."""
        if self._held:
            data, self._held = self._held + data, b""
            self._transport.write(data)
        elif data.startswith(b"HTTP/") and b"\r\ncontent-length: " in data:
            self._held = data
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close after everything is sent."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Send what waits: there was no body after all."""
        if self._held:
            data, self._held = self._held, b""
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Protocol(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, in fewer packets."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Have what is written gathered."""
        self._gathering = _Gathering(transport)
        super().connection_made(self._gathering)  # type: ignore[arg-type]

    def on_response_complete(self) -> None:
        """See that all of it is sent before the next one begins."""
        self._gathering.flush()
        super().on_response_complete()


def bind(host: str, port: int) -> socket.socket:
    """Bind the address; say in one line what is wrong with it."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        cure = "is another Headway running? choose another with --port" if port else "choose another with --host"
        raise InvalidConfig(f"cannot listen on {host}:{port}: {error.args[-1]}; {cure}") from None
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket) -> str:
    """Write where a socket listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(api: Api, listening: socket.socket, stopping: asyncio.Event) -> None:
    """Answer requests until told to stop; then end streams, let requests end, and close."""
    config = uvicorn.Config(
        api,
        http=_Protocol,
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # Who asks is who connects; anybody can write another address into a header.
        date_header=True,
        timeout_graceful_shutdown=GRACEFUL_S,
        ws_max_size=MESSAGE_BYTES_MAX,
    )
    with contextlib.suppress(StoreUnavailable):  # Then the first request starts it.
        await api.start()  # Webhooks are sent also where nobody ever asks for anything.
    server = _Quiet(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    waiting = asyncio.ensure_future(stopping.wait())
    try:
        ends: list[asyncio.Future[Any]] = [serving, waiting, api.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if api.failed.done():
            api.failed.result()  # Raises: a process with half of its loops is worse than none.
    finally:
        waiting.cancel()
        api.end_streams()
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        await api.close()
        listening.close()
