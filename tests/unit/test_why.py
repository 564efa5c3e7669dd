# SPDX-License-Identifier: Apache-2.0
"""What limited a connection: each rule, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.analysis.doing import CPU_WAIT, RUNNING
from tcpkmon.formats.analysis.why import (
    FAMILY,
    LIMITS,
    NEEDED,
    RECEIVING,
    Block,
    Connection,
    Losses,
    Snapshots,
    Table,
    Wait,
    classify,
    connection_of,
    cut,
    fold,
    head,
    tally,
    verdict,
)
from tcpkmon.formats.analysis.why.assemble import connections_table

MS = 1_000_000
NO_RATE = (1 << 64) - 1
SENDING = {
    # An established sender with 100 kB to send and room for it.
    "state": 1, "ca_state": 0, "snd_una": 1000, "snd_max": 1000, "snd_sb_cc": 100_000,
    "snd_wnd": 1 << 20, "snd_cwnd_segs": 100, "snd_ssthresh": 50, "mss": 1000, "packets_out": 0,
    "sacked_out": 0, "lost_out": 0, "retrans_out": 0, "sk_wmem_bytes": 120_000,
    "sb_hiwat": 1 << 20, "sk_wmem_alloc": 0, "pacing_rate": NO_RATE, "srtt_us": 800,
    "min_rtt_us": 500, "rcv_nxt": 7, "rcv_sb_cc": 0, "rcv_wnd": 65536, "sk_rcvbuf": 131072,
    "seg_len": 0, "location": 1, "callvalue": 0, "lport": 5001, "rport": 80, "conn_id": 1,
}  # fmt: skip
FLYING = {"snd_max": 101_000, "snd_sb_cc": 200_000, "packets_out": 100}
"""100 segments in flight, as many as the congestion window has."""
TYPES = {"pacing_rate": np.uint64, "conn_id": np.uint64}


def columns(**values: Any) -> dict[str, Any]:
    """The columns of a snapshot, or of n, where some differ from SENDING."""
    every = {**SENDING, **values}
    count = max(np.size(value) for value in every.values())
    found = {
        name: np.broadcast_to(np.array(value, TYPES.get(name, np.uint32)), count).copy()
        for name, value in every.items()
    }
    for name in ("laddr", "raddr"):
        found[name] = np.full(count, b"\0" * 10 + b"\xff\xff\x0a\0\0\x01", "V16")
    return found


def limit_of(**values: Any) -> str:
    return LIMITS[classify(columns(**values))[0]]


@pytest.mark.parametrize("limit, values", [
    ("unknown", {}),
    ("opening", {"state": 2}),
    ("closing", {"state": 4, "snd_sb_cc": 0}),
    ("rto_wait", {"location": 14}), ("rto_wait", {"location": 15}), ("rto_wait", {"location": 20}),
    ("rto_wait", {"location": 14, "state": 4, "snd_sb_cc": 0}),  # what it closed with was lost
    ("recovery", {"ca_state": 3}), ("recovery", {"ca_state": 4, **FLYING}),
    ("zero_window", {"snd_wnd": 0}),
    ("rwnd", {**FLYING, "packets_out": 70, "snd_wnd": 100_500}),
    ("rwnd", {**FLYING, "snd_wnd": 100_500}),                   # both are full: the peer's counts
    ("sndbuf", {"snd_sb_cc": 300, "sb_hiwat": 120_000}),
    ("nagle", {"snd_sb_cc": 300, "sb_hiwat": 121_000}),         # a little room is left: it corks
    ("nagle", {"snd_sb_cc": 300, "sb_hiwat": 120_000, "sk_nospace": 0}),  # nobody waits for room
    ("sndbuf", {"snd_sb_cc": 300, "sb_hiwat": 120_000, "sk_nospace": 1}),
    ("idle", {"snd_sb_cc": 0}),
    ("nagle", {"snd_max": 2000, "packets_out": 1, "snd_sb_cc": 1300}),
    ("app", {**FLYING, "packets_out": 90, "snd_sb_cc": 100_300}),  # it is about to write more
    ("app", {"snd_max": 11_000, "snd_sb_cc": 10_000, "packets_out": 10}),
    ("cwnd", FLYING), ("slow_start", {**FLYING, "snd_ssthresh": 101}),
    ("cwnd", {**FLYING, "packets_out": 80, "snd_max": 81_000}),  # it waits for a larger segment
    ("unknown", {**FLYING, "packets_out": 60, "snd_max": 61_000}),
    ("tsq", {"sk_wmem_alloc": 20_000}),
    ("tsq", {**FLYING, "packets_out": 80, "snd_max": 81_000, "sk_wmem_alloc": 90_000}),
    ("cwnd", {**FLYING, "sk_wmem_alloc": 150_000}),             # the window is full as well
    ("tsq", {"sk_wmem_alloc": 2_500}),                          # two segments with what they take
    ("unknown", {"sk_wmem_alloc": 1_100}),
    ("tsq", {"sk_wmem_alloc": 4_000, "pacing_rate": 6_000_000, "sk_pacing_status": 0}),
    ("pacing", {"sk_wmem_alloc": 4_000, "pacing_rate": 6_000_000, "sk_pacing_status": 1}),
    ("cwnd", {**FLYING, "packets_out": 80, "snd_max": 81_000, "sk_wmem_alloc": 1_500}),
    ("tsq", {**FLYING, "packets_out": 80, "snd_max": 81_000, "sk_tsq_flags": 2}),
    ("cwnd", {**FLYING, "packets_out": 80, "snd_max": 81_000, "sk_tsq_flags": 4}),
    ("cwnd", {**FLYING, "sk_tsq_flags": 3}),
    ("pacing", {"pacing_rate": 1_000_000}),
    ("unknown", {"pacing_rate": 1_000_000, "sk_pacing_status": 0}),
    ("pacing", {"pacing_rate": 1_000_000, "sk_pacing_status": 1}),
    ("pacing", {"pacing_rate": 150_000_000, "sk_pacing_status": 2}),
    ("unknown", {"pacing_rate": 150_000_000}),   # 1.2 times what the window gives in a round trip
])  # fmt: skip
def test_rules(limit: str, values: dict[str, Any]) -> None:
    assert limit_of(**values) == limit


@pytest.mark.parametrize("limit, values", [
    ("slow_start", {"bbr_mode": 1}), ("cwnd", {"bbr_mode": 3}), ("slow_start", {"bbr_mode": 0}),
])  # fmt: skip
def test_bbr_is_in_slow_start_by_its_mode(limit: str, values: dict[str, Any]) -> None:
    assert limit_of(**FLYING, **{"snd_ssthresh": 2**31 - 1, **values}) == limit


@pytest.mark.parametrize("limit, values", [
    ("cwnd", {"is_cwnd_limited": 1}), ("app", {"rate_app_limited": 1}),
    ("unknown", {"is_cwnd_limited": 0, "rate_app_limited": 0}),
])  # fmt: skip
def test_what_tcp_noted_is_the_last_rule(limit: str, values: dict[str, Any]) -> None:
    assert limit_of(**values) == limit


def snapshots(times_ms: list[int], **values: Any) -> Snapshots:
    times = np.array(times_ms, np.int64) * MS
    lost = np.array(values.pop("lost", [0] * len(times)), np.int64)
    return Snapshots(columns(seg_seq=[0] * len(times), **values), times, lost)


def test_intervals_end_where_the_limit_changes() -> None:
    piece = snapshots(
        [0, 10, 20, 30, 40], snd_wnd=[9, 0, 0, 1 << 20, 1 << 20], snd_una=[1, 2, 3, 4, 5],
        snd_max=1000, lost=[0, 0, 2, 2, 2],
    )  # fmt: skip
    rows = cut(block_of(piece))[0]
    assert [LIMITS[one] for one in rows["limit"]] == ["zero_window", "unknown"]
    assert rows["start_ns"].tolist() == [0, 20 * MS]
    assert rows["end_ns"].tolist() == [20 * MS, 40 * MS]
    assert rows["bytes_acked"].tolist() == [2, 2]
    assert rows["lost_records"].tolist() == [2, 0]
    assert rows["records"].tolist() == [2, 2]


def test_a_pacing_rate_alone_is_no_proof() -> None:
    """1 MB/s: 100 kB in 100 ms. Who sends a tenth of that is not paced."""
    for sent, limit in ((100_000, "pacing"), (10_000, "unknown")):
        piece = snapshots([0, 100], pacing_rate=1_000_000, snd_una=[1000, 1000 + sent],
                          snd_max=[1000, 1000 + sent])  # fmt: skip
        assert LIMITS[cut(block_of(piece))[0]["limit"][0]] == limit


def test_a_pacing_rate_that_changes_counts_for_its_time() -> None:
    """90 ms at 1 MB/s, then 10 ms at 4 MB/s: 130 kB; at the last rate it were 400 kB."""
    piece = snapshots([0, 90, 100], pacing_rate=[1_000_000, 1_000_000, 4_000_000],
                      snd_una=[1000, 91_000, 131_000], snd_max=[1000, 91_000, 131_000])  # fmt: skip
    assert LIMITS[cut(block_of(piece))[0]["limit"][0]] == "pacing"


WROTE = {"snd_max": 101_000, "snd_sb_cc": 200_000, "packets_out": 100, "snd_una": 2000}
"""Of a snapshot whose ACK counts for nothing yet: 2000 was written before, the rest since."""


@pytest.mark.parametrize("limit, values", [
    ("idle", {}),
    ("idle", {"sb_hiwat": 120_000, "snd_sb_cc": 99_300}),  # a buffer that this write filled
    ("idle", {"snd_wnd": 99_000}),
    ("slow_start", {"srtt_us": 60_000}),        # more than half of it is the round trip
    ("slow_start", {"srtt_us": 0}),             # none was measured
    ("slow_start", {"snd_una": 1900}),          # a part of what was written before is in flight
    ("slow_start", {"snd_una": 2001}),          # more is acknowledged: not all ACKs are here
    ("slow_start", {"snd_cwnd_segs": 2, "packets_out": 2}),  # its ACK may be delayed
    ("zero_window", {"snd_wnd": 0}),            # the peer opens it when it likes
    ("rto_wait", {"location": 14}), ("rto_wait", {"location": 15}),
    ("slow_start", {"location": 2}), ("slow_start", {"location": 16}),
    ("tsq", {"packets_out": 60, "snd_max": 62_000, "sk_wmem_alloc": 90_000}),
])  # fmt: skip
def test_a_window_that_a_write_filled_was_not_full_before_it(
    limit: str, values: dict[str, Any]
) -> None:
    """All was acknowledged at 10 ms; at 110 ms the first ACK of a new write arrives."""
    now = {**SENDING, "snd_ssthresh": 101, "snd_cwnd_segs": 100, **WROTE, **values}
    early = {"snd_una": [500, 1000], "snd_max": [1500, 2000], "snd_sb_cc": [1000, 1000],
             "packets_out": 1}  # fmt: skip
    many = {
        name: [*np.broadcast_to(early.get(name, SENDING[name]), 2), value]
        for name, value in now.items()
    }
    rows = cut(block_of(snapshots([0, 10, 110], **many)))[0]
    assert LIMITS[rows["limit"][-1]] == limit
    assert rows["end_ns"][-1] - rows["start_ns"][-1] >= 100 * MS


@pytest.mark.parametrize("ms, limit", [(200, "rto_wait"), (600, "idle")])
def test_a_timer_tells_how_long_a_loss_was_waited_for_at_most(ms: int, limit: str) -> None:
    """All was acknowledged; then something was written, and lost. The probe fires in 200 ms."""
    piece = snapshots([0, ms], snd_una=[1000, 2000], snd_max=[2000, 5000], snd_sb_cc=[1000, 3000],
                      packets_out=[1, 3], location=[1, 15])  # fmt: skip
    assert LIMITS[cut(block_of(piece))[0]["limit"][0]] == limit


def test_from_a_loss_probe_to_its_ack_is_recovery() -> None:
    """The last of 10 segments is lost: probed, sent again, acknowledged; then the next are."""
    whole = snapshots(
        [0, 10, 210, 211, 240, 241], location=[1, 1, 15, 2, 1, 1], packets_out=[10, 10, 1, 1, 1, 9],
        snd_una=[1000, 1000, 10_000, 10_000, 10_000, 11_000],
        snd_max=[11_000, 11_000, 11_000, 11_000, 11_000, 20_000],
        snd_sb_cc=[10_000, 10_000, 1000, 1000, 1000, 9000],
    )  # fmt: skip
    rows = cut(block_of(whole))[0]
    assert [LIMITS[one] for one in rows["limit"]] == ["app", "rto_wait", "recovery", "app"]
    assert (rows["end_ns"] // MS).tolist() == [10, 210, 240, 241]


@pytest.mark.parametrize("written, limit", [(10_300, "nagle"), (10_200, "app")])
def test_what_waits_all_the_time_is_held_back(written: int, limit: str) -> None:
    """300 bytes of 10 segments in flight do not leave, with room: the writer was not there, and did
    not ask for more. Where it wrote meanwhile, it may be about to go on."""
    piece = snapshots([0, 40], snd_una=1000, snd_max=11_000, snd_sb_cc=[written, 10_300],
                      packets_out=10)  # fmt: skip
    assert LIMITS[cut(block_of(piece))[0]["limit"][0]] == limit


@pytest.mark.parametrize("ms, limit", [(150, "nagle"), (45, "app")])
def test_a_piece_that_leaves_late_was_corked(ms: int, limit: str) -> None:
    """Ten segments are acknowledged, 520 bytes stay; after 150 ms they leave with the next write.
    After 45 ms, they may have left at once, and the ACK is delayed."""
    piece = snapshots([0, ms], snd_una=[1000, 11_000], snd_max=[11_000, 21_520],
                      snd_sb_cc=[10_520, 11_000], packets_out=[10, 11])  # fmt: skip
    assert LIMITS[cut(block_of(piece))[0]["limit"][0]] == limit


@pytest.mark.parametrize("ms, limit", [(3, "slow_start"), (100, "slow_start"), (102, "idle")])
def test_a_handshake_does_not_tell_the_round_trip_of_data(ms: int, limit: str) -> None:
    """A line of 4 Mbit/s: 40 us for a SYN, 3 ms for a segment. After 100 ms it is the writer."""
    piece = snapshots([0, ms], snd_una=1000, snd_max=[1000, 11_000], snd_sb_cc=[0, 50_000],
                      packets_out=[0, 10], snd_cwnd_segs=10, srtt_us=40)  # fmt: skip
    assert LIMITS[cut(block_of(piece))[0]["limit"][0]] == limit


def test_bbr_without_its_mode_is_not_called_slow_start() -> None:
    name = np.array([b"bbr"], "S16")
    told = classify({**columns(**FLYING, snd_ssthresh=2**31 - 1), "ca_name": name})
    assert LIMITS[told[0]] == "cwnd"


@pytest.mark.parametrize("rtt_us, late", [(100, 80_000), (35_000, 0)])
def test_acks_that_are_later_than_the_path(rtt_us: int, late: int) -> None:
    """Twice 40 ms of a full window; of a path that takes that long they are not late."""
    piece = snapshots([0, 40, 80, 81], **FLYING, min_rtt_us=rtt_us, srtt_us=39_000)
    (one,) = tally([block_of(piece)])
    assert one.late_ack_us == late
    # A record that is missing may have been the ACK.
    (one,) = tally([block_of(Snapshots(piece.columns, piece.times_ns, np.array([0, 1, 1, 1])))])
    assert one.late_ack_us == late // 2


def block_of(whole: Snapshots) -> Block:
    """All snapshots, those of a connection together."""
    at = np.argsort(whole["conn_id"], kind="stable")
    mine = whole.take(at)
    return Block(mine.columns, mine["conn_id"], mine.times_ns, mine.lost, mine.seq, at,
                 Losses.join([]))  # fmt: skip


def table_of(whole: Snapshots, *about: Any, **more: Any) -> Table:
    """The table connections."""
    return connections_table([fold(block_of(whole))[0]], whole.columns, *about, **more)


def test_families_are_limits() -> None:
    assert set(FAMILY) | set(FAMILY.values()) <= set(LIMITS)
    assert "time" not in NEEDED


def sentence(**values: Any) -> tuple[str, list[str]]:
    one = Connection(
        1, laddr="10.0.0.1", lport=5201, raddr="fd00::2", rport=40000, end_ns=8_000 * MS,
        bytes_acked=94_000_000, mss=1448, min_rtt_us=500, certain_ns=8_000 * MS,
    )  # fmt: skip
    for name, value in values.items():
        setattr(one, name, value)
    return head(one), verdict(one)


def test_a_verdict_has_the_main_limit_first() -> None:
    first, texts = sentence(
        limit_ns={"rwnd": 5_600 * MS, "zero_window": 80 * MS, "app": 1_600 * MS, "cwnd": 720 * MS},
        snd_wnd_max=65_536, cwnd_max=1657,
    )  # fmt: skip
    assert first == "10.0.0.1:5201 -> [fd00::2]:40000, 8 s, 94.0 MB, 94.0 Mbit/s"
    assert texts[0].startswith(
        "71 % of the time limited by the receiver's window (at most 65.5 kB, 1 % with a window of "
        "0; the congestion window would allow 2.4 MB)"
    )
    assert "net.ipv4.tcp_rmem[2]" in texts[0]
    assert texts[1].startswith("20 % of the time the application had nothing to send")
    assert texts[2].startswith("9 % of the time limited by the congestion window")
    assert len(texts) == 3


def test_what_is_missing_is_said_and_gives_bounds() -> None:
    _, texts = sentence(
        limit_ns={"slow_start": 2_000 * MS, "cwnd": 4_000 * MS, "app": 2_000 * MS},
        least_ns={"slow_start": 1_000 * MS, "cwnd": 3_000 * MS, "app": 2_000 * MS},
        certain_ns=6_000 * MS, lost_records=5,
    )  # fmt: skip
    assert texts[0].startswith("75 % (50 to 75 %) of the time limited by the congestion window")
    assert texts[1].startswith("25 % (25 to 50 %) of the time the application had nothing to send")
    assert "25.0 % of the time is not certain: 5 records of the capture are missing" in texts[-1]


@pytest.mark.parametrize(
    ("held", "doubt_ns", "share", "end"),
    [
        (0.57, 0, "57 %", ""),
        (0.57, MS, "57 %", ""),  # 0.0 %
        (0.57, 8 * MS, "57 %", "0.1 % of the time is not certain: 5 records of the capture are "
         "missing there"),
        (0.5751, 8 * MS, "58 % (57 to 58 %)", "so shares are between the bounds in brackets"),
    ],
)  # fmt: skip
def test_bounds_that_are_one_number_are_not_said(
    held: float, doubt_ns: int, share: str, end: str
) -> None:
    ns = int(8_000 * MS * held)
    _, texts = sentence(
        limit_ns={"cwnd": ns, "app": 8_000 * MS - ns}, certain_ns=8_000 * MS - doubt_ns,
        least_ns={"cwnd": ns - doubt_ns, "app": 8_000 * MS - ns}, lost_records=5,
    )  # fmt: skip
    assert texts[0].startswith(f"{share} of the time limited by the congestion window")
    said = [text for text in texts if "not certain" in text]
    assert len(said) == bool(end) and all(text.endswith(end) for text in said)


def test_a_receiver_is_told_so() -> None:
    """How far the reader was behind at most is no proof: a fast one is so for some microseconds."""
    receives = {"bytes_acked": 0, "bytes_received": 9 << 20, "rcvbuf": 131_072,
                "reader_behind_max": 120_000, "limit_ns": {"idle": 8_000 * MS}}  # fmt: skip
    for ns, words in ((8 * MS, "its reader kept up"), (800 * MS, "10 % of the time its reader")):
        _, texts = sentence(**receives, receiving_ns={"rx_app": ns, "rx_reorder": 0})
        assert words in texts[0] and ("is slow" in texts[0]) == (ns > 8 * MS)
    _, texts = sentence(**receives)
    assert texts == ["this host receives: look at the sender, or capture there too"]


def test_a_receiver_that_closed_its_own_direction_is_not_closing() -> None:
    _, texts = sentence(bytes_acked=100, bytes_received=9 << 20, limit_ns={"closing": 8_000 * MS})
    assert texts == ["this host receives: look at the sender, or capture there too"]


def test_a_receiver_that_measures_round_trips_is_told_shares() -> None:
    waits = {"rx_app": 800 * MS, "rx_autotune": 4_000 * MS, "rx_reorder": 80 * MS}
    _, texts = sentence(bytes_acked=0, bytes_received=9 << 20, rcv_wnd_max=65_536,
                        limit_ns={"idle": 8_000 * MS}, receiving_ns=waits)  # fmt: skip
    assert texts[0].startswith(
        "this host receives: 50 % of the time its window (at most 65.5 kB) was full in each round"
    )
    assert texts[1].startswith("10 % of the time its reader was behind")
    assert len(texts) == 2


def test_bounds_of_what_a_receiver_waits_for() -> None:
    """A quarter of the time is not certain, and half of what its window was found to take."""
    receiver = {"bytes_acked": 0, "bytes_received": 9 << 20, "limit_ns": {"idle": 8_000 * MS},
                "certain_ns": 6_000 * MS, "lost_records": 5}  # fmt: skip
    _, texts = sentence(**receiver, receiving_ns={"rx_autotune": 4_000 * MS, "rx_app": 800 * MS},
                        receiving_least_ns={"rx_autotune": 2_000 * MS, "rx_app": 0})  # fmt: skip
    assert texts[0].startswith("this host receives: 50 % (25 to 50 %) of the time its window")
    assert texts[1].startswith("10 % (0 to 25 %) of the time its reader was behind")
    assert texts[-1].endswith("so shares are between the bounds in brackets")
    none = {"rx_app": 0, "rx_autotune": 0}
    _, texts = sentence(**receiver, receiving_ns=none, receiving_least_ns=none)
    assert "its window had room in the 75 % of the time that are certain" in texts[0]


def test_bloat() -> None:
    _, texts = sentence(limit_ns={"cwnd": 8_000 * MS}, srtt_p95_us=80_500.0)
    assert texts[-1].startswith(
        "round trips take 80.5 ms (95 %), the path alone 500 us: 80 ms in queues, here"
    )
    for limit in ("app", "rwnd", "pacing"):
        _, texts = sentence(limit_ns={limit: 8_000 * MS}, srtt_p95_us=80_500.0)
        assert texts[-1].endswith("ACKs that the receiver delays, or queues")
    # Who reads slowly acknowledges late.
    _, texts = sentence(limit_ns={"rwnd": 8_000 * MS}, snd_wnd_low_us=3e6, srtt_p95_us=80_500.0)
    assert texts[-1].endswith("ACKs that the receiver delays, or queues")


@pytest.mark.parametrize(("values", "words"), map(json.loads, Path(__file__).with_name(
    "why_advice.jsonl").read_text().splitlines()))  # fmt: skip
def test_advice_fits(values: dict[str, Any], words: list[str]) -> None:
    _, texts = sentence(**values)
    assert len(texts) == len(words)
    for text, begins in zip(texts, words, strict=True):
        assert text.startswith(begins)


STUCK = {"limit_ns": {"rto_wait": 7_000 * MS, "recovery": 1_000 * MS}, "rto_unanswered": 4,
         "rto_unanswered_us": 6e6, "silent_us": 6.5e6, "rto_bytes": 1448, "acked_most": 500_000}
POLICED = {"limit_ns": {"cwnd": 8_000 * MS}, "retrans_ratio": 0.02, "recoveries": 20,
           "segments_retransmitted": 100, "queue_p95_us": 300.0, "goodput_p50": 1_250_000.0,
           "goodput_p99": 1_600_000.0, "loss_rate_spread": 0.1}  # fmt: skip


@pytest.mark.parametrize("name, values", [
    ("for 6.5 s nothing arrived: the peer is gone", STUCK),
    ("for 6.5 s nothing arrived: the peer is gone", {**STUCK, "rto_bytes": 90, "acked_most": 90}),
    ("for 6.5 s nothing arrived: the peer may be gone", {**STUCK, "rto_unanswered": 2}),
    ("", {**STUCK, "rto_unanswered": 2, "silent_us": 1e6}),
    ("", {**STUCK, "rto_unanswered": 1}),
    ("", {**STUCK, "silent_us": 1e6}),
    ("while segments arrive; no segment of that size was ever acknowledged: the path drops large",
     {**STUCK, "acked_most": 200, "silent_us": 1e6}),
    ("(an MTU black hole)", {**STUCK, "acked_most": 200}),
    ("each time at the same rate, 10.0 Mbit/s, while round trips stay", POLICED),
    ("a policer that drops what is above its rate, or a path that loses several packets at once",
     {**POLICED, "loss_rate_spread": None}),
    ("the path loses several packets at once, whatever the rate",
     {**POLICED, "loss_rate_spread": 0.8}),
    ("", {**POLICED, "loss_rate_spread": None, "goodput_p50": 500_000.0}),
    ("", {**POLICED, "queue_p95_us": 9000.0}), ("", {**POLICED, "queue_p95_us": None}),
    ("", {**POLICED, "segments_retransmitted": 25}), ("", {**POLICED, "goodput_p50": 500_000.0}),
])  # fmt: skip
def test_causes_have_names_where_the_evidence_is_enough(name: str, values: dict[str, Any]) -> None:
    first = sentence(**values)[1][0]
    assert name in first if name else "% of the time" in first


def test_a_reader_that_waits_for_a_cpu_is_starved() -> None:
    told = str(Wait(1, "reader", 7, 7, "cat", 100 * MS, {CPU_WAIT: 80 * MS, RUNNING: 20 * MS}))
    assert "waited for a CPU 80 %" in told and "it is starved: look at its CPU quota" in told
    told = str(Wait(1, "reader", 7, 7, "cat", 100 * MS, {CPU_WAIT: 30 * MS, RUNNING: 70 * MS}))
    assert "starved" not in told


def test_timeouts_in_a_row_are_those_of_the_end() -> None:
    """Two are answered; then three of the same data are not, nor is anything heard."""
    rto, again = {"location": 14, "ca_state": 4}, {"location": 2, "ca_state": 4}
    seen = [{"snd_una": 1000}, rto, again, rto, {"snd_una": 2000, "location": 1}, rto, again, rto,
            again, rto, again]  # fmt: skip
    values: dict[str, list[int]] = {name: [] for name in ("location", "ca_state", "snd_una")}
    for row in seen:
        for name, mine in values.items():
            mine.append(row.get(name, sum(mine[-1:]) if name == "snd_una" else name == "location"))
    whole = snapshots([100 * n for n in range(len(seen))], snd_max=9000, seg_len=1448, **values)
    (one,) = tally([block_of(whole)])
    assert (one.rto_count, one.rto_unanswered, one.rto_bytes) == (5, 3, 1448)
    assert (one.rto_unanswered_us, one.silent_us) == (500_000, 600_000)


def test_times_have_units() -> None:
    assert [sentence(end_ns=ns)[0].split(", ")[1] for ns in (40_000, 4_700_000, 1_230_000_000)] == [
        "40 us", "4.7 ms", "1.23 s",
    ]  # fmt: skip


@pytest.mark.parametrize("acked, spread", [
    ([100_000] * 6, 0.0), ([20_000, 40_000, 80_000, 160_000, 320_000, 640_000], 3.3),
    ([100_000] * 4, None), ([100_000, 9_000] * 4, None),
])  # fmt: skip
def test_rates_from_loss_to_loss(acked: list[int], spread: float | None) -> None:
    """Recovery begins each second; between two of the losses so much is acknowledged. Less than
    twenty segments tell nothing."""
    una = np.cumsum([1000, *acked])
    rows = len(una)
    whole = snapshots(
        [1000 * (n + 1) for n in range(rows)], location=[5] * rows, callvalue=[3] * rows,
        ca_state=[0] * rows, snd_una=una.tolist(), snd_max=(una + 10_000).tolist(), mss=1000,
    )  # fmt: skip
    (got,) = fold(block_of(whole))[0]["loss_rate_spread"]
    assert np.isnan(got) if spread is None else got == pytest.approx(spread, abs=0.4)


def test_a_buffer_is_full_from_when_it_was_until_a_third_is_free() -> None:
    used = [70, 100, 90, 70, 66, 90, 100, 80]
    piece = snapshots(list(range(len(used))), snd_sb_cc=300, snd_una=1000, sb_hiwat=100_000,
                      sk_wmem_bytes=[1000 * one for one in used])  # fmt: skip
    told = ["nagle"] * 7  # less than a segment, for a while
    for full in (0, 1, 2, 5, 6):
        told[full] = "sndbuf"
    assert [LIMITS[one] for one in cut(block_of(piece))[1].limit[1:]] == told


LEFT = {**FLYING, "state": 1, "location": 4, "callvalue": 4}
"""Of a sender that closes, with 100 segments in flight and as many unsent."""


@pytest.mark.parametrize("values, limit", [
    ({}, "cwnd"), ({"snd_ssthresh": 101}, "slow_start"),
    ({"snd_wnd": 100_500}, "rwnd"),
    ({"packets_out": 80, "snd_max": 81_000, "sk_tsq_flags": 1}, "tsq"),
    ({"callvalue": 8}, "cwnd"),                      # the peer closed
    ({"snd_sb_cc": 100_000}, "closing"),             # all was sent
])  # fmt: skip
def test_what_held_at_the_close_holds_on_until_a_round_trip_before_the_end(
    values: dict[str, Any], limit: str
) -> None:
    """1 ms: it closes. 101 ms: all is acknowledged, at a round trip of 10 ms."""
    first = {**SENDING, **LEFT, **values}
    last = {**SENDING, "snd_ssthresh": first["snd_ssthresh"], "state": first["callvalue"],
            "location": 4, "callvalue": 5, "snd_una": 201_001, "snd_max": 201_001, "snd_sb_cc": 0,
            "srtt_us": 10_000, "sk_tsq_flags": 0, "seg_seq": 0}  # fmt: skip
    many = {name: [first.get(name, 0), first.get(name, 0), value] for name, value in last.items()}
    del many["seg_seq"]
    rows = cut(block_of(snapshots([0, 1, 101], **many)))[0]
    told = [(LIMITS[one["limit"]], (one["end_ns"] - one["start_ns"]) // MS) for one in rows]
    if limit == "closing":
        assert told == [("app", 1), ("closing", 100)]
        assert rows["certain_ns"].sum() == 101 * MS
        return
    assert told == [(limit, 91), ("idle" if first["callvalue"] == 8 else "closing", 10)]
    assert rows["bytes_acked"].sum() == 200_001
    assert rows["certain_ns"].sum() == 1 * MS and not rows["lost_records"].any()


@pytest.mark.parametrize("rate, limit", [(1_333_000, "pacing"), (9_000_000, "cwnd")])
def test_pacing_that_gave_more_than_was_sent_did_not_hold_on(rate: int, limit: str) -> None:
    """120 kB leave in the 90 ms after the close; the socket was paced when it closed."""
    first = {**SENDING, **LEFT, "packets_out": 80, "snd_max": 81_000, "sk_pacing_status": 1,
             "pacing_rate": rate}  # fmt: skip
    last = {**first, "callvalue": 5, "state": 4, "snd_una": 201_001, "snd_max": 201_001,
            "snd_sb_cc": 0, "srtt_us": 10_000, "packets_out": 0}  # fmt: skip
    many = {name: [first[name], first[name], value] for name, value in last.items()
            if name in first and name != "seg_seq"}  # fmt: skip
    times = [0, 1, 101]
    many |= {"first_tx_us": [0, 0, 91_000], "next_tx_us": [1000, 2000, 91_000],
             "busy_us": [0, 0, 0]}  # fmt: skip
    rows = cut(block_of(snapshots(times, **many)))[0]
    told = [(LIMITS[one["limit"]], (one["end_ns"] - one["start_ns"]) // MS) for one in rows]
    assert told[-1] == ("closing", 10) and told[-2][0] == limit and told[-2][1] >= 90


def test_slow_start_that_was_over_at_the_end_is_a_part_of_cwnd() -> None:
    values = {**SENDING, **LEFT}
    many = {name: [value] * 3 for name, value in values.items()}
    many |= {"state": [1, 1, 4], "callvalue": [4, 4, 5], "snd_una": [1000, 1000, 201_001],
             "snd_max": [101_000, 101_000, 201_001], "snd_sb_cc": [200_000, 200_000, 0],
             "snd_ssthresh": [101, 101, 60]}  # fmt: skip
    rows = cut(block_of(snapshots([0, 1, 101], **many)))[0]
    assert [LIMITS[one] for one in rows["limit"]] == ["slow_start", "cwnd", "closing"]


def test_the_verdict_says_why_it_is_not_certain() -> None:
    _, texts = sentence(certain_ns=400 * MS, limit_ns={"cwnd": 8_000 * MS})
    assert "segments were not recorded after one end closed" in texts[-1]


FREE = {"snd_una": 1000, "snd_sb_cc": 0, "snd_max": 1000}
"""All that was written is acknowledged."""
PACED = {"sk_pacing_status": 1, "pacing_rate": 1_000_000}


def clocked(times_ms: list[int], *rows: dict[str, Any]) -> list[tuple[str, float]]:
    """The limits and their lengths [ms]. Clocks of a row: ms before it; below 0: after it."""
    names = dict.fromkeys(name for row in rows for name in row)
    many = {name: [row.get(name, SENDING.get(name, 0)) for row in rows] for name in names}
    for name in ("first_tx_us", "next_tx_us"):
        ages = [row.get(name, 0) for row in rows]
        many[name] = [(1000 * (t - age)) % 2**32
                      for t, age in zip(times_ms, ages, strict=True)]  # fmt: skip
    many.setdefault("busy_us", [0] * len(rows))
    many.setdefault("sk_pacing_status", [0] * len(rows))
    found = cut(block_of(snapshots(times_ms, **many)))[0]
    return [(LIMITS[one["limit"]], (one["end_ns"] - one["start_ns"]) / MS) for one in found]


@pytest.mark.parametrize("busy_ms, held", [(60, True), (24, False)])
def test_a_piece_that_a_cork_keeps_is_not_the_application(busy_ms: int, held: bool) -> None:
    """It was written 60 ms before its ACK, or 24 by jiffies, and sent 20 ms before that."""
    row = {**FREE, "snd_sb_cc": 900, "snd_max": 1900, "packets_out": 1, "first_tx_us": 20,
           "next_tx_us": 20, "busy_us": 1000 * busy_ms}  # fmt: skip
    wanted = [("idle", 40.0), ("nagle", 40.0)] if held else [("idle", 80.0)]
    assert clocked([0, 100], FREE, row) == [*wanted, ("app", 20.0)]


@pytest.mark.parametrize("paid_ms, held", [(0, True), (0.1, True), (-30, False)])
def test_pacing_does_not_hold_what_a_cork_keeps(paid_ms: float, held: bool) -> None:
    """As haproxy's header with MSG_MORE under bbr: 114 bytes wait for 40 ms, then leave with more.
    Where what was sent before is paid for later only, it may be pacing."""
    first = {**FREE, **PACED, "location": 9, "snd_sb_cc": 114, "next_tx_us": paid_ms}
    row = {**FREE, **PACED, "snd_sb_cc": 2114, "snd_max": 3114, "packets_out": 3,
           "first_tx_us": 1, "next_tx_us": 1}  # fmt: skip
    wanted = [("nagle", 39.0), ("app", 1.0)] if held else [("app", 40.0)]
    assert clocked([0, 40], first, row) == wanted
    row["busy_us"] = 36_000  # and where no record shows what was written
    wanted = [("idle", 4.0), ("nagle", 35.0)] if held else [("idle", 39.0)]
    assert clocked([0, 40], {**first, "snd_sb_cc": 0}, row) == [*wanted, ("app", 1.0)]


def test_a_pause_ends_when_the_first_segment_leaves() -> None:
    """The window is full at the end of the step; it was empty for most of it."""
    row = {**FREE, "snd_max": 101_000, "snd_sb_cc": 200_000, "packets_out": 100, "first_tx_us": 30,
           "busy_us": 32_000}  # fmt: skip
    assert clocked([0, 100], FREE, row) == [("idle", 70.0), ("cwnd", 30.0)]


def test_a_small_piece_that_was_left_waits_until_it_leaves() -> None:
    """900 bytes were there when all before them was acknowledged."""
    first = {**FREE, "snd_sb_cc": 1900, "snd_max": 2000, "packets_out": 1}
    last = {**FREE, "snd_una": 2000, "snd_sb_cc": 900, "snd_max": 2900, "packets_out": 1,
            "first_tx_us": 20, "next_tx_us": 20}  # fmt: skip
    assert clocked([0, 100], first, last) == [("nagle", 80.0), ("app", 20.0)]


@pytest.mark.parametrize("ahead_ms, limit", [(4, "pacing"), (-1, "cwnd")])
def test_pacing_goes_before_a_window_that_has_room(ahead_ms: int, limit: str) -> None:
    """16 of 20 segments are in flight: TCP would wait until a third of the window is free."""
    row = {**PACED, "snd_una": 1000, "snd_max": 17_000, "snd_sb_cc": 90_000, "packets_out": 16,
           "snd_cwnd_segs": 20, "snd_ssthresh": 10, "next_tx_us": -ahead_ms}  # fmt: skip
    after = {**row, "snd_una": 5000, "snd_max": 21_000}
    assert clocked([0, 4], row, after) == [(limit, 4.0)]


def test_what_was_paced_before_its_first_ack() -> None:
    """20 kB at 1 MB/s take 20 ms; the first ACK came 50 ms after the first segment left."""
    row = {**FREE, **PACED, "snd_sb_cc": 20_000, "snd_max": 21_000, "packets_out": 20,
           "first_tx_us": 50, "next_tx_us": 30}  # fmt: skip
    assert clocked([0, 100], {**FREE, **PACED}, row) == [
        ("idle", 50.0), ("pacing", 18.0), ("app", 32.0)
    ]  # fmt: skip


def test_a_tail_that_a_timer_finds_lost_was_lost_when_it_was_sent() -> None:
    """Three segments left at 10 ms, 12 ms and 14 ms. The ACK of the second comes at 40 ms, the
    timer fires at 120 ms."""
    sent = {**FREE, "snd_sb_cc": 3000, "snd_max": 4000, "packets_out": 3, "first_tx_us": 30}
    half = {**sent, "snd_una": 3000, "snd_sb_cc": 1000, "packets_out": 1, "first_tx_us": 30}
    fires = {**half, "location": 15, "first_tx_us": 108}
    assert clocked([0, 40, 42, 120], FREE, sent, half, fires) == [
        ("idle", 10.0), ("app", 2.0), ("rto_wait", 108.0)
    ]  # fmt: skip


CLOSES = {"state": 1, "location": 4, "callvalue": 4, "snd_max": 101_000, "snd_sb_cc": 200_000,
          "packets_out": 100}  # fmt: skip
DONE = {"state": 4, "location": 4, "callvalue": 5, "snd_una": 201_001, "snd_max": 201_001,
        "snd_sb_cc": 0}  # fmt: skip


@pytest.mark.parametrize("values, wanted", [
    ({}, "cwnd"),
    ({"snd_wnd": 90_000}, "rwnd"),             # the window of 100 segments was no limit then
    ({**PACED, "pacing_rate": 2_500_000}, "pacing"),  # 100 kB in 40 ms
    ({**PACED, "pacing_rate": 9_000_000}, "cwnd"),
])  # fmt: skip
def test_closing_begins_when_the_last_segment_leaves(values: dict[str, Any], wanted: str) -> None:
    rows = [dict(CLOSES), dict(CLOSES), {**DONE, "next_tx_us": 60, **values}]
    first = [("cwnd", 41.0)] if wanted == "cwnd" else [("cwnd", 1.0), (wanted, 40.0)]
    assert clocked([0, 1, 101], *rows) == [*first, ("closing", 60.0)]


PROBE = {**CLOSES, "state": 4, "location": 15, "callvalue": 0, "first_tx_us": 20}


def test_a_probe_that_finds_nothing_lost_changes_nothing_after_a_close() -> None:
    """It fires at 51 ms. What was sent later is acknowledged, and TCP reduced no window."""
    fires = {**PROBE, "snd_una": 51_000, "snd_max": 151_000, "snd_sb_cc": 150_001}
    rows = [CLOSES, CLOSES, fires, {**fires, "location": 2}, {**DONE, "next_tx_us": 10}]
    assert clocked([0, 1, 51, 51, 101], *rows) == [("cwnd", 91.0), ("closing", 10.0)]


def test_a_tail_that_is_lost_after_a_close() -> None:
    """The timer fires at 51 ms; what is in flight then was sent 20 ms before. The probe's ACK ends
    the connection."""
    fires = {**PROBE, "snd_una": 200_000, "snd_max": 201_001, "snd_sb_cc": 1001, "packets_out": 1}
    rows = [CLOSES, CLOSES, fires, {**fires, "location": 2}, {**DONE, "next_tx_us": 10}]
    assert clocked([0, 1, 51, 51, 101], *rows) == [
        ("cwnd", 31.0), ("rto_wait", 20.0), ("recovery", 50.0)
    ]  # fmt: skip


@pytest.mark.parametrize("reduces, limit", [(True, "rto_wait"), (False, "cwnd")])
def test_a_probe_is_a_loss_where_tcp_reduces_its_window(reduces: bool, limit: str) -> None:
    row = {"snd_una": 1000, "snd_max": 101_000, "snd_sb_cc": 200_000, "packets_out": 100}
    after = {**row, "snd_una": 101_001, "snd_max": 201_000}
    rows = [row, {**row, "location": 15, "first_tx_us": 30}, {**row, "location": 2},
            {**after, "location": 5, "callvalue": 2 if reduces else 1}, after]  # fmt: skip
    found = clocked([0, 50, 50, 70, 80], *rows)
    assert found[0] == (limit, 50.0 if reduces else 80.0)


def test_what_acks_tell_lost_was_lost_when_it_was_sent() -> None:
    """Six segments left at 10 ms, the first one is lost. The other ACKs come from 40 ms on."""
    sent = {**FREE, "snd_sb_cc": 6000, "snd_max": 7000, "packets_out": 6, "first_tx_us": 30}
    tells = {**sent, "location": 5, "callvalue": 3, "sacked_out": 3, "first_tx_us": 32}
    assert clocked([0, 40, 42], FREE, sent, tells) == [("idle", 10.0), ("recovery", 32.0)]


HEADER = {**FREE, "packets_out": 3, "snd_max": 4096, "snd_sb_cc": 3396, "first_tx_us": 30,
          "next_tx_us": 30}  # fmt: skip
"""The first ACK after a header of 200 bytes and a body of 3196: its last 300 bytes are unsent."""


@pytest.mark.parametrize("more, limit", [(0, "nagle"), (1, "app")])
def test_a_rest_that_waits_behind_three_segments_is_nagles(more: int, limit: str) -> None:
    """Its writer waits for the answer, so the rest was there. A writer that goes on may have
    written it just then."""
    later = {**FREE, "snd_una": 2648, "snd_max": 4396, "snd_sb_cc": 1748 + more, "packets_out": 2,
             "first_tx_us": 60, "next_tx_us": 29}  # fmt: skip
    done = {**FREE, "snd_una": 4396, "snd_max": 4396, "snd_sb_cc": more}
    steps = clocked([0, 31, 61, 61], FREE, HEADER, later, done)
    assert steps[:2] == [("idle", 1.0), (limit, 30.0)]


def test_a_rest_that_waits_for_less_than_a_millisecond_is_the_writers() -> None:
    """A fast network: the ACK of each write is there before the next one."""
    row = {**HEADER, "first_tx_us": 0.5, "next_tx_us": 0.5}
    done = {**FREE, "snd_una": 4396, "snd_max": 4396, "snd_sb_cc": 0}
    assert ("nagle", 0.5) not in clocked([0, 31, 32], FREE, row, done)


def test_a_rest_is_held_back_since_the_last_segment_left() -> None:
    """The body was written 20 ms after the header: Nagle's algorithm holds back from then on."""
    row = {**HEADER, "next_tx_us": 10}
    done = {**FREE, "snd_una": 4396, "snd_max": 4396, "snd_sb_cc": 0}
    assert clocked([0, 31, 61], FREE, row, done)[:3] == [
        ("idle", 1.0), ("app", 20.0), ("nagle", 10.0)
    ]  # fmt: skip


