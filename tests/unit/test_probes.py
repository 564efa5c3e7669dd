# SPDX-License-Identifier: Apache-2.0
"""Which ways to attach a capture takes; probes by tracefs; the names of functions."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.linux import kallsyms
from tcpkmon.collector.linux.btf import Kind
from tcpkmon.collector.linux.kprobe_events import (
    KprobeEvent,
    remove_stale,
    stale_events,
)
from tcpkmon.collector.linux.syscalls import refused
from tcpkmon.collector.plan import columns, probes
from tcpkmon.collector.plan.event_layout import ring_dtype
from tcpkmon.collector.plan.schema_sources import find_sources, read_texts
from tcpkmon.collector.ring import points
from tcpkmon.collector.writer.function_names import FunctionNames, sleep_class
from tcpkmon.formats.base.errors import KernelError, PrivilegeError
from tcpkmon.formats.schema import parse, place_fields

NOBODY = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1


def test_only_events_of_dead_tcpkmon_processes_are_stale() -> None:
    listing = f"""p:tcpkmon_{NOBODY}/p1_1_tcp_ack tcp_ack
r4:tcpkmon_{NOBODY}/r1_2_tcp_recvmsg tcp_recvmsg
p:tcpkmon_{os.getpid()}/p2_1_tcp_ack tcp_ack
p:kprobes/tcpkmon_{NOBODY} tcp_ack
p:mytcpkmon_{NOBODY}/p tcp_ack
p:tcpkmon_{NOBODY}x/p tcp_ack
e:tcpkmon_{NOBODY}/eprobe syscalls/sys_enter_openat
"""
    assert stale_events(listing) == (
        f"tcpkmon_{NOBODY}/p1_1_tcp_ack", f"tcpkmon_{NOBODY}/r1_2_tcp_recvmsg",
    )  # fmt: skip


def test_events_are_made_and_removed_without_touching_others(tmp_path: Path) -> None:
    file = tmp_path / "kprobe_events"
    others = f"p:others/event tcp_ack\np:tcpkmon_{NOBODY}/left tcp_ack\n"
    file.write_text(others)
    (tmp_path / "kprobe_profile").touch()
    assert remove_stale(tmp_path) == (f"tcpkmon_{NOBODY}/left",)
    first = KprobeEvent.make(tmp_path, "tcp_ack.constprop.0")
    second = KprobeEvent.make(tmp_path, "tcp_ack.constprop.0")
    names = [first.name, second.name]
    assert names[0] != names[1], "kprobe_profile shows names without their group"
    (tmp_path / "kprobe_profile").write_text(
        f"  {names[0]}    120   3\n  {names[1]}   7   0\n  event 1 99\n"
    )
    assert (first.read_missed(), second.read_missed()) == (3, 0)
    first.remove()
    first.remove()
    assert first.read_missed() == 3, "what was counted stays known"
    group = f"tcpkmon_{os.getpid()}"
    assert file.read_text().removeprefix(others).splitlines() == [
        f"-:tcpkmon_{NOBODY}/left",
        f"p:{group}/{names[0]} tcp_ack.constprop.0",
        f"p:{group}/{names[1]} tcp_ack.constprop.0",
        f"-:{group}/{names[0]}",
    ]


def test_a_kernel_without_kprobes_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="no kprobes"):
        KprobeEvent.make(tmp_path, "tcp_ack")


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    log = "\n".join(f"line {n}" for n in range(20))
    error = refused(OSError(errno.EACCES, "x"), "loading", log)
    assert "loading failed: Permission denied (EACCES)" in error.message
    assert "line 19" in error.message
    assert "line 11 " not in error.message
    denied = OSError(errno.EPERM, "x")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert isinstance(refused(denied, "loading"), PrivilegeError)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert isinstance(refused(denied, "loading"), KernelError)
    assert "(524)" in refused(OSError(524, "x"), "attaching").message


TEXT = read_texts(find_sources(["tcp"]))
PROBES = probes.find_probes(TEXT)
SCHEMA = columns.load_schema()
ALL = {*columns.locations_of(SCHEMA), "EXISTING"}


class Offers:
    """A kernel that offers just these kinds (or kind:target)."""

    def __init__(self, *what: str) -> None:
        self.what = what

    def can(self, kind: str, target: str) -> bool:
        return kind in self.what or f"{kind}:{target}" in self.what


class Types:
    """BTF in which every tracepoint has two arguments and some members are missing."""

    def __init__(self, *missing: str) -> None:
        self.missing = missing

    def find(self, kind: Kind, name: str) -> int:
        return 1

    def args(self, number: int) -> list[tuple[str, int]]:
        return [("__data", 2), ("sk", 3), ("skb", 3)]

    def has_member(self, struct: str, member: str) -> bool:
        return f"{struct}.{member}" not in self.missing


def make(*offers: str, enabled: set[str] = ALL, **more) -> probes.Plan:
    return probes.make_plan(PROBES, enabled, Offers(*offers).can, Types(), **more)


def test_every_location_has_a_probe_and_every_probe_a_location():
    served = [location for probe in PROBES for location in probe.locations]
    assert sorted({*served}) == sorted(ALL)
    assert len(PROBES) <= points.ROWS
    guarded = set(re.findall(r"^#if USE_(\w+)", TEXT, re.MULTILINE))
    assert guarded == {probe.name for probe in PROBES}


def test_the_first_way_that_is_offered_is_taken():
    assert make("btf", "raw", "iter").kind_of("SEGMENT_RECEIVED") == "btf:tcp_probe"
    assert make("raw").kind_of("SEGMENT_RECEIVED") == "raw:tcp_probe"
    assert make("raw:tcp_probe", "fexit", "kprobe").kind_of("SEND_CALL") == "fexit:tcp_sendmsg"
    assert make("kprobe").kind_of("SEND_CALL") == "kprobe:tcp_sendmsg"
    assert make("btf", "raw", kinds=("raw",)).kind_of("RTO") == "raw:timer_expire_entry"


def test_what_is_not_offered_is_missing_by_name():
    made = make("btf")
    functions = {"SEGMENT_CLOSING", "CWND_UNDO", "ACK_PROCESSED", "TRANSMIT"}
    assert set(made.missing) == {*functions, "EXISTING", "LISTENER", "ACCEPTED"}
    assert "fentry:tcp_undo_cwnd_reduction" in made.missing["CWND_UNDO"]
    with pytest.raises(KernelError, match="CWND_UNDO"):
        probes.require_any(made.missing, {"CWND_UNDO", "TRANSMIT"})
    probes.require_any(made.missing, {"CWND_UNDO", "RTO"})


def test_what_a_kernel_skips_without_counting_is_not_proven():
    old = Types("bpf_link_info.perf_event.kprobe.missed")
    offers = Offers("btf", "iter", "kprobe").can
    made = probes.make_plan(PROBES, {"RTO", "TRANSMIT"}, offers, old)
    assert made.unproven == {"TRANSMIT": "kprobe:__tcp_transmit_skb"}
    assert not make("btf", "iter", "kprobe").unproven
    assert not probes.make_plan(PROBES, ALL, Offers("btf", "fentry", "fexit").can, old).unproven


def test_a_kernel_that_hides_process_1_is_told():
    assert "process 1" in make("btf").unseen
    others = Types("bpf_prog_aux.init_owned")
    assert probes.make_plan(PROBES, ALL, Offers("btf").can, others).unseen == ""


def test_only_what_is_enabled_is_attached():
    made = make("btf", enabled={"RTO"}, always=("destroy",))
    assert [(p.name, p.locations) for p in made.probes] == [("destroy", ()), ("timer", ("RTO",))]
    assert made.arguments == {"tcp_destroy_sock": 2, "timer_expire_entry": 2}


def test_columns_whose_members_are_gone_are_absent():
    assert probes.absent_columns(TEXT, Types()) == ()
    gone = probes.absent_columns(TEXT, Types("tcp_sock.chrono_stat", "proto.sockets_allocated"))
    assert set(gone) == {"busy_us", "rwnd_limited_us", "sndbuf_limited_us", "hiwat_fair_share"}
    names = {field.name for field in SCHEMA.event(columns.EVENT).fields}
    needed = set(re.findall(r"^NEEDS\((\w+)", TEXT, re.MULTILINE))
    assert needed <= names


def test_a_program_may_serve_events_that_others_log():
    found = probes.find_probes(
        'PROBE(helps, "+A +B", "btf:sys_enter")\nPROBE(logs, "A +B", "kprobe:f")\n'
    )
    assert [(p.locations, p.serves) for p in found] == [((), ("A", "B")), (("A",), ("B",))]
    offers = Offers("btf").can
    made = probes.make_plan(found, {"A", "B"}, offers, Types())
    assert [(p.name, p.locations) for p in made.probes] == [("helps", ())]
    assert set(made.missing) == {"A"}, "what serves an event does not log it"
    assert not probes.make_plan(found, {"C"}, offers, Types()).probes


LISTING = """0000000000000000 A fixed_percpu_data
ffffffff81000000 T __pfx_pipe_read
ffffffff81000010 t pipe_read
ffffffff81000110 t pipe_read_end
ffffffff82000000 D some_data
ffffffffc0000000 t do_nothing\t[module]
ffffffff81000100 T n_tty_read.constprop.0
"""
CONF = """
enum what { OTHER, PIPE = 7, TTY = 8 }
event SLEEP { int tid; ulonglong place; string12 symbol // @function
    what class // @sleep_class
}
event PLAIN { ulonglong place; string12 symbol }
event NO_ADDRESS { int place; string12 symbol // @function
}
"""


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kallsyms"
    path.write_text(LISTING)
    monkeypatch.setattr(kallsyms, "KALLSYMS", path)
    return path


def test_functions_by_address(listing: Path) -> None:
    symbols = kallsyms.Kallsyms()
    names = {
        0xFFFFFFFF81000010: b"pipe_read", 0xFFFFFFFF810000FF: b"pipe_read",
        0xFFFFFFFF81000100: b"n_tty_read.constprop.0", 0xFFFFFFFFC0001000: b"do_nothing",
        0xFFFFFFFF81000000: b"", 0: b"", 5: b"",
    }  # fmt: skip
    assert {address: symbols.name(address) for address in names} == names
    assert symbols.bytes_of(0xFFFFFFFF81000010) == 0xF0
    assert symbols.bytes_of(0xFFFFFFFF81000011) == symbols.bytes_of(0) == 0


@pytest.mark.parametrize("kept", [0, 24])
def test_names_and_classes_are_filled_in(listing: Path, kept: int) -> None:
    schema = parse(CONF)
    numbers = {event.name: 10 + at for at, event in enumerate(schema.events)}
    names = FunctionNames(schema, [(numbers[event.name], event) for event in schema.events])
    places, size = place_fields(schema, schema.event("SLEEP"))
    at = {place.field.name: kept + place.offset for place in places}
    rows = np.zeros(6, ring_dtype(kept + size))
    raw = rows.view(np.uint8).reshape(6, -1)
    # A return address may be the first byte behind its function.
    for row, address in enumerate([0xFFFFFFFF81000100, 0xFFFFFFFF81000109, 0xFFFFFFFF81000111, 0]):
        raw[row, at["place"] : at["place"] + 8] = np.array([address], "=u8").view(np.uint8)
    raw[:, at["class"]] = 1
    raw[4:] = 9
    before = raw.copy()
    names.fill(np.array([numbers[n] for n in ("SLEEP",) * 4 + ("PLAIN", "NO_ADDRESS")]), rows, kept)
    texts = [bytes(row[at["symbol"] : at["symbol"] + 12]).rstrip(b"\0") for row in raw[:4]]
    assert texts == [b"pipe_read", b"n_tty_read.c", b"pipe_read_en", b""]
    # Where the name does not tell, the program's value stays.
    assert [int(row[at["class"]]) for row in raw[:4]] == [7, 8, 7, 1]
    assert (raw[4:] == before[4:]).all()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (b"anon_pipe_read", "PIPE"), (b"pipe_wait_readable", "PIPE"), (b"n_tty_read", "TTY"),
        (b"futex_wait_queue_me", "FUTEX"), (b"futex_do_wait", "FUTEX"), (b"do_wait", "WAIT"),
        (b"hrtimer_nanosleep", "TIMER"), (b"poll_schedule_timeout.constprop.0", "POLL"),
        (b"ep_poll", "POLL"), (b"do_epoll_wait", "POLL"), (b"sk_wait_data", "SOCKET"),
        (b"unix_stream_read_generic", "SOCKET"), (b"inet_csk_accept", "SOCKET"),
        (b"__lock_sock", "SOCKET"), (b"folio_wait_bit_common", "DISK"),
        (b"blk_io_schedule", "DISK"), (b"do_wait.isra.0", "WAIT"),
        (b"submit_bio_wait", "DISK"), (b"jbd2_log_wait_commit", "DISK"), (b"worker_thread", ""),
        (b"do_waiting_for_godot", ""), (b"synchronize_rcu", ""), (b"", ""),
    ],
)  # fmt: skip
def test_classes_of_sleeps(function: bytes, expected: str) -> None:
    assert sleep_class(function) == expected
