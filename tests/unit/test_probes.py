# SPDX-License-Identifier: Apache-2.0
"""Which ways to attach a capture takes, for kernels that offer more or less."""

from __future__ import annotations

import re

import pytest

from tcpkmon.collector.linux.btf import Kind
from tcpkmon.collector.plan import columns, probes
from tcpkmon.collector.plan.schema_sources import find_sources, read_texts
from tcpkmon.collector.ring import points
from tcpkmon.formats.base.errors import KernelError

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
