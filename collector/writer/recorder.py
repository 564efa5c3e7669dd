# SPDX-License-Identifier: Apache-2.0
"""What the flight recorder's streams share: the window, the triggers, when a dump begins and ends.

    records  ---- window ----|         a trigger fires, with its record
    file     |base ---- window ---- trigger ---- after ---- END|
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import Queues
from collector.writer.dump import Keeping
from collector.writer.keeper import Block, Keeper, Noted
from collector.writer.ledger import Books
from collector.writer.spool import Spool
from collector.writer.written import Written
from formats.base.control import Change, Clock, EndReason, Mark, Trigger

HOUR_S = 3600.0
LONGEST = 4
"""Later triggers lengthen a dump, to so many times `after` from its first trigger."""


class Fired(Protocol):
    """A trigger fired: collector/plan/trigger_watch.py."""

    @property
    def number(self) -> int: ...
    @property
    def mono_ns(self) -> int: ...
    @property
    def conn_id(self) -> int: ...
    @property
    def count(self) -> int: ...


class OneDump(Protocol):
    """The dump that is written now; see collector/writer/dump.py."""

    number: int
    at_ns: int
    until_ns: int

    def put_trigger(self, trigger: Trigger) -> None: ...
    def put_books(self, books: Books, mono_ns: int) -> None: ...
    def put_noted(self, noted: Noted) -> None: ...
    def end(
        self,
        books: Books | None,
        clock: Clock,
        reason: EndReason,
        mono_ns: int,
        final: bool = False,
    ) -> None: ...


class Sealing(Protocol):
    """The writer of dumps: names of those that are sealed, and why the last has no file."""

    names: list[str]
    error: Exception | None

    def seal(self, why: str) -> None: ...


class Recorder(ABC):
    """A part of a stream, before it in the order of bases. Before begin(), set watch and
    read_books. say: tells the user of a dump, in one line.
    """

    order: Queues
    written: Written
    records: int
    _clocks: Clocks
    _keeper: Keeper
    _dumps: Sealing
    _spool: Spool[Any]

    def __init__(self, *arguments: Any, keeping: Keeping, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._keeping = keeping
        self.watch: Any = None
        self.read_books: Callable[[], Books]
        self.say: Callable[[str], None] = lambda text: None
        self._dump: OneDump | None = None
        self._number = 0
        self._begun_s: deque[float] = deque()
        self._held = 0
        """Triggers that wrote nothing, because of the limit of dumps an hour."""
        self._held_now = False
        self._said: Exception | None = None
        self._watermark_ns = 0

    @abstractmethod
    def _take(self, watermark_ns: int) -> None:
        """Keep what is released, and look for triggers in it."""

    @abstractmethod
    def _open_dump(self, first: Block, trigger: Trigger, why: str) -> OneDump:
        """The next dump, with what comes before the first block that is kept."""

    @property
    @abstractmethod
    def _folder_path(self) -> str: ...

    def release(self, watermark_ns: int) -> None:
        now_ns = self._clocks.now_ns()
        self._take(watermark_ns)
        self._watermark_ns = max(self._watermark_ns, min(watermark_ns, now_ns))
        if self.watch is not None:
            self._fire(self.watch.tick(self._watermark_ns))
        if self._dump is not None and self._watermark_ns >= self._dump.until_ns:
            self._end_dump()
        if self._keeper.is_due:
            self._begin_block(self.read_books())
        self._say_done()

    def ask(self, pid: int = 0) -> int:
        """Write a dump now, or name the wish in the one under way; its number. pid: who asks."""
        now_ns = self._clocks.now_ns()
        self._tell(Trigger(0, now_ns, 0, now_ns, 1, pid), f"process {pid}" if pid else "SIGUSR2")
        assert self._dump is not None
        return self._dump.number

    def window(self) -> dict[str, Any]:
        """What is kept, for the status. Times are seconds since the epoch."""
        keeper, first = self._keeper, self._keeper.blocks[0]
        error = self._dumps.error
        return {
            "oldest": first.realtime_ns / 1e9,
            "newest": self._realtime_ns(self._watermark_ns) / 1e9,
            "seconds": round((self._watermark_ns - first.mono_ns) / 1e9, 3),
            "records": keeper.passed.total() - first.passed.total(),
            "bytes": keeper.nbytes,
            "limit_bytes": self._keeping.last_bytes,
            "evicted": keeper.evicted,
            "triggers": list(self._keeping.triggers),
            "dumps": self._number,
            "dumping": self._dump is not None,
            "held_back": self._held,
            "failed": "" if error is None else str(error),
        }

    def clock(self, entry: Clock) -> None:
        self._keep_note([entry], entry.mono_ns)

    def changed(self, changes: Sequence[Change]) -> None:
        self._keep_note(changes, changes[-1].after_ns)

    def marks(self, marks: Sequence[Mark], pid: int = 0) -> bool:
        self._keep_note(marks, self._clocks.now_ns())
        return True

    def checkpoint(self, books: Books) -> None:
        self._begin_block(books)

    def end(self, books: Books | None, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        if self._dump is not None:
            self._dump.end(books, clock, reason, mono_ns, final=True)
            self._close_dump()

    def close(self, timeout_s: float) -> bool:
        done: bool = super().close(timeout_s)  # type: ignore[misc]
        self._say_done()
        return done

    def rotate(self, books: Books, clock: Clock, why: str) -> None:  # noqa: B027 - it is whole
        """A dump has one file."""

    def describe_end(self) -> str:
        """What was kept and written, at the end of the capture."""
        number = f"{self._number} dump{'' if self._number == 1 else 's'} in {self._folder_path}"
        held = f", {self._held:,} triggers over the limit of dumps an hour" if self._held else ""
        return f"{self.records:,} records passed the recorder; {number}{held}"

    def _say_done(self) -> None:
        """Name the dumps that were sealed since the last call, and the one that could not be."""
        while self._dumps.names:
            self.say(f"dump: {self._dumps.names.pop(0)}")
        error = self._dumps.error
        if error is not None and error is not self._said:
            self.say(f"a dump could not be written: {error}")
        self._said = error

    def _keep_note(self, entries: Sequence[Any], mono_ns: int) -> None:
        noted = Noted(mono_ns, entries)
        self._keeper.note(noted)
        if self._dump is not None:
            self._dump.put_noted(noted)

    def _begin_block(self, books: Books) -> None:
        mono_ns = self._watermark_ns
        released, realtime_ns = self.order.released(), self._realtime_ns(mono_ns)
        self._keeper.begin(books, released, mono_ns, realtime_ns, self._clocks.now_ns())
        if self._dump is not None:
            self._dump.put_books(books, mono_ns)

    def _realtime_ns(self, mono_ns: int) -> int:
        return int(self._clocks.to_epoch(np.array([mono_ns]))[0])

    def _fire(self, hits: Sequence[Fired]) -> None:
        for hit in hits:
            now_ns = self._clocks.now_ns()
            told = Trigger(hit.number, hit.mono_ns, hit.conn_id, now_ns, hit.count, 0)
            if self._dump is None and not self._may_dump():
                self._held += hit.count
                continue
            self._tell(told, self._keeping.triggers[hit.number - 1])

    def _may_dump(self) -> bool:
        """Whether the limit of dumps an hour lets a trigger write one now."""
        now_s = time.monotonic()
        while self._begun_s and self._begun_s[0] <= now_s - HOUR_S:
            self._begun_s.popleft()
        held = len(self._begun_s) >= self._keeping.dumps_per_hour
        if held and not self._held_now:
            self.say(
                f"a trigger fired, but there were {len(self._begun_s)} dumps within an hour: "
                "it writes none (--dumps-per-hour)"
            )
        self._held_now = held
        return not held

    def _tell(self, trigger: Trigger, why: str) -> None:
        """Write a trigger into the dump under way, or into a new one."""
        after_ns = int(self._keeping.after_s * 1e9)
        if self._dump is None:
            self._dump = self._begin_dump(trigger, why)
        dump = self._dump
        longest_ns = dump.at_ns + LONGEST * after_ns
        dump.until_ns = max(dump.until_ns, min(trigger.mono_ns + after_ns, longest_ns))
        dump.put_trigger(trigger)

    def _begin_dump(self, trigger: Trigger, why: str) -> OneDump:
        """Begin the file, with all that is kept."""
        self._number += 1
        if trigger.number:  # nobody who asks is held back
            self._begun_s.append(time.monotonic())
        dump = self._open_dump(self._keeper.blocks[0], trigger, why)
        for number, block in enumerate(self._keeper.blocks):
            if number:
                dump.put_books(block.books, block.mono_ns)
            for item in block.items:
                if isinstance(item, Noted):
                    dump.put_noted(item)
                else:
                    self._spool.put(item)
        self._spool.flush()
        self.say(f"dump {self._number}: {why}")
        return dump

    def _close_dump(self) -> None:
        """Nothing more comes for it."""
        self._dump = None
        self._spool.put_call(partial(self._dumps.seal, "a trigger"))

    def _end_dump(self) -> None:
        """End the file after all that was released."""
        clock = self._clocks.check()
        if clock is not None:  # later blocks need it too
            self._keep_note([clock], clock.mono_ns)
        clock = self._clocks.read()
        assert self._dump is not None
        self._dump.end(self.read_books(), clock, EndReason.DUMPED, self._watermark_ns)
        self._close_dump()
