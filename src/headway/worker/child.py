"""The child: the process in which user code runs. It knows no store; all it has is a socket to its supervisor.

One thread of ours reads the socket, unless a loop does, and sends reports a few times a second; the rest belongs to
the tasks:

    process   one `def` task at a time, in the main thread, so that a signal can interrupt it
    thread    `def` tasks in a few threads
    loop      `async def` tasks on one event loop, in the main thread. It reads the socket itself, since a job that is
              handed from thread to thread begins later; our thread only does while a task keeps the loop from it

Outcomes are sent at once, except while short jobs wait: then those of a few milliseconds go together. When the
supervisor is gone, so is the child, with everything that the tasks have started in its process group.
"""

import asyncio
import contextlib
import ctypes
import gc
import inspect
import os
import queue
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, NoReturn, assert_never

from headway.clock import Clock
from headway.errors import HeadwayError, LeaseLost
from headway.model import Claimed
from headway.task import Task
from headway.worker.attempt import Ended, Registry, outcome_of, resolve, run_async, run_sync
from headway.worker.context import LINES_WAITING_MAX, Context, Hand, TaskStopped
from headway.worker.frames import (
    MESSAGES_MAX,
    Answer,
    Ask,
    Done,
    Failed,
    Finish,
    Flush,
    Hello,
    Place,
    Reader,
    Reports,
    Revoke,
    Revoked,
    Run,
    Spent,
    Stop,
    Stopped,
    ToChild,
    ToSupervisor,
    Unfit,
    Voided,
    frame,
)
from headway.worker.started import Started, note_starts, noting

REPORT_EVERY_S: Final = 0.25
GATHER_PART: Final = 12  # A first word waits for others so small a part of the time between two reports.
READ_BYTES: Final = 1 << 20
LOOK_EVERY_S: Final = 0.2  # So often our thread looks whether the loop has time to read.
TOGETHER_MAX: Final = 64
TOGETHER_S: Final = 0.002
SHORT_S: Final = 0.001
_PR_SET_PDEATHSIG: Final = 1


