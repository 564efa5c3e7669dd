# SPDX-License-Identifier: Apache-2.0
"""The inputs that fuzzing starts from: small captures of each format and byte order, and texts.

The tests' builders make them. tests/fuzz/corpus/KIND has what fuzzing found, one file each.
"""

from __future__ import annotations

import json
import re
import struct
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.base.group_names import group_of
from tcpkmon.formats.base.whose import entries_of, unknown_entry
from tcpkmon.formats.schema import format_schema, load
from tests.fuzz import folder_changes, segment_folders
from tests.unit import psc_files
from tests.unit.log_files import (
    BASE,
    ROOT,
    LogBuilder,
    LogMaker,
    MagnetLog,
    clean_file,
    clean_log,
    describe_events,
    in_layout,
    lossy_file,
    lossy_log,
    write_big_endian,
)
from tests.unit.psc_files import (
    RTO,
    Builder,
    CaptureBuilder,
    classic_2000,
    clean_capture,
    full_capture,
    mapped,
    sawtooth,
    write_capture,
)
from tests.unit.test_repair import small_capture
from tests.unit.test_schema_language import HOWTO_LEVELS

CORPUS = Path(__file__).parent / "corpus"
KINDS = (
    "psc", "klogger", "magnet", "packets", "schema", "control", "trigger", "assertion", "fail-if",
    "where",
    "lines", "segments", "folders", "archive", "index",
    "config", "daemon", "worker", "answer", "groups",
)  # fmt: skip
REQUESTS: tuple[object, ...] = (
    {"op": "status"}, {"op": "enable"}, {"op": "disable", "events": ["SCHEDIN", "NO"]},
    {"op": "mark", "number": 2**64 - 1}, {"op": "buffer-size", "bytes": 1 << 20},
    {"op": "top", "sort": "rate", "most": 5}, {"op": "dump"}, {"op": "metrics"},
    {"op": "set-filters", "filters": {"ports": "80", "addresses": ["::1"], "family": 4}},
    {"op": "set-limits", "limits": {"RTO": 1000}}, {"op": "sampler-period", "ns": 10**6},
    {"op": "lowwater", "percent": 10}, {"op": "enable", "events": None, "more": [{}]}, [1, "op"],
)  # fmt: skip
ASSERTIONS = (
    "no_loss and proven", "retrans_ratio < 1e-3", 'limit_share("rwnd") < 20%', "p95(rtt) < 30ms",
    "snd_cwnd <= 10 where ca_state == TCP_CA_Open", "lost() == 0 or count() >= 2k - -1",
    'all(min_rtt_us * 2 < srtt_us) where not any(laddr != "::1")', "max(time_ns / 1us) != 1",
)  # fmt: skip
FAIL_IF = (
    "goodput_p50 worse 5%", "share_rwnd more 10%", "retrans_ratio\tbetter  0.5%",
    "srtt_p50_us less 0% and not (min_rtt_us more 9%)", "goodput_p5 worze five",
    "share_app worse 1%", "min_rtt_us worse 1% x",
)  # fmt: skip
DAEMON = ({"op": "status"}, {"op": "reload"}, {"op": ["status"]}, {"op": {}}, ["op"], "op", None)
WORKER: tuple[dict[str, object], ...] = (
    {"what": "park", "state": {"path": "p"}, "names": ["link/f/0"]},
    {"what": "park", "state": {"digests": {"x": "y"}}, "names": ["journal", "link/f/0"]},
    {"what": "park", "state": {}, "names": ["more/f/0"]}, {"what": "ready"},
    {"what": "anew", "why": "x"}, {"what": "drained", "records": 10**15, "lost": 7},
    {"what": "went on", "killed": 3}, {"more": True},
)  # fmt: skip
_HISTOGRAM = {"log2_us": [0, 2], "counts": [1, 2], "beyond": 0, "sum_us": 9}
ANSWERS: tuple[object, ...] = (
    {
        "pid": 7, "name": "web", "format": "psc", "enabled": True, "buffer_bytes": 1 << 22,
        "records": 5, "bytes": 900, "rates": {"records/s": 1.5, "bytes/s": 300}, "ring_fill": 0.1,
        "reader_lag_s": 0.01, "cost": {"cpu_percent": 1, "cpu_s": 2.5, "memory_bytes": 1 << 20},
        "disk_free_bytes": 1 << 30, "lost": {"ring full": 1}, "refused": {"RTO": "no"},
        "events": [{"number": 1, "name": "RTO", "enabled": True, "written": 4, "lost": 0}],
        "outcomes": {"RTO": {"written": 4, "attempts": 5}}, "segment": 3, "shed_level": 0,
        "recorder": {"oldest": 1.5, "newest": 2.5, "seconds": 1.0, "records": 3, "bytes": 10,
                     "limit_bytes": 100, "dumps": 1, "dumping": False, "held_back": 0},
        "tcp": {"srtt": _HISTOGRAM, "min_rtt": _HISTOGRAM, "handshake": _HISTOGRAM,
                "duration": {"active": _HISTOGRAM}, "opened": {"active": 1}, "counting_s": 0.1,
                "closed": [["active", "fin", 1]], "retransmits": {"rto": 1},
                "owners": [["a.service", "shop/cart", 1, 200, 300, 4]]},
    },
    {"pid": 7, "connections": 1, "rows": {
        "id": [1], "lport": [80], "laddr": ["10.0.0.1"], "rport": [5000], "raddr": ["::1"],
        "state": [1], "acked_rate": [5.5], "received_rate": [0], "srtt_us": [100],
        "min_rtt_us": [90], "snd_cwnd_segs": [10], "retransmits": [0], "comm": ["sh"], "pid": [9],
        "unit": ["a.service"], "container": ["web"], "pod": [""],
    }},
)  # fmt: skip
CONFIGS = (
    '[metrics]\nlisten = "127.0.0.1:9477"\n[control]\ngroup = "root"\n[capture.a]\n',
    '[capture.a]\nports = [80, "5201-5210"]\nlimits = { RTO = 1000 }\ncolumns = ["srtt_us"]\n'
    'netns = ["1"]\n[capture.a.rotation]\nsize = "256M"\nevery = "1h"\nkeep_free = "10G"\n',
    '[capture.b]\nschemata = ["sched"]\nformat = "klogger"\nlocations = ["-RTO"]\n"x y" = 1e5\n'
    '[capture.b.budget]\nmax_cpu = "5%"\nback_after = "10s"\n[capture."c\\u001b"]\nfamily = 5\n',
    '[capture.c]\naddr = ["10.0.0.0/8"]\npairs = ["1.2"]\noutput = "relative"\n'
    '[capture.c.recorder]\nlast = ["30s", "1M"]\non = ["rto", "srtt_us > 5ms for 1s"]\n',
)  # fmt: skip
TRIGGERS = (
    "rto", "rst and rport == 443", "retrans_out > 3", "srtt_us > 5 * min_rtt_us for 100ms",
    "all: stall > 200ms and not (lport == 80 or -snd_cwnd / mss < 2.5k)", "zero_window for 1s",
    "state == TCP_CLOSE_WAIT and time_ns - srtt_us != 1us + 2",
)  # fmt: skip
WHERE = (
    "pid=5", "how=RR", "addr=::1", "raw=AB00", "text!=two words", "pid == 5 or not pid < 0x7",
    'how == RR and (text == "ab" or f >= 9223372036854775808)', "a + b * c / d > 3k",
)  # fmt: skip
TEXTS = {"trigger": TRIGGERS, "assertion": ASSERTIONS, "fail-if": FAIL_IF, "where": WHERE}



