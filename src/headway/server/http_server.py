"""The HTTP server of the API: one socket, bound first, and a graceful shutdown of every stream."""

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.http11 import Response

from headway.core.errors import InvalidConfig, StoreUnavailable
from headway.server.api import WHOLE_ANSWER, Api, Header, new_request_id, refused_answer
from headway.server.refusals import Refused

GRACEFUL_S: Final = 3
BACKLOG: Final = 2_048
MESSAGE_BYTES_MAX: Final = 64 << 10
HEAD_BYTES_MAX: Final = 64 << 10
HEAD_S_MAX: Final = 15.0
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status} {status.phrase}".encode() for status in HTTPStatus}


class _Quiet(uvicorn.Server):
    """A uvicorn server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


class _Protocol(HttpToolsProtocol):
    """The HTTP protocol of uvicorn, with timeouts for slow clients, and complete responses sent in one write."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Add our response extension to this connection, and start the timeout for the first request."""
        super().connection_made(transport)
        self._extensions: Any = {WHOLE_ANSWER: self._send_whole}
        self._lacks_head = True
        self._head_bytes = 0
        self._giving_up: asyncio.TimerHandle | None = self.loop.call_later(HEAD_S_MAX, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._wait_no_longer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start the timeout for the rest of the request headers."""
        super().on_message_begin()
        self._lacks_head = True

    def on_headers_complete(self) -> None:
        """Start to handle a request."""
        self._lacks_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request; most arrive complete. Close the connection if its headers do not end in time."""
        super().data_received(data)
        if not self._lacks_head:
            self._wait_no_longer()
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(Refused(431, "too_large", f"the headers may have at most {HEAD_BYTES_MAX:,} bytes"))
        elif self._giving_up is None:
            self._giving_up = self.loop.call_later(HEAD_S_MAX, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with the standard JSON 400."""
        self._refuse(Refused(400, "not_http", "malformed HTTP request"))

    def _refuse(self, refusal: Refused) -> None:
        """Report malformed request headers and close the connection: the start of the next request is unknown."""
        status, headers, body = refused_answer(refusal, new_request_id())
        lines = [*map(b": ".join, [*self.server_state.default_headers, *headers])]
        self.transport.write(b"\r\n".join([_STATUS_LINES[status], *lines, b"connection: close", b"", body]))
        self.transport.close()

    def _wait_no_longer(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up, self._head_bytes = None, 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle  # One request at a time; pipelined ones wait.
        cycle.scope["extensions"] = self._extensions
        super()._start_asgi_task(cycle, app)

    def _send_whole(self, status: int, headers: Iterable[Header], body: bytes) -> bool:
        return _send_whole(self._served, status, headers, body)


class _SocketProtocol(WebSocketsSansIOProtocol):
    """The WebSocket protocol of uvicorn; a failed handshake gets the standard JSON error and its headers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn.reject = self._rejected  # type: ignore[assignment, method-assign]

    def _rejected(self, status: int, _: str) -> Response:
        """Return the response to a failed handshake, without the reason, which would quote the request."""
        is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        code, message = ("internal", "internal error") if is_ours else ("not_websocket", "the handshake is not valid")
        found, headers, body = refused_answer(Refused(int(status), code, message), new_request_id())
        said = [*self.default_headers, *headers, (b"connection", b"close")]
        named = Headers([(name.decode(), value.decode("latin-1")) for name, value in said])
        return Response(found, HTTPStatus(found).phrase, named, body)


def _send_whole(cycle: RequestResponseCycle, status: int, headers: Iterable[Header], body: bytes) -> bool:
    """Send headers and body in one packet, which wakes the reader once; return whether that was possible.

    In unusual cases uvicorn sends the response in its own way, which takes a tenth longer.
    """
    is_plain = cycle.keep_alive and not (cycle.response_started or cycle.waiting_for_100_continue)
    if not is_plain or cycle.disconnected or cycle.flow.write_paused:
        return False
    lines = [_STATUS_LINES[status], *map(b": ".join, cycle.default_headers), *map(b": ".join, headers)]
    head = b"\r\n".join(lines)
    if not head.count(b"\n") == head.count(b"\r") == len(lines) - 1:
        return False  # A value with a line break: uvicorn rejects that.
    cycle.response_started = cycle.response_complete = True
    cycle.transport.write(b"%b\r\n\r\n%b" % (head, body))
    cycle.message_event.set()
    cycle.on_response()
    return True


def bind(host: str, port: int) -> socket.socket:
    """Bind the address; an error says in one line what is wrong with it."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        cure = "is another Headway running? choose another with --port" if port else "choose another with --host"
        raise InvalidConfig(f"cannot listen on {host}:{port}: {error.args[-1]}; {cure}") from None
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the URL at which a socket listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(api: Api, listening: socket.socket, stopping: asyncio.Event) -> None:
    """Serve requests until asked to stop; then end streams, let requests finish, and close."""
    config = uvicorn.Config(
        api,
        http=_Protocol,
        ws=_SocketProtocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `status.proxies` reads them, from trusted proxies only.
        date_header=True,
        timeout_graceful_shutdown=GRACEFUL_S,
        ws_max_size=MESSAGE_BYTES_MAX,
    )
    with contextlib.suppress(StoreUnavailable):  # The first request starts it instead.
        await api.start()  # Webhooks must be sent even if no request ever comes.
    server = _Quiet(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    waiting = asyncio.ensure_future(stopping.wait())
    try:
        ends: list[asyncio.Future[Any]] = [serving, waiting, api.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if api.failed.done():
            api.failed.result()  # Raises: a process with some of its loops is worse than none.
    finally:
        waiting.cancel()
        api.end_streams()
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        await api.close()
        listening.close()