class Child:
    """What all kinds of children have in common: the line to the supervisor, and the jobs under way."""

    reads_on_loop: ClassVar = False

    def __init__(self, line: socket.socket, place: Place, registry: Registry, hand: Hand | None, width: int) -> None:
        self._line = line
        self._place = place
        self._registry = registry
        self._hand = hand
        self._width = width
        self._clock = Clock()
        self._sending = threading.Lock()
        self._telling = threading.Lock()  # So that what a job says arrives in the order in which it said it.
        self._unsent: deque[ToSupervisor] = deque()
        self._noted: dict[str, Context] = {}
        self._contexts: dict[str, Context] = {}
        self._deadlines: dict[tuple[str, int], int] = {}  # By job and attempt,
        self._kept: dict[tuple[str, int], Mapping[str, str]] = {}  # and so are finished steps.
        self._questions: dict[int, Callable[[Answer], None]] = {}
        self._asked_to_stop: dict[str, int] = {}  # Jobs, and at which attempt.
        self._asked = 0
        self.report_every_s = REPORT_EVERY_S
        self._is_resting = False
        self._wake = os.pipe()
        self._reader: Reader[ToChild] = Reader(ToChild)
        self._reading = threading.Lock()  # So that everything is heard in its order, whoever reads.
        self._reads = 0

    # --- the line to the supervisor

    def send(self, message: ToSupervisor) -> None:
        """Send a message, after what was kept back; threads take turns."""
        self.keep(message)
        self.flush()

    def keep(self, message: ToSupervisor) -> None:
        """Keep a message back, to be sent with the next ones."""
        self._unsent.append(message)

    def flush(self) -> None:
        """Send what was kept back."""
        unsent = self._unsent
        with self._sending:
            while unsent:
                self._line.sendall(frame([unsent.popleft() for _ in range(min(len(unsent), MESSAGES_MAX))]))

    def note(self, context: Context) -> None:
        """Remember that a context has news. Whoever writes faster than we send is made to wait."""
        self._noted[context.job_id] = context
        if self._is_resting:  # The reading thread may wait without end: there was nothing to report.
            os.write(self._wake[1], b".")
        if context.waiting_lines > LINES_WAITING_MAX:
            self._report()

    def ask(self, context: Context, question: str, body: str) -> str:
        """Ask the supervisor and wait for its answer."""
        answered = threading.Event()
        answers: list[Answer] = []

        def hear(answer: Answer) -> None:
            answers.append(answer)
            answered.set()

        with self._asking(context, question, body, hear):
            self.wait_for(answered)
        return _body_of(answers[0])

    def wait_for(self, answered: threading.Event) -> None:
        """Wait until somebody has read an answer."""
        answered.wait()

    async def ask_async(self, context: Context, question: str, body: str) -> str:
        """Ask the supervisor and await its answer."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()

        def settle(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        def hear(answer: Answer) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: its task has ended, and waits for nothing.
                loop.call_soon_threadsafe(settle, answer)

        with self._asking(context, question, body, hear):
            return _body_of(await answered)

    @contextlib.contextmanager
    def _asking(self, context: Context, question: str, body: str, hear: Callable[[Answer], None]) -> Iterator[None]:
        """Ask a question, and forget it when its asker goes: an answer that nobody waits for is dropped."""
        with self._sending:
            self._asked += 1
            number = self._asked
        self._questions[number] = hear
        try:
            self.send(Ask(number, context.job_id, context.attempt, question, body))
            yield
        finally:
            self._questions.pop(number, None)

    def _report(self) -> None:
        if not self._noted:
            return
        with self._telling:
            reports = []
            for _ in range(len(self._noted)):  # Tasks in other threads note more meanwhile; that is for the next time.
                with contextlib.suppress(KeyError):
                    _, context = self._noted.popitem()
                    if (report := context.take_report()) is not None:
                        reports.append(report)
            if reports:
                self.keep(Reports(reports))
        self.flush()

    def listen(self) -> None:
        """Start the thread that reads the socket."""
        threading.stack_size(512 * 1024)  # It needs little, and a task's memory limit counts it.
        threading.Thread(target=self._listen, name="headway-line", daemon=True).start()
        threading.stack_size(0)

    def _listen(self) -> None:
        waiting = select.poll()
        waiting.register(self._wake[0], select.POLLIN)
        if not self.reads_on_loop:
            waiting.register(self._line, select.POLLIN)
        reported_at = 0.0
        with _ending_when_unheard():
            while True:
                reads, rest_s = self._reads, self._rest_s(reported_at)
                ready = {number for number, _ in waiting.poll(None if rest_s is None else rest_s * 1_000)}
                if self._wake[0] in ready:
                    os.read(self._wake[0], 64)
                    continue  # What was noted is sent together with what comes soon after.
                if self._line.fileno() in ready or (self.reads_on_loop and reads == self._reads):
                    self.read()
                if self._noted:
                    reported_at = self._clock.monotonic()
                    self._report()

    def _rest_s(self, reported_at: float) -> float | None:
        """Say how long our thread may wait: until a report is due, or a look at the loop; None is without end."""
        self._is_resting = True  # Said before we look: whoever comes later wakes us.
        self._is_resting = not self._noted
        if self._is_resting:
            return LOOK_EVERY_S if self.reads_on_loop else None
        due_s = reported_at + self.report_every_s - self._clock.monotonic()
        rest_s = max(self.report_every_s / GATHER_PART, due_s)
        return min(rest_s, LOOK_EVERY_S) if self.reads_on_loop else rest_s

    def read(self) -> None:
        """Hear what has arrived, if anything has."""
        with _ending_when_unheard(), self._reading:
            try:
                data = self._line.recv(READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionResetError
            self._reads += 1
            for message in self._reader.feed(data):
                self._hear(message)

    def _hear(self, message: ToChild) -> None:
        match message:
            case Run(first, jobs, deadlines, kept):
                if deadlines or kept or self._asked_to_stop:
                    self._note_terms(jobs, deadlines, kept)
                self.take(jobs, first)
            case Stop(job_id, attempt):
                self._asked_to_stop[job_id] = attempt
                context = self._contexts.get(job_id)
                if context is not None and context.attempt == attempt:
                    context.stop()
                self.stop(job_id, attempt)
            case Revoke(job_ids):
                given = self.give_back(job_ids)
                self.send(Revoked(given, sorted(set(job_ids).difference(given))))
            case Answer(number):
                hear = self._questions.pop(number, None)
                if hear is not None:
                    hear(message)
            case Flush():
                self.flush()
            case Finish():
                self.finish()
            case _:
                assert_never(message)

    def _note_terms(self, jobs: list[Claimed], deadlines: Mapping[str, int], kept: Mapping[str, Any]) -> None:
        """Remember what attempts will need, if they begin."""
        for claimed in jobs:
            job_id, attempt = claimed.job_id, claimed.attempt
            if job_id in deadlines:
                self._deadlines[job_id, attempt] = deadlines[job_id]
            if job_id in kept:
                self._kept[job_id, attempt] = kept[job_id]
            self._asked_to_stop.pop(job_id, None)  # That was said to an earlier attempt, after its end.

    def _forget(self, job_id: str, attempt: int) -> None:
        """Keep nothing of an attempt that has ended, or will not begin; a later one may be here already."""
        if self._deadlines:
            self._deadlines.pop((job_id, attempt), None)
        if self._kept:
            self._kept.pop((job_id, attempt), None)
        if self._asked_to_stop and self._asked_to_stop.get(job_id) == attempt:
            self._asked_to_stop.pop(job_id, None)

    # --- what the kinds differ in

    def take(self, jobs: list[Claimed], first: int) -> None:
        """Take jobs to run, numbered from `first`."""
        raise NotImplementedError

    def stop(self, job_id: str, attempt: int) -> None:
        """Ask a job to stop, beyond telling its context."""

    def give_back(self, job_ids: Iterable[str]) -> list[str]:
        """Return those jobs that have not begun, and will not."""
        raise NotImplementedError

    def finish(self) -> None:
        """End when all is done."""
        raise NotImplementedError

    def run(self) -> None:
        """Work until there is nothing more to do."""
        raise NotImplementedError

    # --- one attempt

    def context_of(self, claimed: Claimed) -> Callable[[], Context]:
        """Return what makes the context of a job; most tasks never ask for one."""

        def make() -> Context:
            context = Context(
                claimed,
                self,
                hand=self._hand,
                kept=self._kept.get((claimed.job_id, claimed.attempt)),
                deadline_at=self._deadlines.get((claimed.job_id, claimed.attempt)),
                clock=self._clock,
            )
            self._contexts[claimed.job_id] = context
            if claimed.job_id in self._asked_to_stop:  # Asked before it could hear it.
                context.stop()
            return context

        return make

    def was_asked(self, job_id: str) -> bool:
        """Say whether a job has been asked to stop."""
        return job_id in self._asked_to_stop

    def ended(self, claimed: Claimed, ended: Ended) -> None:
        """Have the outcome of an attempt sent, after the last of what it said about itself."""
        context = self._contexts.pop(claimed.job_id, None) if self._contexts else None
        if context is not None:
            with self._telling:
                self._noted.pop(claimed.job_id, None)
                report = context.take_report()
                if report is not None:
                    self.keep(Reports([report]))
        self._forget(claimed.job_id, claimed.attempt)
        self.keep(ended)


class _QueueChild(Child):
    """Runs `def` tasks from a queue, in one thread or several."""

    def __init__(self, line: socket.socket, place: Place, registry: Registry, hand: Hand | None, width: int) -> None:
        super().__init__(line, place, registry, hand, width)
        self._inbox: queue.SimpleQueue[tuple[Claimed, int] | None] = queue.SimpleQueue()
        self._waiting: dict[int, Claimed] = {}  # By number: a job that was given back may come again.

    def take(self, jobs: list[Claimed], first: int) -> None:
        """Put jobs in line."""
        for number, claimed in enumerate(jobs, first):
            self._waiting[number] = claimed
            self._inbox.put((claimed, number))

    def give_back(self, job_ids: Iterable[str]) -> list[str]:
        """Whoever takes a job out of the waiting ones has it: the thread that runs it, or we."""
        wanted, given = set(job_ids), []
        for number, claimed in list(self._waiting.items()):
            if claimed.job_id in wanted and self._waiting.pop(number, None) is not None:
                self._forget(claimed.job_id, claimed.attempt)
                given.append(claimed.job_id)
        return given

    def finish(self) -> None:
        """End after what is in line."""
        for _ in range(self._width):
            self._inbox.put(None)

    def _attempt(self, claimed: Claimed) -> Ended:
        found = resolve(self._registry, claimed)
        if isinstance(found, Unfit):
            return found
        task, args = found
        return self._call(task, args, claimed)

    def _call(self, task: Task[..., Any], args: dict[str, Any], claimed: Claimed) -> Ended:
        return run_sync(task, args, self.context_of(claimed), claimed, self.was_asked)


class ThreadChild(_QueueChild):
    """Runs `def` tasks in threads. A thread cannot be stopped from outside; the supervisor may have to end us all."""

    def _work(self) -> None:
        with _ending_when_unheard():
            while (item := self._inbox.get()) is not None:
                claimed, number = item
                if self._waiting.pop(number, None) is not None:
                    started = noting()
                    ended = self._attempt(claimed)
                    for rest_s in _what_is_left(started, ended):
                        threading.Event().wait(rest_s)
                    self.ended(claimed, ended)
                    self.flush()

    def run(self) -> None:
        """Work until told to finish."""
        threads = [threading.Thread(target=self._work, name=f"headway-task-{n}") for n in range(self._width)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class ProcessChild(_QueueChild):
    """Runs one task at a time in the main thread, where SIGTERM raises `TaskStopped` so that `finally` is run."""

    def __init__(self, line: socket.socket, place: Place, registry: Registry, hand: Hand | None, width: int) -> None:
        super().__init__(line, place, registry, hand, width)
        self._in_task = False
        self._interrupted = False
        self._is_speaking = False
        self._is_due = False  # An interruption that waits for the end of a frame.
        self._main = threading.get_ident()
        self._is_short: dict[str, bool] = {}  # Whether the last job of a task took next to no time.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: tuple[str, int, asyncio.Task[Ended]] | None = None

    def run(self) -> None:
        """Work until told to finish."""
        signal.signal(signal.SIGTERM, self._interrupt)
        self._work()

    def _work(self) -> None:
        take, waiting, monotonic = self._inbox.get, self._waiting, self._clock.monotonic
        kept, kept_since = 0, 0.0
        while True:
            if kept and self._inbox.empty():
                self.flush()
                kept = 0
            if (item := take()) is None:
                break
            claimed, number = item
            if waiting.pop(number, None) is None:
                continue
            if self._place.is_void(number):  # It was taken back while we could not hear it.
                self._leave_out(claimed)
                kept += 1
                continue
            if kept and not self._is_short.get(claimed.task):
                self.flush()  # It may take its time, or never come back.
                kept = 0
            self._place.set(number)
            if self._place.is_void(number):  # At this moment; they may think that it has begun.
                self._leave_out(claimed)
                kept += 1
                continue
            began = monotonic()
            self.ended(claimed, self._attempt(claimed))
            now = monotonic()
            self._is_short[claimed.task] = now - began < SHORT_S
            kept_since = kept_since if kept else now
            kept += 1
            if kept >= TOGETHER_MAX or now - kept_since > TOGETHER_S:
                self.flush()
                kept = 0
        self.flush()

    def _leave_out(self, claimed: Claimed) -> None:
        """Do not begin a job that was taken back. To say so shows that we go on, too."""
        self._forget(claimed.job_id, claimed.attempt)
        self.keep(Voided(claimed.job_id, claimed.attempt))

    def stop(self, job_id: str, attempt: int) -> None:
        """Cancel an async task on its loop; a sync one learns it from its context, or by a signal."""
        running, loop = self._running, self._loop
        if running is not None and loop is not None and running[:2] == (job_id, attempt):
            with contextlib.suppress(RuntimeError):  # It has just ended.
                loop.call_soon_threadsafe(running[2].cancel)

    def flush(self) -> None:
        """Send what was kept back. A task that is interrupted while it reports must not leave half a frame behind."""
        if threading.get_ident() != self._main:
            super().flush()
            return
        self._is_speaking = True
        try:
            super().flush()
        finally:
            self._is_speaking = False
        if self._is_due:
            self._is_due = False
            raise TaskStopped

    def _interrupt(self, *_: object) -> None:
        if not self._in_task:
            _end_with_everything()
        self._interrupted = True
        if not self._is_speaking:
            raise TaskStopped
        self._is_due = True

    def was_asked(self, job_id: str) -> bool:
        """A signal is a request too. It may have been meant for the job before; then this one is handed back."""
        return self._interrupted or super().was_asked(job_id)

    def _call(self, task: Task[..., Any], args: dict[str, Any], claimed: Claimed) -> Ended:
        limit = task.conduct.memory
        self._interrupted, self._in_task = False, True
        try:
            if limit is not None:
                _limit_memory(limit)
            if task.is_async:
                return asyncio.run(self._call_async(task, args, claimed))
            return run_sync(task, args, self.context_of(claimed), claimed, self.was_asked)
        except BaseException as error:  # noqa: BLE001 - after the end of the task, or from another one on its loop
            return outcome_of(claimed, error, task.conduct.retry, self.was_asked)
        finally:
            self._in_task = False
            if limit is not None:
                _limit_memory(None)

    async def _call_async(self, task: Task[..., Any], args: dict[str, Any], claimed: Claimed) -> Ended:
        self._loop = asyncio.get_running_loop()
        attempt = asyncio.create_task(run_async(task, args, self.context_of(claimed), claimed, self.was_asked))
        self._running = (claimed.job_id, claimed.attempt, attempt)
        try:
            return await attempt
        finally:
            self._running = self._loop = None

    def ended(self, claimed: Claimed, ended: Ended) -> None:
        """Ask to be replaced after a task ran out of memory: nobody knows what is left of this process."""
        super().ended(claimed, ended)
        if isinstance(ended, Failed) and '"type":"MemoryError"' in ended.error:
            self.send(Spent("a task ran out of memory"))


class LoopChild(Child):
    """Runs `async def` tasks on one event loop."""

    reads_on_loop = True

    def __init__(self, line: socket.socket, place: Place, registry: Registry, hand: Hand | None, width: int) -> None:
        super().__init__(line, place, registry, hand, width)
        self._flushing = False
        self._main = threading.get_ident()
        self._loop = asyncio.new_event_loop()
        self._waiting: deque[Claimed] = deque()
        self._running: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self._finishing = False

    def run(self) -> None:
        """Work until told to finish."""
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._line, self.read)
        self._loop.run_forever()

    def wait_for(self, answered: threading.Event) -> None:
        """Wait for an answer; a task that blocks the loop has to read it itself."""
        if threading.get_ident() != self._main:
            answered.wait()
            return
        waiting = select.poll()
        waiting.register(self._line, select.POLLIN)
        while not answered.is_set():
            waiting.poll(LOOK_EVERY_S * 1_000)  # Our thread may have read it just before.
            self.read()

    def _on_loop(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do something on the loop, at once if that is where we are."""
        if threading.get_ident() == self._main:
            do(*arguments)
        else:
            self._loop.call_soon_threadsafe(do, *arguments)

    def take(self, jobs: list[Claimed], first: int) -> None:
        """Start jobs on the loop. Until it has time for them they are in line, and can be given back."""
        self._waiting.extend(jobs)
        self._on_loop(self._start)

    def stop(self, job_id: str, attempt: int) -> None:
        """Cancel a job on the loop."""
        self._on_loop(self._cancel, job_id, attempt)

    def give_back(self, job_ids: Iterable[str]) -> list[str]:
        """Jobs in line are few here, and those that sleep make room: give back what can be taken on the loop."""
        wanted, given = set(job_ids), []
        with contextlib.suppress(IndexError):
            for _ in range(len(self._waiting)):
                claimed = self._waiting.popleft()  # Atomic: whoever pops a job has it.
                if claimed.job_id in wanted:
                    self._forget(claimed.job_id, claimed.attempt)
                    given.append(claimed.job_id)
                else:
                    self._waiting.append(claimed)
        self._on_loop(self._start)  # It may have looked while they were in our hands.
        return given

    def finish(self) -> None:
        """End when nothing runs."""
        self._on_loop(self._finish)

    def _start(self) -> None:
        with contextlib.suppress(IndexError):  # Somebody took back the last one.
            while len(self._running) < self._width:
                claimed = self._waiting.popleft()
                task = self._loop.create_task(self._attempt(claimed))
                self._running[claimed.job_id] = (claimed.attempt, task)

    async def _attempt(self, claimed: Claimed) -> None:
        with _ending_when_unheard():
            found = resolve(self._registry, claimed)
            if isinstance(found, Unfit):
                ended: Ended = found
            else:
                started = noting()
                ended = await run_async(*found, self.context_of(claimed), claimed, self.was_asked)
                for rest_s in _what_is_left(started, ended):
                    with contextlib.suppress(asyncio.CancelledError):  # It has ended, and is asked to once more.
                        await self._clock.rest(rest_s, asyncio.Event())
            self._running.pop(claimed.job_id, None)
            self.ended(claimed, ended)
            if not self._flushing:  # All that end in this turn of the loop are sent together.
                self._flushing = True
                self._loop.call_soon(self._flush_turn)
            self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._start()
        elif self._finishing:
            self._finish()

    def _flush_turn(self) -> None:
        self._flushing = False
        with _ending_when_unheard():
            self.flush()

    def _cancel(self, job_id: str, attempt: int) -> None:
        running = self._running.get(job_id)
        if running is not None and running[0] == attempt:
            running[1].cancel()
            if inspect.getcoroutinestate(running[1].get_coro()) == inspect.CORO_CREATED:  # type: ignore[arg-type]
                del self._running[job_id]  # It will not even begin, so it cannot tell us that it has ended.
                self._end_unbegun(job_id, attempt)
                self._go_on()
            return
        for claimed in list(self._waiting):
            if (claimed.job_id, claimed.attempt) == (job_id, attempt):
                with contextlib.suppress(ValueError):  # Somebody took it back meanwhile.
                    self._waiting.remove(claimed)
                    self._end_unbegun(job_id, attempt)

    def _end_unbegun(self, job_id: str, attempt: int) -> None:
        self._forget(job_id, attempt)
        self.send(Stopped(job_id, attempt))

    def _finish(self) -> None:
        self._finishing = True
        if not self._running and not self._waiting:
            self.flush()
            self._loop.stop()


