# SPDX-License-Identifier: Apache-2.0
"""The spool: a thread between the sequencer and the file, so that a slow disk does not stop the
reading of the rings."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tcpkmon.collector.writer.codec import Batch
from tcpkmon.collector.writer.tape import Item
from tcpkmon.collector.writer.writer import Writer
from tcpkmon.collector.writer.written import Place
from tcpkmon.formats.base.control import LossCause

LIMIT_BYTES = 64 << 20
CONTROL_COST_BYTES = 64 << 10
"""The size of a waiting control item: about a copy of the kernel's ledger."""
GATHER_BYTES = 2 << 20
"""The most that is written at once: each write has a fixed cost. When so much waits, the thread
writes before flush()."""
BEHIND = 4
"""When more than 1/BEHIND of the limit waits, the disk is too slow for direct writes. Then all
writes go through the page cache, for at least CACHED_S and until 1/CAUGHT_UP waits."""
CAUGHT_UP = 16
CACHED_S = 1.0


@dataclass
class _Gap:
    """Batches that did not fit in the queue, in their place."""

    numbers: int
    counts: Counter[Place]
    last: dict[int, int]


@dataclass
class _Call:
    do: Callable[[], object]


_Item = _Gap | _Call
_ITEMS = (_Gap, _Call)


class Spool:
    """A writer in a thread of its own, behind a queue of about `limit_bytes` at most.

    put() and put_control() return at once. They raise the error that ended the thread
    (BrokenPipeError when the output's reader is gone). One thread calls all methods.
    """

    def __init__(
        self,
        writer: Writer,
        limit_bytes: int = LIMIT_BYTES,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now_s = now_s
        self._writer = writer
        self._limit_bytes = limit_bytes
        self._queue: deque[Batch | _Item] = deque()
        self._bytes = self._waiting = 0
        self._quiet_bytes = 0
        self._put = self._done = 0
        self._waits: deque[tuple[int, Callable[[], None]]] = deque()
        self._cached_until_s: float | None = None
        self._closing = False
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._no_news = threading.Lock()
        """The thread acquires it to sleep; _wake() releases it."""
        self._no_news.acquire()
        self._thread = threading.Thread(target=self._run, name="tcpkmon-spool", daemon=True)

    def start(self, begin: Callable[[], None] = lambda: None) -> None:
        """Start the thread. begin: what it does first: it sets its privileges and its priority."""
        self._begin = begin
        self._thread.start()

    def put(self, ordered: Batch) -> bool:
        """Add a batch, which the caller must not change; False: it was dropped, and counted.

        An empty queue accepts a batch of any size.
        """
        with self._lock:
            self._raise_failure()
            if not len(ordered):
                return True
            if self._bytes and self._bytes + ordered.nbytes > self._limit_bytes:
                gap = self._queue[-1] if self._queue else None
                if not isinstance(gap, _Gap):
                    gap = _Gap(0, Counter(), {})
                    self._queue.append(gap)
                gap.numbers += ordered.span
                gap.counts.update(ordered.counts())
                gap.last |= ordered.last
                return False
            self._waiting += ordered.nbytes
            self._add(ordered, ordered.nbytes)
            return True

    def put_control(
        self,
        items: Sequence[Item],
        mono_ns: int,
        *,
        reserved: bool = False,
        always: bool = False,
        sync: bool = False,
    ) -> bool:
        """Add items of control; False when the queue has no room for them.

        always: the queue has room for them. reserved: the last ones, which may also use the
        reserve on the disk. sync: sync the file after them.
        """
        with self._lock:
            self._raise_failure()
            if not (reserved or always) and self._bytes + CONTROL_COST_BYTES > self._limit_bytes:
                return False
            write = partial(self._write, items, mono_ns, reserved, sync)
            self._add(_Call(write), CONTROL_COST_BYTES)
            return True

    def put_call(self, do: Callable[[], object]) -> None:
        """Call a function in the writer's thread, after all that was put before."""
        with self._lock:
            self._raise_failure()
            self._add(_Call(do), CONTROL_COST_BYTES)

    def after(self, do: Callable[[], None]) -> None:
        """Call a function when all that was put before is written: by the thread, or at once."""
        with self._lock:
            if self._done < self._put:
                self._waits.append((self._put, do))
                return
        do()

    def close(self, timeout_s: float | None = None) -> bool:
        """Write what waits, sync and close the file; False when that takes longer than timeout_s.

        Raises the error that ended the thread. `written` has the result, with error and sync_error.
        """
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._raise_failure()
        return True

    @property
    def waiting_bytes(self) -> int:
        """The bytes of records that wait, with those that are written now."""
        return self._waiting

    def flush(self) -> None:
        """Wake the thread. Call it after several batches, since each wake-up costs time."""
        if self._queue:
            self._wake()

    def _add(self, item: Batch | _Item, cost: int) -> None:
        self._queue.append(item)
        self._bytes += cost
        self._put += cost
        self._quiet_bytes += cost
        if self._quiet_bytes >= GATHER_BYTES or isinstance(item, _ITEMS):
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

    def _next(self) -> list[Batch] | _Item | None:
        """Wait for the next item; None at the end. Batches that wait come together."""
        while True:
            with self._lock:
                if self._queue:
                    return self._take()
                if self._closing:
                    return None
            self._no_news.acquire()

    def _take(self) -> list[Batch] | _Item:
        item = self._queue.popleft()
        if isinstance(item, _ITEMS):
            return item
        batches, nbytes = [item], item.nbytes
        while self._queue and not isinstance(item := self._queue[0], _ITEMS):
            nbytes += item.nbytes
            if nbytes > GATHER_BYTES:
                break
            batches.append(item)
            self._queue.popleft()
        return batches

    def _handle(self, item: list[Batch] | _Item | None) -> bool:
        """Write an item and keep no reference to it; False at the end."""
        if item is None:
            return False
        cost = CONTROL_COST_BYTES
        if isinstance(item, _Gap):
            cost = 0
            self._writer.skip(LossCause.QUEUE_FULL, item.numbers, item.counts, item.last)
        elif isinstance(item, _Call):
            item.do()
        else:
            cost = sum(batch.nbytes for batch in item)
            self._writer.write(*item, cached=self._is_behind())
        with self._lock:
            self._bytes -= cost
            self._waiting -= cost if isinstance(item, list) else 0
            self._done += cost
            ready = []
            while self._waits and self._waits[0][0] <= self._done:
                ready.append(self._waits.popleft()[1])
        for do in ready:
            do()
        return True

    def _write(self, items: Sequence[Item], mono_ns: int, reserved: bool, sync: bool) -> None:
        self._writer.control(items, mono_ns, reserved=reserved)
        if sync:
            self._writer.sync()

    def _is_behind(self) -> bool:
        """Whether to write through the page cache: see BEHIND."""
        if self._bytes > self._limit_bytes // BEHIND:
            self._cached_until_s = self._now_s() + CACHED_S
        elif self._cached_until_s is not None and (
            self._bytes <= self._limit_bytes // CAUGHT_UP and self._now_s() >= self._cached_until_s
        ):
            self._cached_until_s = None
        return self._cached_until_s is not None
