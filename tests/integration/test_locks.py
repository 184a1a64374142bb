"""Locks and leaders for users: never two holders at a time, with processes that are killed, frozen and cut off."""

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headway import DefinitionError, Headway, Leader, LeaseLost, Lock, LockHeld, StoreUnavailable
from headway.coordination import locks
from headway.core.instants import SECOND
from headway.store import open_driver
from headway.store.migrations import migrate
from tests.support import evidence
from tests.support.postgres import PostgresServer
from tests.support.processes import has_ended, is_stopped, minds
from tests.support.tuned import tuned
from tests.support.waiting import DEADLINE_S, async_wait_until, wait_until

HEADWAY = str(Path(sys.executable).with_name("headway"))
LONG = "10m"  # The TTL of a lock that a stalled machine must not lose.
RENEWALS = 1_000  # Per TTL: a lock with a long TTL is still renewed often.
STORES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]

FIGHTER = """
import asyncio, os, sys
from headway import Headway

async def main(store, witness, times):
    app = Headway(store, name="fighter")
    for _ in range(times):
        async with app.lock("arena", ttl="10m") as lock:
            os.close(os.open(witness + ".inside", os.O_CREAT | os.O_EXCL))  # Fails if another holder is inside.
            with open(witness, "a") as file:
                file.write(f"{lock.token}\\n")
            await asyncio.sleep(0)
            os.unlink(witness + ".inside")
    await app.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Run the test on each store, ready for use."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/headway.db"
    url: str = request.getfixturevalue("migrated_url")
    return url


@pytest.fixture
def often_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew locks of this process twice a second, in spite of a long TTL."""
    monkeypatch.setattr(locks, "RENEWALS_PER_LEASE", RENEWALS)


@pytest.fixture
def app(tmp_path: Path) -> Headway:
    return Headway(f"sqlite:///{tmp_path}/headway.db", name="billing")


async def prepare(url: str) -> None:
    driver = open_driver(url)
    await migrate(driver)
    await driver.close()


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}


def execute(store: str, statement: str) -> list[Any]:
    """Query or change a store directly, without Headway."""
    if store.startswith("sqlite"):
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"), timeout=DEADLINE_S)) as file, file:
            return file.execute(statement).fetchall()
    with psycopg.connect(store, autocommit=True) as connection:
        answer = connection.execute(statement)
        return answer.fetchall() if answer.description else []


def held_until(store: str, name: str) -> int:
    """Return when a lock expires unless it is renewed."""
    [[until]] = execute(store, f"select until from headway_leases where name = 'lock/{name}'")
    return int(until)


def expire(store: str, name: str) -> None:
    """Expire a lock with a long TTL."""
    execute(store, f"update headway_leases set until = 1 where name = 'lock/{name}'")


async def steal(app: Headway, name: str) -> None:
    """Take a lock over, as another holder would after it expired."""
    thief = {"holder": "thief", "holder_name": "a thief", "duration": SECOND}
    await (await app.store()).leases.adopt({f"lock/{name}": 1}, **thief)  # type: ignore[arg-type]


async def lose_in_body(app: Headway, lock: Lock | Leader) -> None:
    """Enter a lock whose body is running when the lock is taken over."""
    async with lock as held:
        await steal(app, held.name)
        await asyncio.sleep(DEADLINE_S)


async def check_no_pending_cancellation() -> None:
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