@cache
def seeds(kind: str) -> dict[str, bytes]:
    """The inputs of a kind by name, those of the corpus among them."""
    made = {"psc": _psc, "klogger": _klogger, "magnet": _magnet}
    if kind == "packets":
        return {"pcapng": packets(), "pcap": classic_packets()} | _corpus(kind)
    if kind == "segments":
        found = dict(segment_folders.seeds())
    elif kind in ("archive", "index"):
        archives, indexes = folder_changes.archives, folder_changes.indexes
        found = dict(archives() if kind == "archive" else indexes())
    elif kind == "folders":
        found = {str(number): struct.pack("<Q", number) for number in range(8)}
    else:
        found = dict(_written(made[kind])) if kind in made else dict(_texts(kind))
    return found | _corpus(kind)


def _corpus(kind: str) -> dict[str, bytes]:
    folder = CORPUS / kind
    stored = sorted(folder.iterdir()) if folder.exists() else []
    return {path.name: path.read_bytes() for path in stored}


def beside(path: Path) -> Path:
    """Records of the segments of packets()."""
    sent = {"location": 19, "seg_len": 1000}
    records = [
        {**sent, "ms": 0, "seg_seq": 1000}, {**sent, "ms": 4, "seg_seq": 2000},
        {"location": 1, "ms": 5, "seg_seq": 9000, "seg_ack": 2000},
        {"location": 1, "ms": 6, "seg_seq": 9000, "seg_ack": 3000, "seg_len": 500},
    ]  # fmt: skip
    return psc_files.write_segments(path, records)


