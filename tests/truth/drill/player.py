# SPDX-License-Identifier: Apache-2.0
"""Plays a script against this kernel: a tun device is the network, and the player the peer."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import select
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.formats.base.sequence import ahead
from tests.live.capturing import tcp_info
from tests.truth.drill.language import Asserts, Call, Event, Packet, Script, ScriptError, parse

_TUNSETIFF, _TUN, _NO_HEAD = 0x400454CA, 0x0001, 0x1000
_LOCAL, _REMOTE = "192.168.0.1", "192.0.2.1"
_PORT, _PEER_PORT = 8080, 40_000
_PEER_ISN = 1_000_000
_WORD = 1 << 32
_LEAST_WAIT_S = 1.0
_BITS = {"F": 1, "S": 2, "R": 4, "P": 8, ".": 16, "U": 32, "E": 64, "W": 128}
_CHECKED = _BITS["F"] | _BITS["S"] | _BITS["R"] | _BITS["P"] | _BITS["."]
_OPTIONS = {"SO_REUSEADDR": socket.SO_REUSEADDR, "SO_SNDBUF": socket.SO_SNDBUF,
            "TCP_CONGESTION": socket.TCP_CONGESTION}  # fmt: skip
_LEVELS = {"SOL_SOCKET": socket.SOL_SOCKET, "SOL_TCP": socket.IPPROTO_TCP}


@dataclass(frozen=True)
class Sent:
    """A packet that the kernel sent; time: of the script's clock."""

    time: float
    seq: int
    ack: int
    flags: int
    size: int


def play(text: str, settings: dict[str, str] | None = None) -> None:
    """Play a script in a namespace of its own. ScriptError says at which line the kernel did
    something else. settings: sysctls, after those of the script."""
    script = parse(text)
    with Lab() as lab:
        _Player(lab.a, script, settings or {}).run()


