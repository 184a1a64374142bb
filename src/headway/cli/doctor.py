"""`headway doctor`: check the store, the clock, the settings and the network, and name the remedy for each fault.

A check is an async function that yields findings. An error in one is a finding too, and the next check runs. ✓ is fine,
! is a warning that names its cost, ✗ is broken and makes the exit code 1.
"""

import asyncio
import importlib.metadata
import os
import zoneinfo
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Final

import typer

from headway.cli import doctor_network as exposure
from headway.cli.audit import verdict
from headway.cli.doctor_restored import recover
from headway.cli.session import Session, new_command
from headway.cli.text import clean, count, span
from headway.core.errors import EngineUnavailable, HeadwayError
from headway.core.instants import HOUR, SECOND
from headway.core.schedule_names import ScheduleRef, schedule_name
from headway.core.settings import Settings, mask_url
from headway.operations.attention import faults as faults_of
from headway.operations.ledger_audit import audit_all
from headway.operations.store_checks import Finding, check_database, check_schema, connection_is_encrypted
from headway.wire.overview import Alert
from headway.wiring.engines import engine_of
from headway.wiring.local_operations import OpenStore

SKEW_S_MAX: Final = 1.0
LATENCY_S_MAX: Final = 0.25
AUDIT_S_MAX: Final = 10.0
FOUND: Final = 1
MARKS: Final = {"ok": ("✓", "good"), "warn": ("!", "warn"), "bad": ("✗", "bad")}
# Not settings of the product, but known to it.
OTHER_VARIABLES: Final = frozenset({"HEADWAY_DEBUG", "HEADWAY_SERVER"})


Check = Callable[[Session, OpenStore], AsyncIterator[Finding]]


async def doctor(
    session: Session,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored", help="Make the store safe to use after a backup was restored; stop all nodes first."
        ),
    ] = False,
) -> int:
    """Check the store, the clock and the settings, and suggest fixes. Exit code 1 if something is broken."""
    if restored:
        await recover(session)
        return 0
    findings = [finding async for finding in examine(session)]
    is_ok = all(finding.mark != "bad" for finding in findings)
    if session.as_json:
        checks = [{"check": found.check, "mark": found.mark, "text": found.text} for found in findings]
        session.out.json({"ok": is_ok, "checks": checks})
    else:
        for finding in findings:
            mark, style = MARKS[finding.mark]
            session.out.say(f"{mark} {clean(finding.text)}", style if finding.mark != "ok" else "")
    return 0 if is_ok else FOUND


async def examine(session: Session) -> AsyncIterator[Finding]:
    """Run every check; those on the store only when it opens."""
    for finding in (*_variables(os.environ), *_time_zones()):
        yield finding
    try:
        settings = session.settings()
        yield Finding("store", "ok", f"store {mask_url(settings.store)}")
        async with session.open() as opened:
            for check in CHECKS:
                async for finding in _guarded(check, session, opened):
                    yield finding
    except HeadwayError as error:
        yield Finding("store", "bad", str(error))


async def _guarded(check: Check, session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    try:
        async for finding in check(session, opened):
            yield finding
    except HeadwayError as error:
        yield Finding(check.__name__.strip("_"), "bad", str(error))


def _variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    known = {f"HEADWAY_{setting.name.upper()}" for setting in fields(Settings)} | OTHER_VARIABLES
    unknown = sorted(name for name in environ if name.startswith("HEADWAY_") and name not in known)
    for name in unknown:
        yield Finding("settings", "warn", f"{name} is set, but no setting has this name; it has no effect")
    if not unknown:
        used = sorted(name for name in environ if name in known)
        yield Finding("settings", "ok", f"settings from the environment: {', '.join(used) or 'none'}")


def _time_zones() -> Iterator[Finding]:
    """Report the source of the time zones: the system's files first, then the package tzdata."""
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / "Europe" / "Berlin").exists():
            yield Finding("zones", "ok", f"time zones from {folder} ({_zone_version(folder)})")
            return
    try:
        version = importlib.metadata.version("tzdata")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("zones", "bad", "no time zones: install the package tzdata")
    else:
        yield Finding("zones", "ok", f"time zones from the package tzdata {version}")


def _zone_version(folder: Path) -> str:
    for name in ("tzdata.zi", "+VERSION"):
        try:
            with (folder / name).open() as lines:
                return "version " + lines.readline(80).removeprefix("# version").strip()
        except (OSError, UnicodeDecodeError):
            continue
    return "version unknown"


