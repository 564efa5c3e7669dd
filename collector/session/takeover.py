# SPDX-License-Identifier: Apache-2.0
"""A capture goes on although its process was killed: what that takes of both processes.

The one that records parks its maps, programs and links with its overseer, and leaves records in
the rings until they are in the file. The next one gets them back. It goes on with the file, leaves
out the records that are in the file already, and counts those that were read and are not:

    ring of a CPU     released |  held  |  not read yet
    file              written ......|
                                    ^ the last serial in the file: here the next one goes on
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

from tcpkmon.collector.linux.syscalls import possible_cpus
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.parked import (
    JOURNAL,
    Parked,
    describe,
    difference,
    digests,
    park,
    why_not,
)
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.ring.journal import Journal
from tcpkmon.collector.ring.rings import Rings, pages_of
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.session.existing import Existing
from tcpkmon.collector.session.overseer import Overseer
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.capture_info import CaptureInfo
from tcpkmon.collector.writer.codec import Show, Tail
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import TcpkmonError


class Takeover(Closing):
    """What was parked, if this capture can go on with it, and what it parks itself.

    parked: None where the capture begins anew; `why_anew` says why, if something was parked. Make
    it while this process has all its privileges.
    """

    def __init__(
        self, overseer: Overseer, request: Request, prepared: Prepared, stream: Stream
    ) -> None:
        self.overseer, self._request = overseer, request
        self._prepared, self._stream = prepared, stream
        self._parks = overseer.holds and not why_not(request, prepared)
        self._sent: set[str] = set()
        self._tail: Tail | None = None
        self._taken: Parked | None = overseer.parked
        self.journal: Journal | None = None
        self.parked: Parked | None = None
        self.why_anew = ""
        if self._taken is not None and self._taken.fds:
            self.why_anew = self._take(self._taken)
        if self.parked is None and self._parks:
            self.journal = Journal(possible_cpus() + 1)
        stream.journal = self.journal

    def _take(self, parked: Parked) -> str:
        """Go on with what was parked; or why not."""
        why = "it parks nothing" if not self._parks else ""
        if not why and (what := difference(parked, self._prepared)):
            why = f"{what} changed"
        if not why:
            try:
                self.journal = Journal(possible_cpus() + 1, parked.take(JOURNAL))
                state = parked.state
                self._tail = self._stream.open_tail(
                    str(state["path"]), str(state["capture"]), self._prepared.dtype, self.journal
                )
                self.parked = parked
            except (TcpkmonError, OSError, KeyError, ValueError) as error:
                why = error.message if isinstance(error, TcpkmonError) else str(error)
        if why:
            parked.close()
            if self.journal is not None:
                self.journal.close()
            self.overseer.anew(why)
        return why

    def open_rings(self, kernel: Kernel) -> Rings:
        """The capture's rings: new ones, or those that the programs have."""
        request, prepared = self._request, self._prepared
        pages = pages_of(request.buffer_bytes)
        kernel.buffer_bytes = pages * os.sysconf("SC_PAGESIZE")
        kernel.low_water_percent = request.low_water_percent
        wakeup = max(1, kernel.buffer_bytes * (100 - request.low_water_percent) // 100)
        rings = Rings(
            kernel.loaded.maps, prepared.dtype, pages, wakeup, prepared.transport, self.journal,
            self.parked is not None,
        )  # fmt: skip
        kernel.buffer_bytes = rings.buffer_bytes  # those that the programs have may be of another
        return rings

    def begin(
        self,
        info: CaptureInfo,
        kernel: Kernel,
        clocks: Clocks,
        rings: Rings,
        existing: Existing,
        show: Show | None,
    ) -> str:
        """Begin the file, or go on with it: then returns why its next one is to begin."""
        if self._tail is None:
            anew = {"started_anew": self.why_anew} if self.why_anew else {}
            info = replace(info, settings={**info.settings, **anew})
            self._stream.begin(info, kernel, clocks, show)
            return ""
        info = replace(info, settings={**info.settings, "went_on": True})
        existing.close()
        self._stream.go_on(info, kernel, clocks, self._tail, show)
        killed = self._count_killed(rings)
        self.overseer.went_on(killed)
        return "its process was killed"

    def _count_killed(self, rings: Rings) -> int:
        """Take what the rings hold. What others read, and neither wrote nor counted, was killed."""
        order = self._stream.order
        before = {cpu: order.read.get(cpu, 0) + order.killed[cpu] for cpu in rings.cpus}
        again: Counter[int] = Counter()
        for batch in rings.drain():
            again[batch.cpu] += order.push_again(batch)
        killed = {
            cpu: taken + again[cpu] - before.get(cpu, 0) for cpu, taken in rings.taken().items()
        }
        killed = {cpu: count for cpu, count in killed.items() if count > 0}
        self._stream.kill(killed)
        self._stream.settle()
        self.free(rings)
        return sum(killed.values())

    def free(self, rings: Rings) -> None:
        """Release the records that were drained; those that are not in the file yet stay."""
        if self.journal is None:
            rings.free()
        else:
            self._stream.after(rings.hold(self._stream.order.waiting_by_cpu))

    def park(self, kernel: Kernel) -> None:
        """Hand over what is not there yet. Call it when all is attached, then once a second."""
        if self.journal is None:
            return
        if not self._sent:
            kernel.loaded.finish_loading()
        now = park(kernel.loaded, self.journal.fd)
        new = {name: fd for name, fd in now.items() if name not in self._sent}
        if not new:
            return
        state = {}
        if not self._sent:
            segments = self._stream.segments
            path = self._request.output if self._tail is None else self._tail.path
            state = {
                "digests": digests(self._prepared),
                "capture": segments.capture if segments is not None else "",
                "path": os.path.abspath(path),
                **describe(kernel.loaded),
            }
        self._sent |= new.keys()
        self.overseer.park(state, new)

    def detach(self, kernel: Kernel) -> None:
        """Stop recording. What the overseer holds stays attached until it closes it."""
        if self._sent:
            kernel.stop()
        else:
            kernel.loaded.detach()

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()