class _Player:
    def __init__(self, side: Side, script: Script, settings: dict[str, str]) -> None:
        self._side, self._script = side, script
        self._device = side.run(_make_device)
        os.set_blocking(self._device, False)
        for command in (f"ip addr add {_LOCAL}/16 dev tun0", "ip link set tun0 up",
                        f"ip route add {_REMOTE}/32 dev tun0"):  # fmt: skip
            side.command(command.split())
        try:
            side.command(["sh", "-c", script.commands])
        except subprocess.CalledProcessError as error:
            raise ScriptError(f"the script's commands: {error.stderr.strip()}") from None
        side.set_sysctls(settings)
        self._sockets: dict[int, socket.socket] = {}
        self._queue: deque[Sent] = deque()
        self._zero = 0.0
        self._isn: int | None = None
        self._ports = (_PORT, _PEER_PORT)

    def run(self) -> None:
        with _first_in_line():
            self._zero = time.monotonic()
            self._run()

    def _run(self) -> None:
        try:
            for event in self._script.events:
                self._play(event)
        finally:
            for one in self._sockets.values():
                one.close()
            os.close(self._device)

    def _now(self) -> float:
        return time.monotonic() - self._zero

    def _play(self, event: Event) -> None:
        if isinstance(event.what, Packet) and event.what.expected:
            self._expect(event, event.what)
            return
        self._wait(event.begin)
        if isinstance(event.what, Packet):
            self._check_time(event, self._now(), "the player came")
            self._inject(event.what)
        elif isinstance(event.what, Call):
            self._call(event, event.what)
        else:
            self._assert(event, event.what)

    # The kernel's packets

    def _wait(self, until: float) -> None:
        """Until then, packets are noted with the time when they came."""
        while True:
            left = until - self._now()
            if not self._listen(max(left, 0.0)) and left <= 0:
                return

    def _listen(self, timeout: float) -> bool:
        if not select.select([self._device], [], [], timeout)[0]:
            return False
        try:
            packet = os.read(self._device, 1 << 16)
        except BlockingIOError:
            return False
        now = self._now()
        if len(packet) >= 40 and packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:
            self._note(now, packet)
        return True

    def _note(self, now: float, packet: bytes) -> None:
        tcp = packet[(packet[0] & 15) * 4 : struct.unpack_from(">H", packet, 2)[0]]
        source, target, seq, ack, offset, flags = struct.unpack_from(">HHIIBB", tcp)
        if flags & _BITS["S"]:
            self._isn, self._ports = seq, (source, target)
        if self._isn is None:
            return
        size = len(tcp) - (offset >> 4) * 4
        self._queue.append(
            Sent(now, ahead(seq, self._isn), ahead(ack, _PEER_ISN), flags, size)
        )

    def _expect(self, event: Event, wanted: Packet) -> None:
        """One packet, or several that are one segment after the other."""
        seq, left = wanted.seq, wanted.size
        tolerance = self._script.tolerance
        while True:
            deadline = max(event.end + tolerance, self._now()) + _LEAST_WAIT_S
            while not self._queue and self._now() < deadline:
                self._listen(max(deadline - self._now(), 0.0))
            if not self._queue:
                raise ScriptError(f"line {event.line}: the kernel did not send {_say(wanted)}")
            sent = self._queue.popleft()
            self._check_time(event, sent.time, f"{_say(wanted)}: the kernel sent it")
            last = sent.size >= left
            flags = sum(_BITS[one] for one in wanted.flags) & _CHECKED
            ignored = 0 if last else _BITS["P"] | _BITS["F"]
            same = (sent.seq == seq and sent.size <= left
                    and (sent.flags ^ flags) & _CHECKED & ~ignored == 0
                    and (wanted.ack is None or sent.ack == wanted.ack))  # fmt: skip
            if not same:
                raise ScriptError(
                    f"line {event.line}: expected {_say(wanted)}, of which {left} bytes from {seq} "
                    f"on are to come, but the kernel sent {sent.seq}:{sent.seq + sent.size}"
                    f"({sent.size}) ack {sent.ack}, flags {sent.flags:#x}"
                )
            seq, left = seq + sent.size, left - sent.size
            if left <= 0:
                return

    def _check_time(self, event: Event, at: float, what: str) -> None:
        tolerance = self._script.tolerance
        if not event.begin - tolerance <= at <= event.end + tolerance:
            raise ScriptError(f"line {event.line}: {what} at {at:.6f} and not from "
                              f"{event.begin:.6f} to {event.end:.6f}")  # fmt: skip

    # The peer's packets

    def _inject(self, packet: Packet) -> None:
        ack = 0 if packet.ack is None else (packet.ack + (self._isn or 0)) % _WORD
        options = self._options(packet.options)
        flags = sum(_BITS[one] for one in packet.flags)
        head = struct.pack(">HHIIBBHHH", self._ports[1], self._ports[0],
                           (_PEER_ISN + packet.seq) % _WORD, ack, (20 + len(options)) // 4 << 4,
                           flags, packet.window or 0, 0, 0)  # fmt: skip
        tcp = head + options + bytes(packet.size)
        ends = socket.inet_aton(_REMOTE) + socket.inet_aton(_LOCAL)
        checksum = _checksum(ends + struct.pack(">HH", socket.IPPROTO_TCP, len(tcp)) + tcp)
        tcp = tcp[:16] + struct.pack(">H", checksum) + tcp[18:]
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + ends
        ip = ip[:10] + struct.pack(">H", _checksum(ip)) + ip[12:]
        os.write(self._device, ip + tcp)

    def _options(self, text: str) -> bytes:
        made = b""
        for one in filter(None, text.split(",")):
            name, *values = one.split()
            if name == "nop":
                made += b"\1"
            elif name == "mss":
                made += struct.pack(">BBH", 2, 4, int(values[0]))
            elif name == "wscale":
                made += struct.pack(">BBB", 3, 3, int(values[0]))
            elif name == "sackOK":
                made += b"\4\2"
            elif name == "sack":
                edges = [(int(edge) + (self._isn or 0)) % _WORD
                         for block in values for edge in block.split(":")]  # fmt: skip
                made += struct.pack(f">BB{len(edges)}I", 5, 2 + 4 * len(edges), *edges)
            else:
                raise ScriptError(f"the player does not know the option {one!r}")
        return made + b"\1" * (-len(made) % 4)

    # Calls

    def _call(self, event: Event, call: Call) -> None:
        try:
            result, error = self._run_call(call), ""
        except OSError as failed:
            result, error = -1, errno.errorcode.get(failed.errno or 0, "?")
        if result != call.result or error != call.error:
            raise ScriptError(f"line {event.line}: {call.name} returned {result} {error} and not "
                              f"{call.result} {call.error}")  # fmt: skip

    def _run_call(self, call: Call) -> int:
        name, given = call.name, call.arguments
        if name == "socket":
            self._sockets[3] = self._side.run(lambda: socket.socket(socket.AF_INET))
            return 3
        end = self._sockets[int(given[0])]
        if name == "fcntl":
            end.setblocking(False)
        elif name == "setsockopt":
            level, option, value = (*given[1:3], given[3].strip('[]"'))
            end.setsockopt(_LEVELS[level], _OPTIONS[option],
                           int(value) if value.isdigit() else value.encode())  # fmt: skip
        elif name == "bind":
            end.bind((_LOCAL, _PORT))
        elif name == "listen":
            end.listen(int(given[1]))
        elif name == "accept":
            end.settimeout(_LEAST_WAIT_S)
            self._sockets[4], _ = end.accept()
            return 4
        elif name == "connect":
            end.connect((_REMOTE, _PORT))
        elif name == "write":
            return end.send(bytes(int(given[2])))
        elif name == "read":
            return len(end.recv(int(given[2])))
        elif name == "shutdown":
            end.shutdown(socket.SHUT_WR)
        else:
            raise ScriptError(f"the player does not know {name}()")
        return 0

    def _assert(self, event: Event, wanted: Asserts) -> None:
        end = self._sockets[max(self._sockets)]
        info = tcp_info(end)
        for name, value in wanted.values.items():
            if info[name] != value:
                raise ScriptError(
                    f"line {event.line}: tcpi_{name} is {info[name]} and not {value}"
                )


@contextmanager
def _first_in_line() -> Iterator[None]:
    """Ahead of all that has no real-time priority, as TCP decides by less than a millisecond (see
    tcp_tso_should_defer()); where that is refused, as ever. No collection of garbage."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    gc.disable()
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        gc.enable()
        with suppress(OSError):
            os.sched_setscheduler(0, policy, priority)


def _make_device() -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"tun0", _TUN | _NO_HEAD))
    return device


def _say(packet: Packet) -> str:
    ack = "" if packet.ack is None else f" ack {packet.ack}"
    return f"{packet.flags} {packet.seq}:{packet.seq + packet.size}({packet.size}){ack}"


def _checksum(data: bytes) -> int:
    words = np.frombuffer(data + b"\0" * (len(data) % 2), ">u2").astype(np.int64)
    total = int(words.sum())
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
