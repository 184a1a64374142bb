"""The API as an ASGI application: all routes share one pipeline.

    request → id → host and origin → authentication → authorization → parameters → handler → response with its headers

Every request passes through it. Only `/livez`, `/readyz`, the static files of the dashboard and the sign-in need no
credential. The application starts its own loops with the first request, so that it can be mounted into another ASGI
application whose server sends it no lifespan events.
"""

import asyncio
import itertools
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from headway.core.clock import Clock, Loop, cancel_until_done
from headway.core.errors import HeadwayError
from headway.core.events import RequestFailed, emit
from headway.core.ports import WakeUps
from headway.core.process_metrics import ProcessMetrics
from headway.core.settings import Settings
from headway.operations.caller import Principal
from headway.operations.dead_letters import DeadLetters, FailedJobs
from headway.operations.webhooks import Deliveries, Webhooks
from headway.server.admission import admit, check_origin
from headway.server.operation_routes import routes_of
from headway.server.paths import Paths, path_of
from headway.server.proxies import TrustedProxies
from headway.server.refusals import Refused, refusal_of
from headway.server.routes import (
    access,
    dashboard,
    health,
    jobs,
    metrics,
    openapi,
    operations,
    schedules,
    session,
)
from headway.server.routes import (
    streams as follow,
)
from headway.server.routes.websocket import WebSocketSession
from headway.server.services import Services
from headway.server.web import Answer, Call, Route, answer_json, etag_of, headers_of

ROUTES: Final[tuple[Route, ...]] = (
    *jobs.ROUTES,
    *follow.ROUTES,
    *schedules.ROUTES,
    *operations.ROUTES,
    *routes_of(FailedJobs, "operations"),
    *routes_of(DeadLetters, "operations"),
    *routes_of(Webhooks, "webhooks"),
    *routes_of(Deliveries, "webhooks"),
    *access.ROUTES,
    *session.ROUTES,
    *metrics.ROUTES,
    *health.ROUTES,
    *openapi.ROUTES,
    *dashboard.ROUTES,
)
WHOLE_ANSWER: Final = "headway.whole_answer"  # An extension of our own server: headers and body at once.
NOBODY: Final = Principal("nobody", "", "viewer")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{8,64}")
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_RAW_HEADERS: Final = tuple((name.lower().encode(), value.encode()) for name, value in _HEADERS.items())
_SAFE: Final = ("GET", "HEAD")
_BODILESS: Final = (204, 304)  # Their length would be that of a response that is not sent.
Header = tuple[bytes, bytes]
# Request ids are unique across processes; they need not be unguessable.
_numbers: Final = itertools.count(random.Random().getrandbits(63))


