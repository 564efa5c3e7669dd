# SPDX-License-Identifier: Apache-2.0
"""anonymise: nothing in the new file names anybody, and verify proves of it what it proved."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tcpkmon
from tcpkmon.formats.anonymise import KINDS, Who, anonymise, choose, read_key
from tcpkmon.formats.anonymise.who import SPECIAL_4, SPECIAL_6, Addresses
from tcpkmon.formats.base import control
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.control import Mark
from tcpkmon.formats.base.errors import DamagedError, FileError, UsageError
from tcpkmon.formats.base.reconciled import Reconciled
from tcpkmon.formats.commands.anonymise import command
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.psc.columns import FLAG_STRING
from tcpkmon.formats.psc.header import KIND_HOST, KIND_SCHEMA, Header, encode_header, text_data
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report
from tests.full import first
from tests.unit import makers
from tests.unit.log_files import LogBuilder
from tests.unit.psc_files import FURTHER, CaptureBuilder, find, full_capture, replace

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
        dataclasses.replace(one, flags=FLAG_STRING) if one.name in raw else one
        for one in build.columns
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


ROOT = Path(__file__).resolve().parents[2]
KEPT = sorted(one.name.removesuffix(".tar.xz") for one in (ROOT / "tests/kept").glob("*.tar.xz")
              if not one.name.startswith("magnet-"))  # fmt: skip
KEY = bytes([
    21, 34, 23, 141, 51, 164, 207, 128, 19, 10, 91, 22, 73, 144, 125, 16,
    216, 152, 143, 131, 121, 121, 101, 39, 98, 87, 76, 45, 42, 132, 34, 2,
])  # fmt: skip
"""That of Crypto-PAn's own samples."""
SAMPLES = {
    "128.11.68.132": "135.242.180.132", "129.118.74.4": "134.136.186.123",
    "130.132.252.244": "133.68.164.234", "141.223.7.43": "141.167.8.160",
    "::1": "78ff:f001:9fc0:20df:8380:b1f1:704:ed", "::2": "78ff:f001:9fc0:20df:8380:b1f1:704:ef",
    "2001:db8::1": "4401:2bc:603f:d91d:27f:ff8e:e6f1:dc1e",
}  # fmt: skip


def who(keep: str = "", also: str = "", key: bytes = KEY) -> Who:
    return Who(key, choose(keep.split(), also.split()))


def secrets_in(path: Path) -> list[str]:
    """What of the secrets is in a file, or in the files and names of a folder."""
    found = []
    files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    for file in files:
        data = file.read_bytes()
        text = data.lower() + str(file.relative_to(path.parent)).lower().encode()
        found += [word for word in WORDS if word.lower().encode() in text]
        found += [repr(number) for number in NUMBERS if number in data]
        for address in ADDRESSES:
            forms = (address.packed, address.packed[::-1], str(address).encode(),
                     address.packed.hex().encode(), address.exploded.encode())  # fmt: skip
            found += [str(address) for form in forms if form in data or form in text]
    return found


def proof(path: Path) -> list[tuple[Any, ...]]:
    """What verify says, but sizes and names."""

    def of(report: Report) -> tuple[Any, ...]:
        notes = [note for note in report.notes if not note.startswith("anonymised")]
        rows = [(row.cpu, row.attempts, row.filtered, row.written, row.in_file, row.lost)
                for row in report.rows]  # fmt: skip
        return (report.exit_code, report.verdict, report.entries, report.end_reason,
                report.proven_end, rows, report.totals.lost, len(notes))  # fmt: skip

    return [of(report) for report in format_of(path).verify(path)]


def says_so(path: Path) -> bool:
    reports = format_of(path).verify(path)
    return any(note.startswith("anonymised") for one in reports for note in one.notes)


