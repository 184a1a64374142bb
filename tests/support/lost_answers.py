"""A proxy to an HTTP server that drops chosen responses after the server has done the work."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web


@asynccontextmanager
async def lost_answers(port: int, about: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Forward requests to a port; yield the proxy's port, and the list of requests whose response was dropped."""
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
