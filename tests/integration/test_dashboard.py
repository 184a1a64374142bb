"""The files of the dashboard as the server sends them: types, caching, CSP, under a path, and without a build."""

import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from headway import Headway
from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.core.settings import Settings
from headway.server.api import Api
from headway.server.routes import dashboard
from headway.wiring.api import new_api

SOURCES = Path(__file__).parents[2] / "dashboard"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
BUILD = {
    "index.html": '<!doctype html><link rel="icon" href="icon.svg"><link rel="stylesheet" href="./app.css">'
    '<script type="module" src="app.js"></script>',
    "app.js": "export const seven = 7;\n" * 100,
    "plot.js": "export default 8;\n",
    "app.css": "body { margin: 0 }\n",
    "icon.svg": '<svg xmlns="http://www.w3.org/2000/svg"/>',
}
TYPES = {
    "/": "text/html; charset=utf-8",
    "/app.js": "text/javascript; charset=utf-8",
    "/plot.js": "text/javascript; charset=utf-8",
    "/app.css": "text/css; charset=utf-8",
    "/icon.svg": "image/svg+xml",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small build."""
    made = tmp_path / "dashboard"
    made.mkdir()
    for name, text in BUILD.items():
        (made / name).write_text(text)
    monkeypatch.setattr(dashboard, "FOLDER", made)
    return made


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    app = Headway(f"sqlite:///{tmp_path}/headway.db", settings=Settings())
    made = app.api()
    yield made
    await made.close()


def client_of(application: Callable[..., object], base: str = "http://127.0.0.1") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=application), base_url=base)  # type: ignore[arg-type]


async def test_page_and_its_files_are_public(api: Api, folder: Path) -> None:
    async with client_of(api) as client:
        for path, media_type in TYPES.items():
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            empty = await client.head(path)
            assert (empty.status_code, empty.content) == (200, b"")
            assert (await client.post(path)).status_code == 405
        assert (await client.get("/app.js")).text == BUILD["app.js"]
        assert (await client.get("/api/jobs")).status_code == 401  # Everything else requires a token.


async def test_no_other_file_is_served(api: Api, folder: Path) -> None:
    (folder / "app.js.map").write_text("{}")
    async with client_of(api) as client:
        for path in ("/app.js.map", "/dashboard/app.js", "/..%2fapi.py", "/%2e%2e/api.py", "/index.html", "/APP.JS"):
            assert (await client.get(path)).status_code == 404, path


async def test_versioned_files_are_immutable_and_the_page_is_not(api: Api, folder: Path) -> None:
    async with client_of(api) as client:
        page = await client.get("/")
        assert page.headers["cache-control"] == "no-cache"
        named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert [name.partition("?v=")[0] for name in named] == ["icon.svg", "app.css", "app.js"]
        for name in named:
            answer = await client.get(f"/{name}")
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert (await client.get(f"/{name}0")).headers["cache-control"] == "no-cache"  # Another version.
        known = page.headers["etag"]
        again = await client.get("/", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", known)
        assert again.headers["content-security-policy"] == POLICY
        (folder / "app.js").write_text("export const eight = 8;\n")
        changed = await client.get("/", headers={"If-None-Match": known})
        assert changed.status_code == 200
        assert named[2] not in changed.text
        assert (await client.get("/app.js")).text == "export const eight = 8;\n"


async def test_script_names_the_version_of_what_draws_charts(api: Api, folder: Path) -> None:
    async with client_of(api) as client:
        versions = []
        for text in (BUILD["plot.js"], "export default 9;\n"):
            (folder / "plot.js").write_text(text)
            (folder / "app.js").write_text('const load = () => import("./plot.js");')
            [name] = re.findall(r'import\("\./(plot\.js\?v=[^"]+)"\)', (await client.get("/app.js")).text)
            answer = await client.get(f"/{name}")
            assert (answer.text, answer.headers["cache-control"]) == (text, "public, max-age=31536000, immutable")
            versions.append(re.findall(r"app\.js\?v=\w+", (await client.get("/")).text))
        assert versions[0] != versions[1]  # A new file is seen at once, although the script is cached for good.


async def test_files_are_compressed_if_accepted(api: Api, folder: Path) -> None:
    async with client_of(api) as client:
        packed = await client.get("/app.js", headers={"Accept-Encoding": "br, gzip"})
        plain = await client.get("/app.js", headers={"Accept-Encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert int(packed.headers["content-length"]) < len(plain.content) / 5
        assert "content-encoding" not in plain.headers
        assert packed.text == plain.text == BUILD["app.js"]
        assert {packed.headers["vary"], plain.headers["vary"]} == {"Accept-Encoding"}
        assert gzip.decompress(gzip.compress(plain.content)) == packed.content


async def test_dashboard_works_under_a_path(api: Api, folder: Path) -> None:
    inside = Starlette(routes=[Mount("/ops/headway", api)])
    async with client_of(inside) as client:
        page = await client.get("/ops/headway/")
        assert page.status_code == 200
        named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert not [name for name in named if name.startswith("/")]
        for name in named:
            assert (await client.get(f"/ops/headway/{name}")).status_code == 200
        bare = await client.get("/ops/headway")
        assert bare.status_code in (307, 308)
        assert bare.headers["location"].removeprefix("http://127.0.0.1") == "/ops/headway/"
    behind = httpx.ASGITransport(app=api, root_path="/ops")  # A proxy that sets the root path.
    async with httpx.AsyncClient(transport=behind, base_url="http://127.0.0.1") as client:
        assert (await client.get("/ops/")).status_code == 200
        bare = await client.get("/ops")
        assert (bare.status_code, bare.headers["location"]) == (307, "/ops/")


async def test_missing_build_shows_how_to_build(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "FOLDER", tmp_path / "nothing")
    async with client_of(api) as client:
        page = await client.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, TYPES["/"])
        assert "make dashboard" in page.text
        assert page.headers["content-security-policy"] == POLICY
        assert page.headers["cache-control"] == "no-cache"
        for path in ("/app.js", "/plot.js", "/app.css", "/icon.svg"):
            missing = await client.get(path)
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


async def test_incomplete_build_counts_as_missing(api: Api, folder: Path) -> None:
    (folder / "app.js").unlink()
    async with client_of(api) as client:
        assert "make dashboard" in (await client.get("/")).text


async def test_page_is_served_while_the_store_is_unavailable(folder: Path) -> None:
    async def no_store() -> object:
        raise StoreUnavailable("the store is down")

    api = new_api(no_store, Settings(), Clock())  # type: ignore[arg-type]
    async with client_of(api) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/api/jobs")).status_code == 503


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "test"])
def test_type_check_and_unit_tests_pass(command: str) -> None:
    npm = shutil.which("npm", path=os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)]))
    if npm is None or not (SOURCES / "node_modules" / ".bin" / "tsc").exists():
        if os.environ.get("CI"):
            pytest.fail("missing: what the dashboard is built with (make dashboard)")
        pytest.skip("missing: what the dashboard is built with (make dashboard)")
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(npm).parent), os.environ.get("PATH", "")])}
    done = subprocess.run(
        [npm, "run", "--silent", command],
        cwd=SOURCES,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,  # The type check is slow on a busy machine; pytest ends the test soon after.
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
