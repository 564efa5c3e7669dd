# SPDX-License-Identifier: Apache-2.0
"""What why and other readers say of missing records, of ends, of pairs and of equal connections."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tcpkmon
from tcpkmon.formats.analysis.causes import causes
from tcpkmon.formats.analysis.check.capture import Capture
from tcpkmon.formats.analysis.why import (
    Connection,
    HostSettings,
    Peers,
    Source,
    connection_of,
    connections,
    head,
    tally,
    together,
    verdict,
)
from tcpkmon.formats.commands import connections as command
from tcpkmon.formats.commands import export, why
from tcpkmon.formats.klogger import merge
from tcpkmon.formats.registry import format_of
from tests.unit import test_why
from tests.unit.log_files import ROOT, LogBuilder
from tests.unit.psc_files import CaptureBuilder, write_capture, write_runs
from tests.unit.test_why import SENDING, limit_of, sentence
from tests.unit.test_why_tables import row_of, snapshots

TCP = (ROOT / "bpf" / "schemata" / "tcp.conf").read_text()
ADDRESS = b"\0" * 10 + b"\xff\xff\x0a\0\0\x01"


def log_of(cpu: int) -> LogBuilder:
    return LogBuilder(cpu, schema=TCP)


def snapshot(log: LogBuilder, at_ns: int, **values: Any) -> None:
    """A snapshot of the connection 1 at this time."""
    log.log("SNAPSHOT", at_ns, **{**SENDING, "laddr": ADDRESS, "raddr": ADDRESS, **values})


def folder_of(path: Path, *logs: LogBuilder) -> Path:
    path.mkdir()
    for cpu, log in enumerate(logs):
        log.end_dump().finish().write(path / f"kernlog.dump.cpu{cpu}")
    return path


@pytest.fixture
def out_of_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two CPUs; every second record of CPU 0 has a time before that of the one before it."""
    monkeypatch.setattr(merge, "HOLD", 400)
    logs = log_of(0), log_of(1)
    for at in range(2 * merge.HOLD):  # beyond what is merged at once
        snapshot(logs[0], 1_000_000 + 1000 * at - 2500 * (at % 2))
        snapshot(logs[1], 1_000_000 + 1000 * at + 300)
    return folder_of(tmp_path / "log", *logs)


def test_records_out_of_order_are_not_missing(out_of_order: Path) -> None:
    assert not any(one.exit_code for one in format_of(out_of_order).verify(out_of_order))
    table = connections(out_of_order)
    assert table["records"].tolist() == [4 * merge.HOLD]
    assert (table["lost_records"].tolist(), table["proven"].tolist()) == ([0], [True])
    assert not table["uncertain_us"].any()


@pytest.mark.parametrize("cpu", [0, 1])
def test_what_is_missing_is_counted_once_where_it_is(tmp_path: Path, cpu: int) -> None:
    logs = log_of(0), log_of(1)
    for at in range(40):
        if at == 20:
            logs[cpu].lose("ring_full", 7, "SNAPSHOT", location=1)
        for log in logs:
            snapshot(log, 1_000_000 + 1000 * at - 2500 * (at % 2))
    folder = folder_of(tmp_path / "log", *logs)
    with Source(folder) as source:
        steps = np.concatenate([np.diff(piece.lost, prepend=0) for piece in source.read()])
        assert (source.reader.lost, source.placed) == (7, 7)
    assert steps[steps > 0].tolist() == [7]
    table = connections(folder)
    assert (table["lost_records"].tolist(), table["proven"].tolist()) == ([7], [False])


@pytest.mark.parametrize("lost", [0, 1])
def test_close_wait_at_the_end_is_a_cause_where_nothing_is_missing(
    tmp_path: Path, lost: int
) -> None:
    """The record of a close may be the missing one."""
    log = log_of(0)
    snapshot(log, 1_000_000, location=4, state=1, callvalue=8)
    if lost:
        log.lose("ring_full", lost, "SNAPSHOT", location=1)
    snapshot(log, 6_000_000_000, conn_id=2)
    table = causes(folder_of(tmp_path / "log", log))
    assert table["cause"].tolist() == ["close_wait"] * (not lost)