class TestLock:
    async def test_one_holder_at_a_time_with_increasing_tokens(self, store: str) -> None:
        one, two = Headway(store, name="one"), Headway(store, name="two")
        inside = 0
        tokens: list[int] = []

        async def enter(app: Headway) -> None:
            nonlocal inside
            async with app.lock("till", ttl=LONG) as lock:
                inside += 1
                assert inside == 1
                tokens.append(lock.token)
                await asyncio.sleep(0.01)
                inside -= 1

        await asyncio.gather(*(enter(app) for app in (one, two, one, two, one)))
        assert len(tokens) == 5
        assert all(before < after for before, after in pairwise(tokens))
        await one.close()
        await two.close()

    async def test_refusal_names_the_holder(self, app: Headway) -> None:
        async with app.lock("till", ttl=LONG):
            with pytest.raises(LockHeld, match=f"'till' is held by {re.escape(app.settings.node)}$"):
                await app.lock("till", blocking=False).acquire()
            began = time.monotonic()
            with pytest.raises(LockHeld, match=r"waited for 0\.3s"):
                await app.lock("till", timeout="300ms").acquire()
            assert time.monotonic() - began >= 0.3
            async with app.lock("another", blocking=False):  # Other names are other locks.
                pass
        async with app.lock("till", blocking=False):
            pass

    @pytest.mark.usefixtures("often_renewed")
    async def test_lock_is_renewed_and_always_released(self, app: Headway) -> None:
        lock = app.lock("till", ttl=LONG)

        async def body() -> None:
            async with lock:
                store = app.settings.store
                first = held_until(store, "till")
                await async_wait_until(lambda: held_until(store, "till") > first + SECOND, "several renewals")
                lock.check()
                with pytest.raises(LockHeld):
                    await app.lock("till", blocking=False).acquire()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await body()
        assert not lock.lost.is_set()
        with pytest.raises(LeaseLost, match="not held"):
            lock.check()
        async with app.lock("till", blocking=False):
            pass

    @pytest.mark.usefixtures("often_renewed")
    async def test_body_is_cancelled_when_the_lock_is_lost(self, app: Headway) -> None:
        lock = app.lock("till", ttl=LONG)
        with pytest.raises(LeaseLost, match="'till' is lost: it expired, or another holder has it"):
            await lose_in_body(app, lock)
        assert lock.lost.is_set()
        await check_no_pending_cancellation()

    async def test_lock_counts_as_lost_before_its_ttl_without_the_store(self, app: Headway) -> None:
        """Without the store it cannot be renewed, so it counts as lost a fifth of the TTL early."""

        async def body() -> None:
            async with app.lock("till", ttl="2s"):
                await (await app.store()).close()
                await asyncio.sleep(DEADLINE_S)

        began = time.monotonic()
        with pytest.raises(LeaseLost, match="not renewed in time"):
            await body()
        assert time.monotonic() - began > 1.0

    async def test_blocking_code_can_check_the_lock(self, app: Headway) -> None:
        async def body(checks: bool) -> None:
            async with app.lock("till", ttl="1s") as lock:
                lock.check()
                time.sleep(0.9)  # noqa: ASYNC251
                if checks:
                    lock.check()
                    raise AssertionError("past four fifths of its ttl a lock is not trusted")

        for checks in (True, False):  # Code that does not check learns it at the end.
            with pytest.raises(LeaseLost, match="not renewed in time"):
                await body(checks)
            await check_no_pending_cancellation()

    async def test_cancelled_body_releases_the_lock(self, app: Headway) -> None:
        entered = asyncio.Event()

        async def body() -> None:
            async with app.lock("till", ttl=LONG):
                entered.set()
                await asyncio.sleep(DEADLINE_S)

        task = asyncio.create_task(body())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with app.lock("till", blocking=False):
            pass

    async def test_cancelled_acquire_holds_nothing(self, app: Headway) -> None:
        for turn in range(10):
            trying = asyncio.create_task(app.lock("till", ttl=LONG).acquire())
            for _ in range(turn):
                await asyncio.sleep(0)
            trying.cancel()
            await asyncio.wait([trying])
            if trying.cancelled():
                async with app.lock("till", blocking=False):
                    pass
            else:
                await trying.result().release()

    async def test_names_and_durations_are_validated(self, app: Headway) -> None:
        for name, words in (("", "non-empty text"), ("x" * 201, "at most 200"), ("a\nb", "control characters")):
            with pytest.raises(DefinitionError, match=f"lock must .*{words}"):
                app.lock(name)
        for ttl in ("0s", "500ms", "2h"):
            with pytest.raises(DefinitionError, match="ttl must be from 1s to 1h"):
                app.lock("till", ttl=ttl)
        with pytest.raises(DefinitionError, match="timeout"):
            app.lock("till", timeout="soon")
        lock = app.lock("till", ttl=LONG)
        async with lock:
            with pytest.raises(DefinitionError, match="held by this object"):
                await lock.acquire()

    async def test_user_locks_have_a_separate_namespace(self, app: Headway) -> None:
        async with app.lock("scheduler/0", ttl=LONG):
            held = await (await app.store()).leases.held("")
            assert [lease.name for lease, _ in held] == ["lock/scheduler/0"]

    async def test_unreachable_store_is_reported_at_once(self) -> None:
        with pytest.raises(StoreUnavailable):
            async with Headway("postgresql://127.0.0.1:1/none", name="x").lock("till"):
                pass


