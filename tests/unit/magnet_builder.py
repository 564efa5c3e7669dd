# SPDX-License-Identifier: Apache-2.0
"""Builds MAGNeT files as collect does, by its stream and writer, from records as in the rings; and
the same file in other layouts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.points import ACCOUNT, FIRST_EVENT, ROWS
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.sequencer.cpu_queue import FOREVER_NS
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.capture_info import CaptureInfo
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.control import Change, Clock, EndReason, Mark, Program
from tcpkmon.formats.magnet.control import Block, encode, encode_header
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import NATIVE, Layout, convert
from tcpkmon.formats.magnet.walk import Piece, Walk
from tcpkmon.formats.schema import Schema, parse, place_fields

LAYERS = ("SOCK_SEND", "TCP_SEND", "IP_SEND", "DEV_SEND", "DEV_RECV", "IP_RECV", "TCP_RECV")
LEAN = """
    ulonglong connection // id
    ulonglong entered // when the call began
    uint seq_lo // first byte
    uint seq_hi // number behind the last
    uint ack // acknowledged
    int size // bytes, or the negative errno
    uint device // ifindex
    ushort flags // of the segment
    ushort gso_segs // segments
"""
DATA = """
    ulong tcp_snd_wnd // a
    ulong tcp_srtt // a
    ulong tcp_rto // a
    ulong tcp_packets_out // a
    ulong tcp_retrans_out // a
    ulong tcp_snd_ssthresh // a
    ulong tcp_snd_cwnd // a
    ulong tcp_rcv_wnd // a
    ulong tcp_write_seq // a
    ulong tcp_copied_seq // a
    ushort tcp_source // a
    ushort tcp_dest // a
    ushort ip_version // a
    ushort ip_tos // a
    ushort ip_id // a
    ushort ip_frag_off // a
    ushort ip_ttl // a
    ushort ip_protocol // a
