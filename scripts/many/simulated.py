# SPDX-License-Identifier: Apache-2.0
"""Records of connections that come and go, through all that collect does behind the rings.

    open at the start      1 2 3 4 5 ...            as EXISTING
    each tick              new ones: SYN_SENT, ESTABLISHED, two segments
                           as many, the oldest, end: FIN_WAIT1, FIN_WAIT2, CLOSE, DESTROY
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.experiments.machine import memory_mib
from tcpkmon.collector.metrics.watching import watch
from tcpkmon.collector.plan.columns import choose_columns, load_schema, make_layout
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.points import ACCOUNT, ROWS, row_of
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.capture_info import CaptureInfo
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.control import EXISTING, EndReason

TICK_S = 0.05
EACH = 8
"""Records of a connection that comes and goes; of one that was open, half of them and one more."""
WAIT_S = 300.0
_SEGMENT, _STATE_CHANGE, _DESTROY = 1, 4, 11
_BEGINS = ((_STATE_CHANGE, 7, 2), (_STATE_CHANGE, 2, 1), (_SEGMENT, 1, 0), (_SEGMENT, 1, 0))
_ENDS = ((_STATE_CHANGE, 1, 4), (_STATE_CHANGE, 4, 5), (_STATE_CHANGE, 5, 7), (_DESTROY, 7, 0))
"""Location, state and callvalue of a connection's records."""
_TIME_AT = 4
"""Of the time in a record of a ring."""


@dataclass
class Figures:
    """What the reading thread took: CPU seconds, of a simulated time of `seconds`, and of each
    rotation, question of top and of metrics; the MiB that the process grew by."""

    records: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    longest_tick_s: float = 0.0
    rotation_s: list[float] = field(default_factory=list)
    top_s: dict[str, float] = field(default_factory=dict)
    metrics_s: float = 0.0
    grown_mib: float = 0.0
    shown: int = 0
    """Open connections that top counts at the end."""


