"""Create, change and remove schedules at run time, one per tenant, while schedulers run."""

import asyncio
import tempfile

from headway import Cron, Headway, InvalidSchedule

app = Headway(f"sqlite:///{tempfile.mkdtemp()}/headway.db", name="reports")


@app.task
def report(tenant_id: int) -> None: ...


async def main() -> None:
    async with app:
        for tenant in (41, 42):
            await app.put_schedule(
                f"report-{tenant}", task=report, trigger=Cron("0 0 * * *"), args={"tenant_id": tenant}
            )
        changed = await app.put_schedule(
            "report-42", task=report, trigger=Cron("0 6 * * *", tz="Asia/Tokyo"), args={"tenant_id": 42}, jitter="5m"
        )
        print(changed.name, "has revision", changed.revision, "and", changed.spec.trigger)
        print("removed:", await app.remove_schedule("report-41"), await app.remove_schedule("report-41"))
        try:
            await app.put_schedule("report-43", task=report, trigger=Cron("0 0 30 2 *"), args={"tenant_id": 43})
        except InvalidSchedule as error:
            print("rejected:", error)


asyncio.run(main())

# report-42 has revision 2 and Cron(expr='0 6 * * *', tz='Asia/Tokyo', dst='shift', seconds=None)
# removed: True False
# rejected: cron day of month, month, day of week '30 2 *': there is no such day to run on