"""
NAMES = (*LAYERS, "SOCK_RECV", "QDISC_ENQUEUE")
MONO_NS, REAL_NS = 10**12, 1_700_000_000 * 10**9


def make_schema(data: bool = False) -> Schema:
    """A schema like magnet: a base event, the layers, MAGNET_CONNECTION."""
    events = "\n".join(f"event {name} {{{LEAN}{DATA if data else ''}}}" for name in NAMES)
    connection = "event MAGNET_CONNECTION {\n ulonglong connection // id\n uint lport // port\n}"
    return parse(f"event KLOGGER_START {{\n int x // x\n}}\n{events}\n{connection}\n")


class MagnetBuilder:
    """A capture of some CPUs. log() adds records in the order of time; write() ends the file."""

    def __init__(
        self,
        path: Path,
        data: bool = False,
        cpus: int = 2,
        rotates: bool = False,
        **settings: Any,
    ) -> None:
        self.path = path
        self.schema = make_schema(data)
        self.events = [(FIRST_EVENT + n, event) for n, event in enumerate(self.schema.events)]
        self.places = {
            event.name: (point, {p.field.name: p for p in place_fields(self.schema, event)[0]})
            for point, event in self.events
        }
        size = 24 + max(place_fields(self.schema, event)[1] for _, event in self.events)
        self.dtype = np.dtype(
            {
                "names": ["low", "time", "cpu", "location"],
                "formats": ["=u4", "=u8", "=u4", "=u4"],
                "offsets": [0, 4, 12, 16],
                "itemsize": size,
            }
        )
        self.now_ns = MONO_NS
        clocks = Clocks(lambda: self.now_ns, lambda: self.now_ns + REAL_NS)
        self.cpus = cpus
        self.serials = [0] * cpus
        self.accounts: Counter[tuple[int, int, str]] = Counter()
        self.stream = self.open_stream(rotates)
        info = CaptureInfo(
            version="1", kernel="Linux 6.18 x86_64", dtype=self.dtype, cpus=cpus, requested=10,
            recorded=10, programs=1, buffer_bytes=1 << 20, low_water_percent=75,
            settings={"command": ["--addr", "192.0.2.1"], "filters": {"ports": [5001]}, "hz": 250}
            | settings,
            schema=self.schema, events=self.events,
        )  # fmt: skip
        self.stream.begin(info, SimpleNamespace(), clocks)  # type: ignore[arg-type]
        self.stream.start()

    def open_stream(self, rotates: bool) -> Stream:
        return Stream(STREAMS["magnet"](), self.path, rotates=rotates)

    def rows(self, count: int) -> NDArray[Any]:
        return np.zeros(count, self.dtype)

    def log(self, name: str, cpu: int = 0, count: int = 1, **values: Any) -> MagnetBuilder:
        """Records of an event; values: a number or an array for each field."""
        point, places = self.places[name]
        rows = self.rows(count)
        serials = self.serials[cpu] + 1 + np.arange(count)
        self.serials[cpu] += count
        times = self.now_ns + 1 + np.arange(count)
        self.now_ns += count
        rows["low"], rows["time"], rows["cpu"], rows["location"] = serials, times, cpu, point
        for field, value in ({"connection": 7, "size": 100} | values).items():
            if field in places:
                place = places[field]
                kind = np.dtype(place.type.dtype)
                rows.setfield(np.asarray(value, kind), kind, 24 + place.offset)
        for counter in ("attempts", "written"):
            self.accounts[cpu, point, counter] += count
        self.stream.push([Batch(cpu, rows, 0)])
        return self

    def lose(self, name: str, cpu: int = 0, count: int = 1) -> MagnetBuilder:
        """Records that found no room in the ring."""
        point = self.places[name][0]
        self.serials[cpu] += count
        self.accounts[cpu, point, "attempts"] += count
        self.accounts[cpu, point, "ring_full"] += count
        return self

    def release(self) -> MagnetBuilder:
        self.stream.release(FOREVER_NS)
        self.stream.settle()
        return self

    def books(self) -> Books:
        ledger = np.zeros((self.cpus, ROWS + 32), ACCOUNT)
        shed = np.zeros(ledger.shape, np.uint64)
        for (cpu, point, counter), count in self.accounts.items():
            (shed if counter == "shed" else ledger[counter])[cpu, point] = count
        full = self.accounts
        return Books(
            ledger=ledger,
            serials=np.array(self.serials),
            programs={"on_send": Program(0, 0, 0, 0, 0)},
            read=dict(self.stream.order.read),
            late=dict(self.stream.order.late),
            ring_lost={
                cpu: sum(n for (c, _, what), n in full.items() if (c, what) == (cpu, "ring_full"))
                for cpu in range(self.cpus)
            },
            online=frozenset(range(self.cpus)),
            shed=shed if shed.any() else None,
        )

    def checkpoint(self) -> MagnetBuilder:
        self.release()
        self.now_ns += 1000
        self.stream.checkpoint(self.books())
        return self

    def rotate(self) -> MagnetBuilder:
        self.release()
        self.now_ns += 1000
        clock = Clock(self.now_ns, self.now_ns + REAL_NS, 10, 0)
        self.stream.rotate(self.books(), clock, "test")
        return self

    def mark(self, number: int, pid: int) -> MagnetBuilder:
        self.stream.marks([Mark(number, "")], pid)
        return self

    def change(self, *values: int) -> MagnetBuilder:
        self.stream.changed([Change(*values)])
        return self

    def write(self, reason: EndReason | None = EndReason.ASKED) -> Path:
        """End the file; reason: None: without the end."""
        self.release()
        if reason is not None:
            self.stream.finish(dict(enumerate(self.serials)), self.now_ns)
            clock = Clock(self.now_ns, self.now_ns + REAL_NS, 10, 0)
            self.stream.end(self.books(), clock, reason, self.now_ns)
        assert self.stream.close(10)
        return self.path


def clean_file(path: Path, data: bool = False, count: int = 20) -> MagnetBuilder:
    """A capture without losses, not ended."""
    made = MagnetBuilder(path, data)
    more = {"tcp_snd_cwnd": 10, "tcp_source": 5001, "tcp_dest": 40000, "flags": 18 | 256}
    more |= {"tcp_copied_seq": 4_000_000_000, "tcp_srtt": 800, "ip_version": 4, "ip_ttl": 64}
    more |= {"ip_tos": 8, "ip_id": 0x1234, "ip_frag_off": 0x4000, "ip_protocol": 6}
    made.log("MAGNET_CONNECTION")
    for number in range(count):
        for cpu, name in enumerate((*NAMES[:4], *NAMES[4:])):
            entered = MONO_NS - 5 if name == "SOCK_SEND" else 0
            made.log(name, cpu % 2, connection=number % 3 + 1, entered=entered, **more)
        if number == count // 2:
            made.checkpoint().mark(5, 99)
    made.log("SOCK_RECV", size=-11)
    return made


def lossy_file(path: Path, count: int = 20) -> MagnetBuilder:
    """A capture with losses in the rings, at the end too."""
    made = clean_file(path, count=count)
    made.lose("IP_SEND", 0, 3).log("IP_SEND", 0).lose("DEV_SEND", 1, 2).log("DEV_SEND", 1)
    return made.lose("SOCK_RECV", 1, 4)


def in_layout(path: Path, to: Path, order: str = "<", bits: int = 64, header: bool = True) -> Path:
    """The same file in another layout; header: False: the records alone, as of another program."""
    with MagnetFile(path) as file:
        target = Layout(order, bits, file.layout.data)
        kinds, block = file.data_kinds(), Block(target.size)
        told = {"byteorder": target.byteorder, "bits": target.bits}
        out = encode_header(file.header | told, target) if header else b""
        for found in Walk(file):
            if isinstance(found, Piece):
                codes = found.rows["event"]
                data = convert(found.rows, NATIVE[target.data], target, kinds[codes]).tobytes()
                block.add(data)
                out += data
            elif header:
                out += encode(found.values | block.values(), target)
                block = Block(target.size)
    to.write_bytes(out)
    return to
