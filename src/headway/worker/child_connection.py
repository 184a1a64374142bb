"""The connection of a child to its supervisor: messages in both directions, reports and store requests.

A thread of the child reads the socket, unless an event loop does, and sends reports a few times a second. When the
supervisor is gone, the child exits, with everything that the tasks have started in its process group.

A task may fork. The copy must not act for the job: it sends nothing.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar, Final, NoReturn

from headway.core.clock import Clock
from headway.core.errors import HeadwayError, LeaseLost
from headway.tasks.context import LINES_WAITING_MAX, Context
from headway.worker.ipc import (
    MESSAGES_MAX,
    FrameReader,
    FrameTooLarge,
    Reports,
    StoreRequest,
    StoreResponse,
    ToChild,
    ToSupervisor,
    encode_frame,
)

REPORT_EVERY_S: Final = 0.25
HURRIES_MAX: Final = 20  # This many lines are sent at once between two reports.
GATHER_PART: Final = 12  # A first report waits this fraction of the interval for others.
READ_BYTES: Final = 1 << 20
LOOK_EVERY_S: Final = 0.2  # How often the reading thread checks whether the loop reads.


class ChildConnection:
    """Exchange messages with the supervisor; subclasses handle what arrives."""

    reads_on_loop: ClassVar = False

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._clock = Clock()
        self._is_copy = False
        os.register_at_fork(after_in_child=self._become_copy)
        self._sending = threading.Lock()
        self._telling = threading.Lock()  # Keeps the reports of a job in order.
        self._unsent: deque[ToSupervisor] = deque()
        self._noted: dict[str, Context] = {}
        self._questions: dict[int, Callable[[StoreResponse], None]] = {}
        self._asked = 0
        self.report_every_s = REPORT_EVERY_S
        self._hurried_since = float("-inf")
        self._hurried = 0
        self._is_resting = False
        self._wake = os.pipe()
        self._reader: FrameReader[ToChild] = FrameReader(ToChild)
        self._reading = threading.Lock()  # Keeps messages in order, whichever thread reads.
        self._reads = 0

    def send(self, message: ToSupervisor) -> None:
        """Send a message after the buffered ones; threads take turns."""
        self.buffer(message)
        self.flush()

    def buffer(self, message: ToSupervisor) -> None:
        """Buffer a message, to send it with the next ones."""
        self._unsent.append(message)

    def flush(self) -> None:
        """Send the buffered messages."""
        if self._is_copy:
            self._unsent.clear()
            return
        unsent = self._unsent
        with self._sending:
            while unsent:
                self._send_together([unsent.popleft() for _ in range(min(len(unsent), MESSAGES_MAX))])

    def _send_together(self, messages: list[ToSupervisor]) -> None:
        """Send messages in one frame, or in several when one would be too large."""
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
        """Mark a context as having news. Apply backpressure to a task that logs faster than lines are sent."""
        if self._is_copy:
            return
        self._noted[context.job_id] = context
        if self._is_resting:  # The reading thread may be waiting forever: there was nothing to report.
            os.write(self._wake[1], b".")
        if context.waiting_lines > LINES_WAITING_MAX or (context.waiting_lines and self._may_hurry()):
            self._report()

    def _may_hurry(self) -> bool:
        """Return whether lines may be sent at once, so that they survive a crash. Only the first few of many are.

        Not while a thread is sending: it may be this very thread, in a finaliser. And not when the socket would block.
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
        """Send a store request and wait for the response."""
        answered = threading.Event()
        answers: list[StoreResponse] = []

        def hear(answer: StoreResponse) -> None:
            answers.append(answer)
            answered.set()

        with self._asking(context, question, body, hear):
            self.wait_for(answered)
        return _body_of(answers[0])

    def wait_for(self, answered: threading.Event) -> None:
        """Wait until a response has been read."""
        answered.wait()

    async def ask_async(self, context: Context, question: str, body: str) -> str:
        """Send a store request and await the response."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[StoreResponse] = loop.create_future()

        def settle(answer: StoreResponse) -> None:
            if not answered.done():
                answered.set_result(answer)

        def hear(answer: StoreResponse) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: its task has ended.
                loop.call_soon_threadsafe(settle, answer)

        with self._asking(context, question, body, hear):
            return _body_of(await answered)

    @contextlib.contextmanager
    def _asking(
        self, context: Context, question: str, body: str, hear: Callable[[StoreResponse], None]
    ) -> Iterator[None]:
        """Send a store request; drop its response when the caller has gone."""
        if self._is_copy:
            raise HeadwayError("a forked process cannot act for its job: do this in the task itself")
        with self._sending:
            self._asked += 1
            number = self._asked
        self._questions[number] = hear
        try:
            ask = StoreRequest(number, context.job_id, context.attempt, question, body)
            encode_frame([ask])  # An oversized request is the task's error; it must not end this process.
            self.send(ask)
            yield
        finally:
            self._questions.pop(number, None)

    def _report(self) -> None:
        if not self._noted:
            return
        with self._telling:
            reports = []
            for _ in range(len(self._noted)):  # Other threads may add more meanwhile; those wait for the next report.
                with contextlib.suppress(KeyError):
                    _, context = self._noted.popitem()
                    if (report := context.take_report()) is not None:
                        reports.append(report)
            if reports:
                self.buffer(Reports(reports))
        self.flush()

    def listen(self) -> None:
        """Start the thread that reads the socket."""
        threading.stack_size(512 * 1024)  # It needs little, and counts against a task's memory limit.
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
                    continue  # Wait a moment, to send several reports together.
                if self._socket.fileno() in ready or (self.reads_on_loop and reads == self._reads):
                    self.read()
                self.look_after()
                if self._noted:
                    reported_at = self._clock.monotonic()
                    self._report()

    def _rest_s(self, reported_at: float) -> float | None:
        """Return how long the reading thread may wait: until a report or a loop check is due; None is forever."""
        self._is_resting = True  # Set before the check, so that a report added later wakes us.
        self._is_resting = not self._noted
        if self._is_resting:
            return LOOK_EVERY_S if self.reads_on_loop else None
        due_s = reported_at + self.report_every_s - self._clock.monotonic()
        rest_s = max(self.report_every_s / GATHER_PART, due_s)
        return min(rest_s, LOOK_EVERY_S) if self.reads_on_loop else rest_s

    def read(self) -> None:
        """Handle the messages that have arrived, if any."""
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
        """Handle a message of the supervisor."""
        raise NotImplementedError

    def look_after(self) -> None:
        """Check from time to time whether this child can still read; called by the reading thread."""

    def _become_copy(self) -> None:
        """Mark this process as the forked copy of a child."""
        self._is_copy = True


def _body_of(answer: StoreResponse) -> str:
    if answer.is_lost:
        raise LeaseLost(answer.error)
    if answer.error is not None:
        raise HeadwayError(answer.error)
    return answer.body


@contextlib.contextmanager
def ending_when_unheard() -> Iterator[None]:
    """Exit this process when the connection or this code is broken: the supervisor is gone or cannot be reached."""
    try:
        yield
    except OSError:
        end_with_everything()
    except BaseException:  # noqa: BLE001 - whatever it is
        try:
            traceback.print_exc()
        finally:  # Even when printing fails.
            end_with_everything()


def end_with_everything() -> NoReturn:
    """Kill this process and its process group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
