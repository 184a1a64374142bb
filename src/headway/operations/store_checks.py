"""Check the database under a store: its schema, version, durability and permissions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headway.core.settings import Settings
from headway.store import Store
from headway.store.facts import Facts, facts
from headway.store.file_access import exposures
from headway.store.migrations import schema_version, steps_for
from headway.store.sqlite import path_of

POSTGRES_MIN: Final = 13


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: `ok`, `warn` or `bad`, and a sentence that names the remedy."""

    check: str
    mark: str
    text: str


async def check_schema(store: Store) -> Finding:
    """Compare the schema of the database with that of this program."""
    present, wanted = await schema_version(store.driver), steps_for(store.driver)[-1].version
    newer = f", newer than the {wanted} of this program: upgrade it soon" if present > wanted else ""
    return Finding("schema", "warn" if newer else "ok", f"schema version {present}{newer}")


async def check_database(store: Store, settings: Settings) -> list[Finding]:
    """Check the facts that the database reports."""
    known = await facts(store.driver)
    return [*(_sqlite(known, settings) if known.kind == "sqlite" else _postgres(known))]


async def connection_is_encrypted(store: Store) -> bool | None:
    """Return whether the connection to PostgreSQL is encrypted; None for SQLite."""
    known = await facts(store.driver)
    return known.settings.get("encrypted") == "on" if known.kind == "postgresql" else None


def _sqlite(known: Facts, settings: Settings) -> Iterator[Finding]:
    yield Finding("database", "ok", f"SQLite {known.version}: works on one host only; use PostgreSQL for several")
    if known.settings.get("journal_mode", "wal") != "wal":
        yield Finding("journal", "warn", f"journal mode is {known.settings['journal_mode']}, not WAL: readers block")
    if settings.sqlite_synchronous == "full":
        yield Finding("durability", "ok", "synchronous=full: acknowledged writes survive a power cut")
    else:
        yield Finding("durability", "warn", "synchronous=normal: a power cut can lose the last acknowledged writes")
    exposed = list(exposures(path_of(settings.store)))
    for words in exposed:
        yield Finding("permissions", "warn", words)
    if not exposed:
        yield Finding("permissions", "ok", "only this user can read and write the files of the store")


def _postgres(known: Facts) -> Iterator[Finding]:
    too_old = int(known.version.split(".")[0]) < POSTGRES_MIN
    advice = f": too old, upgrade to {POSTGRES_MIN} or later" if too_old else ""
    yield Finding("database", "bad" if too_old else "ok", f"PostgreSQL {known.version}{advice}")
    if known.settings["default_transaction_read_only"] == "on":
        yield Finding("read_only", "bad", "the database is read-only: connect to the primary")
    lossy = {
        "synchronous_commit": "acknowledged jobs can be lost in a crash (promise S5)",
        "fsync": "a crash can corrupt",
    }
    off = {name: cost for name, cost in lossy.items() if known.settings[name] == "off"}
    for name, cost in off.items():
        yield Finding("durability", "warn", f"{name}=off: {cost}; switch it on")
    if not off:
        level = known.settings["synchronous_commit"]
        yield Finding("durability", "ok", f"synchronous_commit={level}: acknowledged writes survive a crash")
