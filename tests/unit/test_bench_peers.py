# SPDX-License-Identifier: Apache-2.0
"""What perf, tcpdump, bpftrace and collect say at their end is understood by the benchmark."""

from __future__ import annotations

import pytest

from scripts.benchmark import peers

PERF = """
Aggregated stats:
           TOTAL events:     264814
            LOST events:         51  ( 0.0%)
          SAMPLE events:     248580  (93.9%)
    LOST_SAMPLES events:          1  ( 0.0%)
syscalls:sys_enter_getppid stats:
          SAMPLE events:     248580
    LOST_SAMPLES events:      90366
"""
PERF_NOTHING_LOST = """
Aggregated stats:
           TOTAL events:        595
          SAMPLE events:        500  (84.0%)
tcp:tcp_probe stats:
          SAMPLE events:        500
"""
PERF_NOTHING = """
Aggregated stats:
           TOTAL events:         95
"""


@pytest.mark.parametrize(
    ("text", "counts"),
    [(PERF, (248580, 90366)), (PERF_NOTHING_LOST, (500, 0)), (PERF_NOTHING, (0, 0))],
)
def test_perf_counts_samples_and_lost_ones(text: str, counts: tuple[int, int]) -> None:
    assert peers.parse_perf_stats(text) == counts


def test_tcpdump_counts_packets() -> None:
    text = (
        "tcpdump: listening on veth0, link-type EN10MB (Ethernet), snapshot length 96 bytes\n"
        "57431 packets captured\n57437 packets received by filter\n6 packets dropped by kernel\n"
    )
    assert peers.parse_tcpdump(text) == (57431, 6)
    assert peers.parse_tcpdump("1 packet captured\n0 packets dropped by kernel\n") == (1, 0)


def test_bpftrace_losses_are_added_up() -> None:
    assert peers.parse_bpftrace_lost("Lost 12 events\nprobe 1\nLost 30 events\n") == 42
    assert peers.parse_bpftrace_lost("Attaching 1 probe...\n") == 0


def test_collect_counts_what_is_missing_in_its_output() -> None:
    text = (
        "collect: capturing\n"
        "collect: 1,234 records of 2 sockets in x.pm (78.1 KiB)\n"
        "collect: 2,000 events seen, 300 filtered, 400 unchanged, 1,240 recorded; "
        "lost: 60 ring full, 6 queue full\n"
    )
    assert peers.parse_collect(text) == (1234, 66)
    limited = text.replace("400 unchanged, ", "400 unchanged, 6 over their limit, ")
    assert peers.parse_collect(limited) == (1234, 60)


@pytest.mark.parametrize(
    "parse", [peers.parse_perf_stats, peers.parse_tcpdump, peers.parse_collect]
)
def test_a_tool_that_says_nothing_is_an_error(parse: object) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match="tells no number"):
        parse("something else\n")