KINDS: Final[dict[str, type[Child]]] = {"process": ProcessChild, "thread": ThreadChild, "loop": LoopChild}


def serve(
    line: socket.socket,
    place: Place,
    kind: str,
    width: int,
    load: Callable[[], tuple[Registry, Hand | None, Hello]],
    report_every_s: float = REPORT_EVERY_S,
) -> None:
    """Be a child: load the app, say hello, run what comes."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor.
    try:
        registry, hand, hello = load()
    except HeadwayError as error:
        line.sendall(frame([Hello(os.getpid(), "", "", [], {}, error=str(error))]))
        sys.exit(2)
    if kind != "process":
        note_starts()
    child = KINDS[kind](line, place, registry, hand, width)
    child.report_every_s = report_every_s
    gc.freeze()  # What is imported stays, and is not looked through again while jobs run.
    child.send(hello)
    child.listen()
    with _ending_when_unheard():
        child.run()
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    sys.stdout.flush()
    os._exit(0)  # Threads that tasks have left behind must not keep us.


def _what_is_left(started: Started, ended: Ended) -> Iterator[float]:
    """End what an attempt has started, unless it has completed; yield how long to rest between two looks."""
    return iter(()) if isinstance(ended, Done | Unfit) else started.end()


def _body_of(answer: Answer) -> str:
    if answer.is_lost:
        raise LeaseLost(answer.error)
    if answer.error is not None:
        raise HeadwayError(answer.error)
    return answer.body


@contextlib.contextmanager
def _ending_when_unheard() -> Iterator[None]:
    """End this process when the line is broken, or we are: the supervisor is gone, or would not hear us any more."""
    try:
        yield
    except OSError:
        _end_with_everything()
    except BaseException:  # noqa: BLE001 - whatever it is
        try:
            traceback.print_exc()
        finally:  # Also when it cannot be printed.
            _end_with_everything()


def _end_with_everything() -> NoReturn:
    """End this process and all that it has started, unless that has left its group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _die_with_parent() -> None:
    """Have the kernel end us with the supervisor, also while a task holds the interpreter; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_memory(limit: int | None) -> None:
    """Bound what this process may allocate; an allocation beyond raises MemoryError."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if limit is None else limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
