"""The API inside somebody else's application, below a path, in a thread."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from headway import Headway
from headway.settings import Settings
from tests.support.server import free_port

TOKEN = "environment-0123456789abcdef"
START_S_MAX = 20.0


@contextlib.contextmanager
def mounted(folder: Path, path: str) -> Iterator[tuple[str, str]]:
    """Serve it until the block ends; return where, and a token."""
    app = Headway(f"sqlite:///{folder}/headway.db", settings=Settings(token=TOKEN))
    port = free_port()
    config = uvicorn.Config(Starlette(routes=[Mount(path, app.api())]), port=port, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + START_S_MAX
    while not server.started:
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}{path}", TOKEN
    server.should_exit = True
    server.force_exit = True  # Its streams have nobody who reads them any more.
    thread.join(START_S_MAX)
