"""Copy one job very many times, by SQL: Headway enqueued the first one, the others have other ids, times and states."""

from collections.abc import Mapping
from typing import Final

from bench.bare import Bare

# Portable SQL.
COPY: Final = """
insert into headway_jobs ({columns})
with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < {count})
select {values} from headway_jobs, numbers where id = '{source}'
"""


async def copy_job(bare: Bare, source: str, changed: Mapping[str, str], count: int) -> None:
    """Copy a job; `changed` has an SQL expression for each column that differs, with `n` as the number of a copy."""
    columns = (await bare.read("headway_jobs", "id limit 1")).columns
    values = ", ".join(changed.get(column, column) for column in columns)
    await bare.execute(COPY.format(columns=", ".join(columns), values=values, count=count, source=source))
