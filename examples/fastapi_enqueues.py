"""Enqueue jobs from a web app: it responds at once, and the job is durable before it does."""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from fastapi import FastAPI

from headway import Headway

os.environ.setdefault("HEADWAY_STORE", f"sqlite:///{tempfile.mkdtemp()}/headway.db")
app, web = Headway(), FastAPI()


@app.task
def confirm(order: int) -> str:
    return f"order {order} is confirmed"


@web.post("/orders/{order}", status_code=202)
async def place(order: int) -> dict[str, str]:
    job = await confirm.options(key=f"order-{order}").enqueue(order=order)  # An idempotency key: two requests, one job.
    return {"job": job.id}


@web.get("/jobs/{job_id}")
async def show(job_id: str) -> dict[str, object]:
    job = await app.job(job_id)
    return {"status": job.status, "progress": job.progress, "result": job.result}


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=web), base_url="http://shop") as client:
        first, again = await client.post("/orders/7"), await client.post("/orders/7")
        print(first.status_code, first.json() == again.json())
        await (await app.job(first.json()["job"])).wait(timeout="1m")
        print((await client.get(f"/jobs/{first.json()['job']}")).json())


if __name__ == "__main__":
    command = [sys.executable, "-m", "headway", "worker", "--app", "fastapi_enqueues:app"]
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    asyncio.run(main())
    worker.terminate()
    worker.wait()

# 202 True
# {'status': 'COMPLETED', 'progress': 100, 'result': 'order 7 is confirmed'}
