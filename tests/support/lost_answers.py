"""A way to an HTTP server on which chosen answers are lost: the server has done it, and the caller never hears."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web


@asynccontextmanager
async def lost_answers(port: int, about: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Listen at a port and pass requests on to another; return it and those whose answer is lost, all about this."""
    lost: list[bytes] = []
    async with aiohttp.ClientSession() as session:

        async def pass_on(request: web.Request) -> web.Response:
            body = await request.read()
            url = f"http://127.0.0.1:{port}{request.path_qs}"
            async with session.request(request.method, url, data=body, headers=request.headers) as answer:
                text = await answer.read()
            if about in body:
                lost.append(body)
                assert request.transport is not None
                request.transport.abort()
            return web.Response(status=answer.status, body=text)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield runner.addresses[0][1], lost
        finally:
            await runner.cleanup()