def test_what_programs_missed_is_lost_for_every_reader(tmp_path: Path) -> None:
    path = write_runs(tmp_path / "run.pm", [(1e6, 500)], missed=3)
    (report,) = format_of(path).verify(path)
    with tcpkmon.open(path) as capture:
        assert capture.lost == report.lost_total == 3
    assert connections(path)["proven"].tolist() == [False]
    assert Capture(path).lost == 3
    for one, more in ((command, []), (why, []), (export, ["-o", str(tmp_path / "run.csv")])):
        found = CliRunner().invoke(one.command, [str(path), *more], standalone_mode=False)
        assert found.return_value == 3, (one, found.output)


def test_what_found_no_room_in_a_table_is_lost_for_every_reader(tmp_path: Path) -> None:
    build = CaptureBuilder()
    build.snapshots(0, 1, 3)
    build.lose("table_full", 0, 1, 2)
    build.lose("no_slot", 0, 1, 3)
    build.snapshots(0, 1, 3)
    build.end()
    path = build.write(tmp_path / "run.pm")
    (report,) = format_of(path).verify(path)
    with tcpkmon.open(path) as capture:
        assert capture.lost == report.lost_total == 5


def test_of_a_later_segment_only_its_own_is_missing(tmp_path: Path) -> None:
    """Programs count from the capture's start."""
    build = CaptureBuilder(settings={"segment": {"capture": "a", "number": 2, "previous": {}}})
    build.missed[1] = (5, 1)
    build.checkpoint()
    build.snapshots(0, 1, 3)
    build.missed[1] = (7, 1)
    build.end()
    with tcpkmon.open(build.write(tmp_path / "second.pm")) as capture:
        assert capture.unplaced == 2


def test_what_is_missing_nobody_knows_where_leaves_nothing_proven(tmp_path: Path) -> None:
    """The kernel counted them, and gave them no numbers."""
    log = log_of(0)
    for at in range(4):
        snapshot(log, 1_000_000 + 1000 * at)
    log.lose("table_full", 3, "SNAPSHOT", location=1)
    folder = folder_of(tmp_path / "log", log)
    assert connections(folder)["proven"].tolist() == [False]
    done = CliRunner().invoke(command.command, [str(folder)], standalone_mode=False)
    assert done.return_value == 3


def psc_of(path: Path, lose: set[int]) -> Path:
    return write_capture(path, records=300, flows=3, lose=lose)


def test_what_is_lost_behind_an_open_connections_last_record_may_be_its_own(tmp_path: Path) -> None:
    """A full disk: nothing of what came last is in the file, and no connection had ended."""
    table = connections(psc_of(tmp_path / "a.pm", set(range(290, 300))))
    assert table["lost_records"].tolist() == table["lost_after"].tolist() == [10, 10, 10]
    assert not table["proven"].any()
    assert not table["uncertain_us"].any()  # of its time until then nothing is missing
    done = CliRunner().invoke(why.command, [str(tmp_path / "a.pm"), "-v"], standalone_mode=False)
    assert done.return_value == 3
    assert "10 records were lost" in done.stderr
    assert done.stdout.count("10 records of the capture are missing behind its last one") == 3


def test_what_is_lost_before_a_connections_first_record_may_be_its_own(tmp_path: Path) -> None:
    """None of these began in the capture."""
    table = connections(psc_of(tmp_path / "a.pm", set(range(10))))
    assert table["lost_records"].tolist() == table["lost_before"].tolist() == [10, 10, 10]
    assert not table["proven"].any()