@pytest.mark.parametrize("special", [True, False])
def test_addresses_share_prefixes_as_before(special: bool) -> None:
    permute = Addresses(KEY, special).permute
    chosen = random.Random(7)
    for size, prefixes in ((4, SPECIAL_4), (16, SPECIAL_6)):
        given = [chosen.randbytes(size) for _ in range(200)]
        given += [one[:-1] + bytes([one[-1] ^ 1]) for one in given]
        given += [one[: size // 2] + chosen.randbytes(size - size // 2) for one in given[:100]]
        given += [ipaddress.ip_network(prefix)[-1].packed for prefix in prefixes]
        made = permute(given)
        assert len(set(made)) == len(set(given))
        bits, new = ([int.from_bytes(one, "big") for one in listed] for listed in (given, made))
        for one, other in zip(range(0, len(given) - 1), range(1, len(given)), strict=True):
            pairs = ((one, other), (one, (one * 7 + 3) % len(given)))
            for a, b in pairs:
                assert (bits[a] ^ bits[b]).bit_length() == (new[a] ^ new[b]).bit_length()
        is_special = [any(ipaddress.ip_address(one) in ipaddress.ip_network(prefix)
                          for prefix in prefixes) for one in given]  # fmt: skip
        same_ones = [(old, fresh) for old, fresh, same in zip(given, made, is_special, strict=True)
                     if same]  # fmt: skip
        if not special:
            assert all(old == fresh for old, fresh in same_ones)
            for fresh, same in zip(made, is_special, strict=True):
                networks = map(ipaddress.ip_network, prefixes)
                assert same == any(ipaddress.ip_address(fresh) in one for one in networks)
        else:
            assert any(old != fresh for old, fresh in same_ones)


def test_addresses_are_those_of_crypto_pan() -> None:
    packed = [ipaddress.ip_address(one).packed for one in SAMPLES]
    made = Addresses(KEY, special=True).permute(packed)
    assert [str(ipaddress.ip_address(one)) for one in made] == list(SAMPLES.values())
    (mapped,) = Addresses(KEY, special=True).permute([b"\0" * 10 + b"\xff\xff" + packed[0]])
    assert mapped == b"\0" * 10 + b"\xff\xff" + made[0]


def test_numbers_and_ports_are_permuted() -> None:
    someone = who(also="ports")
    ports = [someone.port(port) for port in range(1 << 16)]
    assert sorted(ports) == list(range(1 << 16))
    assert ports[:1024] == list(range(1024)) and ports != sorted(ports)
    users = {someone.number("users", uid, 32) for uid in range(1, 2000)}
    assert len(users) == 1999 and 0 not in users
    assert [someone.number("users", uid, 32) for uid in (0, (1 << 32) - 1)] == [0, (1 << 32) - 1]
    assert someone.number("cgroups", 1, 64) == 1
    assert who().port(40001) == 40001


@pytest.mark.parametrize("order", ["whole", "cut", "flipped"])
def test_a_psc_file_names_nobody(tmp_path: Path, order: str) -> None:
    old, new = tmp_path / "old.pm", tmp_path / "new.pm"
    build = psc_file(old)
    if order == "cut":
        old.write_bytes(old.read_bytes()[:-40])
    elif order == "flipped":  # a snapshot says that it is of a CPU that there is not
        data = bytearray(old.read_bytes())
        start = len(data) - len(build.array().tobytes())
        offset = next(one.offset for one in build.columns if one.name == "cpu")
        data[start + build.entry_size + offset] = 77
        old.write_bytes(data)
    assert {*secrets_in(old)} >= {*WORDS}
    done = anonymise(old, new, who())
    assert secrets_in(new) == []
    assert says_so(new)
    assert {"0x1fe", "site", "locations_of"} <= {*done.left_out.names}
    assert done.left_out.repaired  # an entry of a kind that nobody knows, at least
    with tcpkmon.open(new) as capture:
        entries = [entry for _, entry in capture.controls()]
        assert not any(type(entry).__name__ == "Unknown" for entry in entries)
        assert any(type(entry).__name__ == "Loss" for entry in entries)
        settings = capture.settings
        assert settings["filters"]["ports"] == [5001]
        assert settings["system"]["sysctl"]["net.ipv4.tcp_sack"] == "1"
        assert "eth0" in settings["system"]["offloads"]


def test_a_psc_file_is_proven_as_before(tmp_path: Path) -> None:
    old, new = tmp_path / "old.pm", tmp_path / "new.pm"
    psc_file(old, unknown=False)
    anonymise(old, new, who())
    assert proof(new) == proof(old)
    with tcpkmon.open(old) as before, tcpkmon.open(new) as after:
        assert before.names == after.names
        changed = {"laddr", "raddr", "comm", "site_name"}
        is_control = before.control(0, len(before))
        for name in before.names:
            one, other = before.column(name), after.column(name)
            same = one[~is_control].tobytes() == other[~is_control].tobytes()
            assert same is (name not in changed | {"ca_name"}), name
        assert set(after.column("ca_name")[~is_control].tolist()) == {b"bbr"}
        rows = np.flatnonzero(~is_control)
        local = after.column("laddr")[rows]
        assert bytes(local[1]) == LOOPBACK and bytes(local[0]) != MAPPED
        assert bytes(local[0]) == bytes(after.column("raddr")[rows[1]])
        assert after.column("comm")[rows[0]].startswith(b"name-")


@pytest.mark.parametrize("further", [None, {}, {"seq": 8}])
@pytest.mark.parametrize("big_endian", [False, True])
def test_other_psc_files(tmp_path: Path, further: dict[str, int] | None, big_endian: bool) -> None:
    options: dict[str, Any] = {} if further is None else {"further": further}
    old, new = tmp_path / "old.pm", tmp_path / "new.pm"
    full_capture(big_endian=big_endian, **options).write(old)
    anonymise(old, new, who())
    assert proof(new) == proof(old) and says_so(new)
    with tcpkmon.open(old) as before, tcpkmon.open(new) as after:
        ours, theirs = [*before.controls()], [*after.controls()]
        assert [one for one in ours if not isinstance(one[1], Mark)] == [
            one for one in theirs if not isinstance(one[1], Mark)
        ]


def test_a_long_column_is_raw_whatever_its_flags_say(tmp_path: Path) -> None:
    old, new = tmp_path / "old.pm", tmp_path / "new.pm"
    build = CaptureBuilder(further={**FURTHER, "laddr": 16, "word": 12, "time_spent": 12})
    build.snapshots()
    build.rows[-1]["laddr"] = np.void(MAPPED)
    build.rows[-1]["word"] = np.void(b"zuse secret\0")
    build.end()
    build.write(old)
    assert secrets_in(old)
    anonymise(old, new, who())
    assert secrets_in(new) == []
    assert proof(new) == proof(old)


@pytest.mark.parametrize("name", first(6, sorted(KEPT, key=lambda one: one.split("-")[1])))
def test_captures_of_real_kernels(tmp_path: Path, name: str) -> None:
    with tarfile.open(ROOT / f"tests/kept/{name}.tar.xz") as archive:
        archive.extractall(tmp_path / "old")
    (old,) = (tmp_path / "old").iterdir()
    new = tmp_path / "new"
    anonymise(old, new, who())
    # What was cut short is not there any more, and so is not noted.
    noted = None if not name.endswith("-cut") else -1
    assert [one[:noted] for one in proof(new)] == [one[:noted] for one in proof(old)]
    files = [one for one in new.rglob("*") if one.is_file()] or [new]
    for file in files:
        data = file.read_bytes()
        assert b"6290f0e9-d1f4-4d9e-876b" not in data and b"vm-2026" not in data
        assert b"/tmp/" not in data and b"/proc/" not in data and b'"root"}' not in data


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    build = full_capture()
    array = build.array()
    start = control.Start(1, 2, 2, 3, 9)
    replace(array, find(array, control.Start), start)
    build.write(tmp_path / "old.pm", array)
    with pytest.raises(DamagedError, match="version 9"):
        anonymise(tmp_path / "old.pm", tmp_path / "new.pm", who())
    assert not (tmp_path / "new.pm").exists()


def test_a_log_names_nobody(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    log_file(old / "kernlog.dump.cpu0")
    assert {*secrets_in(old)} >= {*WORDS, repr(NUMBERS[0]), repr(NUMBERS[1]), str(HERE)}
    someone = who()
    done = anonymise(old, new, someone)
    assert secrets_in(new) == [] and says_so(new)
    assert proof(new) == proof(old)
    assert "site" in done.left_out.names
    with LogReader(new / "kernlog.dump.cpu0") as log:
        (own,) = (row for batch in log.batches() for row in batch.rows("OWN"))
        assert (own["lport"], own["pid"], bytes(own["blob"])) == (40001, 7, bytes(8))
        assert own["comm"] == someone.text("names", COMM).encode()
        (packed,) = someone.addresses([HERE.packed])
        assert bytes(own["laddr"]) == MAPPED[:12] + packed
        assert int(own["saddr"]).to_bytes(4, "little") == packed
        assert own["uid"] == someone.number("users", UID, 32) != UID
        field = log.format.schema.event("OWN").find_field("owner")
        assert field is not None and field.tags == {"default"} and not field.doc


def test_what_is_kept_by_choice(tmp_path: Path) -> None:
    old, new = tmp_path / "kernlog.dump.cpu0", tmp_path / "new"
    log_file(old)
    kept = "names hosts paths notes texts"
    anonymise(old, new, who(kept, also="ports kernel special"))
    with LogReader(new) as log:
        (own,) = (row for batch in log.batches() for row in batch.rows("OWN"))
        assert own["comm"].decode() == COMM and log.header["host"] == HOST
        assert USER in own["owner"].decode() and own["lport"] != 40001
        assert bytes(own["blob"]).startswith(b"\x01zuse")
        assert PATH in log.header["settings"]["schemata"]
        assert log.header["kernel"] != "6.18.0"
    assert proof(new) == proof(old)
    assert str(HERE) not in json.dumps(log.header)


@pytest.mark.parametrize("kind", ["psc", "log"])
def test_one_key_replaces_the_same_by_the_same(tmp_path: Path, kind: str) -> None:
    make: Any = {"psc": psc_file, "log": log_file}[kind]
    make(tmp_path / "old")
    for number, key in enumerate((KEY, KEY, read_key(None))):
        anonymise(tmp_path / "old", tmp_path / f"new{number}", who(key=key))
    one, two, three = ((tmp_path / f"new{number}").read_bytes() for number in range(3))
    assert one == two != three
    assert KEY not in one and KEY.hex().encode() not in one and KEY[:16] not in one


@pytest.mark.parametrize("kind", ["psc", "klogger"])
def test_a_chain(tmp_path: Path, kind: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (makers.make if kind == "psc" else makers.make_logs)(old, segments=3)
    name = os.uname().nodename
    assert not anonymise(old, new, who()).left_out.names
    assert proof(new) == proof(old)
    for path in new.rglob("*"):
        assert name not in path.name
        if path.is_file() and len(name) > 3:
            assert name.encode() not in path.read_bytes()
    lines = [json.loads(line) for line in (new / "index.jsonl").read_text().splitlines()]
    assert len(lines) == 3 and all((new / line["name"]).exists() for line in lines)
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_log_is_repaired_first(tmp_path: Path) -> None:
    old, new = tmp_path / "kernlog.dump.cpu0", tmp_path / "new"
    log_file(old)
    data = bytearray(old.read_bytes())
    data[-100] ^= 0xFF
    old.write_bytes(data)
    done = anonymise(old, new, who())
    assert done.left_out.repaired and secrets_in(new) == []
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


def test_keys_and_kinds(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such kind"):
        choose(["nobody"], [])
    with pytest.raises(UsageError, match="once"):
        choose(["names"], ["names"])
    with pytest.raises(FileError, match="cannot read the key"):
        read_key(tmp_path / "none")
    key = tmp_path / "key"
    key.write_bytes(b"short")
    with pytest.raises(UsageError, match="is no key"):
        read_key(key)
    for content in (KEY, KEY.hex().encode() + b"\n"):
        key.write_bytes(content)
        assert read_key(key) == KEY
    assert len(read_key(None)) == 32 and read_key(None) != read_key(None)


def test_the_command(tmp_path: Path) -> None:
    old, new = tmp_path / "old.pm", tmp_path / "new.pm"
    psc_file(old, unknown=False)
    done = CliRunner().invoke(command, [str(old), "-o", str(new), "--also", "ports"],
                              standalone_mode=False)  # fmt: skip
    assert done.return_value == 5, done.output  # the kernel's sockets differed from its records
    assert "kept: special, kernel; and times" in done.output
    with pytest.raises(FileError, match="there already"):
        anonymise(old, new, who())
    page = (Path(__file__).parents[2] / "docs/anonymise.md").read_text()
    assert all(f"`{kind}`" in page for kind in KINDS)
