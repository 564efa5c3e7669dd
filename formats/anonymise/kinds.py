# SPDX-License-Identifier: Apache-2.0
"""What in a capture could name somebody, in kinds; and of which kind each field is."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tcpkmon.formats.base.errors import UsageError

KINDS = {
    "addresses": "IP addresses, by a permutation that keeps common prefixes",
    "hosts": "host names, also in names of files; the id of the boot",
    "names": "names of processes, of users and of network namespaces",
    "users": "numbers of users; 0 stays",
    "cgroups": "ids and paths of cgroups",
    "devices": "names of network devices, but lo, ethN, ifbN and wlanN",
    "commands": "command lines, also that of the capture",
    "paths": "paths and names of files",
    "notes": "marks, the comments of schemata, what triggers and cuts were asked for",
    "texts": "texts and bytes of which nobody knows what they mean, such as those of your schemata",
    "ports": "ports from 1024 on, by a permutation",
    "special": "addresses that are alike everywhere: loopback, link-local, multicast, unspecified",
    "kernel": "release and version of the kernel and of drivers",
}
"""Each kind, and what it is."""
_NOT_BY_DEFAULT = ("ports", "special", "kernel")
DEFAULT = frozenset(KINDS) - {*_NOT_BY_DEFAULT}
"""What is replaced unless somebody wants otherwise."""
ALWAYS_KEPT = (
    "times, sequence numbers, sizes and counts, numbers of processes, inodes, devices and network "
    "namespaces, addresses in memory, well-known ports"
)
"""What is not replaced, in words."""

KEEP = ""
"""The kind of what stays as it is."""
ADDRESS_TEXT, PORT_PAIR = "address text", "port pair"
"""Of addresses and of ports, but stored as a text, and as two ports in one number."""
_KERNELS_TEXTS = {
    ("LOGGING_EVENT", "name"), ("PROGRAM_LEDGER", "program"), ("SNAPSHOT", "ca_name"),
    ("SPINLOCK_INIT", "name"), ("RWLOCK_INIT", "name"), ("SLEEP", "symbol"),
    ("SAMPLE", "symbol"), ("SAMPLE_FRAME", "symbol"), ("PREEMPT_OFF", "from_function"),
    ("PREEMPT_OFF", "until_function"), ("IRQS_OFF", "from_function"),
    ("IRQS_OFF", "until_function"), ("DROP_PLACE", "function"),
}  # fmt: skip
"""Texts that name parts of a schema or of the kernel: by event and field."""
_BY_NAME = {
    "comm": "names", "cmdline": "commands", "filename": "paths", "kernel": "kernel",
    "uid": "users", "loginuid": "users", "euid": "users", "suid": "users", "gid": "users",
    "cgroup": "cgroups", "text": "notes", "laddr": ADDRESS_TEXT, "raddr": ADDRESS_TEXT,
    "saddr": ADDRESS_TEXT, "daddr": ADDRESS_TEXT,
}  # fmt: skip
_PORT = re.compile(r"([lrsd]|src_?|dst_?|local_?|remote_?)?port|source|dest|tcp_source|tcp_dest")
_ADDRESS = re.compile(r"(\w*_)?([lrsd]|src_?|dst_?)?(addr|address|ip)")


def choose(keep: Iterable[str], also: Iterable[str]) -> frozenset[str]:
    """The kinds that are replaced. UsageError for one that there is not."""
    unknown = [one for one in (*keep, *also) if one not in KINDS]
    if unknown:
        raise UsageError(f"no such kind: {', '.join(unknown)}", f"give some of {', '.join(KINDS)}")
    both = sorted({*keep} & {*also})
    if both:
        raise UsageError(f"{', '.join(both)}: to be kept and to be replaced", "give it once")
    return (DEFAULT - {*keep}) | {*also}


def kind_of(event: str, name: str, kind: str, length: int) -> str:
    """Of a field of an event, from its name. kind: as that of formats.klogger.table.LogField."""
    if kind == "address":
        return "addresses"
    if kind == "enum":
        return KEEP
    known = _BY_NAME.get(name, "texts" if kind in ("string", "bytes") else KEEP)
    if kind == "string":
        return KEEP if (event, name) in _KERNELS_TEXTS else known
    if kind == "bytes":
        return KEEP if (event, name) == ("DISK_QUEUE", "positions") else "texts"
    if known == ADDRESS_TEXT or (length == 4 and _ADDRESS.fullmatch(name)):
        return "addresses" if length == 4 else KEEP
    if name == "ports" and length == 4:
        return PORT_PAIR
    if _PORT.fullmatch(name) and length in (2, 4):
        return "ports"
    return known if known in ("users", "cgroups") else KEEP