@pytest.mark.parametrize("last, limit", [(900, "nagle"), (1000, "app")])
def test_a_cork_holds_back_until_the_last_segment_leaves(last: int, limit: str) -> None:
    """Written 60 ms before the ACK, a segment leaves 20 ms before, and what is less 5 ms before."""
    row = {**FREE, "snd_sb_cc": 1000 + last, "snd_max": 2000 + last, "packets_out": 2,
           "first_tx_us": 20, "next_tx_us": 5, "busy_us": 60_000}  # fmt: skip
    wanted = [("nagle", 55.0), ("app", 5.0)] if limit == "nagle" else [("nagle", 40.0),
                                                                       ("app", 20.0)]  # fmt: skip
    assert clocked([0, 100], FREE, row) == [("idle", 40.0), *wanted]


WINDOW = 60_000
ARRIVES = {"snd_sb_cc": 0, "rcv_wnd": WINDOW, "rcv_rtt_us": 9_500, "seg_len": 1_000}


def arrivals(times_ms: list[float], lost: list[int] | None = None, **values: Any) -> Snapshots:
    times = (np.array(times_ms) * MS).astype(np.int64)
    values = {**ARRIVES, **values}
    values.setdefault("seg_seq", values["rcv_nxt"])
    return Snapshots(columns(**values), times, np.array(lost or [0] * len(times), np.int64))


