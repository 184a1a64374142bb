"""Enqueue a job inside the transaction of a SQLAlchemy session; a connection works in the same way."""

import tempfile

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from headway import Headway

url = f"sqlite:///{tempfile.mkdtemp()}/shop.db"
app = Headway(url)
app.jobs_sync()  # Opening the store creates its tables.


@app.task
def confirm(order: int) -> None: ...


engine = create_engine(url)
with engine.begin() as connection:
    connection.execute(text("create table orders (id integer primary key)"))

with Session(engine) as session:
    session.execute(text("insert into orders values (1)"))
    confirm.options(tx=session).enqueue_sync(order=1)
    print("before the commit:", len(app.jobs_sync()))
    session.commit()
print("after the commit:", len(app.jobs_sync()))

with Session(engine) as session:
    session.execute(text("insert into orders values (2)"))
    confirm.options(tx=session).enqueue_sync(order=2)
    session.rollback()
print("after a rollback:", len(app.jobs_sync()))

# before the commit: 0
# after the commit: 1
# after a rollback: 1
