# SPDX-License-Identifier: Apache-2.0
"""The spool: a thread between the sequencer and the file, so that a slow disk holds up no ring."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from collector.writer.written import Place, Written
from formats.base.control import LossCause

LIMIT_BYTES = 64 << 20
CONTROL_COST_BYTES = 64 << 10
"""What a waiting control item counts for: about a copy of the kernel's ledger."""
GATHER_BYTES = 2 << 20
"""So much is written together if it waits: a write has its price, whatever its size. When so much
waits, it is written before flush() asks for it."""
BEHIND = 4
"""When more than this part of the limit waits, the disk is too slow for writes that wait for it:
then the page cache takes all, for CACHED_S at least and until only CAUGHT_UP's part waits."""
CAUGHT_UP = 16
CACHED_S = 1.0


class Sized(Protocol):
    """A batch of records: `span` is the sequence numbers it takes."""

    @property
    def span(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def counts(self) -> Counter[Place]: ...


BatchT = TypeVar("BatchT", bound=Sized)
BatchT_contra = TypeVar("BatchT_contra", bound=Sized, contravariant=True)


class Writing(Protocol[BatchT_contra]):
    """What writes, in the spool's thread: psc_writer.py, log_writer.py."""

    written: Written

    def write(self, *batches: BatchT_contra, cached: bool) -> None: ...

    def skip(self, cause: LossCause, numbers: int, counts: Counter[Place]) -> None: ...

    def control(self, build: Callable[[Written], Any], mono_ns: int, *, reserved: bool) -> bool: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class _Gap:
    """Batches that did not fit in the queue, in the place where they would have stood."""

    numbers: int
    counts: Counter[Place]


@dataclass
class _Entries:
    build: Callable[[Written], Any]
    mono_ns: int
    reserved: bool
    sync: bool


class Spool(Generic[BatchT]):
    """A writer in a thread of its own behind a queue of at most about `limit_bytes`.

    put() and put_control() return at once, and raise what ended the thread (BrokenPipeError when
    nobody reads the output any more). One thread calls them, flush() and close().
    """

    def __init__(
        self,
        writer: Writing[BatchT],
        limit_bytes: int = LIMIT_BYTES,
        begin: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`begin` is what the thread does first: what is a thread's own, such as capabilities."""
        self._begin = begin
        self._now_s = now_s
        self.written = writer.written
        self._writer = writer
        self._limit_bytes = limit_bytes
        self._queue: deque[BatchT | _Gap | _Entries] = deque()
        self._bytes = 0
        self._quiet_bytes = 0
        self._cached_until_s: float | None = None
        self._closing = False
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._no_news = threading.Lock()
        """_wake() releases it. The thread acquires it to sleep until then."""
        self._no_news.acquire()
        self._thread = threading.Thread(target=self._run, name="tcpkmon-spool", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, ordered: BatchT) -> bool:
        """Hand over a batch, which belongs to the spool from now on; False: dropped, and counted.

        A batch larger than the whole queue is taken when the queue is empty.
        """
        with self._lock:
            self._raise_failure()
            if not len(ordered):
                return True
            if self._bytes and self._bytes + ordered.nbytes > self._limit_bytes:
                gap = self._queue[-1] if self._queue else None
                if not isinstance(gap, _Gap):
                    gap = _Gap(0, Counter())
                    self._queue.append(gap)
                gap.numbers += ordered.span
                gap.counts.update(ordered.counts())
                return False
            self._add(ordered, ordered.nbytes)
            return True

    def put_control(
        self,
        build: Callable[[Written], Any],
        mono_ns: int,
        *,
        reserved: bool = False,
        sync: bool = False,
    ) -> bool:
        """Have control entries written in their turn; False when the queue is too full for them.

        build is called in the writer's thread, and makes what its control() takes. reserved: those
        of the end, which are always taken and may use the reserve on the disk. sync: fsync after.
        """
        with self._lock:
            self._raise_failure()
            if not reserved and self._bytes + CONTROL_COST_BYTES > self._limit_bytes:
                return False
            self._add(_Entries(build, mono_ns, reserved, sync), CONTROL_COST_BYTES)
            return True

    def close(self, timeout_s: float | None = None) -> bool:
        """Write what waits, sync and close the file; False if that is not over in time.

        Raises what ended the thread. The result is in `written`: error and sync_error too.
        """
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._raise_failure()
        return True

    def flush(self) -> None:
        """Have written what was put: after the last of several batches, since waking up costs."""
        if self._queue:
            self._wake()

    def _add(self, item: BatchT | _Entries, cost: int) -> None:
        self._queue.append(item)
        self._bytes += cost
        self._quiet_bytes += cost
        if self._quiet_bytes >= GATHER_BYTES or isinstance(item, _Entries):
            self._wake()

    def _wake(self) -> None:
        self._quiet_bytes = 0
        if self._no_news.locked():
            self._no_news.release()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._begin()
            while self._handle(self._next()):
                pass
            self._writer.close()
        except BaseException as failure:
            with self._lock:
                self._failure = failure

    def _next(self) -> list[BatchT] | _Gap | _Entries | None:
        """What to write next, batches that wait together; waits for it, None: that was all."""
        while True:
            with self._lock:
                if self._queue:
                    return self._take()
                if self._closing:
                    return None
            self._no_news.acquire()

    def _take(self) -> list[BatchT] | _Gap | _Entries:
        item = self._queue.popleft()
        if isinstance(item, (_Gap, _Entries)):
            return item
        batches, nbytes = [item], item.nbytes
        while self._queue and not isinstance(item := self._queue[0], (_Gap, _Entries)):
            nbytes += item.nbytes
            if nbytes > GATHER_BYTES:
                break
            batches.append(item)
            self._queue.popleft()
        return batches

    def _handle(self, item: list[BatchT] | _Gap | _Entries | None) -> bool:
        """Write it, and hold on to nothing of it; False if there is nothing more to come."""
        if item is None:
            return False
        cost = CONTROL_COST_BYTES
        if isinstance(item, _Gap):
            cost = 0
            self._writer.skip(LossCause.QUEUE_FULL, item.numbers, item.counts)
        elif isinstance(item, _Entries):
            self._writer.control(item.build, item.mono_ns, reserved=item.reserved)
            if item.sync:
                self._writer.sync()
        else:
            cost = sum(batch.nbytes for batch in item)
            self._writer.write(*item, cached=self._is_behind())
        with self._lock:
            self._bytes -= cost
        return True

    def _is_behind(self) -> bool:
        """Whether so much waits that the page cache shall take it, until next to nothing waits."""
        if self._bytes > self._limit_bytes // BEHIND:
            self._cached_until_s = self._now_s() + CACHED_S
        elif self._cached_until_s is not None and (
            self._bytes <= self._limit_bytes // CAUGHT_UP and self._now_s() >= self._cached_until_s
        ):
            self._cached_until_s = None
        return self._cached_until_s is not None