async def _schema(session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    yield await check_schema(opened.store)


async def _clock(session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    skew_s = opened.clock.skew_s()
    text = f"clock skew to the store {abs(skew_s) * 1000:,.0f} ms"
    if abs(skew_s) > SKEW_S_MAX:
        text += (
            ": decisions use the store's clock, but times in logs of this machine are wrong; run a time service (NTP)"
        )
    yield Finding("clock", "warn" if abs(skew_s) > SKEW_S_MAX else "ok", text)
    slow = opened.latency_s > LATENCY_S_MAX
    yield Finding("latency", "warn" if slow else "ok", f"the store answers in {opened.latency_s * 1000:,.1f} ms")


async def _database(session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    for finding in await check_database(opened.store, session.settings()):
        yield finding


async def _exposure(session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    """Warn of unencrypted connections and of an API without tokens."""
    settings = session.settings()
    if (is_encrypted := await connection_is_encrypted(opened.store)) is not None:
        is_safe, words = exposure.plain_store(settings.store, is_encrypted)
        yield Finding("encryption", "ok" if is_safe else "warn", words)
    for words in exposure.plain_servers(settings):
        yield Finding("encryption", "warn", words)
    _, has_token = await opened.store.tokens.exist()
    is_shut, words = exposure.open_api(settings, has_token=has_token)
    yield Finding("api", "ok" if is_shut else "warn", words)


async def _wake_ups(session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    watch = await opened.store.watch(lambda _: None)
    try:
        mode = watch.mode
    finally:
        await watch.close()
    if mode == "poll":
        every = span(session.settings().poll)
        yield Finding(
            "wake_ups",
            "warn",
            f"notifications do not arrive (a pooler in transaction mode?): polling every {every}; connect directly",
        )
    else:
        yield Finding("wake_ups", "ok", "notifications arrive" if mode == "notify" else "the file is watched")


async def _coordination(session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    """Acquire and release a lock with a unique name."""
    settings = session.settings()
    if settings.coordination == "store":
        return
    where = mask_url(settings.coordination)
    engine = engine_of(settings, opened.clock, node="doctor")
    holder, began = opened.clock.new_id("doctor"), opened.clock.monotonic()
    try:
        await engine.acquire(f"doctor/{holder}", holder=holder, duration=settings.leader_lease)
        await engine.release([f"doctor/{holder}"], holder=holder)
        took_ms = (opened.clock.monotonic() - began) * 1_000
        yield Finding("coordination", "ok", f"{where} grants and releases a lock in {took_ms:,.1f} ms")
    except EngineUnavailable as error:
        if settings.coordination_fallback == "store":
            yield Finding("coordination", "warn", f"{where}: {error}; the store grants leases instead")
        else:
            yield Finding("coordination", "bad", f"{where}: {error}; nothing is decided until it is back")
    finally:
        await engine.close()


async def _app(session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    app = session.app()
    if app is None:
        return
    yield Finding("app", "ok", f"app {app.name!r}: {count(len(app.tasks), 'task')}")
    differing = []
    for key, spec in app.declared.items():
        ref = ScheduleRef(spec.tenant, schedule_name(key))
        try:
            stored = await opened.store.schedules.get(ref.name, tenant=ref.tenant)
        except HeadwayError:
            differing.append(str(ref))
        else:
            if stored.spec != spec or stored.owner != app.name:
                differing.append(str(ref))
    if differing:
        names = ", ".join(differing[:5])
        yield Finding("sync", "warn", f"not in the store as declared: {names}; a scheduler writes them when it starts")
    elif app.declared:
        yield Finding("sync", "ok", f"{count(len(app.declared), 'schedule')} in the store as declared")


async def _restored(session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    for sign in await opened.store.restore_detection.signs():
        what = "a backup was restored, or data was lost" if sign.is_sure else "perhaps a backup was restored"
        cure = "stop all nodes and run `headway doctor --restored`"
        harmless = "" if sign.is_sure else "; it does no harm after a fail-over that lost nothing"
        yield Finding("restored", "bad" if sign.is_sure else "warn", f"{what}: {sign.words}: {cure}{harmless}")


async def _overview(session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    overview = await opened.operations.monitoring.overview()
    faults = [fault for fault in faults_of(overview) if fault.code != "restored"]  # Reported by another check.
    for fault in faults:
        yield Finding("running", "warn", f"{fault.message}; {_cure(fault)}")
    if not faults:
        yield Finding("running", "ok", "a scheduler is alive and nothing is late")


def _cure(fault: Alert) -> str:
    if fault.code == "no_scheduler":
        return "start one with `headway scheduler`"
    return f"`{fault.cure}`" if fault.cure.startswith("headway ") else fault.cure


async def _audit(session: Session, opened: OpenStore) -> AsyncIterator[Finding]:
    try:
        async with asyncio.timeout(AUDIT_S_MAX):
            report = await audit_all(opened.store, since=opened.now - HOUR)
    except TimeoutError:
        limit = span(round(AUDIT_S_MAX) * SECOND)
        yield Finding("audit", "warn", f"the audit of the last hour takes longer than {limit}; see `headway audit`")
        return
    yield Finding("audit", "ok" if report.ok else "bad", f"audit of the last hour: {verdict(report)}")


CHECKS: Final[tuple[Check, ...]] = (
    _schema,
    _clock,
    _database,
    _restored,
    _exposure,
    _wake_ups,
    _coordination,
    _app,
    _overview,
    _audit,
)

app = new_command(doctor)
