# SPDX-License-Identifier: Apache-2.0
"""What of this machine's network settings decides how fast TCP is: for the headers of files.

Of the network namespace of the caller. No addresses and no keys. It asks the kernel itself: the
import of pyroute2 alone takes longer than the start of a capture may grow.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import socket
import struct
from contextlib import suppress
from typing import Any

from tcpkmon.collector.linux.syscalls import call_libc

_SYSCTL = "/proc/sys/net"
_SECRET = "key"
_CORE = (
    "busy_poll", "busy_read", "default_qdisc", "dev_weight", "gro_normal_batch", "max_skb_frags",
    "netdev_budget", "netdev_budget_usecs", "netdev_max_backlog", "optmem_max",
    "rmem_default", "rmem_max", "rps_sock_flow_entries", "skb_defer_max", "somaxconn", "txrehash",
    "wmem_default", "wmem_max",
)  # fmt: skip
_MOST_DEVICES = 64
_MOST_QDISCS = 256
_MOST_CHARACTERS = 200
_SIOCETHTOOL = 0x8946
_DRIVER_INFO = 0x3
_OFFLOADS = {
    "rx_checksum": 0x14, "tx_checksum": 0x16, "scatter_gather": 0x18, "tso": 0x1E, "gso": 0x23,
    "gro": 0x2B,
}  # fmt: skip
"""ETHTOOL_G* of linux/ethtool.h."""
_GET_FLAGS, _LRO = 0x25, 1 << 15
_RTM_NEWQDISC, _RTM_GETQDISC, _DONE, _ERROR = 36, 38, 3, 2
_REQUEST_DUMP = 0x301
_MESSAGE, _TC = struct.Struct("=IHHII"), struct.Struct("=BBHiIII")
_KIND, _OPTIONS = 1, 2
_TIMEX = struct.Struct("=I4x4qi4x3q2qq2qi4x5qi44x")
"""struct timex of linux/timex.h, on machines of 64 bits."""
_UNSYNCHRONISED = 0x40


def read_system_settings() -> dict[str, Any]:
    """boot_id, clock, and by name: sysctl, qdiscs, offloads and drivers by device, fit for JSON.

    What cannot be read is left out. A qdisc has device, kind, handle, parent, and its options as
    the kernel has them, in hex.
    """
    devices = [name for _, name in socket.if_nameindex()][:_MOST_DEVICES]
    offloads, drivers = {}, {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
        for device in devices:
            if found := _offloads(end, device):
                offloads[device] = found
            if driver := _driver(end, device):
                drivers[device] = driver
    return {
        "boot_id": _text("/proc/sys/kernel/random/boot_id"),
        "clock": _clock(),
        "sysctl": _sysctl(),
        "qdiscs": _qdiscs(),
        "offloads": offloads,
        "drivers": drivers,
    }


def _clock() -> dict[str, int | bool]:
    """How far the time of day may be from true time [us], as chrony or ntpd told the kernel.

    is_synchronised is false where none did: then the bounds mean nothing. Empty where the kernel
    may not be asked.
    """
    room = ctypes.create_string_buffer(_TIMEX.size)
    try:
        call_libc("adjtimex", room)
    except OSError:
        return {}
    _, _, _, most, estimated, status, *_ = _TIMEX.unpack(room.raw)
    return {
        "is_synchronised": not status & _UNSYNCHRONISED, "max_error_us": most,
        "estimated_error_us": estimated,
    }  # fmt: skip


def _sysctl() -> dict[str, str]:
    names = [f"core/{name}" for name in _CORE]
    with suppress(OSError):
        names += [
            f"ipv4/{name}" for name in sorted(os.listdir(f"{_SYSCTL}/ipv4"))
            if name.startswith("tcp_") and _SECRET not in name
        ]  # fmt: skip
    found = {f"net.{name.replace('/', '.')}": _text(f"{_SYSCTL}/{name}") for name in names}
    return {name: value for name, value in found.items() if value}


def _text(path: str) -> str:
    """Without Python's buffers: there are a hundred of these files."""
    with suppress(OSError, UnicodeDecodeError):
        end = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(end, 4096).decode()
        finally:
            os.close(end)
        return " ".join(text.split())[:_MOST_CHARACTERS]
    return ""


def _ethtool(end: socket.socket, device: str, request: bytes) -> bytes:
    """The answer to an ethtool command; empty where the device has none."""
    room = array.array("B", request)
    address, _ = room.buffer_info()
    name = device.encode("utf-8", "surrogateescape")[:15]
    with suppress(OSError):
        fcntl.ioctl(end.fileno(), _SIOCETHTOOL, struct.pack("16sP16x", name, address))
        return room.tobytes()
    return b""


def _offloads(end: socket.socket, device: str) -> dict[str, bool]:
    found = {}
    for name, number in _OFFLOADS.items():
        if answer := _ethtool(end, device, struct.pack("=II", number, 0)):
            found[name] = bool(struct.unpack("=II", answer)[1])
    if answer := _ethtool(end, device, struct.pack("=II", _GET_FLAGS, 0)):
        found["lro"] = bool(struct.unpack("=II", answer)[1] & _LRO)
    return found


def _driver(end: socket.socket, device: str) -> dict[str, str]:
    """Name, version and firmware."""
    answer = _ethtool(end, device, struct.pack("=I192x", _DRIVER_INFO))
    if not answer:
        return {}
    parts = struct.unpack_from("=4x32s32s32s", answer)
    names = ("driver", "version", "firmware")
    texts = [part.split(b"\0")[0].decode("ascii", "replace") for part in parts]
    return {name: text for name, text in zip(names, texts, strict=True) if text}


def _qdiscs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with (
        suppress(OSError),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as end,
    ):
        request = _TC.pack(0, 0, 0, 0, 0, 0, 0)
        size = _MESSAGE.size + len(request)
        end.send(_MESSAGE.pack(size, _RTM_GETQDISC, _REQUEST_DUMP, 1, 0) + request)
        while not _read_qdiscs(end.recv(1 << 17), found):
            pass
    return found[:_MOST_QDISCS]


def _read_qdiscs(data: bytes, found: list[dict[str, Any]]) -> bool:
    """Add the qdiscs of an answer; whether it is the last one."""
    at = 0
    while at + _MESSAGE.size <= len(data):
        size, kind, *_ = _MESSAGE.unpack_from(data, at)
        if kind in (_DONE, _ERROR) or size < _MESSAGE.size:
            return True
        if kind == _RTM_NEWQDISC:
            found.append(_qdisc(data[at + _MESSAGE.size : at + size]))
        at += (size + 3) & ~3
    return not data


def _qdisc(data: bytes) -> dict[str, Any]:
    _, _, _, device, handle, parent, _ = _TC.unpack_from(data)
    at, options = _TC.size, {}
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        if size < 4:
            break
        options[kind & 0x3FFF] = data[at + 4 : at + size]
        at += (size + 3) & ~3
    try:
        name = socket.if_indextoname(device)
    except OSError:
        name = str(device)
    return {
        "device": name,
        "kind": options.get(_KIND, b"").rstrip(b"\0").decode("ascii", "replace"),
        "handle": f"{handle >> 16:x}:",
        "parent": "root" if parent == 0xFFFFFFFF else f"{parent >> 16:x}:{parent & 0xFFFF:x}",
        "options": options.get(_OPTIONS, b"")[: _MOST_CHARACTERS // 2].hex(),
    }