class Simulation:
    """A capture into `folder`, of `opened` connections that are open, all the time."""

    def __init__(self, folder: Path, opened: int, most: int) -> None:
        schema = load_schema()
        layout = make_layout(schema, choose_columns(schema.event("SNAPSHOT"), "default"), ())
        self.dtype, self.figures, self.opened = layout.dtype, Figures(), opened
        self._before_mib = memory_mib("self", "VmRSS")
        self.watching = watch(layout, True, most=most)
        offset_ns = time.time_ns() - time.monotonic_ns()
        self._now_ns = time.monotonic_ns()
        self._clocks = Clocks(lambda: self._now_ns, lambda: self._now_ns + offset_ns)
        self._ledger, self._serial = np.zeros((2, ROWS), ACCOUNT), 0
        self._first, self._next = 1, 1
        self.stream = Stream(STREAMS["psc"](), folder, rotates=True)
        info = CaptureInfo(
            version="simulated", kernel="simulated", settings={"tcpkmon": "simulated"},
            dtype=self.dtype, cpus=1, requested=4, recorded=4, programs=1, buffer_bytes=4 << 20,
            low_water_percent=75, columns=layout.columns, entry_size=layout.entry_size,
            page_bytes=4096, remembered=most,
        )  # fmt: skip
        self.stream.begin(info, None, self._clocks, self.watching.add)  # type: ignore[arg-type]
        self.stream.start()

    def open(self, at_once: int = 4096) -> None:
        """The connections that are open at the start."""
        for low in range(0, self.opened, at_once):
            self._tick(self._rows(self._take(min(at_once, self.opened - low)), OPEN))
        self.figures.cpu_s = self.figures.longest_tick_s = 0.0

    def run(self, seconds: float, new: int, rotate_s: float) -> None:
        """So many new ones a second, and as many that end; a rotation every rotate_s."""
        each, ticks = round(new * TICK_S), round(seconds / TICK_S)
        for number in range(1, ticks + 1):
            gone = np.arange(self._first, self._first + each)
            self._first += each
            begun = self._rows(self._take(each), _BEGINS)
            self._tick(np.concatenate((begun, self._rows(gone, _ENDS))))
            if number % round(rotate_s / TICK_S) == 0:
                self.rotate()
        self.figures.seconds = ticks * TICK_S

    def rotate(self) -> None:
        """A new file, which begins with what is open."""
        begun = time.thread_time()
        self.stream.rotate(self._books(), self._clocks.read(), "time")
        self.figures.rotation_s.append(time.thread_time() - begun)

    def ask(self) -> None:
        """What top and metrics ask for."""
        self.figures.shown = int(self.watching.top("rate", 200)["connections"])
        for name, words in {
            "rate": ("rate", 200), "by port": ("rate", 200, "port"),
            "filter :443": ("rate", 200, "", ":443"),
        }.items():  # fmt: skip
            begun = time.thread_time()
            self.watching.top(*words)  # type: ignore[arg-type]
            self.figures.top_s[name] = time.thread_time() - begun
        begun = time.thread_time()
        self.watching.metrics()
        self.figures.metrics_s = time.thread_time() - begun

    def close(self) -> Figures:
        """Ends the file."""
        self.figures.grown_mib = memory_mib("self", "VmRSS") - self._before_mib
        self.stream.finish({0: self._serial}, self._now_ns)
        self.stream.end(self._books(), self._clocks.read(), EndReason.ASKED, self._now_ns)
        if not self.stream.close(WAIT_S):
            raise RuntimeError("the file is not written")
        return self.figures

    def _take(self, count: int) -> NDArray[np.int64]:
        found = np.arange(self._next, self._next + count)
        self._next += count
        return found

    def _rows(self, ids: NDArray[np.int64], kinds: Any) -> NDArray[Any]:
        """The records of these connections, one kind after the other."""
        rows = np.zeros((len(kinds), len(ids)), self.dtype)
        for step, (location, state, value) in enumerate(kinds):
            row = rows[step]
            row["location"], row["state"], row["callvalue"] = location, state, value
            row["conn_id"], row["family"], row["mss"] = ids, 2, 1448
            row["lport"], row["rport"] = 443, 1024 + ids % 60_000
            row["laddr"] = np.frombuffer(_address(np.array([0x0A000001])), "V16")
            row["raddr"] = np.frombuffer(_address(0x0B000000 + ids // 60_000), "V16")
            row["srtt_us"], row["min_rtt_us"] = 900 + ids % 200, 400
            row["snd_wnd"] = row["rcv_wnd"] = 65536
            row["snd_cwnd_segs"], row["snd_ssthresh"] = 10, 0x7FFFFFFF
            row["snd_una"] = row["rcv_nxt"] = 1448 * step
        flat: NDArray[Any] = rows.reshape(-1)
        return flat

    def _tick(self, rows: NDArray[Any]) -> None:
        """Records of TICK_S, in their order."""
        count = len(rows)
        serials = np.arange(self._serial + 1, self._serial + count + 1)
        times_ns = self._now_ns + (np.arange(1, count + 1) * (TICK_S * 1e9) // count).astype(int)
        octets = rows.view(np.uint8).reshape(count, -1)
        rows["seq_no"], rows["serial"], rows["time_ns"] = serials, serials, times_ns
        octets[:, _TIME_AT : _TIME_AT + 8] = times_ns.view(np.uint8).reshape(count, 8)
        self._serial, self._now_ns = int(serials[-1]), int(times_ns[-1])
        numbers, counts = np.unique(rows["location"], return_counts=True)
        for number, some in zip(numbers.tolist(), counts.tolist(), strict=True):
            for name in ("attempts", "written"):
                self._ledger[name][0, row_of(number)] += some
        begun = time.thread_time()
        self.stream.push([Batch(0, rows, 0)])
        self.stream.release(self._now_ns)
        self.stream.settle()
        took = time.thread_time() - begun
        self.figures.records += count
        self.figures.cpu_s += took
        self.figures.longest_tick_s = max(self.figures.longest_tick_s, took)

    def _books(self) -> Books:
        order = self.stream.order
        return Books(
            self._ledger.copy(), np.array([self._serial, 0], np.uint64), read=dict(order.read),
            late=dict(order.late), killed=dict(order.killed), online=frozenset((0,)),
        )  # fmt: skip


OPEN = ((EXISTING, 1, 0),)


def _address(v4: NDArray[np.int64]) -> bytes:
    """IPv4 addresses as 16 bytes each."""
    found = np.zeros((len(v4), 4), ">u4")
    found[:, 2], found[:, 3] = 0xFFFF, v4
    return found.tobytes()
