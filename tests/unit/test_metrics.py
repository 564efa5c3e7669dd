# SPDX-License-Identifier: Apache-2.0
"""What a capture counts of its connections, against counts that a plain loop makes."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tcpkmon.collector.commands import openmetrics
from tcpkmon.collector.commands.metrics import command, open_listener
from tcpkmon.collector.commands.openmetrics import make_metrics
from tcpkmon.collector.metrics.connections import Connections
from tcpkmon.collector.metrics.owners import MOST_OWNERS, OTHER, Owners
from tcpkmon.collector.metrics.request_meter import RequestMeter
from tcpkmon.collector.metrics.shown import first
from tcpkmon.collector.metrics.tcp_meter import TcpMeter
from tcpkmon.collector.metrics.watching import Watching, watch
from tcpkmon.collector.plan.columns import choose_columns, load_schema, locations_of, make_layout
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.session import pulse as module
from tcpkmon.collector.session.pulse import SPAN, Pulse
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.base.group_names import MOST_GROUPS, Group, group_of
from tests.unit.request_capture import client, entries_of, server

ROOT = Path(__file__).resolve().parents[2]
METRICS = ROOT / "collector" / "metrics"
SCHEMA = load_schema()
LAYOUT = make_layout(SCHEMA, choose_columns(SCHEMA.event("SNAPSHOT"), "default"), ())
AT = locations_of(SCHEMA)
LOSS, RECOVERY = 4, 3
MS = 1_000_000


def rows(*given: dict[str, int]) -> Any:
    """Entries of a capture with these columns; the others are 0."""
    made = np.zeros(len(given), LAYOUT.dtype)
    for place, one in enumerate(given):
        for name, value in one.items():
            made[name][place] = value
    return made


def test_a_connection_from_syn_to_close() -> None:
    state = {"location": AT["STATE_CHANGE"], "conn_id": 7}
    meter = TcpMeter(AT)
    entries = rows(
        {**state, "time_ns": 1 * MS, "state": 7, "callvalue": 2},
        {"location": AT["RETRANSMIT"], "conn_id": 7, "time_ns": 2 * MS, "state": 2},
        {**state, "time_ns": 21 * MS, "state": 2, "callvalue": 1},
        {**state, "time_ns": 22 * MS, "state": 3, "callvalue": 1, "conn_id": 8},
        {"location": AT["RETRANSMIT"], "conn_id": 7, "state": 1, "ca_state": LOSS},
        {"location": AT["RETRANSMIT"], "conn_id": 7, "state": 1, "ca_state": RECOVERY},
        {"location": AT["RETRANSMIT"], "conn_id": 7, "state": 1, "ca_state": RECOVERY,
         "seg_len": 3000, "mss": 1448},
        {"location": AT["RETRANSMIT"], "conn_id": 7, "state": 1, "ca_state": 0},
        {"location": AT["RETRANSMIT_SYNACK"]},
        {"location": AT["ZERO_WINDOW_PROBE"], "conn_id": 7, "state": 1},
        {"location": AT["SEGMENT_RECEIVED"], "conn_id": 7, "state": 1, "srtt_us": 100},
        {"location": AT["RESET_RECEIVED"], "conn_id": 8, "state": 1},
        {**state, "time_ns": 1021 * MS, "state": 1, "callvalue": 7},
        {**state, "time_ns": 1022 * MS, "state": 1, "callvalue": 7, "conn_id": 8},
        {"location": AT["DESTROY"], "conn_id": 7, "state": 7},
        {"location": AT["DESTROY"], "conn_id": 8, "state": 7},
        {**state, "time_ns": 1 * MS, "state": 7, "callvalue": 2, "conn_id": 9},
        {"location": AT["SOCKET_ERROR"], "conn_id": 9, "state": 2, "callvalue": errno.ETIMEDOUT},
        {**state, "state": 2, "callvalue": 7, "conn_id": 9},
        {**state, "state": 1, "callvalue": 7, "conn_id": 10},
        {**state, "state": 10, "callvalue": 7, "conn_id": 11},
    )
    for part in (entries[:3], entries[3:]):
        meter.add(part, part["time_ns"].astype(np.int64))
    told = meter.told()
    assert told["retransmits"] == {
        "syn": 1, "synack": 1, "timeout": 1, "recovery": 4, "probe": 1,
    }  # fmt: skip
    assert told["zero_window"] == {"segments": 1, "probes": 1}
    assert told["opened"] == {"client": 1, "server": 1}
    assert sorted(told["closed"]) == [
        ["client", "close", 1], ["client", "no handshake", 1], ["server", "reset received", 1],
        ["unknown", "close", 1],
    ]  # fmt: skip
    assert told["handshake"]["sum_us"] == 20_000
    assert told["duration"]["client"]["sum_us"] == 1_000_000
    assert sum(told["srtt"]["counts"]) == 1


def test_a_reset_that_follows_the_close_is_how_it_ended() -> None:
    """SO_LINGER of 0: the kernel closes the socket, and sends the reset then."""
    state = {"location": AT["STATE_CHANGE"], "conn_id": 7}
    entries = rows(
        {**state, "state": 2, "callvalue": 1},
        {**state, "state": 1, "callvalue": 7},
        {"location": AT["RESET_SENT"], "conn_id": 7, "state": 7},
        {"location": AT["DESTROY"], "conn_id": 7, "state": 7},
    )
    for cut in range(4):
        meter = TcpMeter(AT)
        for part in (entries[:cut], entries[cut:]):
            meter.add(part, part["time_ns"].astype(np.int64))
        assert meter.told()["closed"] == [["client", "reset sent", 1]], cut


def test_a_change_shows_the_state_after_it_and_listeners_are_not_shown() -> None:
    table = Connections(LAYOUT.dtype, AT, 0.0)
    change = {"location": AT["STATE_CHANGE"]}
    table.add(rows(
        {**change, "conn_id": 7, "state": 3, "callvalue": 1},
        {**change, "conn_id": 8, "state": 7, "callvalue": 10},
    ))  # fmt: skip
    assert len(table) == 1 and table.values("state", table.slots()).tolist() == [1]
    table.add(rows(
        {**change, "conn_id": 8, "state": 10, "callvalue": 7},
        {"location": AT["DESTROY"], "conn_id": 8, "state": 7},
    ))  # fmt: skip
    table.add(rows({**change, "conn_id": 8, "state": 10, "callvalue": 7}))  # and of nothing else
    table.rate(2.0)
    assert first(*table.shown()[:2], "id", 5)["id"] == [7]


def test_bytes_of_connections_across_batches_and_wraps() -> None:
    """Sequence numbers wrap, connections come and go; a loop over single records counts too."""
    dice = random.Random(5)
    table = Connections(LAYOUT.dtype, AT, 0.0)
    at = {n: [dice.randrange(1 << 32), dice.randrange(1 << 32)] for n in range(1, 400)}
    moved = {n: [0, 0, 0] for n in at}
    seen: set[int] = set()
    gone: set[int] = set()
    for _ in range(60):
        given = []
        for _ in range(dice.randrange(1, 90)):
            number = dice.randrange(1, 400)
            if number in gone:
                continue
            for side in (0, 1):
                step = dice.randrange(1 << 24) if number in seen else 0
                at[number][side] = (at[number][side] + step) % (1 << 32)
                moved[number][side] += step
            seen.add(number)
            again = dice.random() < 0.1
            segments = dice.randrange(1, 4)
            moved[number][2] += again * segments
            location = AT["RETRANSMIT"] if again else AT["SEGMENT_RECEIVED"]
            given.append({"location": location, "conn_id": number, "state": 1, "srtt_us": number,
                          "snd_una": at[number][0], "rcv_nxt": at[number][1], "mss": 1448,
                          "seg_len": 1448 * segments})
            if dice.random() < 0.01:
                gone.add(number)
                given.append({"location": AT["DESTROY"], "conn_id": number, "state": 7})
        given.insert(0, {"location": AT["RESET_SENT"], "conn_id": 0})
        table.add(rows(*given))
    left = sorted(seen - gone)
    assert gone and len(table) == len(left) > 256, "the table grew"
    told = first(*table.shown()[:2], "id", 1000)
    assert told["id"] == left[::-1]
    for column, name in enumerate(("acked", "received", "retransmits")):
        assert told[name] == [moved[number][column] for number in told["id"]]
    assert told["srtt_us"] == told["id"], "of the last record"
    assert table.sums["acked"] == sum(one[0] for one in moved.values())
    assert table.sums["received"] == sum(one[1] for one in moved.values())


def test_rates_are_between_two_questions() -> None:
    table = Connections(LAYOUT.dtype, AT, 0.0)
    one = {"location": AT["SEGMENT_RECEIVED"], "conn_id": 7, "state": 1}
    table.add(rows({**one, "snd_una": 100}, {**one, "snd_una": 5100}))
    table.rate(0.1)
    assert first(*table.shown()[:2], "rate", 5)["acked_rate"] == [0], "too soon"
    table.rate(2.0)
    assert first(*table.shown()[:2], "rate", 5)["acked_rate"] == [2500]
    table.rate(4.0)
    assert first(*table.shown()[:2], "rate", 5)["acked_rate"] == [0]


def short_connections(table: Watching, layout: Any, first: int, count: int) -> None:
    """Connections of port 5201 that came, got 2000 bytes and went: both of their ends."""
    for number in range(first, first + count):
        made = np.zeros(6, layout.dtype)
        caller, called = made[:3], made[3:]
        for end, ports, old in ((caller, (40000, 5201), 2), (called, (5201, 40000), 3)):
            end["conn_id"] = 2 * number + (old == 3)
            end["lport"], end["rport"] = ports
            end["location"] = [AT["STATE_CHANGE"], AT["SEGMENT_RECEIVED"], AT["DESTROY"]]
            end["callvalue"], end["state"] = [1, 0, 0], [old, 1, 7]
            end["comm"] = b"client" if old == 2 else b"server"
        caller["rcv_nxt"], called["snd_una"] = [0, 0, 2000], [0, 0, 2000]
        made["state"][[2, 5]] = 4
        table.add(made)


def test_connections_shorter_than_a_second_are_shown_once_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = make_layout(SCHEMA, choose_columns(SCHEMA.event("SNAPSHOT"), "default,comm"), ())
    table = Watching(layout.dtype, AT)
    now_s = [1000.0]
    for name in ("watching", "connections"):
        monkeypatch.setattr(f"tcpkmon.collector.metrics.{name}.time.monotonic", lambda: now_s[0])
    table.top("rate", 5)
    now_s[0] += 1
    short_connections(table, layout, 1, 300)
    found = table.top("rate", 200)
    assert (found["connections"], found["opened_rate"], found["closed_rate"]) == (0, 600, 600)
    assert len(found["rows"]["id"]) == 200
    chosen = table.top("rate", 200, wanted="SERVER")
    assert chosen["opened_rate"] == 300 and set(chosen["rows"]["comm"]) == {"server"}
    assert table.top("rate", 5, wanted=":40001")["rows"]["id"] == []
    ports = table.top("opened", 5, "port")["rows"]
    assert sorted(ports["group"]) == ["local 5201", "remote 5201"], "never the caller's own port"
    at = ports["group"].index("local 5201")
    assert (ports["opened_rate"][at], ports["closed_rate"][at], ports["open"][at]) == (300, 300, 0)
    processes = table.top("acked", 5, "process")["rows"]
    assert processes["group"] == ["server", "client"]
    assert len(table.top("rate", 5, "peer")["rows"]["group"]) == 1
    assert found["groups"] == ["port", "peer", "process", "command"]
    commands = table.top("acked", 5, "command")["rows"]
    assert commands["group"] == ["server", "client"] and sum(commands["opened_rate"]) == 600
    now_s[0] += 1
    short_connections(table, layout, 1000, 10)
    found = table.top("rate", 200)
    assert found["opened_rate"] == 20 and len(found["rows"]["id"]) == 20, "once, and no more"
    now_s[0] += 60  # nobody asks any more
    short_connections(table, layout, 2000, 10)
    assert table.top("rate", 200)["rows"]["id"] == []


def test_what_limited_the_senders() -> None:
    full = make_layout(SCHEMA, choose_columns(SCHEMA.event("SNAPSHOT"), "full"), ())
    watching = watch(full, at_once=True)
    times = [(7, 1_000_000, 500_000, 0), (8, 3_000_000, 0, 1), (7, 3_500_000, 500_000, 250_000),
             (8, 3_000_000, 0, 1), (9, 0, 0, 0)]  # fmt: skip
    entries = np.zeros(len(times), full.dtype)
    entries["location"], entries["state"] = AT["SEGMENT_RECEIVED"], 1
    names = ("conn_id", "busy_us", "rwnd_limited_us", "sndbuf_limited_us")
    for name, values in zip(names, zip(*times, strict=True), strict=True):
        entries[name] = values
    watching.add(entries[:2])
    watching.add(entries[2:])
    told = {**answer(), "tcp": watching.metrics()}
    assert told["tcp"]["limited"] == {"busy": 2.5, "rwnd": 0, "sndbuf": 0.25}
    (family,) = (one for one in make_metrics({"a": told}, 0)
                 if one.name == "tcpkmon_tcp_limited_seconds")  # fmt: skip
    found = {one.labels["limit"]: one.value for one in family.samples}
    assert found == {"busy": 2.5, "rwnd": 0, "sndbuf": 0.25}
    assert "limited" in watch(LAYOUT, True).metrics()
    assert not watch(LAYOUT, True).metrics()["limited"], "the columns are not stored"


def test_nothing_is_counted_before_somebody_asks() -> None:
    entries = rows({"location": AT["RETRANSMIT"], "conn_id": 7, "state": 2})
    shown: list[Any] = []
    watching = watch(LAYOUT, at_once=False, show=shown.append)
    watching.add(entries)
    assert len(shown) == 1
    assert watching.metrics()["retransmits"].get("syn", 0) == 0
    watching.add(entries)
    assert watching.metrics()["retransmits"]["syn"] == 1
    at_once = watch(LAYOUT, at_once=True)
    at_once.add(entries)
    assert at_once.metrics()["retransmits"]["syn"] == 1
    assert Watching(None, {}).metrics() == {}
    with pytest.raises(TcpkmonError, match="does not tell connections apart"):
        Watching(None, {}).top("rate", 5)


def test_an_error_of_the_counting_ends_the_counting_alone() -> None:
    watching = watch(LAYOUT, at_once=True)
    watching.add(np.zeros(3, [("location", "=u4")]))
    assert "conn_id" in watching.metrics()["error"] or watching.metrics()["error"]


def answer() -> dict[str, Any]:
    watching = watch(LAYOUT, at_once=True)
    watching.add(rows({"location": AT["SEGMENT_RECEIVED"], "conn_id": 7, "state": 1,
                       "srtt_us": 100, "lport": 4711, "rport": 4712}))
    return {
        "tcpkmon": "1", "pid": 98765, "output": "/tmp/run.pm", "format": "psc", "schemata": "tcp",
        "enabled": True, "records": 5, "bytes": 600, "ring_fill": 0.5, "reader_lag_s": 0.1,
        "disk_free_bytes": 1 << 30, "cost": {"cpu_s": 1.0, "memory_bytes": 1 << 20},
        "segment": 3, "segment_bytes": 7, "rotation_failing": False, "unproven": [],
        "shed_level": 2, "shed_events": 9, "lost": {"ring full": 3}, "events": [],
        "outcomes": {"RTO": {"attempts": 9, "written": 7, "ring_full": 2, "other": 0}},
        "tcp": watching.metrics(),
    }  # fmt: skip


def names_of(*answers: dict[str, Any]) -> set[str]:
    found = set()
    for metric in make_metrics({one.get("output", "capture"): one for one in answers}, 0):
        assert metric.documentation
        found.update(sample.name for sample in metric.samples)
    return found


def test_no_label_has_an_address_a_port_or_a_pid() -> None:
    labels = set()
    for metric in make_metrics({"run.pm": answer()}, 1):
        for sample in metric.samples:
            labels |= set(sample.labels)
            assert not {"98765", "4711", "4712", "/tmp/run.pm"} & set(sample.labels.values())
    assert labels == {
        "answered", "capture", "version", "format", "schemata", "location", "outcome", "cause",
        "role", "le", "what", "direction",
    }  # fmt: skip


def used_names(texts: list[str]) -> set[str]:
    return {name for text in texts for name in re.findall(r"\btcpkmon_\w+", text)}


def expressions() -> list[str]:
    """Those of the dashboard, with Grafana's variables filled in."""
    board = json.loads((METRICS / "dashboard.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [
        text.replace("$__rate_interval", "1m").replace("$capture", ".*") for text in found
    ]


def test_dashboard_and_rules_name_metrics_that_exist() -> None:
    told = answer()
    told["tcp"]["closed"], told["tcp"]["opened"] = [["client", "close", 1]], {"client": 1}
    told["tcp"]["requests"] = RequestMeter().told()
    there = names_of(told)
    assert len(expressions()) > 16
    assert not any("$__interval" in text for text in expressions())  # shorter than a scrape: empty
    assert used_names(expressions()) <= there
    requests = {name for name in there if re.fullmatch(r"tcpkmon_request_\w+_bucket", name)}
    assert len(requests) == 2 and requests <= used_names(expressions())
    rules = used_names((METRICS / "alerts.yml").read_text().splitlines())
    assert rules and rules <= there


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (prometheus)")
@pytest.mark.parametrize(
    "words",
    [["check", "rules", str(METRICS / "alerts.yml")],
     ["test", "rules", str(Path(__file__).with_name("alerts_test.yml"))]],
    ids=["check", "test"],
)  # fmt: skip
def test_promtool_passes_the_rules(words: list[str]) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (prometheus)")
def test_promtool_passes_what_once_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmetrics, "ask_all", lambda: ({"run.pm": answer()}, 1))
    printed = CliRunner().invoke(command, ["--once"])
    assert printed.exit_code == 0
    assert "tcpkmon_tcp_rtt_seconds_bucket" in printed.stdout
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=printed.stdout, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("text", ["0.0.0.0:0", "192.0.2.1:9633", "[::]:0", "9633", "localhost:1",
                                  "127.0.0.1:99999", ""])