@pytest.mark.parametrize("ends", [True, False])
def test_a_connection_that_ended_lost_nothing_afterwards(tmp_path: Path, ends: bool) -> None:
    log = log_of(0)
    for at in range(4):
        snapshot(log, 1_000_000 + 1000 * at, location=4 if not at else 1, callvalue=2)
    snapshot(log, 1_010_000, location=11 if ends else 1)
    log.lose("ring_full", 3, "SNAPSHOT", location=1)
    snapshot(log, 1_020_000, conn_id=99)
    table = connections(folder_of(tmp_path / "log", log))
    own, other = range(2)
    assert table["lost_records"].tolist() == [0 if ends else 3, 3]
    assert table["lost_after"][own] == (0 if ends else 3) and table["lost_before"][other] == 3
    assert table["proven"].tolist() == [ends, False]


def test_what_nobody_knows_the_place_of_may_be_of_each(tmp_path: Path) -> None:
    log = log_of(0)
    snapshot(log, 1_000_000)
    log.lose("table_full", 3, "SNAPSHOT", location=1)
    assert connections(folder_of(tmp_path / "log", log))["lost_records"].tolist() == [3]


def test_a_later_segment_lacks_nothing_before_its_first_number(tmp_path: Path) -> None:
    """Its numbers go on from those of the segments before it."""
    path = psc_of(tmp_path / "a.pm", set())
    with tcpkmon.open(path) as capture:
        size = capture.header.entry_size
        skip = len(path.read_bytes()) - len(capture) * size
    data = path.read_bytes()
    path.write_bytes(data[:skip] + data[skip + 100 * size :])
    table = connections(path)
    assert not table["lost_records"].any() and table["proven"].all()


MS = 1_000_000


def refused_log(path: Path) -> Path:
    """As the kernel records a connect() that a RST answers: the SYN's byte waits until the end."""
    log = log_of(0)
    steps = ((4, 7, 2), (8, 2, 0), (4, 2, 7), (13, 7, 111), (5, 7, 0), (11, 7, 0))
    for at, (location, state, callvalue) in enumerate(steps):
        snapshot(log, 1_000_000 + 1000 * at, location=location, state=state, callvalue=callvalue,
                 snd_sb_cc=3, snd_una=10, snd_max=11, snd_wnd=0)  # fmt: skip
    return folder_of(path, log)


def test_a_refused_connection_is_refused_and_limited_by_no_window(tmp_path: Path) -> None:
    folder = refused_log(tmp_path / "log")
    table = connections(folder)
    assert (table["end_reason"][0], table["errno"][0]) == ("rst_received", 111)
    assert not table["us_zero_window"].any() and not table["us_rwnd"].any()
    done = CliRunner().invoke(why.command, [str(folder)], standalone_mode=False)
    lines = done.stdout.splitlines()
    assert lines[1].strip().startswith("refused by the peer (ECONNREFUSED")
    assert "window" not in done.stdout and "all was sent" not in done.stdout


def test_nothing_limits_what_is_closed() -> None:
    for values in ({}, {"snd_wnd": 0}, {"snd_max": 2000, "packets_out": 1}):
        assert limit_of(state=7, **values) == "closing"
    assert limit_of(state=4, snd_wnd=0) == "zero_window"  # it closes, and still sends


@pytest.mark.parametrize("reason, errno, established, words", [
    ("rst_received", 111, False, "refused by the peer (ECONNREFUSED"),
    ("error", 111, False, "refused by the peer (ECONNREFUSED"),
    ("timeout", 110, True, "ended by a timeout after 1.2 kB sent"),
    ("timeout", 110, False, "ended by a timeout (ETIMEDOUT"),
    ("error", 113, False, "ended because the peer cannot be reached (EHOSTUNREACH"),
    ("error", 32, True, "ended by an error after 1.2 kB sent and 34 B received (EPIPE"),
])  # fmt: skip
def test_an_end_that_is_not_orderly_comes_first(
    reason: str, errno: int, established: bool, words: str
) -> None:
    _, texts = sentence(limit_ns={"rwnd": 8_000 * MS}, end_reason=reason, errno=errno,
                        established=established, bytes_sent=1200, bytes_received=34)  # fmt: skip
    assert texts[0].startswith(words)
    assert "receiver's window" in texts[1]