class TestLeader:
    @pytest.mark.usefixtures("often_renewed")
    async def test_terms_succeed_each_other_and_a_loss_ends_the_body(self, app: Headway) -> None:
        tokens = []
        async for term in app.leader("indexer", ttl=LONG):
            async with term:
                tokens.append(term.token)
                if len(tokens) == 2:
                    break
                await steal(app, "indexer")
                await asyncio.sleep(DEADLINE_S)
                raise AssertionError("the body went on without the lease")
        assert tokens[0] < tokens[1]
        async with app.lock("indexer", blocking=False):  # The term is the lock of this name, and was released.
            pass

    @pytest.mark.usefixtures("often_renewed")
    async def test_single_term_waits_like_a_lock(self, app: Headway) -> None:
        led = []

        async def lead(number: int) -> None:
            async with app.leader("indexer", ttl=LONG) as term:
                led.append((term.token, number))
                term.check()

        await asyncio.gather(*(lead(number) for number in range(3)))
        assert sorted(number for _, number in led) == [0, 1, 2]
        assert led == sorted(led)
        with pytest.raises(LeaseLost):
            await lose_in_body(app, app.leader("indexer", ttl=LONG))


@pytest.mark.usefixtures("often_renewed")
class TestSync:
    def test_context_manager(self, store: str) -> None:
        app = Headway(store, name="billing")
        with app.lock_sync("till", ttl=LONG) as lock:
            first = held_until(store, "till")
            wait_until(lambda: held_until(store, "till") > first + SECOND, "several renewals")
            lock.check()
            with pytest.raises(LockHeld, match="held by"), app.lock_sync("till", timeout=0.1):
                pass
            token = lock.token
        with app.leader_sync("till", ttl=LONG) as term:
            assert term.token > token

    def test_loss_is_raised_at_the_end_of_the_body(self, app: Headway) -> None:
        lock = app.lock_sync("till", ttl=LONG)

        def body() -> None:
            with lock:
                app.blocking(steal(app, "till"))
                assert lock.lost.wait(DEADLINE_S)
                with pytest.raises(LeaseLost):
                    lock.check()

        with pytest.raises(LeaseLost, match="'till' is lost"):
            body()


def test_processes_compete_for_a_lock(store: str, tmp_path: Path) -> None:
    witness, times = tmp_path / "witness", 25
    fighters = []
    for number in range(2):
        with evidence.log_file(f"fighter {number}").open("wb") as log:
            command = [sys.executable, "-c", FIGHTER, store, str(witness), str(times)]
            fighters.append(subprocess.Popen(command, env=environment(), stdout=log, stderr=log))
    assert [fighter.wait(2 * DEADLINE_S) for fighter in fighters] == [0, 0]
    tokens = [int(line) for line in witness.read_text().split()]
    assert len(tokens) == 2 * times
    assert all(before < after for before, after in pairwise(tokens))


# --- the command line