def packets() -> bytes:
    """A pcapng file."""
    ends = psc_files.LOCAL, psc_files.REMOTE
    packet = psc_files.packet
    return psc_files.pcapng(
        (0.1, packet(*ends, 1000, 9000, 1000), 1000), (4.1, packet(*ends, 2000, 9000, 500), 500),
        (4.9, packet(*ends[::-1], 9000, 2000, options=12), 0),
        (5.9, packet(*ends[::-1], 9000, 3000, 500), 500),
        (6.0, packet(("fd00::1", 1), ("fd00::2", 2), 1), 0),
    )  # fmt: skip


def classic_packets() -> bytes:
    """A pcap file."""
    data = psc_files.packet(psc_files.LOCAL, psc_files.REMOTE, 1000, 9000, 1000)
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 101)
    return head + struct.pack("<IIII", 1_700_000_000, 100, len(data), len(data) + 1000) + data


def _written(makers: Callable[[], Iterator[tuple[str, Callable[[Path], Path]]]]) -> Iterator:
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, write) in enumerate(makers()):
            yield name, write(Path(folder, str(number))).read_bytes()


def _psc() -> Iterator[tuple[str, Callable[[Path], Path]]]:
    few = CaptureBuilder(cpus=1, locations=(1,))
    few.snapshots()
    few.end()
    shed = CaptureBuilder(cpus=1, locations=(1,))
    shed.put(Change(ChangeKind.SHED, 0, 1, 2, 0, 1, why=0x6401))
    shed.withheld(shed=3)
    shed.snapshots()
    shed.end()
    for name, build in (
        ("few", few), ("shed", shed), ("small", small_capture()), ("clean", clean_capture(cpus=2)),
        ("full", full_capture()), ("big", clean_capture(big_endian=True)),
        ("classic", classic_2000(6, {2: 3})),
        ("classic-big", classic_2000(3, big_endian=True)),
        ("no-kinds", clean_capture(with_header_kinds=False)),
    ):  # fmt: skip
        yield name, build.write
    yield "dump", lambda path: dumps(path)[1]
    for name in ("LITTLE", "BIG", "PDP"):
        data = getattr(psc_files, name)
        yield name, lambda path, data=data: psc_files.save(path.parent, data, path.name)
    for order, is_ours in (("<", True), (">", True), ("<", False)):
        drawn = Builder(order, tcpkmon=is_ours)
        sawtooth(drawn, 1055, 5050, 1, rounds=3)
        drawn.add(0.2, location=RTO, conn_id=2, raddr=mapped("2001:db8::1"), family=10)
        if is_ours:
            drawn.lose(5, 0.3)
            drawn.end(0.4)
        yield f"drawn{order}{is_ours}", drawn.write
    yield "why", lambda path: write_capture(path, 40, 3, {20}, mean=5, receiver=True)


