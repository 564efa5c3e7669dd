# SPDX-License-Identifier: Apache-2.0
"""The flight recorder's stream: it keeps the last records, and writes them when a trigger fires.

    records  ---- window ----|         a trigger fires, with its record
    file     |base ---- window ---- trigger ---- after ---- END|

A dump is a segment whose earlier segments were never written: its header says what they would hold.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.ordered_batch import Ordered
from collector.sequencer.sequencer import Sequencer
from collector.writer.base_stream import Show
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.dump import Dump, Keeping, previous_of
from collector.writer.dump_writer import DumpWriter
from collector.writer.keeper import Keeper, Noted
from collector.writer.ledger import Books, reserve_bytes
from collector.writer.psc_stream import PscStream
from collector.writer.spool import LIMIT_BYTES, Spool
from formats.base.control import Change, Clock, Control, EndReason, Mark, Trigger

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


class Watching(Protocol):
    """Finds when triggers fire."""

    def feed(
        self, rows: NDArray[Any], first_ns: int, present: Set[int] | None = None
    ) -> Sequence[Fired]: ...
    def tick(self, now_ns: int) -> Sequence[Fired]: ...


class RecorderStream(PscStream):
    """See collector/writer/base_stream.py. The path is that of a folder of dumps.

    Before begin(), set watch and read_books. say: tells the user of a dump, in one line.
    """

    def __init__(self, path: str | Path, keeping: Keeping, force: bool = False) -> None:
        super().__init__(path, force, rotates=True)
        self._keeping = keeping
        self.watch: Watching | None = None
        self.read_books: Callable[[], Books]
        self.say: Callable[[str], None] = lambda text: None
        self._dump: Dump | None = None
        self._number = 0
        self._files = 0
        self._entries_before = 0
        self._begun_s: deque[float] = deque()
        self._held = 0
        """Triggers that wrote nothing, because of the limit of dumps an hour."""
        self._held_now = False
        self._said: Exception | None = None
        self._watermark_ns = 0

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        assert self.segments is not None
        self._show, self._info, self._clocks = show, info, clocks
        self._entry_size = info.entry_size
        self._states_cpu = info.cpus + 1
        self._cpus = info.cpus + 2
        self.order = Sequencer(info.dtype, clocks.to_epoch, first_seq=2)
        self.order.warm()
        reserve = reserve_bytes(self._cpus, info.programs + 4, info.entry_size)
        self._dumps = DumpWriter(self.segments, info.dtype, clocks.to_epoch, reserve)
        self._spool = Spool(self._dumps, 2 * self._keeping.last_bytes + LIMIT_BYTES)
        self.written = self._dumps.written
        self._keeper = Keeper(info.dtype, self._keeping.last_s, self._keeping.last_bytes)
        self._watermark_ns = clocks.start.mono_ns
        self._begin_block(self.read_books())

    def release(self, watermark_ns: int) -> None:
        now_ns = self._clocks.now_ns()
        for ordered in self.order.pieces(watermark_ns):
            self._hand_over(ordered)
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
        self._note([entry], entry.mono_ns)

    def changed(self, changes: Sequence[Change]) -> None:
        self._note(changes, changes[-1].after_ns)

    def marks(self, marks: Sequence[Mark], pid: int = 0) -> bool:
        self._note(marks, self._clocks.now_ns())
        return True

    def checkpoint(self, books: Books) -> None:
        self._begin_block(books)

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        super().finish(serials, mono_ns)
        self._watermark_ns = max(self._watermark_ns, mono_ns)

    def end(self, books: Books | None, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        if self._dump is not None:
            self._dump.end(books, clock, reason, mono_ns, final=True)
            self._close_dump()

    def close(self, timeout_s: float) -> bool:
        done = super().close(timeout_s)
        self._say_done()
        return done

    def bytes_written(self) -> int:
        entries = max(0, self.written.entries - self._entries_before)
        return (self._files + entries) * self._entry_size

    def rotate(self, books: Books, clock: Clock, why: str) -> None:
        """A dump has one file."""

    def describe_end(self) -> str:
        """What was kept and written, at the end of the capture."""
        number = f"{self._number} dump{'' if self._number == 1 else 's'} in {self._folder_path}"
        held = f", {self._held:,} triggers over the limit of dumps an hour" if self._held else ""
        return f"{self.records:,} records passed the recorder; {number}{held}"

    @property
    def _folder_path(self) -> str:
        assert self._folder is not None
        return self._folder.path

    def _say_done(self) -> None:
        """Name the dumps that were sealed since the last call, and the one that could not be."""
        while self._dumps.names:
            self.say(f"dump: {self._dumps.names.pop(0)}")
        error = self._dumps.error
        if error is not None and error is not self._said:
            self.say(f"a dump could not be written: {error}")
        self._said = error

    def _hand_over(self, ordered: Ordered) -> None:
        if not len(ordered):
            return
        self.records += ordered.records
        if self._show is not None:
            self._show(ordered.entries)
        counts = self._keeper.add(ordered)
        hits: Sequence[Fired] = ()
        if self.watch is not None:
            present = {location for _, location in counts}
            hits = self.watch.feed(ordered.entries, ordered.first_ns, present)
        if self._dump is not None:
            self._spool.put(ordered)
        self._fire(hits)

    def _note(self, entries: Sequence[Control], mono_ns: int) -> None:
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

    def _begin_dump(self, trigger: Trigger, why: str) -> Dump:
        """Begin the file, with all that is kept."""
        self._number += 1
        self._files += max(0, self.written.entries - self._entries_before)
        self._begun_s.append(time.monotonic())
        first = self._keeper.blocks[0]
        states = self._keeper.states(self._states_cpu, first.mono_ns)
        count = len(states) if states is not None else 0
        offset_ns = first.realtime_ns - first.mono_ns
        dump = Dump(self._spool, self._number, trigger.mono_ns, count, offset_ns)
        segment = self._describe(self._number, previous_of(first))
        recorder = {**vars(self._keeping), "why": why, "held_back": self._held}
        uncertainty_ns = self._clocks.latest.uncertainty_ns
        begin = dump.begin(first, self._info, self._cpus, uncertainty_ns, segment, recorder)
        self.written, self._entries_before = begin.written, first.passed.total()
        self._spool.put_call(partial(self._dumps.begin, begin))
        if states is not None:
            self._spool.put(states)
        for number, block in enumerate(self._keeper.blocks):
            if number:
                dump.put_books(block.books, block.mono_ns)
            for item in block.items:
                if isinstance(item, Ordered):
                    self._spool.put(item)
                else:
                    dump.put_noted(item)
        self._spool.flush()
        self.say(f"dump {self._number}: {why}")
        return dump

    def _end_dump(self) -> None:
        """End the file after all that was released."""
        clock = self._clocks.check()
        if clock is not None:  # later blocks need it too
            self._note([clock], clock.mono_ns)
        clock = self._clocks.read()
        assert self._dump is not None
        self._dump.end(self.read_books(), clock, EndReason.DUMPED, self._watermark_ns)
        self._close_dump()

    def _close_dump(self) -> None:
        self._dump = None
        self._spool.put_call(partial(self._dumps.seal, "a trigger"))
