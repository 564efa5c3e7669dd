# SPDX-License-Identifier: Apache-2.0
"""Captures that have a name, an address, a path or a user in every place that can hold one."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.base import control
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.reconciled import Reconciled
from tcpkmon.formats.psc.columns import FLAG_STRING
from tcpkmon.formats.psc.header import KIND_HOST, KIND_SCHEMA, Header, encode_header, text_data
from tests.unit.captures import FURTHER, CaptureBuilder
from tests.unit.log_builder import LogBuilder

HOST, USER, COMM, COMPANY = "zuse-frankfurt", "konrad.zuse", "zusedb-primary", "ZuseWerke"
PATH = "/srv/zusewerke/secret.bin"
BOOT = "0a1b2c3d-1111-2222-3333-444455556666"
UID, CGROUP = 1_234_567, 987_654_321_012
WORDS = ("zuse", "konrad", "secret", BOOT)
"""None of these may be in what was anonymised, whatever the case of its letters."""
HERE, THERE = ipaddress.ip_address("198.51.100.77"), ipaddress.ip_address("2001:db8:77::1234")
NETWORK = "198.51.100.64/26"
ADDRESSES = (HERE, THERE, ipaddress.ip_address("198.51.100.64"))
NUMBERS = (UID.to_bytes(4, "little"), CGROUP.to_bytes(8, "little"), str(UID).encode(),
           str(CGROUP).encode())  # fmt: skip
MAPPED = b"\0" * 10 + b"\xff\xff" + HERE.packed
LOOPBACK = b"\0" * 10 + b"\xff\xff\x7f\x00\x00\x01"
SETTINGS: dict[str, Any] = {
    "tcpkmon": "0.1.0",
    "machine": {"cpu_model": "AMD EPYC", "memory_bytes": 1, "uid": UID, "user": USER, "x": HOST},
    "command": ["-o", PATH, "--addr", str(HERE)],
    "system": {
        "boot_id": BOOT, "sysctl": {"net.ipv4.tcp_sack": "1", "net.ipv4.tcp_note": f"{COMPANY}!"},
        "qdiscs": [{"device": "zusewg0", "kind": "fq", "options": PATH}],
        "offloads": {"zusewg0": {"tso": True}, "eth0": {"tso": True}},
        "drivers": {"zusewg0": {"driver": "virtio_net", "version": "6.1"}},
    },
    "filters": {
        "ports": [5001], "pairs": ["5001.40001"], "addresses": [NETWORK, str(THERE)],
        "namespaces": [f"/run/netns/{COMPANY}"], "cgroups": [f"{PATH}/x"], "pids": [7],
    },
    "namespaces": {"4026531840": f"{COMPANY}-net"},
    "schemata": ["tcp", PATH], "columns": "default", "rings": "bpf",
    "locations_of": {COMPANY: 1},
    "missing_locations": {"X": f"uprobe:{PATH}:main is not there"},
    "unseen": f"what {PATH} does",
    "site": f"{COMPANY} Frankfurt",
    "cut": [{"records": 0, "where": f"comm == '{COMM}'", "connections": str(HERE)}],
}  # fmt: skip


def snapshot(build: CaptureBuilder, **values: Any) -> None:
    """An event with these columns."""
    build.snapshots()
    row = build.rows[-1]
    for name, value in values.items():
        row[name] = np.void(value) if isinstance(value, bytes) else value


def psc_file(path: Path, unknown: bool = True, **settings: Any) -> CaptureBuilder:
    """unknown: a control entry and header records of kinds that nobody knows."""
    raw = {"laddr": 16, "raddr": 16, "comm": 16, "ca_name": 16, "site_name": 24}
    build = CaptureBuilder(further={**FURTHER, **raw}, settings={**SETTINGS, **settings})
    build.settings["locations"] = {"A": "btf:x", "B": f"uprobe:{PATH}"}
    build.columns = tuple(
        replace(one, flags=FLAG_STRING) if one.name in raw else one for one in build.columns
    )
    texts = {"comm": COMM.encode().ljust(16, b"\0"), "ca_name": b"bbr\0" + b"zusesecret\0\0",
             "site_name": COMPANY.encode().ljust(24, b"\0")}  # fmt: skip
    snapshot(build, laddr=MAPPED, raddr=THERE.packed, **texts)
    snapshot(build, laddr=LOOPBACK, raddr=MAPPED, **texts)
    build.mark(f"{COMPANY} was slow")
    build.put(Reconciled(1, 2, 5, 1, 7, 5001 << 16 | 40001))
    build.lose("ring_full", cpu=0, location=1, count=2)
    build.checkpoint()
    if unknown:
        words = np.frombuffer(f"{COMPANY} of {USER}".encode().ljust(40, b"\0"), "<u4")
        build.put(control.Unknown(250, 9, tuple(words.tolist())))
    snapshot(build, laddr=MAPPED, raddr=THERE.packed, **texts)
    build.end()
    made = build.header()
    extras = {**made.extras, KIND_HOST: text_data(HOST), KIND_SCHEMA: text_data(
        f"event SNAPSHOT {{\n  // for {COMPANY}, ask {USER} [us] @default\n  uint srtt_us\n}}")}
    if unknown:
        extras[0x1FE] = text_data(COMPANY)
    header = Header(made.mods, made.version, made.entry_size, build.columns, Endian.LITTLE,
                    made.mclsize, extras, True)  # fmt: skip
    path.write_bytes(encode_header(header) + build.array().tobytes())
    return build


LOG_SCHEMA = f"""
event OWN {{
    string32 owner // who at {COMPANY} it is of @default
    string16 laddr // @address
    uint saddr
    uint uid // user
    ulonglong cgroup
    string16 comm
    string8 blob // @raw
    ushort lport // port
    int pid
}}
event SCHEDOUT {{ int pid; ulonglong misses }}
"""


def log_file(path: Path, cpu: int = 0, **changes: Any) -> LogBuilder:
    """A log of a schema that only its user knows."""
    build = LogBuilder(cpu, schema=LOG_SCHEMA, host=HOST, settings={**SETTINGS, "logs": [0]},
                       site=COMPANY, **changes)  # fmt: skip
    build.base("PROCESS_EXISTS", pid=7, comm=COMM, cmdline=f"{PATH} --user {USER}", uid=UID)
    for address in (HERE, THERE):
        build.base("SOCKET_EXISTS", saddr=str(address), daddr="127.0.0.1", sport=5001, dport=80)
    build.log(
        "OWN", owner=f"{USER}@{COMPANY}", laddr=MAPPED, saddr=int.from_bytes(HERE.packed, "little"),
        uid=UID, cgroup=CGROUP, comm=COMM, blob=b"\x01zuse\0\0\0", lport=40001, pid=7,
    ).log("SCHEDOUT", pid=7, misses=3)  # fmt: skip
    build.lose("ring_full", 2).log("SCHEDOUT", pid=8).end_dump()
    build.finish()
    build.write(path)
    return build