def dumps(folder: Path) -> list[Path]:
    """Two dumps of a flight recorder, which share records."""
    from tests.unit.test_recorder import Recording

    recording = Recording(folder)
    for _ in range(4):
        recording.second(3)
    recording.fire(1)
    recording.second(2, lose=1)
    recording.advance()
    recording.stream.ask(9)
    recording.second(2)
    recording.advance()
    return recording.end()


def _klogger() -> Iterator[tuple[str, Callable[[Path], Path]]]:
    sample = LogMaker()
    every = {"a": -1, "how": "FIFO", "text": "ab\n", "raw": b"\xff\0", "addr": mapped("10.0.0.1")}
    sample.add("EVERY", every).add("EMPTY").end_dump().add("SCHEDOUT", {"pid": 7})
    few = LogBuilder(1)
    few.log("SCHEDIN", pid=1).end_dump()
    sched = load([BASE, ROOT / "bpf" / "schemata" / "sched.conf"])
    run = LogMaker(schema=format_schema(sched), events=describe_events(sched))
    run.add("SCHEDIN", {"pid": 7, "comm": "sh"}).add("SCHEDOUT", {"pid": 7, "comm": "sh"})
    yield "sample", sample.write
    yield "few", few.finish().write
    yield "clean", clean_log().finish().write
    yield "lossy", lossy_log().finish().write
    yield "cut", lambda path: _cut(clean_log().write(path))
    yield "sched", run.write
    yield "latency", _transfers
    for name in ("disk", "syscall"):
        yield name, lambda path, name=name: _host(name).write(path)
    payload = bytes(range(1, 9))
    yield "big", lambda path: write_big_endian(path, sample.header, "SCHEDOUT", payload)


def _host(name: str) -> LogMaker:
    """A log of the schema disk or syscall: requests in parts and merged, a queue; calls."""
    schema = load([BASE, ROOT / "bpf" / "schemata" / f"{name}.conf"])
    shown = {"disk": r"DISK_\w+", "syscall": r"SYSCALL_\w+"}[name]
    events = [one for one in describe_events(schema) if re.fullmatch(shown, one["name"])]
    base = describe_events(load([BASE]))
    settings = {"locations": {"DISK_QUEUE": "btf:block_rq_insert"}}
    described = [*base, *events]
    maker = LogMaker(schema=format_schema(schema), events=described, settings=settings)
    if name == "syscall":
        for tid, number in ((1, 0), (2, 60), (1, 39)):
            maker.add("SYSCALL_START", {"tid": tid, "number": number})
            if number != 60:
                maker.add("SYSCALL_EXIT", {"tid": tid, "number": number})
        return maker.add("SYSCALL_EXIT", {"tid": 3, "number": 56})
    requests = [{"request": n, "device": 1, "sector": 64 - 8 * n, "bytes": 4096} for n in range(4)]
    for one in requests:
        maker.add("DISK_INSERT", one).add("DISK_QUEUE", {**one, "length": -1})
    positions = struct.pack("<3q", -9, 8, 16).ljust(128, b"\0")
    maker.add("DISK_QUEUE", {**requests[1], "length": 3, "count": 3, "positions": positions})
    maker.add("DISK_MERGE", {**requests[0], "front": 1}).add("DISK_MERGE", requests[3])
    maker.add("DISK_ISSUE", requests[1]).add("DISK_REQUEUE", requests[1])
    maker.add("DISK_ISSUE", requests[1]).add("DISK_COMPLETE", {**requests[1], "bytes": 512})
    return maker.add("DISK_COMPLETE", {**requests[1], "last": 1})