@pytest.mark.parametrize("reason, acked, words", [
    ("rst_received", 1200, "reset by the peer after 1.2 kB sent and 34 B received (ECONNRESET: "
                           "Connection reset by peer)"),
    ("rst_received", 1000, "reset by the peer after 1.2 kB sent and 34 B received (ECONNRESET: "
                           "Connection reset by peer), 200 B of what was sent was not "
                           "acknowledged: look at the program there, or at a box on the path that "
                           "sends RSTs"),
    ("rst_sent", 1200, "reset by this host after 1.2 kB sent and 34 B received: its program "
                       "closed it with data unread or with SO_LINGER 0, or data came after its "
                       "close"),
])  # fmt: skip
def test_a_reset_comes_after_what_limited_it(reason: str, acked: int, words: str) -> None:
    """Only one that lost data is a warning."""
    _, texts = sentence(limit_ns={"rwnd": 8_000 * MS}, end_reason=reason, errno=104,
                        bytes_sent=1200, bytes_acked=acked, bytes_received=34)  # fmt: skip
    assert "receiver's window" in texts[0]
    assert texts[-1] == words


def test_time_after_a_reset_is_not_said_to_wait_for_an_end() -> None:
    for reason, words in (("rst_received", "it was closing, or over already (reset by the peer)"),
                          ("fin_local", "all was sent and the connection closed")):  # fmt: skip
        _, texts = sentence(limit_ns={"closing": 8_000 * MS}, end_reason=reason, errno=0)
        assert f"100 % of the time {words}" in texts[0]


def test_a_connection_that_was_refused_is_not_so_long_opening() -> None:
    values = {"limit_ns": {"opening": 45, "closing": 55}, "end_reason": "rst_received",
              "errno": 111, "established": False}  # fmt: skip
    _, texts = sentence(**values, syn_retrans=0)
    assert len(texts) == 1 and texts[0].startswith("refused by the peer")
    _, texts = sentence(**values, syn_retrans=2)
    assert len(texts) == 1 and "answered the SYN (3 SYN sent)" in texts[0]


@pytest.mark.parametrize("reason", ["open", "fin_local", "fin_remote"])
def test_orderly_ends_are_not_told(reason: str) -> None:
    _, texts = sentence(limit_ns={"rwnd": 8_000 * MS}, end_reason=reason)
    assert "receiver's window" in texts[0]


def test_the_last_segment_of_an_open_connection_counts() -> None:
    """The record of each is made before TCP takes it."""
    def received(**last: Any) -> Any:
        values = {"rcv_nxt": 1000, "seg_seq": 1000, "seg_len": 500, "state": 1, "location": 1}
        after = {name: [0 if name == "seg_len" else value, last.get(name, value)]
                 for name, value in values.items()}  # fmt: skip
        whole = snapshots([0, 10], **{name: after[name] for name in after if name != "seg_seq"})
        whole.columns["seg_seq"] = np.array(after["seg_seq"], np.uint32)
        return row_of(whole)["bytes_received"]

    assert received() == 500
    assert received(seg_seq=700) == 200  # a part of it was there before
    assert received(seg_seq=400) == 0  # all of it was
    assert received(seg_seq=1100) == 0  # one before it is missing
    assert received(location=14) == 0  # no segment
    assert received(state=7) == 0  # nobody takes it


def receiver(**values: Any) -> Connection:
    one = Connection(1, laddr="10.0.0.1", lport=40000, raddr="10.0.0.2", rport=80,
                     end_ns=8_000 * MS, bytes_received=9 << 20, certain_ns=8_000 * MS,
                     limit_ns={"idle": 8_000 * MS})  # fmt: skip
    for name, value in values.items():
        setattr(one, name, value)
    return one


def test_the_first_line_names_the_process() -> None:
    """Of `why` and of the report."""
    assert head(receiver(comm="haproxy", pid=7)).endswith(", 9.4 Mbit/s, haproxy (7)")
    assert head(receiver()).endswith("bit/s")


