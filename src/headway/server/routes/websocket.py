"""The WebSocket: subscriptions to jobs, or to everything, with the same events as the streams."""

import asyncio
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from headway.core.errors import HeadwayError
from headway.operations.job_reads import visible_job
from headway.server.followers import Follower, StreamEvent
from headway.server.refusals import Refused, refusal_of
from headway.server.routes.streams import (
    FILTERS,
    SEND_S_MAX,
    VALID_EVERY_S,
    Attendance,
    follow_everything,
    follow_job,
    is_over,
    place_of,
    spoken,
    wanted,
)
from headway.server.web import Call

SUBSCRIPTIONS_MAX: Final = 100
MESSAGE_BYTES_MAX: Final = 4_096


class _Subscribe(msgspec.Struct, forbid_unknown_fields=True):
    job: str | None = None
    since: int | str | None = None
    all: dict[str, str] | None = None
    cursor: str | None = None


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    subscribe: _Subscribe | None = None
    unsubscribe: _Subscribe | None = None


class WebSocketSession:
    """One WebSocket: subscriptions to jobs, or to everything, and their events."""

    def __init__(self, socket: WebSocket, call: Call) -> None:
        self._socket = socket
        self._call = call
        self._speaking: dict[str, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """Serve the WebSocket until one side closes it; refuse a tenant that has too many open streams."""
        try:
            with self._call.services.quotas.stream(self._call.principal):
                await self._listen()
        except Refused as refused:
            await self._say_error(refused.code, str(refused))
            await self._socket.close(4429)

    async def _listen(self) -> None:
        watch = asyncio.ensure_future(self._watch())
        try:
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                text = message.get("text")
                if text is None:
                    await self._say_error("invalid", "messages are text, not bytes")
                elif len(text) > MESSAGE_BYTES_MAX:
                    await self._say_error("too_large", f"a message may have at most {MESSAGE_BYTES_MAX} characters")
                else:
                    await self._hear(text)
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            for task in (watch, *self._speaking.values()):
                task.cancel()
            await asyncio.gather(watch, *self._speaking.values(), return_exceptions=True)

    async def _watch(self) -> None:
        """Close the WebSocket when the credential becomes invalid or the server stops."""
        nothing = asyncio.Event()
        while not self._call.services.is_closing:
            await self._call.clock.rest(VALID_EVERY_S, nothing)
            gate = self._call.services.auth
            if gate is not None and not await gate.still_valid(self._call.principal):
                break
        if self._socket.application_state is WebSocketState.CONNECTED:
            await self._socket.close(1001 if self._call.services.is_closing else 4401)

    async def _hear(self, text: str) -> None:
        try:
            message = msgspec.json.decode(text, type=_Message)
        except msgspec.DecodeError as error:
            await self._say_error("invalid", f"invalid message: {error}")
            return
        if message.subscribe is not None:
            await self._subscribe(message.subscribe)
        if message.unsubscribe is not None:
            task = self._speaking.pop(message.unsubscribe.job or "*", None)
            if task is not None:
                task.cancel()

    async def _subscribe(self, wish: _Subscribe) -> None:
        name = wish.job or "*"
        if name in self._speaking or len(self._speaking) >= SUBSCRIPTIONS_MAX:
            await self._say_error("too_many", f"at most {SUBSCRIPTIONS_MAX} subscriptions, each once", name)
            return
        place = ExitStack()
        try:
            self._call.services.quotas.request(self._call.principal)
            if self._speaking:  # The first subscription uses the place of the WebSocket itself.
                place.enter_context(self._call.services.quotas.stream(self._call.principal))
            if wish.job is None:
                known = {param.name for param in FILTERS}
                if unknown := (wish.all or {}).keys() - known:
                    raise Refused(422, "invalid", f"unknown filter {min(unknown)[:40]!r}")
                wants = wanted(self._call.tenant, wish.all or {})
                follower, first = await follow_everything(self._call.services.fanout, wants, wish.cursor)
            else:
                job = await visible_job(self._call.caller, wish.job)
                known_place = None if wish.since is None else place_of(str(wish.since))
                follower, first = await follow_job(self._call.services.fanout, self._call, job.id, known_place)
        except BaseException as error:
            place.close()
            if not isinstance(error, HeadwayError):
                raise
            refusal = refusal_of(error)
            await self._say_error(refusal.code if refusal else "internal", str(refusal or "it failed"), name)
            return
        task = self._speaking[name] = asyncio.ensure_future(self._speak(name, follower, first))
        task.add_done_callback(partial(self._end, name, follower, place))

    def _end(self, name: str, follower: Follower, place: ExitStack, task: asyncio.Task[None]) -> None:
        """Stop following; a callback of the task, since a task cancelled before its first step runs no `finally`."""
        place.close()
        self._call.services.fanout.leave(follower)
        if self._speaking.get(name) is task:
            del self._speaking[name]

    async def _speak(self, name: str, follower: Follower, first: list[StreamEvent]) -> None:
        try:
            await self._say(first)
            if name != "*" and is_over(first):
                return
            with Attendance(follower):
                async for events in spoken(self._call.services, self._call.principal, self._call, follower):
                    await self._say(events)
                    if name != "*" and is_over(events):
                        return
            if follower.is_dropped:
                await self._say_error("dropped", "you read too slowly; subscribe again from the last version", name)
        except TimeoutError:
            await self._socket.close(1008)  # The client does not read; queued events would only become stale.

    async def _say(self, events: list[StreamEvent]) -> None:
        async with self._sending, asyncio.timeout(SEND_S_MAX):
            for event in events:
                await self._socket.send_text(event.message().decode())

    async def _say_error(self, code: str, message: str, name: str | None = None) -> None:
        error = {"event": "error", "data": {"code": code, "message": message, "subscription": name}}
        async with self._sending:
            await self._socket.send_text(msgspec.json.encode(error).decode())
