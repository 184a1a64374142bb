"""Store the results of steps: a worker is killed, another one continues, and no finished step is repeated."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headway import Context, Headway, Retry

folder = Path(os.environ.setdefault("FOLDER", tempfile.mkdtemp()))
app = Headway(f"sqlite:///{folder}/headway.db")


def encode(size: str) -> str:
    (folder / size).open("a").write("encoded\n")
    time.sleep(1)
    return f"s3://videos/{size}.mp4"


@app.task(retry=Retry(max_attempts=3, backoff="1s"), timeout="30m")
def transcode(ctx: Context, *, sizes: list[str]) -> list[str]:
    with ctx.steps(*sizes) as step:
        for size in sizes:
            with step(size):
                ctx.once(size, encode, size)  # After it has returned, no later attempt calls it again.
    return [ctx.once(size, encode, size) for size in sizes]


if __name__ == "__main__":
    job = transcode.enqueue_sync(sizes=["1080p", "720p", "480p"])
    command = f"{sys.executable} -m headway worker --app transcode_survives_a_kill:app --worker-lease 2s".split()
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    while job.refresh_sync().progress < 50:
        time.sleep(0.05)
    worker.kill()  # In the middle of 720p.
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    print(job.wait_sync(timeout="1m"), "in attempt", job.job.attempt)
    print("1080p:", (folder / "1080p").read_text().split())
    worker.terminate()
    worker.wait()

# ['s3://videos/1080p.mp4', 's3://videos/720p.mp4', 's3://videos/480p.mp4'] in attempt 2
# 1080p: ['encoded']
