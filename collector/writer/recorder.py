# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: the stream behind a window. It keeps the last records, and writes them when
a trigger fires.

    records  ---- window ----|         a trigger fires, with its record
    file     |base ---- window ---- trigger ---- after ---- END|

A dump is a segment whose earlier segments were never written: its header says what they would hold.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tcpkmon.collector.sequencer.clock_pairs import Clocks, offset_of
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.capture_info import CaptureInfo, Current
from tcpkmon.collector.writer.codec import Batch, Codec, Show
from tcpkmon.collector.writer.dump import MORE, Dump, Hit, Keeping
from tcpkmon.collector.writer.keeper import Block, Keeper, Noted
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.spool import LIMIT_BYTES
from tcpkmon.collector.writer.tape import Beginning, Finish, Item, Paused
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.control import Clock, EndReason, Trigger

HOUR_S = 3600.0
LONGEST = 4
"""Later triggers lengthen a dump, to so many times `after` from its first trigger."""


class Recorder(Stream):
    """See collector/writer/base_stream.py. The path is that of a folder of dumps.

    Before begin(), set watch and read_books. say: tells the user of a dump, in one line.
    """

    def __init__(
        self, codec: Codec, path: str | Path, keeping: Keeping, force: bool = False
    ) -> None:
        super().__init__(codec, path, force, rotates=True)
        self.limit_bytes = 2 * keeping.last_bytes + LIMIT_BYTES
        self._keeping = keeping
        self.watch: Any = None
        self.read_books: Callable[[], Books]
        self.say: Callable[[str], None] = lambda text: None
        self._dump: Dump | None = None
        self._number = 0
        self._begun_s: deque[float] = deque()
        self._held = 0
        """Triggers that wrote nothing, because of the limit of dumps an hour."""
        self._held_now = False
        self._said: Exception | None = None
        self._watermark_ns = 0
        self._sealed: list[str] = []
        """Dumps that are sealed and not told of yet: take them by pop()."""

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        self._prepare(info, current, clocks, show, Written())
        assert self.segments is not None
        self.segments.sealed = lambda name, _: self._sealed.append(name)
        self._keeper = Keeper(self.codec.states, self._keeping.last_s, self._keeping.last_bytes)
        self._watermark_ns = clocks.start.mono_ns
        self._begin_block(self.read_books())

    def release(self, watermark_ns: int) -> None:
        now_ns = self._clocks.now_ns()
        for batch, parts in self.codec.take(watermark_ns, self._show):
            self._keep(batch, parts)
        self._watermark_ns = max(self._watermark_ns, min(watermark_ns, now_ns))
        if self.watch is not None:
            self._fire(self.watch.tick(self._watermark_ns))
        if self._dump is not None and self._watermark_ns >= self._dump.until_ns:
            self._end_dump(self._dump)
        if self._keeper.is_due:
            self._begin_block(self.read_books())
        self._say_done()

    def ask(self, pid: int = 0) -> int:
        """Write a dump now, or name the wish in the one under way; its number. pid: who asks."""
        now_ns = self._clocks.now_ns()
        self._name(Trigger(0, now_ns, 0, now_ns, 1, pid), f"process {pid}" if pid else "SIGUSR2")
        assert self._dump is not None
        return self._dump.number

    def window(self) -> dict[str, Any]:
        """What is kept, for the status. Times are seconds since the epoch."""
        keeper, first = self._keeper, self._keeper.blocks[0]
        error = self.written.rotation_error
        return {
            "oldest": first.clock.realtime_ns / 1e9,
            "newest": self._realtime_ns(self._watermark_ns) / 1e9,
            "seconds": round((self._watermark_ns - first.clock.mono_ns) / 1e9, 3),
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

    def checkpoint(self, books: Books) -> None:
        self._begin_block(books)

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        super().finish(serials, mono_ns)
        self._watermark_ns = max(self._watermark_ns, mono_ns)

    def end(self, books: Books | None, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        if self._dump is not None:
            self._end(self._dump, books, clock, reason, mono_ns, final=True)

    def close(self, timeout_s: float) -> bool:
        done = super().close(timeout_s)
        self._say_done()
        return done

    def rotate(self, books: Books, clock: Clock, why: str) -> None:
        """A dump has one file."""

    def describe_end(self) -> str:
        """What was kept and written, at the end of the capture."""
        number = f"{self._number} dump{'' if self._number == 1 else 's'} in {self._place.path}"
        held = f", {self._held:,} triggers over the limit of dumps an hour" if self._held else ""
        return f"{self.records:,} records passed the recorder; {number}{held}"

    def _say_done(self) -> None:
        """Name the dumps that were sealed since the last call, and the one that could not be."""
        while self._sealed:
            self.say(f"dump: {self._sealed.pop(0)}")
        error = self.written.rotation_error
        if error is not None and error is not self._said:
            self.say(f"a dump could not be written: {error}")
        self._said = error

    def _hand_over(self, batch: Batch) -> None:
        self._keep(batch, ())

    def _keep(self, batch: Batch, parts: Sequence[Any]) -> None:
        """Keep records, and look for triggers in the parts of the rings that they come from."""
        if not len(batch):
            return
        self.records += batch.records
        counts = self._keeper.add(batch)
        hits: Sequence[Hit] = ()
        if self.watch is not None:
            hits = self.codec.look(self.watch.feed, batch, parts, counts)
        if self._dump is not None:
            self._spool.put(batch)
        self._fire(hits)

    def _tell(self, items: Sequence[Item], mono_ns: int, always: bool = True) -> bool:
        if items:
            noted = Noted(mono_ns, items)
            self._keeper.note(noted)
            if self._dump is not None:
                self._put_noted(self._dump, noted)
        return True

    def _put_noted(self, dump: Dump, noted: Noted) -> None:
        self._spool.put_control(dump.follow(noted.items), noted.mono_ns, always=True)

    def _begin_block(self, books: Books) -> None:
        mono_ns = self._watermark_ns
        uncertainty_ns = self._clocks.latest.uncertainty_ns
        clock = Clock(mono_ns, self._realtime_ns(mono_ns), uncertainty_ns, 0)
        account = self._account(books)
        off: list[Item] = [*self._off.values(), *([Paused()] if self._paused else [])]
        self._keeper.begin(
            Block(
                account, self._keeper.passed.copy(), self.codec.logging(clock), off, clock,
                self._clocks.now_ns(),
            )
        )  # fmt: skip
        if self._dump is not None:
            self._spool.put_control([account], mono_ns)

    def _realtime_ns(self, mono_ns: int) -> int:
        return mono_ns + self._clocks.offset_ns

    def _fire(self, hits: Sequence[Hit]) -> None:
        for hit in hits:
            now_ns = self._clocks.now_ns()
            told = Trigger(hit.number, hit.mono_ns, hit.conn_id, now_ns, hit.count, 0)
            if self._dump is None and not self._may_dump():
                self._held += hit.count
                continue
            self._name(told, self._keeping.triggers[hit.number - 1])

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

    def _name(self, trigger: Trigger, why: str) -> None:
        """Write a trigger into the dump under way, or into a new one."""
        after_ns = int(self._keeping.after_s * 1e9)
        if self._dump is None:
            self._dump = self._begin_dump(trigger, why)
        dump = self._dump
        longest_ns = dump.at_ns + LONGEST * after_ns
        dump.until_ns = max(dump.until_ns, min(trigger.mono_ns + after_ns, longest_ns))
        if dump.name(trigger):
            self._spool.put_control([trigger], trigger.told_ns, always=True)

    def _begin_dump(self, trigger: Trigger, why: str) -> Dump:
        """Begin the file, with all that is kept."""
        self._number += 1
        if trigger.number:  # nobody who asks is held back
            self._begun_s.append(time.monotonic())
        block = self._keeper.blocks[0]
        dump = Dump(self._number, trigger.mono_ns, offset_of(block.clock))
        self._spool.put_call(partial(self._writer.begin, self._beginning(dump, block, why)))
        for number, block in enumerate(self._keeper.blocks):
            if number:
                self._spool.put_control([block.account], block.clock.mono_ns)
            for item in block.items:
                if isinstance(item, Noted):
                    self._put_noted(dump, item)
                else:
                    self._spool.put(item)
        self._spool.flush()
        self.say(f"dump {self._number}: {why}")
        return dump

    def _beginning(self, dump: Dump, block: Block, why: str) -> Beginning:
        """That of a dump with all from this block on."""
        released, codec = block.account.released, self.codec
        entries = block.passed.total()
        lost = sum(lost for _, lost in released.values())
        written = Written(entries, entries + lost, in_file=block.passed.copy(), segment=dump.number)
        states, _ = codec.repeat(block.clock.mono_ns, dump.offset_ns)
        told = {
            **vars(self._keeping),
            "triggers": [*self._keeping.triggers],
            "why": why,
            "held_back": self._held,
            "number": dump.number,
            "at_ns": dump.at_ns,
            "from_ns": block.from_ns,
        }
        if codec.states is not None:
            told["states"] = len(states) if states is not None else 0
        return Beginning(
            block.clock, self._info, block.logging, block.account, block.off,
            sorted({*codec.cpus(), *(released if codec.per_cpu else ())}), states,
            recorder=told, written=written,
        )  # fmt: skip

    def _end(
        self,
        dump: Dump,
        books: Books | None,
        clock: Clock,
        reason: EndReason,
        mono_ns: int,
        final: bool = False,
    ) -> None:
        """End the file after all that was released up to this time."""
        more = [Trigger(MORE, mono_ns, 0, mono_ns, dump.untold, 0)] if dump.untold else []
        account = [self._account(books, final)] if books is not None else []
        items = [*more, *dump.follow([clock]), *account, Finish(reason)]
        self._dump = None
        self._spool.put_call(partial(self._writer.end, self._ending(items, mono_ns)))
        self._spool.put_call(partial(self._writer.seal, "a trigger"))

    def _end_dump(self, dump: Dump) -> None:
        clock = self._clocks.check()
        if clock is not None:  # later blocks need it too
            self._tell([clock], clock.mono_ns)
        books = self.read_books()
        self._end(dump, books, self._clocks.read(), EndReason.DUMPED, self._watermark_ns)