class Api:
    """The ASGI application. Its loops live from the first request, or `start`, to `close`."""

    def __init__(
        self,
        open_services: Callable[[], Awaitable[Services]],
        settings: Settings,
        clock: Clock,
        process_metrics: ProcessMetrics,
    ) -> None:
        self._open_services = open_services
        self._settings = settings
        self._clock = clock
        self._process_metrics = process_metrics
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._paths = Paths(ROUTES)
        self._services: Services | None = None
        self._running: list[asyncio.Task[None]] = []
        self._wake_ups: WakeUps | None = None
        self._starting = asyncio.Lock()
        self._failed: asyncio.Future[None] | None = None

    # --- lifecycle

    @property
    def failed(self) -> "asyncio.Future[None]":
        """Resolves with the error of a loop that ended by itself."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        return self._failed

    async def start(self) -> Services:
        """Open the store and start the loops, once."""
        async with self._starting:
            if self._services is None:
                services = await self._open_services()
                self._wake_ups = await services.watch(self._hearing(services))
                services.fanout.is_woken = self._wake_ups.mode != "poll"
                watching = Loop("wake-ups", self._check_wake_ups, clock=self._clock, rest_s_max=30.0)
                services.loops.append(watching)
                services.health.add(watching)
                self._running = [asyncio.ensure_future(loop.run()) for loop in services.loops]
                for task in self._running:
                    task.add_done_callback(self._ended)
                self._services = services
            return self._services

    def _hearing(self, services: Services) -> Callable[[str], None]:
        def hear(topic: str) -> None:
            if topic in ("feed", "anything") and services.fanout.count():
                services.fanout.wake()
            if topic == "deliveries":  # Without precise notifications, polling every second is enough.
                services.deliverer.wake()

        return hear

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Handle a loop that ended by itself: that is a bug, and this process cannot be trusted to go on."""
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            emit(RequestFailed(node=self._clock.node, request_id="-", error=error))
            self.failed.set_exception(error)
            self.failed.exception()  # Our own server reads it; a server that we are mounted in may not.

    async def _check_wake_ups(self) -> float:
        if self._wake_ups is not None and self._services is not None:
            await self._wake_ups.check()
            self._services.fanout.is_woken = self._wake_ups.mode != "poll"
        return 15.0

    def end_streams(self) -> None:
        """End every stream; clients reconnect to another process, or to the next one here."""
        if self._services is not None:
            self._services.is_closing = True
            self._services.fanout.wake_all()

    async def close(self) -> None:
        """End streams and loops."""
        self.end_streams()
        services, self._services = self._services, None
        if services is None:
            return
        for loop in services.loops:
            loop.stop()
        _, late = await asyncio.wait(self._running, timeout=5.0)
        await cancel_until_done(*late)
        await asyncio.gather(*self._running, return_exceptions=True)
        services.offload.close()
        await services.deliverer.close()
        if services.live is not None:
            await services.live.close()
        if self._wake_ups is not None:
            await self._wake_ups.close()

    # --- ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, a WebSocket or the lifespan."""
        if scope["type"] != "lifespan" and scope.get("client"):
            peer, port = scope["client"]
            scope["client"] = self._proxies.client_of(peer, scope["headers"]), port
        if scope["type"] == "http":
            routes, parameters = self._paths.find(scope)
            if routes is None:
                await self._miss(scope, receive, send)
            else:
                scope["path_params"] = parameters
                await self.serve(routes, scope, receive, send)
        elif scope["type"] == "websocket":
            await self._converse(WebSocket(scope, receive, send))
        else:
            await self._live(receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except HeadwayError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _miss(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        request_id = _request_id(headers_of(scope))
        refusal = Refused(404, "not_found", "not found: no such path; /docs lists all paths")
        await self._send(request, send, _error(refusal, request_id), request_id)

    async def serve(self, routes: Mapping[str, Route], scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a path that exists."""
        request, started = Request(scope, receive), self._clock.monotonic()
        request_id = _request_id(headers_of(scope))
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = routes.get(method)
        try:
            if route is None:
                allowed = ", ".join(sorted(routes))
                raise Refused(405, "not_allowed", f"this path allows {allowed} only", headers={"Allow": allowed})
            answer = await self._answer(request, route, request_id)
            if not isinstance(answer, Answer):
                answer.headers = {**_HEADERS, "X-Request-ID": request_id}
                self._count(route.path, method, 200, started)
                await answer(scope, receive, send)
                return
        except HeadwayError as error:
            refusal = refusal_of(error)
            if refusal is None:
                refusal = self._internal(request_id, error)
            answer = _error(refusal, request_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an id and the log the rest
            answer = _error(self._internal(request_id, error), request_id)
        self._count(route.path if route else "?", method, answer.status, started)
        await self._send(request, send, answer, request_id)

    async def _answer(self, request: Request, route: Route, request_id: str) -> Any:
        if route.handler is health.livez:  # Works even before the store is open.
            return health.ALIVE
        if route.handler is dashboard.page:  # It too works without a store: it shows what is wrong.
            return dashboard.answer(request, route)
        services = self._services or await self.start()
        check_origin(request)
        principal = NOBODY
        if route.role is not None:
            principal = await admit(request, services.auth, is_page=openapi.is_page(route))
            if not principal.may(route.role):
                raise Refused(403, "forbidden", f"the role {route.role} is needed, this token has {principal.role}")
            services.quotas.request(principal)
        call = Call(request, route, principal, self._settings, self._clock, request_id, services)
        _ = call.query  # Wrong parameters are refused before anything happens.
        return await route.handler(call)

    def _internal(self, request_id: str, error: BaseException) -> Refused:
        emit(RequestFailed(node=self._clock.node, request_id=request_id, error=error))
        return Refused(500, "internal", "internal error; look up the request id in the log of the server")

    def _count(self, path: str, method: str, status: int, started: float) -> None:
        self._process_metrics.request(path, method, status, self._clock.monotonic() - started)

    async def _send(self, request: Request, send: Send, answer: Answer, request_id: str) -> None:
        body = answer_json(answer.body)
        status, method = answer.status, request.scope["method"]
        headers = [*_RAW_HEADERS, (b"x-request-id", request_id.encode())]
        if status == 200 and method in _SAFE and (answer.etag or answer.media_type == "application/json"):
            etag = answer.etag or etag_of(body)
            headers.append((b"etag", etag.encode()))
            known = headers_of(request.scope).get(b"if-none-match")
            if known is not None and _matches(known.decode("latin-1"), etag):
                status, body = 304, b""
        if body:
            headers.append((b"content-type", answer.media_type.encode()))
        if answer.headers:
            own = [
                (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in answer.headers.items()
            ]
            replaced = {name for name, _ in own}
            headers = [*(header for header in headers if header[0] not in replaced), *own]
        if status not in _BODILESS:
            headers.append((b"content-length", str(len(body)).encode()))
        if method == "HEAD":
            body = b""
        send_whole = request.scope.get("extensions", {}).get(WHOLE_ANSWER)
        if send_whole is None or not send_whole(status, headers, body):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    # --- WebSocket

    async def _converse(self, socket: WebSocket) -> None:
        request_id = _request_id(headers_of(socket.scope))
        try:
            if path_of(socket.scope) != "/api/ws":
                raise Refused(404, "not_found", "not found: the WebSocket is at /api/ws")
            services = self._services or await self.start()
            check_origin(socket)
            principal = await admit(socket, services.auth)
            services.quotas.request(principal)
        except HeadwayError as error:
            await _refuse_socket(socket, refusal_of(error) or self._internal(request_id, error), request_id)
            return
        route = Route(method="GET", path="/api/ws", handler=_no_handler, role="viewer", summary="")
        request = Request({**socket.scope, "type": "http", "method": "GET"})
        call = Call(request, route, principal, self._settings, self._clock, request_id, services)
        await socket.accept()
        await WebSocketSession(socket, call).run()


async def _refuse_socket(socket: WebSocket, refusal: Refused, request_id: str) -> None:
    """Refuse a handshake with the standard JSON error; if the server does not support that, just close it."""
    if "websocket.http.response" not in socket.scope.get("extensions", {}):
        await socket.close(4404 if refusal.status == 404 else 4401)
        return
    status, headers, body = refused_answer(refusal, request_id)
    await socket.send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await socket.send({"type": "websocket.http.response.body", "body": body})


def refused_answer(refusal: Refused, request_id: str) -> tuple[int, list[Header], bytes]:
    """Return status, headers and body of a refusal, for cases without a request that `Api` could handle."""
    body = answer_json(error_body(refusal, request_id))
    own = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in refusal.headers.items()]
    headers = [
        *_RAW_HEADERS,
        (b"x-request-id", request_id.encode()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *own,
    ]
    return refusal.status, headers, body


async def _no_handler(_: Call) -> Answer:
    raise AssertionError("a WebSocket has no response")


def _error(refusal: Refused, request_id: str) -> Answer:
    return Answer(error_body(refusal, request_id), refusal.status, refusal.headers)


def error_body(refusal: Refused, request_id: str) -> dict[str, Any]:
    """Build the response for a refused request."""
    error = {"code": refusal.code, "message": str(refusal)}
    if refusal.hint is not None:
        error["hint"] = refusal.hint
    return {"error": error, "request_id": request_id}


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(text := given.decode("latin-1")):
        return text
    return new_request_id()


def new_request_id() -> str:
    """Name a request."""
    return f"req_{next(_numbers):016x}"


def _matches(header: str, etag: str) -> bool:
    known = {part.strip().removeprefix("W/") for part in header.split(",")}
    return "*" in known or etag.removeprefix("W/") in known
