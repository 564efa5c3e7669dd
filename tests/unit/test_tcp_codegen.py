# SPDX-License-Identifier: Apache-2.0
"""The generated C text: setters at the right places, and nothing for what is not stored."""

from __future__ import annotations

import re

import pytest

from tcpkmon.collector.linux.kernel_constants import Facts
from tcpkmon.collector.plan import columns, engine_config, tcp_codegen
from tcpkmon.collector.plan.probes import Chosen, Plan
from tcpkmon.formats.base.errors import UsageError

SCHEMA = columns.load_schema()
EVENT = SCHEMA.event(columns.EVENT)
FACTS = Facts(hz=250, page_size=4096, skb_size=256, mss_overhead=512)
PLAN = Plan((Chosen("timer", ("RTO",), "raw", "timer_expire_entry"),), {}, {"kfree_skb": 4})


def header(chosen: str, watch: tuple[str, ...] = ()) -> str:
    made = columns.make_layout(SCHEMA, columns.choose_columns(EVENT, chosen), ())
    switches = tcp_codegen.Switches(("RTO",), watch)
    lines = engine_config.make_engine(made.entry_size, PLAN, 2600).lines(PLAN)
    lines += tcp_codegen.snapshot_lines(made, FACTS, switches, {"tcp_write_timer": 0x10})
    return "\n".join(lines) + "\n"


def test_setters_store_at_the_column_s_place_and_width():
    made = columns.make_layout(SCHEMA, columns.choose_columns(EVENT, "all"), ())
    text = header("all")
    for column in made.columns:
        if made.is_string(column.name):
            stores = re.search(rf"KLOGGER_SET_{column.name}\(v\) do {{(.*)}} while", text)[1]
            kind = re.search(rf"u(\d+) \*to_ = \(u\1 \*\)\(entry \+ {column.offset}\);", stores)
            assert 8 * column.length == int(kind[1]) * len(re.findall(r"to_\[\d+\] =", stores))
        else:
            bits = 8 * column.length
            store = f"*(u{bits} *)(entry + {column.offset}) = (u{bits})(v);"
            assert f"SET_{column.name}(v) do {{ if (1) {{ {store} }} }} while (0)\n" in text


def test_what_is_not_stored_is_not_evaluated():
    text = header("classic")
    assert "#define KLOGGER_SET_srtt_us(v) do { } while (0)" in text
    assert "#define KLOGGER_HAS_srtt_us 0" in text and "#define KLOGGER_HAS_snd_cwnd 1" in text


def test_switches_and_facts():
    text = header("classic")
    for line in (
        "KLOGGER_ENTRY_SIZE 64", "KLOGGER_RECORD_SIZE 64", "KLOGGER_HZ 250",
        "USE_timer 1",
        "KIND_timer 2", "KLOGGER_ENABLED_RTO 1", "KLOGGER_ENABLED_LOSS_PROBE 0", "LOCATION_RTO 14",
        "ARGUMENTS_kfree_skb 4", "KLOGGER_tcp_write_timer 0x10ull", "KLOGGER_WATCHING 0",
    ):
        assert f"#define {line}\n" in text


def test_watched_columns_are_compared_word_by_word():
    text = header("full", ("snd_cwnd", "bytes_acked", "seg_flags"))
    assert "#define KLOGGER_WATCHING 6\n" in text
    assert text.count("changed |=") == 6
    for name, store in (
        ("snd_cwnd", "*(u32 *)(entry + (watched ? 0 : 24)) = (u32)(v);"),
        ("bytes_acked", "*(u64 *)(entry + (watched ? 8 : "),
        ("seg_flags", "*(u16 *)(entry + (watched ? 16 : "),
    ):
        assert f"SET_{name}(v) do {{ if (1) {{ {store}" in text
    assert "SET_srtt_us(v) do { if ((!watched)) {" in text
    with pytest.raises(UsageError, match="does not store"):
        header("classic", ("srtt_us",))
    with pytest.raises(UsageError, match="--when-changed"):
        header("all", ("laddr", "raddr", "comm", "ca_name", "netns"))