def test_a_sender_in_the_same_capture_is_named() -> None:
    sender = Connection(2, laddr="10.0.0.2", lport=80, raddr="10.0.0.1", rport=40000,
                        limit_ns={"idle": MS})  # fmt: skip
    for told in ({"rx_app": 0}, {"rx_app": 0, "rx_autotune": 0}):
        one = receiver(receiving_ns=told)
        assert "capture there too" in verdict(one)[0]
        text = verdict(one, sender)[0]
        assert text.endswith("Its sender is in this capture: see 10.0.0.2:80 -> 10.0.0.1:40000")
        assert "capture there too" not in text


def test_a_receiver_for_whom_nothing_came() -> None:
    sender = Connection(2, laddr="10.0.0.2", lport=80, raddr="10.0.0.1", rport=40000,
                        limit_ns={"idle": MS})  # fmt: skip
    one = receiver(quiet_us=7.2e6, receiving_ns={"rx_app": 0})
    text = verdict(one)[0]
    assert "for 90 % of the time, in all 7.2 s, no data came: its sender had nothing" in text
    assert "no data came, as nothing was sent. Its sender is in" in verdict(one, sender)[0]
    assert "no data came" not in verdict(receiver(quiet_us=1e6))[0]


def test_quiet_times() -> None:
    """Data at 100, 600 and 650 ms, ACKs in between, and the end at 1000 ms."""
    whole = snapshots([0, 100, 300, 600, 650, 1000], seg_len=[0, 9, 0, 9, 9, 0],
                      location=[4, 1, 1, 1, 1, 11], srtt_us=[100] * 6)  # fmt: skip
    assert row_of(whole)["quiet_us"] == 500_000 + 350_000
    whole.columns["srtt_us"][:] = 150_000  # four round trips are longer than 500 ms
    assert row_of(whole)["quiet_us"] == 350_000


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_peers_are_open_at_the_same_time() -> None:
    table = {
        "conn_id": np.arange(1, 5),
        "laddr": np.array(["a", "b", "b", "a"], object), "lport": np.array([1, 2, 2, 9]),
        "raddr": np.array(["b", "a", "a", "b"], object), "rport": np.array([2, 1, 1, 2]),
        "start_ns": np.array([100, 0, 90, 100]), "end_ns": np.array([200, 50, 210, 200]),
    }  # fmt: skip
    assert [Peers(table).of(one) for one in range(1, 5)] == [2, None, 0, None]
    table["start_ns"] = np.array([-(2**62) - 9, 0, -(2**62) - 9, 100])  # of a damaged file
    table["end_ns"] = np.array([2**62, 50, 2**62 + 9, 200])
    assert Peers(table).of(1) == 2


def test_round_trips_of_who_waits_are_told_as_a_mean_and_loopback_has_no_queue() -> None:
    waits = {"limit_ns": {"app": 8_000 * MS}, "srtt_p95_us": 5090.0}
    _, texts = sentence(**waits)
    assert texts[-1].startswith("the mean of round trips (srtt; one ACK that is delayed by 40 ms")
    assert texts[-1].endswith("ACKs that the receiver delays, or queues")
    for ends in ({"raddr": "127.0.0.2"}, {"raddr": "::1"}, {"raddr": "10.0.0.1"}):
        for limit in ("app", "cwnd"):
            _, texts = sentence(**{**waits, "limit_ns": {limit: 8_000 * MS}}, **ends)
            assert "or queues" not in texts[-1] and "no path to queue on" in texts[-1]