@contextlib.contextmanager
def locking(folder: Path, store: str, *args: str, **more: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `headway lock` in a folder, and kill it at the end of the block."""
    process = subprocess.Popen(
        [HEADWAY, "lock", "--store", store, "--ttl", LONG, *args],
        cwd=folder,
        env={**environment(), **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.kill()
        if process.stdout is not None and not process.stdout.closed:
            evidence.note(f"headway lock {' '.join(args)}", "\n".join(process.communicate()))


def lock(folder: Path, store: str, *args: str) -> "subprocess.CompletedProcess[str]":
    with locking(folder, store, *args) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
        return subprocess.CompletedProcess(args, process.returncode, out, err)


STAY = "until [ -e enough ]; do sleep 0.05; done"


def writing(name: str, then: str) -> Sequence[str]:
    """Return a command that writes its process id and its token into a file, then runs more."""
    return ["--", "sh", "-c", f"echo $$ $HEADWAY_LOCK_TOKEN > {name}.new; mv {name}.new {name}; {then}"]


def written(folder: Path, name: str) -> tuple[int, int]:
    """Wait for the file of such a command; return its contents."""
    wait_until((folder / name).exists, f"{name} to be written")
    pid, token = (folder / name).read_text().split()
    return int(pid), int(token)


def often_renewed_path(folder: Path) -> str:
    """Return a PYTHONPATH with which processes renew locks twice a second, in spite of a long TTL."""
    return tuned(folder / "tuned", {"headway.coordination.elector.RENEWALS_PER_LEASE": RENEWALS})


def test_command_runs_while_the_lock_is_held(store: str, tmp_path: Path) -> None:
    done = lock(tmp_path, store, "till", "--", "sh", "-c", "echo $HEADWAY_LOCK_NAME $HEADWAY_LOCK_TOKEN; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "till 1\n", "")
    with locking(tmp_path, store, "till", *writing("inside", "exec sleep 600")) as holder:
        pid, token = written(tmp_path, "inside")
        assert token == 2
        refused = lock(tmp_path, store, "till", "--no-wait", "--json", "--", "echo", "never", "--json")
        assert (refused.returncode, refused.stdout) == (75, "")
        assert json.loads(refused.stderr)["error"]["code"] == "lock_held"
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert has_ended(pid)


def test_leftover_processes_end_before_the_lock_is_released(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/headway.db"
    done = lock(tmp_path, store, "till", "--", "sh", "-c", "setsid sleep 600 > /dev/null 2>&1 & echo $!")
    assert done.returncode == 0
    assert has_ended(int(done.stdout))


def test_signals_are_forwarded_to_the_command(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/headway.db"
    answering = "trap 'echo bye; exit 3' TERM; trap 'echo one; : > heard' USR1; : > ready; while :; do sleep 0.05; done"
    with locking(tmp_path, store, "till", "--", "sh", "-c", answering) as holder:
        wait_until((tmp_path / "ready").exists, "the command to be ready")
        holder.send_signal(signal.SIGUSR1)
        wait_until((tmp_path / "heard").exists, "the command to receive the signal")
        holder.send_signal(signal.SIGTERM)
        out, _ = holder.communicate(timeout=DEADLINE_S)
        assert (holder.returncode, out) == (3, "one\nbye\n")
    with locking(tmp_path, store, "till", *writing("again", "exec sleep 600")), ExitStack() as stack:
        written(tmp_path, "again")
        assert "waited for 0.2s" in lock(tmp_path, store, "till", "--wait", "0.2", "--", "true").stderr
        waiting = stack.enter_context(locking(tmp_path, store, "till", *writing("never", "true")))
        # The last handler that it installs.
        wait_until(lambda: minds(waiting.pid, signal.SIGUSR2), "the second process to wait")
        waiting.send_signal(signal.SIGINT)  # No command runs yet, so the waiting process handles it.
        assert waiting.wait(DEADLINE_S) == 128 + signal.SIGINT
    assert not (tmp_path / "never").exists()


def test_early_signal_is_forwarded_to_the_command(tmp_path: Path) -> None:
    """The command sends SIGTERM to its parent before the parent knows that it runs; the command has to handle it."""
    script = "trap 'exit 3' TERM; kill -TERM $PPID; while :; do sleep 0.05; done"
    done = lock(tmp_path, f"sqlite:///{tmp_path}/headway.db", "till", "--", "sh", "-c", script)
    assert done.returncode == 3, done.stderr


def test_command_on_a_terminal_has_the_keyboard(tmp_path: Path) -> None:
    """It can read, and gets Ctrl-C exactly once, as without Headway."""
    script = "read line; echo got $line; trap 'echo once; exit 5' INT; : > trapped; while :; do sleep 0.05; done"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(HEADWAY, [HEADWAY, "lock", "till", "--", "sh", "-c", script], environment())
    try:
        os.write(terminal, b"hello\n")
        wait_until((tmp_path / "trapped").exists, "the command to read")
        os.write(terminal, b"\x03")
        shown = b""
        with contextlib.suppress(OSError):  # The other side is closed.
            while part := os.read(terminal, 4096):
                shown += part
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        assert shown.decode().split("\r\n")[-3:] == ["got hello", "^Conce", ""]
    finally:
        os.close(terminal)


@pytest.mark.parametrize("command", [["nothing-like-this"], ["/etc/passwd"]])
def test_command_that_cannot_run_is_reported(command: list[str], tmp_path: Path) -> None:
    done = lock(tmp_path, f"sqlite:///{tmp_path}/headway.db", "till", "--", *command)
    assert done.returncode == 127
    assert done.stderr == f"headway: {command[0]}: command not found\n"


@pytest.mark.parametrize("store", STORES[1:], indirect=True)
def test_killed_holder_kills_its_command_and_the_next_one_gets_the_lock(store: str, tmp_path: Path) -> None:
    with locking(tmp_path, store, "till", *writing("first", "exec sleep 600")) as holder, ExitStack() as stack:
        pid, token = written(tmp_path, "first")
        waiting = stack.enter_context(locking(tmp_path, store, "till", *writing("second", "true")))
        wait_until(lambda: minds(waiting.pid, signal.SIGUSR2), "the next process to wait")
        holder.kill()
        wait_until(lambda: has_ended(pid), "the command to end before its lock does")
        assert waiting.poll() is None
        expire(store, "till")
        assert waiting.wait(DEADLINE_S) == 0
        assert written(tmp_path, "second")[1] > token


@pytest.mark.parametrize("store", STORES[:1], indirect=True)
def test_holder_that_was_frozen_stops_its_command(store: str, tmp_path: Path) -> None:
    stubborn = "trap '' TERM; : > deaf; while :; do sleep 0.05; done"
    command = ["till", "--grace", "300ms", *writing("first", stubborn)]
    with locking(tmp_path, store, *command, PYTHONPATH=often_renewed_path(tmp_path)) as holder:
        pid, token = written(tmp_path, "first")
        wait_until((tmp_path / "deaf").exists, "the command to ignore signals")
        wait_until(lambda: freeze(holder, store), "the holder to freeze outside a transaction")
        expire(store, "till")
        next_one = lock(tmp_path, store, "till", *writing("second", "true"))
        assert next_one.returncode == 0, next_one.stderr
        assert written(tmp_path, "second")[1] > token
        assert not has_ended(pid)
        os.kill(holder.pid, signal.SIGCONT)
        _, err = holder.communicate(timeout=DEADLINE_S)
        assert holder.returncode == 76
        assert "the lock 'till' is lost" in err
        assert "the command was stopped" in err
        assert has_ended(pid)


def freeze(process: "subprocess.Popen[str]", store: str) -> bool:
    """Freeze a process, unless it is writing: the file would stay locked for everyone."""
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(process.pid), "the process to stop")
    with closing(sqlite3.connect(store.removeprefix("sqlite:///"), timeout=0, isolation_level=None)) as file:
        try:
            file.execute("begin immediate")
        except sqlite3.OperationalError:
            process.send_signal(signal.SIGCONT)
            return False
        file.execute("rollback")
    return True


@pytest.mark.postgres
def test_store_restart_within_the_ttl_keeps_the_lock(tmp_path: Path) -> None:
    with PostgresServer() as server:
        store = server.create_database()
        asyncio.run(prepare(store))
        with locking(
            tmp_path, store, "till", *writing("first", STAY), PYTHONPATH=often_renewed_path(tmp_path)
        ) as holder:
            written(tmp_path, "first")
            server.restart()
            before = held_until(store, "till")
            wait_until(lambda: held_until(store, "till") > before, "a renewal of the lock")
            refused = lock(tmp_path, store, "till", "--no-wait", "--", "true")
            assert refused.returncode == 75, refused.stderr
            (tmp_path / "enough").touch()
            assert holder.wait(DEADLINE_S) == 0