def receiving(whole: Snapshots) -> list[str]:
    steps = cut(block_of(whole))[1]
    assert steps.receiving is not None
    return [(*RECEIVING, "")[one] for one in steps.receiving]


def test_a_reader_that_is_behind() -> None:
    """Half of the room is full of what it did not read; or was, and nothing could come."""
    told = receiving(arrivals(
        [0, 1, 50, 51, 100], rcv_nxt=[0, 1000, 2000, 2010, 2020],
        rcv_sb_cc=[0, 30_000, 50_000, 1_000, 0], rcv_wnd=[WINDOW, 30_000, WINDOW, 1_500, WINDOW],
    ))  # fmt: skip
    assert told == ["", "rx_app", "rx_app", "", "rx_app"]


@pytest.mark.parametrize("rate, told", [(6_000, "rx_autotune"), (3_000, "")])
def test_a_window_that_is_full_in_each_round_trip(rate: int, told: str) -> None:
    """10 ms: 60 kB of a window of 60 kB, or 30 kB."""
    numbers = [at * rate for at in range(60)]
    assert receiving(arrivals(list(range(60)), rcv_nxt=numbers))[-10:] == [told] * 10


@pytest.mark.parametrize("scale, told", [(0, "rx_autotune"), (7, "")])
def test_a_window_that_cannot_be_told(scale: int, told: str) -> None:
    """The kernel counts with 6 MB, and can tell 64 kB without a scale: those arrive each 10 ms."""
    numbers = [at * 6_000 for at in range(60)]
    whole = arrivals(list(range(60)), rcv_nxt=numbers, rcv_wnd=6 << 20, rcv_wscale=scale)
    assert receiving(whole)[-10:] == [told] * 10
    said = verdict(connection_of(table_of(whole), 0))[0]
    assert ("no larger one can be told" in said) == bool(told)