def test_equal_connections_of_one_server_are_one_block(tmp_path: Path) -> None:
    path = str(write_capture(tmp_path / "a.pm", records=3000, flows=5))

    def heads(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(why.command, [path, *options], standalone_mode=False)
        return sum(not line.startswith(" ") for line in done.stdout.splitlines()), done.stdout

    count, text = heads()
    assert count == 1 and "and 4 more of the same server of which the same is true" in text
    assert heads("-n", "2")[1].count("and 1 more of the same server") == 1
    assert "more of the same server" not in heads("-v")[1]
    assert "more of the same server" not in heads("--json")[1]


def test_many_ends_are_counted(tmp_path: Path) -> None:
    log = log_of(0)
    for one in range(1, 13):
        snapshot(log, 1_000_000 + one, conn_id=one, location=4, state=1, callvalue=4)
        snapshot(log, 2_000_000 + one, conn_id=one, location=8)
    done = CliRunner().invoke(why.command, [str(folder_of(tmp_path / "log", log)), "-n", "1"],
                              standalone_mode=False)  # fmt: skip
    assert done.stdout.rstrip().endswith("; 12 reset by the peer")


def test_a_peer_that_is_gone_is_counted_where_few_are_told(tmp_path: Path) -> None:
    one = connections(write_capture(tmp_path / "a.pm", records=300, flows=3))
    one["rto_unanswered"][1], one["silent_us"][1] = 5, 9e6
    one["rto_unanswered_us"][1] = 8e6
    assert together(one, 2).endswith(
        "; of all 3: 1 without any answer of the peer since a timeout"
    )
    one["silent_us"][1] = 7e6  # segments arrived meanwhile
    assert together(one, 2).endswith("-n shows more")


def test_more_than_all_that_is_sent_again_is_told_in_plain_numbers() -> None:
    values = {"limit_ns": {"recovery": 8_000 * MS}, "segments_retransmitted": 8}
    assert "(345 % of the data" in sentence(**values, retrans_ratio=3.451)[1][0]
    assert "(9.9 % of the data" in sentence(**values, retrans_ratio=0.09871)[1][0]
    assert "(99 % of the data" in sentence(**values, retrans_ratio=0.994)[1][0]
    assert "(100 % of the data" in sentence(**values, retrans_ratio=0.997)[1][0]


@pytest.mark.parametrize("settings, name, known", [
    ({"namespaces": {"3": "own"}}, "", True),
    ({"namespaces": {"3": "own", "7": "box"}}, "", False),
    ({"namespaces": {"3": "own", "7": "box"}}, "own", True),
    ({"namespaces": {"3": "own", "7": "box"}}, "box", False),
    ({"namespaces": {"3": "own"}, "filters": {"namespaces": ["box"]}}, "", False),
    ({}, "", True),
])  # fmt: skip
def test_settings_are_those_of_the_own_namespace(
    tmp_path: Path, settings: dict[str, Any], name: str, known: bool
) -> None:
    told = {**settings, "system": {"sysctl": {"net.ipv4.tcp_mtu_probing": "1", "odd": 3}}}
    path = write_capture(tmp_path / "a.pm", 10, 1, settings=told)
    with Source(path) as source:
        found = HostSettings(source).of(Connection(1, netns_name=name))
    assert dict(found) == ({"net.ipv4.tcp_mtu_probing": "1"} if known else {})


def test_rates_while_it_was_paced_are_in_the_table() -> None:
    sent = [1000, 11_000, 26_000]  # 10 ms at each rate
    whole = test_why.snapshots([0, 10, 20], pacing_rate=[1_000_000, 1_000_000, 1_500_000],
                               sk_pacing_status=1, snd_una=sent, snd_max=sent)  # fmt: skip
    (one,) = tally([test_why.block_of(whole)])
    assert one.share("pacing") == 1
    assert (one.pacing_rate_min, one.pacing_rate_max) == (1_000_000, 1_500_000)
    (one,) = tally([test_why.block_of(test_why.snapshots([0, 10, 20]))])
    assert (one.pacing_rate_min, one.pacing_rate_max) == (None, None)


def test_an_idle_path_is_not_said_to_be_the_limit() -> None:
    """A window that grows, without a loss or a queue, has met no limit of the path."""
    limits = {"slow_start": 900 * MS, "cwnd": 100 * MS}
    values = {"cwnd_max": 40, "min_rtt_us": 60, "srtt_p50_us": 70.0}
    for queue, again, words in (
        (20.0, 0, "it was still growing, so it had met no limit of the path"),
        (20.0, 3, "the path is the limit"), (5000.0, 0, "the path is the limit"),
        (None, 0, "the path is the limit"),
    ):  # fmt: skip
        _, texts = sentence(**values, limit_ns=limits, queue_p95_us=queue,
                            segments_retransmitted=again)  # fmt: skip
        assert words in texts[0]
    _, texts = sentence(**values, limit_ns={"cwnd": 1000 * MS}, queue_p95_us=20.0)
    assert "no loss and no queue shows a limit of the path" in texts[0]


def test_a_timeout_with_nothing_unacknowledged_is_no_fault_of_the_program() -> None:
    one = receiver(end_reason="timeout", errno=errno.ETIMEDOUT, bytes_received=0,
                   bytes_sent=5, bytes_acked=5, limit_ns={"idle": MS})  # fmt: skip
    text = " ".join(verdict(one))
    assert "not at the network" not in text


def test_what_was_never_established_was_not_opening_for_part_of_its_time() -> None:
    one = receiver(
        end_reason="error", errno=errno.EHOSTUNREACH, established=False, bytes_received=0,
        syn_retrans=6, limit_ns={"opening": MS},
    )  # fmt: skip
    (text,) = verdict(one)
    assert text.endswith("was never established (7 SYN sent)")


def test_a_reader_that_is_behind_is_what_its_sender_names() -> None:
    sender = receiver(bytes_received=0, limit_ns={"rwnd": MS}, snd_wnd_max=1 << 20)
    behind = receiver(receiving_ns={"rx_app": MS, "rx_autotune": 1}, limit_ns={"idle": MS},
                      reader_behind_max=1 << 19)  # fmt: skip
    assert "tcp_rmem" in verdict(sender)[0]
    assert "the program there reads too slowly, it was up to 524 kB" in verdict(sender, behind)[0]
    for told in ({}, {"rx_app": 0}, {"rx_app": MS, "rx_autotune": 2 * MS}):
        kept_up = dataclasses.replace(behind, receiving_ns=told)
        assert "reads too slowly" not in verdict(sender, kept_up)[0]


SYN = {"location": [4, 14, 2, 14, 4, 13, 11], "state": [7, 2, 2, 2, 2, 7, 7],
       "callvalue": [2, 0, 0, 1, 7, 110, 0], "ca_state": [0, 0, 4, 4, 4, 4, 0]}  # fmt: skip
"""connect(); the timer fires twice, the second time it gives up; the socket stays."""


def told_of(times_ms: list[int], records: Any = lambda _: True, **values: Any) -> tuple[Any, str]:
    """The one connection of such a capture, and what is said of it."""
    whole = snapshots(times_ms, **values)
    table = test_why.table_of(whole, records=records)
    one = connection_of(table, 0)
    return one, "; ".join([head(one), *verdict(one)])


def test_a_dead_socket_is_no_connection() -> None:
    """It ended with ETIMEDOUT at 2 s; its program closes it 11 s later."""
    one, text = told_of([0, 1000, 1000, 2000, 2000, 2000, 13_000], **SYN)
    assert (one.duration_s, one.silent_us, one.syn_retrans) == (2, 2e6, 1)
    assert "(2 SYN sent)" in text and "the same segment" not in text
    dead = receiver(rto_unanswered=4, silent_us=9e6, rto_unanswered_us=8e6, end_reason="timeout",
                    errno=errno.ETIMEDOUT)  # fmt: skip
    assert "was sent again 3 times" in " ".join(verdict(dead))  # the last timer sent nothing


def test_who_closes_before_an_answer_gave_up() -> None:
    rows = {name: [values[at] for at in (0, 1, 2, 4, 6)] for name, values in SYN.items()}
    one, text = told_of([0, 1000, 1000, 2000, 2001], **rows)
    assert one.end_reason == "given_up" and "opening" not in text
    assert "given up by this host after 2 s: its program closed it before" in text
    unknown, _ = told_of([0, 1, 2, 3, 4], lambda name: name != "SOCKET_ERROR", **rows)
    assert unknown.end_reason == "open"  # an error may have ended it
    # An ICMP message came while the program was in connect(): only SO_ERROR has its errno.
    rows = {"location": [4, 13, 4, 11], "state": [7, 2, 2, 7], "callvalue": [2, 0, 7, 0]}
    one, text = told_of([0, 1, 2, 3], **rows)
    assert one.end_reason == "error" and "ended by an ICMP message that" in text


CLOSES = {"location": [1, 1, 4], "state": [1, 1, 1], "callvalue": [0, 0, 4],
          "snd_una": [0, 0, 1000], "snd_max": 1000, "snd_sb_cc": [9000, 9000, 8000]}  # fmt: skip


def test_what_was_unsent_at_the_close_is_said() -> None:
    for recorded, words in ((True, "8.0 kB that it wrote were not sent until the last record"),
                            (False, "closed it with 8.0 kB unsent; what was sent of that is not"),
                            ):  # fmt: skip
        one, text = told_of([0, 9, 10], lambda name, all_=recorded: all_, **CLOSES)
        assert one.bytes_unsent == 8000 and words in text
        assert recorded not in (one.bytes_at_least, "at least 1.0 kB" in text)
    sent = {**CLOSES, "snd_max": [1000, 1000, 9000]}
    assert told_of([0, 9, 10], **sent)[0].bytes_unsent == 0
    dies = {**CLOSES, "location": [1, 8, 4], "callvalue": [0, 0, 7]}
    assert "8.0 kB that its program wrote were never sent" in told_of([0, 9, 10], **dies)[1]


def test_shares_of_a_receiver_are_of_the_time_since_it_was_open() -> None:
    one = receiver(quiet_us=0.9e6, end_ns=10_000 * MS, limit_ns={"opening": 9000 * MS, "idle": MS})
    assert "for 90 % of the time since it was open" in verdict(one)[0]
    rows = {"location": [4, 4, 1], "state": [7, 2, 1], "callvalue": [2, 1, 0], "seg_len": [0, 0, 9]}
    assert told_of([0, 9000, 9100], **rows)[0].quiet_us == 0
    assert told_of([0, 8000, 9000], **rows)[0].quiet_us == 1e6


def test_a_window_that_fell_tells_no_upper_bound() -> None:
    """The peer read 10 of 132 kB; its window was 105 kB at most."""
    text = verdict(receiver(bytes_received=0, limit_ns={"rwnd": MS}, snd_wnd_max=105_000,
                            snd_wnd_fall=105_000, snd_wnd_low_us=1e6))[0]  # fmt: skip
    assert "reads too slowly, its window fell by 105 kB" in text and "up to" not in text


def test_a_loss_may_be_of_the_host_that_sends() -> None:
    sends = receiver(bytes_received=0, limit_ns={"recovery": MS})
    receives = receiver(receiving_ns={"rx_reorder": 9 * MS}, limit_ns={"idle": MS})
    assert "or a queue or device of this host does" in verdict(sends)[0]
    assert "or its sender's own host" in verdict(receives)[0]


def test_a_buffer_of_few_segments_is_no_slow_reader() -> None:
    """SO_RCVBUF 4096, and a program that reads without a pause; or one that keeps it shut."""
    behind = receiver(receiving_ns={"rx_app": MS}, limit_ns={"idle": MS}, reader_behind_max=4300,
                      rcvbuf=8192, sysctl={"net.ipv4.tcp_rmem": "4096 131072 6291456"})  # fmt: skip
    assert "the buffer holds few segments (leave SO_RCVBUF" in verdict(behind)[0]
    for shut, words in ((7, "this buffer has 8.2 kB"), (70, "reads too slowly")):
        limits = {"rwnd": (100 - shut) * MS, "zero_window": shut * MS}
        sender = receiver(bytes_received=0, limit_ns=limits, snd_wnd_max=2900, mss=1448)
        assert words in verdict(sender, behind)[0]


def test_a_socket_that_bbr_paced_stays_paced() -> None:
    one = receiver(bytes_received=0, limit_ns={"pacing": MS}, ca_name="cubic",
                   sysctl={"net.ipv4.tcp_congestion_control": "bbr"})  # fmt: skip
    assert "since it began with bbr" in verdict(one)[0]
