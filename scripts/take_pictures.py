#!/usr/bin/env python3
"""Take the pictures of docs/img: the dashboard on the samples of `headway demo`, in light, in the dark, on a phone.

`make pictures` runs it. It needs Chromium, and takes a minute and a half, since the samples have to have some past.
"""

import sys
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from headway.cli.samples import AFTERWARDS  # noqa: E402
from tests.support.api import api_process  # noqa: E402
from tests.support.browser import launch, visiting  # noqa: E402

FOLDER = ROOT / "docs" / "img"
WARM_UP_S = 75.0
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
# Name: page, theme, size.
PICTURES = {
    "now": ("", "light", WIDE),
    "now-dark": ("", "dark", WIDE),
    "jobs": ("jobs", "light", WIDE),
    "job": ("jobs/{job}", "light", WIDE),
    "job-dark": ("jobs/{job}", "dark", WIDE),
    "schedules": ("schedules", "light", WIDE),
    "schedule": ("schedules/thumbnails", "light", WIDE),
    "problems-dark": ("problems", "dark", WIDE),
    "now-phone": ("", "light", PHONE),
    "job-phone": ("jobs/{job}", "dark", PHONE),
}


def main() -> None:
    """Run the samples for a while, and take every picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        store = f"sqlite:///{folder}/headway.db"
        arguments = ("--app", "headway.cli.samples:app", "--node", "web-1", "--processes", "3", "--grace", "0s")
        with api_process(store, *arguments, role="serve") as server, server.client() as client:
            for task, args in (("import_orders", {}), *AFTERWARDS):
                client.post("/api/jobs", json={"type": task, "args": args}).raise_for_status()
            time.sleep(WARM_UP_S)
            browser = launch(playwright)
            for name, (path, theme, size) in PICTURES.items():
                take(browser, server.url, path.format(job=video(client)), theme, size, FOLDER / f"{name}.png")
            browser.close()


def video(client: httpx.Client) -> str:
    """Wait for a video that is half done; return its job."""
    while True:
        for job in client.get("/api/jobs", params={"type": "transcode", "status": "RUNNING"}).json()["items"]:
            if 25 <= job["progress"] <= 70:
                return str(job["id"])
        time.sleep(0.2)


def take(browser: Browser, url: str, path: str, theme: str, size: dict[str, int], file: Path) -> None:
    """Take one picture."""
    with visiting(browser, url, color_scheme=theme, viewport=size, reduced_motion="reduce") as visit:
        page: Page = visit.open(path)
        page.locator("main h1").first.wait_for(state="attached")
        page.locator('[data-live="live"]').wait_for()
        page.wait_for_timeout(1_500)
        page.screenshot(path=file)
        print(file.relative_to(ROOT), f"{file.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
