"""A way to an HTTP server on which chosen answers are lost: the server has done it, and the caller never hears."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from tests.support.server import free_port


@asynccontextmanager
async def lost_answers(port: int, is_lost: Callable[[bytes], bool]) -> AsyncIterator[int]:
    """Listen at a port, which is returned, and pass requests on to another; `is_lost` looks at their bodies."""
    async with aiohttp.ClientSession() as session:

        async def pass_on(request: web.Request) -> web.Response:
            body = await request.read()
            url = f"http://127.0.0.1:{port}{request.path_qs}"
            async with session.request(request.method, url, data=body, headers=request.headers) as answer:
                text = await answer.read()
            if is_lost(body):
                assert request.transport is not None
                request.transport.abort()
            return web.Response(status=answer.status, body=text)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        here = free_port()
        await web.TCPSite(runner, "127.0.0.1", here).start()
        try:
            yield here
        finally:
            await runner.cleanup()
