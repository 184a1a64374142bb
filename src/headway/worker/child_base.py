"""What all kinds of children have in common: the socket to the supervisor, reports, questions, and how an attempt ends.

One thread of ours reads the socket, unless an event loop does, and sends reports a few times a second. When the
supervisor is gone, so is the child, with everything that the tasks have started in its process group.

A task may fork. The copy must not speak for the job: it sends nothing, asks nothing, and ends where its task returns.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, NoReturn, assert_never

from headway.core.clock import Clock
from headway.core.errors import HeadwayError, LeaseLost
from headway.core.jobs import Claimed
from headway.tasks.context import LINES_WAITING_MAX, Context, JobFactory
from headway.worker.attempt import Ended, TasksByName
from headway.worker.handover import Inbox
from headway.worker.ipc import (
    MESSAGES_MAX,
    Failed,
    FailedInDamagedProcess,
    Finish,
    Flush,
    FrameReader,
    FrameTooLarge,
    ReplacementRequest,
    Reports,
    Run,
    SharedCounters,
    Skipped,
    Stop,
    StoreRequest,
    StoreResponse,
    ToChild,
    ToSupervisor,
    encode_frame,
)
from headway.worker.process_state import ProcessState

REPORT_EVERY_S: Final = 0.25
HURRIES_MAX: Final = 20  # So many lines go at once in the time between two reports.
GATHER_PART: Final = 12  # A first word waits for others so small a part of the time between two reports.
READ_BYTES: Final = 1 << 20
LOOK_EVERY_S: Final = 0.2  # So often our thread looks whether the loop has time to read.


class ChildBase:
    """The line to the supervisor, and the jobs under way."""

    reads_on_loop: ClassVar = False

    def __init__(
        self,
        sock: socket.socket,
        counters: SharedCounters,
        registry: TasksByName,
        job_factory: JobFactory | None,
        width: int,
    ) -> None:
        self._socket = sock
        self._counters = counters
        self._registry = registry
        self._job_factory = job_factory
        self._width = width
        self._clock = Clock()
        self._inbox: Inbox[Claimed] = Inbox(counters)
        self._finishing = False
        self._is_spent = False
        self._process_state = ProcessState()
        self._active = 0  # Jobs that run now,
        self._company = 0  # and all that ran since the surroundings were last known to be as they should.
        self._is_copy = False
        os.register_at_fork(after_in_child=self._become_copy)
        self._sending = threading.Lock()
        self._telling = threading.Lock()  # So that what a job says arrives in the order in which it said it.
        self._unsent: deque[ToSupervisor] = deque()
        self._noted: dict[str, Context] = {}
        self._contexts: dict[str, Context] = {}
        self._deadlines: dict[tuple[str, int], int] = {}  # By job and attempt,
        self._kept: dict[tuple[str, int], Mapping[str, str]] = {}  # and so are finished steps.
        self._questions: dict[int, Callable[[StoreResponse], None]] = {}
        self._asked_to_stop: dict[str, int] = {}  # Jobs, and at which attempt.
        self._asked = 0
        self.report_every_s = REPORT_EVERY_S
        self._hurried_since = float("-inf")
        self._hurried = 0
        self._is_resting = False
        self._wake = os.pipe()
        self._reader: FrameReader[ToChild] = FrameReader(ToChild)
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
        if self._is_copy:
            self._unsent.clear()
            return
        unsent = self._unsent
        with self._sending:
            while unsent:
                self._send_together([unsent.popleft() for _ in range(min(len(unsent), MESSAGES_MAX))])

    def _send_together(self, messages: list[ToSupervisor]) -> None:
        """Send messages in one frame, or in several where one would be too large."""
        try:
            data = encode_frame(messages)
        except FrameTooLarge:
            if len(messages) == 1:
                raise
            middle = len(messages) // 2
            self._send_together(messages[:middle])
            self._send_together(messages[middle:])
        else:
            self._socket.sendall(data)

    def note(self, context: Context) -> None:
        """Remember that a context has news. Whoever writes faster than we send is made to wait."""
        if self._is_copy:
            return
        self._noted[context.job_id] = context
        if self._is_resting:  # The reading thread may wait without end: there was nothing to report.
            os.write(self._wake[1], b".")
        if context.waiting_lines > LINES_WAITING_MAX or (context.waiting_lines and self._may_hurry()):
            self._report()

    def _may_hurry(self) -> bool:
        """Say whether lines can be sent at once: what is in the socket survives a crash. Of many only the first few.

        Not while somebody sends: it may be this very thread, in a finaliser. And not where it would have to wait.
        """
        now = self._clock.monotonic()
        if now - self._hurried_since >= self.report_every_s:
            self._hurried_since, self._hurried = now, 0
        if self._hurried >= HURRIES_MAX or self._telling.locked() or self._sending.locked():
            return False
        self._hurried += 1
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        return any(ready & select.POLLOUT for _, ready in room.poll(0))

    def ask(self, context: Context, question: str, body: str) -> str:
        """Ask the supervisor and wait for its answer."""
        answered = threading.Event()
        answers: list[StoreResponse] = []

        def hear(answer: StoreResponse) -> None:
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
        answered: asyncio.Future[StoreResponse] = loop.create_future()

        def settle(answer: StoreResponse) -> None:
            if not answered.done():
                answered.set_result(answer)

        def hear(answer: StoreResponse) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: its task has ended, and waits for nothing.
                loop.call_soon_threadsafe(settle, answer)

        with self._asking(context, question, body, hear):
            return _body_of(await answered)

    @contextlib.contextmanager
    def _asking(
        self, context: Context, question: str, body: str, hear: Callable[[StoreResponse], None]
    ) -> Iterator[None]:
        """Ask a question, and forget it when its asker goes: an answer that nobody waits for is dropped."""
        if self._is_copy:
            raise HeadwayError("a process that a task has forked cannot speak for its job: do this in the task itself")
        with self._sending:
            self._asked += 1
            number = self._asked
        self._questions[number] = hear
        try:
            ask = StoreRequest(number, context.job_id, context.attempt, question, body)
            encode_frame([ask])  # A question that is too large is the task's error, not the end of this process.
            self.send(ask)
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
            waiting.register(self._socket, select.POLLIN)
        reported_at = 0.0
        with ending_when_unheard():
            while True:
                reads, rest_s = self._reads, self._rest_s(reported_at)
                ready = {number for number, _ in waiting.poll(None if rest_s is None else rest_s * 1_000)}
                if self._wake[0] in ready:
                    os.read(self._wake[0], 64)
                    continue  # What was noted is sent together with what comes soon after.
                if self._socket.fileno() in ready or (self.reads_on_loop and reads == self._reads):
                    self.read()
                self.look_after()
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
        with ending_when_unheard(), self._reading:
            try:
                data = self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
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
                self._inbox.put(first, jobs)
                self.wake(len(jobs))
            case Stop(job_id, attempt):
                self._asked_to_stop[job_id] = attempt
                context = self._contexts.get(job_id)
                if context is not None and context.attempt == attempt:
                    context.stop()
                self.stop(job_id, attempt)
            case StoreResponse(number):
                hear = self._questions.pop(number, None)
                if hear is not None:
                    hear(message)
            case Flush():
                self.flush()
            case Finish():
                self._finishing = True
                self.wake(self._width)
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

    def wake(self, jobs: int) -> None:
        """Begin jobs that have arrived, or end when there is nothing more to do."""
        raise NotImplementedError

    def stop(self, job_id: str, attempt: int) -> None:
        """Ask a job to stop, beyond telling its context."""

    def look_after(self) -> None:
        """See now and then whether this child can still hear; called by our thread."""

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
                job_factory=self._job_factory,
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

    def skip(self) -> bool:
        """Drop the jobs that were withdrawn and tell so; return whether there were any."""
        skipped = self._inbox.skip()
        if skipped:
            for _, claimed in skipped:
                self._forget(claimed.job_id, claimed.attempt)
            self.keep(Skipped(skipped[0][0], skipped[-1][0]))
        return bool(skipped)

    def enter(self) -> None:
        """A job begins."""
        self._active += 1
        self._company += 1

    def leave(self, claimed: Claimed, ended: Ended) -> None:
        """A job has ended. One that failed in damaged surroundings is not charged, unless it was alone in them."""
        if self._is_copy:
            _end_copy()
        self._active -= 1
        if isinstance(ended, Failed) and self._company > 1 and (damage := self.damage()):
            self.ended(
                claimed, FailedInDamagedProcess(claimed.job_id, claimed.attempt, self._company, ", ".join(damage))
            )
            self.tidy()
        else:
            self.ended(claimed, ended)

    def damage(self) -> list[str]:
        """Name what tasks have changed of what all of them share."""
        return self._process_state.changes()

    def repair(self) -> str | None:
        """Put back what tasks have changed; return what cannot be put back."""
        return self._process_state.restore()

    def tidy(self) -> None:
        """Put the surroundings in order, or ask to be replaced and begin nothing more. Done while no job runs."""
        left = self.repair()
        if self._active == 0:
            self._company = 0
        if left is not None and not self._is_spent:
            self._is_spent = True
            self.keep(ReplacementRequest(f"a task changed what cannot be restored: {left}"))

    def ended(self, claimed: Claimed, ended: Ended | FailedInDamagedProcess) -> None:
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

    def _become_copy(self) -> None:
        """A task has forked, and this is the copy."""
        self._is_copy = True


def _end_copy() -> NoReturn:
    """End the copy of a child that a task has forked: its task has returned, and the job belongs to the other."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _body_of(answer: StoreResponse) -> str:
    if answer.is_lost:
        raise LeaseLost(answer.error)
    if answer.error is not None:
        raise HeadwayError(answer.error)
    return answer.body


@contextlib.contextmanager
def ending_when_unheard() -> Iterator[None]:
    """End this process when the line is broken, or we are: the supervisor is gone, or would not hear us any more."""
    try:
        yield
    except OSError:
        end_with_everything()
    except BaseException:  # noqa: BLE001 - whatever it is
        try:
            traceback.print_exc()
        finally:  # Also when it cannot be printed.
            end_with_everything()


def end_with_everything() -> NoReturn:
    """End this process and all that it has started, unless that has left its group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
