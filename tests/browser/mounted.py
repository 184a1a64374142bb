"""Mount the API in another application, under a path, in a thread."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from headway import Headway
from headway.core.settings import Settings
from tests.support.waiting import DEADLINE_S, wait_until

TOKEN = "environment-0123456789abcdef"


@contextlib.contextmanager
def mounted(folder: Path, path: str) -> Iterator[tuple[str, str]]:
    """Serve it until the block ends; yield its URL and a token."""
    app = Headway(f"sqlite:///{folder}/headway.db", settings=Settings(token=TOKEN))
    config = uvicorn.Config(Starlette(routes=[Mount(path, app.api())]), port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the server to start")
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}{path}", TOKEN
    server.should_exit = True
    server.force_exit = True  # Nothing reads its streams any more.
    thread.join(DEADLINE_S)
