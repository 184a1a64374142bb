"""Enqueue a job inside your own sqlite3 transaction: it exists if and only if the order does."""

import sqlite3
import tempfile

from headway import Headway

file = f"{tempfile.mkdtemp()}/shop.db"
app = Headway(f"sqlite:///{file}")  # The shop's own database is the store.
app.jobs_sync()  # Opening it creates the tables.


@app.task
def confirm(order: int) -> None: ...


shop = sqlite3.connect(file)
shop.execute("create table orders (id integer primary key)")

with shop:  # Commits.
    shop.execute("insert into orders values (1)")
    confirm.options(tx=shop).enqueue_sync(order=1)

try:
    with shop:  # Rolls back.
        shop.execute("insert into orders values (2)")
        confirm.options(tx=shop).enqueue_sync(order=2)
        raise RuntimeError("the payment failed")
except RuntimeError as error:
    print(error)

print("orders:", [row[0] for row in shop.execute("select id from orders")])
print("jobs:", [job.args for job in app.jobs_sync()])

# the payment failed
# orders: [1]
# jobs: [{'order': 1}]
