"""The dashboard at `/`: the static files of its build in `static/dashboard`.

The page contains no data, so it needs no credential; it loads its data from the API, which does. It works below any
path, since its URLs are relative.

Browsers revalidate `index.html` at every visit. It names the other files with a version, the hash of their content, so
browsers cache those for good, and a new build is seen at once. The script names the one that draws charts in the same
way. A build while the server runs takes effect at the next visit.
"""

import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from starlette.requests import Request

from headway.server.refusals import Refused
from headway.server.web import Answer, Call, Route

FOLDER: Final = Path(__file__).parents[1] / "static" / "dashboard"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
START: Final = "index.html"
SCRIPT: Final = "app.js"
# Path: file, type, description.
FILES: Final = {
    "/": (START, "text/html; charset=utf-8", "The dashboard"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8", "The script of the dashboard"),
    "/plot.js": ("plot.js", "text/javascript; charset=utf-8", "The script that draws charts"),
    "/app.css": ("app.css", "text/css; charset=utf-8", "The style of the dashboard"),
    "/icon.svg": ("icon.svg", "image/svg+xml", "The icon of the dashboard"),
}
FOREVER: Final = "public, max-age=31536000, immutable"
ASK_AGAIN: Final = "no-cache"
NOT_BUILT: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<title>Headway</title>
<h1>Headway is running. The dashboard is not built yet.</h1>
<p>In a clone of the repository, build it and open this page again:</p>
<pre>make dashboard</pre>
<p>Packages contain the built dashboard. The API works without it: <a href="docs">API reference</a>.</p>
</html>
"""


@dataclass(frozen=True, slots=True)
class _File:
    """The content of one file, plain and compressed, and its hash."""

    body: bytes
    packed: bytes
    version: str


_Stamp = tuple[tuple[int, int] | None, ...]
_read: dict[Path, tuple[_Stamp, dict[str, _File]]] = {}


def files_in(folder: Path) -> dict[str, _File]:
    """Return the files of a build, read again when one of them has changed; empty if the build is incomplete."""
    names = [name for name, *_ in FILES.values()]
    stamp = tuple(_stamp_of(folder / name) for name in names)
    known = _read.get(folder)
    if known is None or known[0] != stamp:
        known = _read[folder] = (stamp, {} if None in stamp else _load(folder, names))
    return known[1]


def _stamp_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _load(folder: Path, names: list[str]) -> dict[str, _File]:
    found = {name: _file((folder / name).read_bytes()) for name in names if name not in (START, SCRIPT)}
    for name, lead in ((SCRIPT, "./"), (START, "")):  # Each names files that are complete by then.
        text = (folder / name).read_text("utf-8")
        for other, file in found.items():
            text = re.sub(rf'(["\'])(?:\./)?{re.escape(other)}\1', rf"\g<1>{lead}{other}?v={file.version}\g<1>", text)
        found[name] = _file(text.encode())
    return found


def _file(body: bytes) -> _File:
    return _File(body, gzip.compress(body, mtime=0), hashlib.blake2b(body, digest_size=9).hexdigest())


def answer(request: Request, route: Route) -> Answer:
    """Return a file of the dashboard; this needs no store."""
    base, path = request.scope.get("root_path", ""), request.scope["path"]
    if route.path == "/" and not path.endswith("/"):  # Relative URLs need the slash.
        return Answer(status=307, headers={"Location": quote(base) + "/", "Cache-Control": ASK_AGAIN})
    name, media_type, _ = FILES[route.path]
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": ASK_AGAIN, "Vary": "Accept-Encoding"}
    file = files_in(FOLDER).get(name)
    if file is None:
        if name != START:
            raise Refused(404, "not_found", "the dashboard is not built; build it with `make dashboard`")
        return Answer(NOT_BUILT.encode(), headers=headers, media_type=media_type)
    if request.query_params.get("v") == file.version:
        headers["Cache-Control"] = FOREVER
    body = file.body
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = file.packed, "gzip"
    return Answer(body, headers=headers, etag=f'W/"{file.version}"', media_type=media_type)


async def page(call: Call) -> Answer:
    """Return the page or one of its files."""
    return answer(call.request, call.route)


ROUTES: Final = tuple(
    Route(
        method="GET",
        path=path,
        handler=page,
        role=None,
        summary=summary,
        what="A static file without any data.",
        tag="dashboard",
        answers={200: "…"} if name == START else {200: "…", 404: None},
        media_type=media_type,
    )
    for path, (name, media_type, summary) in FILES.items()
)