def _transfers(path: Path) -> Path:
    """A log of schema magnet: two connections, an open call, bytes that were sent again."""
    log = MagnetLog()
    ends = ("10.0.0.1", 5000), ("10.0.0.2", 80)
    log.connect(1, *ends, 1, snd_nxt=1000, rcv_nxt=7).connect(2, *ends[::-1], 2, rcv_nxt=1000)
    for at, lo, flags in ((1000, 1000, 16), (2000, 1050, 16), (9000, 1050, 272)):
        for delay, name in enumerate(("TCP_SEND", "IP_SEND", "DEV_SEND", "DRIVER_START")):
            log.put(name, at + delay, 1, lo, lo + 50, flags=flags)
        log.put("SOCK_SEND", at + 9, 1, lo, lo + 50, entered=at - 1)
        if lo == 1000 or flags != 16:
            for delay, name in enumerate(("DEV_RECV", "IP_RECV", "TCP_RECV", "SOCK_RECV")):
                log.put(name, at + 20 + delay, 2, lo, lo + 50)
            log.put("IP_RECV", at + 30, 1, 7, 7, ack=lo + 50)
    log.lose("ring_full", 1, "IP_SEND").end_dump()
    return log.finish().write(path)


def _magnet() -> Iterator[tuple[str, Callable[[Path], Path]]]:
    yield "clean", lambda path: clean_file(path, count=2).write()
    yield "lossy", lambda path: lossy_file(path, 2).write()
    yield "data", lambda path: clean_file(path, data=True, count=1).write()
    yield "killed", lambda path: _cut(clean_file(path, count=2).write(None))
    for order, bits in (("<", 32), (">", 32), (">", 64)):
        for data in (False, True):
            yield (
                f"{order}{bits}{data}",
                lambda path, how=(order, bits), data=data: in_layout(
                    clean_file(path.with_suffix(".x"), data, 1).write(), path, *how
                ),
            )


def _cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-50])
    return path


def _texts(kind: str) -> Iterator[tuple[str, bytes]]:
    if kind == "control":
        for number, request in enumerate(REQUESTS):
            yield str(number), json.dumps(request).encode() + b"\n"
    elif kind == "daemon":
        for number, request in enumerate(DAEMON):
            yield str(number), json.dumps(request).encode() + b"\n"
    elif kind == "worker":
        lines = [b"+" * len(one.get("names", ())) + json.dumps(one).encode() for one in WORKER]
        yield "all", b"\n".join(lines)
        for number, line in enumerate(lines):
            yield str(number), line
    elif kind == "answer":
        for number, answer in enumerate(ANSWERS):
            yield str(number), json.dumps(answer).encode()
    elif kind == "config":
        for number, text in enumerate(CONFIGS):
            yield str(number), text.encode()
    elif kind == "schema":
        yield "levels", HOWTO_LEVELS.encode()
        for path in sorted((ROOT / "bpf" / "schemata").glob("*.conf")):
            if path.stat().st_size < 6000:
                yield path.stem, path.read_bytes()
    elif kind == "groups":
        web = group_of("/system.slice/docker-" + "0f" * 32 + ".scope", container="web")
        header = json.dumps({"groups": {"5": web.told(), "unknown": 2}}).encode()
        for name, group in (("web", web), ("long", group_of("/" + "x" * 300))):
            entries = [*entries_of(7, group), *unknown_entry(3)]
            rows = [struct.pack("<11I", one.callvalue(), *one.words()) for one in entries]
            yield name, header + b"\n" + b"".join(rows)
        docker = {"ID": "0f" * 32, "Name": "/web", "Config": {"Image": "nginx:1"}}
        yield "docker", json.dumps(docker).encode()
        podman = {"id": "0f" * 32, "names": ["app"], "metadata": '{"image-name": "redis:7"}'}
        yield "podman", json.dumps([podman]).encode()
    elif kind in TEXTS:
        for number, text in enumerate(TEXTS[kind]):
            yield str(number), text.encode()
    else:
        yield "zero", bytes(8)
