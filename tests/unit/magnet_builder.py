# SPDX-License-Identifier: Apache-2.0
"""Builds MAGNeT files as collect does: of a log, which is made here; and the same file in other
layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tcpkmon
from tcpkmon.formats.export.magnet import write
from tcpkmon.formats.klogger.logs import PREFIX
from tcpkmon.formats.magnet.control import Block, encode, encode_header
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import NATIVE, Layout, convert
from tcpkmon.formats.magnet.walk import Piece, Walk
from tests.unit.klogger_samples import CLOCK
from tests.unit.log_builder import LogBuilder

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
MONO_NS, REAL_NS = CLOCK[0], CLOCK[1] - CLOCK[0]


def schema_of(data: bool = False) -> str:
    """A schema like magnet: the layers, MAGNET_CONNECTION."""
    events = "\n".join(f"event {name} {{{LEAN}{DATA if data else ''}}}" for name in NAMES)
    connection = "event MAGNET_CONNECTION {\n ulonglong connection // id\n uint lport // port\n}"
    return f"{events}\n{connection}\n"


class MagnetBuilder:
    """A capture of two CPUs. log() adds records in the order of time; write() makes the file."""

    def __init__(self, path: Path, data: bool = False, **settings: Any) -> None:
        self.path, self.now = path, 0
        told = {"command": ["--addr", "192.0.2.1"], "filters": {"ports": [5001]}, "hz": 250}
        told |= {"logs": [0, 1]} | settings
        self.logs = [LogBuilder(n, schema=schema_of(data), settings=told) for n in range(2)]

    def log(self, name: str, cpu: int = 0, count: int = 1, **values: Any) -> MagnetBuilder:
        """Records of an event."""
        log = self.logs[cpu]
        event = log.maker.format.event(name)
        told = {"connection": 7, "size": 100} | values
        told = {key: value for key, value in told.items() if event.find_field(key)}
        for _ in range(count):
            self.now += 1
            log.log(name, self.now, **told)
        return self

    def lose(self, name: str, cpu: int = 0, count: int = 1) -> MagnetBuilder:
        """Records that found no room in the ring."""
        self.logs[cpu].lose("ring_full", count, name)
        return self

    def release(self) -> MagnetBuilder:
        """End the dumps that are under way."""
        for log in self.logs:
            if log.maker._parts:
                log.end_dump()
        return self

    def checkpoint(self) -> MagnetBuilder:
        self.release()
        for log in self.logs:
            log.ledger()
        return self

    def mark(self, number: int, pid: int) -> MagnetBuilder:
        self.release().logs[0].base("MARK", number=number, pid=pid)
        return self.release()

    def write_log(self, reason: int | None = 0) -> Path:
        """The log. reason: of its end; None: it has none."""
        folder = self.path.with_name(f"{self.path.name}.klog")
        folder.mkdir()
        self.release()
        for cpu, log in enumerate(self.logs):
            (log if reason is None else log.finish(reason)).write(folder / f"{PREFIX}{cpu}")
        return folder

    def write(self, reason: int | None = 0) -> Path:
        """The file of the log."""
        with tcpkmon.open(self.write_log(reason)) as log:
            write(log, self.path, force=False)
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