def test_a_segment_that_is_missing() -> None:
    told = receiving(arrivals(
        [0, 1, 2, 30, 31, 40], rcv_nxt=[0, 1000, 1000, 1000, 4000, 5000],
        seg_seq=[0, 2000, 3000, 1000, 4000, 5000],
    ))  # fmt: skip
    assert told == ["", "", "rx_reorder", "rx_reorder", "", ""]


def test_a_hole_that_one_segment_does_not_fill() -> None:
    """1000 and 3000 are missing; 1000 comes at 20 ms, 3000 at 30 ms."""
    told = receiving(arrivals(
        [0, 1, 2, 20, 25, 30, 31], rcv_nxt=[0, 1000, 1000, 1000, 3000, 3000, 5000],
        seg_seq=[0, 2000, 4000, 1000, 2000, 3000, 5000],
    ))  # fmt: skip
    assert told == ["", "", *["rx_reorder"] * 4, ""]


def test_a_capture_without_the_column_has_null() -> None:
    """The window needs the receiver's measurement of the round trip, the reader does not."""
    whole = arrivals([0, 1], rcv_nxt=[0, 1000], rcv_sb_cc=[0, 70_000])
    del whole.columns["rcv_rtt_us"]
    table = table_of(whole)
    assert np.isnan(table["us_rx_autotune"]).all() and table["us_rx_app"].tolist() == [1000]
    del whole.columns["seg_seq"]
    table = table_of(whole)
    assert np.isnan(table["us_rx_app"]).all() and np.isnan(table["us_rx_reorder_max"]).all()