def test_it_listens_on_this_machine_alone(text: str) -> None:
    with pytest.raises(UsageError):
        open_listener(text)


def test_unix_sockets(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    gid = 4711 if os.geteuid() == 0 else os.getgid()
    umask = os.umask(0o077)
    try:
        first = open_listener(f"unix:{path}", gid)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(umask)
    assert (path.stat().st_mode & 0o777, path.stat().st_gid) == (0o660, gid)
    with pytest.raises(TcpkmonError, match="in use"):
        open_listener(f"unix:{path}")
    first.close()
    open_listener(f"unix:{path}").close()
    plain = tmp_path / "file"
    plain.write_text("mine")
    with pytest.raises(TcpkmonError):
        open_listener(f"unix:{plain}")
    assert plain.read_text() == "mine"


@pytest.mark.parametrize("columns", ["default", "classic,conn_id,state"])
def test_connections_whose_end_was_lost_make_room(
    columns: str,
) -> None:
    """The end of a connection may be lost, or left out by a budget."""
    layout = make_layout(SCHEMA, choose_columns(SCHEMA.event("SNAPSHOT"), columns), ())
    table = Connections(layout.dtype, AT, 0.0, most=1024)
    for low in range(1, 2001, 100):
        entries = np.zeros(101, layout.dtype)
        entries["conn_id"] = [*range(low, low + 100), 1]  # 1 stays in use
        entries["state"], entries["location"] = 1, AT["SEGMENT_RECEIVED"]
        if "time_ns" in (layout.dtype.names or ()):
            entries["time_ns"] = low * 1000 + np.arange(101)
        table.add(entries)
    found = first(*table.shown()[:2], "id", 5000)["id"]
    assert 800 < len(found) <= 1024 and not table.is_whole
    assert found[:100] == [*range(2000, 1900, -1)] and 1 in found
    assert len(set(found)) == len(found)


def test_requests_are_counted_where_calls_are_recorded() -> None:
    entries, _ = entries_of(client(think=400), server(think=400))
    quiet = Watching(entries.dtype, AT)
    quiet.add(entries)  # nobody asked
    assert "requests" not in quiet.metrics()
    watching = Watching(entries.dtype, AT, at_once=True)
    for one in np.array_split(entries, 5):
        watching.add(one)
        time.sleep(0.06)
    told = watching.metrics()
    assert told["error"] == ""
    for side, count in (("client", 3), ("server", 2)):  # the last one of the server may go on
        think = told["requests"]["think"][side]
        assert sum(think["counts"]) == count
        assert think["sum_us"] == count * 400_000
    families = [family.name for family in openmetrics._requests({"run.pm": told})]
    assert families == ["tcpkmon_request_think_seconds", "tcpkmon_request_duration_seconds"]
    without = entries[~np.isin(entries["location"], (9, 10))]
    plain = Watching(entries.dtype, AT, at_once=True)
    plain.add(without)
    assert "requests" not in plain.metrics()


def test_owners_are_bounded_and_never_count_down() -> None:
    """More groups and units than are kept: sums stay, those that came first keep their rows."""
    known: dict[int, Group] = {}
    owners = Owners(known.get)
    total, last = 0, {}
    for low in range(0, 3 * MOST_GROUPS, MOST_GROUPS // 2):
        ids = np.arange(low, low + MOST_GROUPS // 2)
        known.update({one: group_of(f"/system.slice/u{one % 400}.service") for one in ids.tolist()})
        owners.add("acked", ids, np.full(len(ids), 7))
        owners.add("retransmits", ids[:10], np.ones(10, np.int64))
        total += 7 * len(ids)
        told = owners.told(ids[:50])
        assert len(told) == MOST_OWNERS + 1 and sum(row[2] for row in told) == 50
        assert sum(row[3] for row in told) == total
        sums = {(unit, pod): row for unit, pod, *row in told}
        assert all(sums[label][1] >= before for label, before in last.items()) and OTHER in sums
        last = {label: row[1] for label, row in sums.items()}
        for one in list(known)[:100]:
            del known[one]  # a group that is gone keeps its name here
    assert len(owners._sums) <= MOST_GROUPS
    assert last["u0.service", ""] > 0


ROW = np.dtype([("seq", "=u4"), ("time", "=i8"), ("rest", "=u4")])


def batch(cpu: int, times_ns: list[int], read_ns: int) -> Batch:
    rows = np.zeros(len(times_ns), ROW)
    rows["time"] = times_ns
    return Batch(cpu, rows, read_ns)


def test_rates_are_those_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    written = [0]
    with Pulse("-", lambda: written[0], lambda: 10 * written[0]) as pulse:
        assert pulse.told()["rates"] == {"records/s": 0, "bytes/s": 0}
        for n in range(SPAN + 4):
            pulse.beat()
            clock[0] += 1
            written[0] += 1000 if n < 3 else 50
        told = pulse.told()
    assert told["rates"] == {"records/s": 50, "bytes/s": 500}, "the burst before is over"
    assert told["disk_free_bytes"] is None


def test_peaks_of_rings_and_lag() -> None:
    with Pulse("-", lambda: 0, lambda: 0) as pulse:
        pulse.drained([batch(0, [50, 60], 1050), batch(1, [], 2000), batch(0, [70, 80], 1060)], 16)
        told = pulse.told()
        assert (told["ring_fill"], told["reader_lag_s"]) == (0.25, 1e-6)
        for _ in range(SPAN + 2):
            pulse.beat()
        told = pulse.told()
        assert (told["ring_fill"], told["reader_lag_s"]) == (0, 0), "forgotten after the span"


def test_cost_and_disk_are_those_of_this_process(tmp_path: Path) -> None:
    with Pulse(str(tmp_path / "x.pm"), lambda: 0, lambda: 0) as pulse:
        pulse.beat()
        began_s, until = time.monotonic(), time.process_time() + 0.2
        while time.process_time() < until:
            pass
        pulse.beat()
        expected = 100 * 0.2 / (time.monotonic() - began_s)  # others have the CPUs too
        told = pulse.told()
    free = os.statvfs(tmp_path)
    assert told["disk_free_bytes"] == pytest.approx(free.f_bavail * free.f_frsize, rel=0.1)
    assert told["cost"]["cpu_percent"] == pytest.approx(expected, rel=0.3)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = told["cost"]["memory_bytes"]
    assert memory == pytest.approx(pages * os.sysconf("SC_PAGESIZE"), rel=0.2)
