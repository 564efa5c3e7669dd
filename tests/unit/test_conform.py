# SPDX-License-Identifier: Apache-2.0
"""tcpkmon conform: each rule is kept by a connection, broken by one edited value, and not told
where a record is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tcpkmon.formats.analysis.check.capture import Capture
from tcpkmon.formats.analysis.check.span import Proof
from tcpkmon.formats.analysis.conform import RULES, Verdicts, conform
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.commands.conform import command
from tests.truth.conform.matrix import PAGE, rules_table
from tests.unit.psc_files import CLOCK, DEFAULT, Plain

FURTHER = DEFAULT | dict.fromkeys(
    ("seg_ack", "rto_us", "delivered", "prior_cwnd", "tlp_high_seq", "max_packets_out",
     "undo_marker", "high_seq"), 4
) | dict.fromkeys(("backoff", "pending", "is_cwnd_limited"), 2) | {"ca_name": 16}
LOCATIONS = dict.fromkeys(
    ("SEGMENT_RECEIVED", "RETRANSMIT", "CONG_STATE", "STATE_CHANGE", "RTO", "CWND_UNDO"), "btf"
)
MSS = 1000
CALM: dict[str, Any] = {
    "location": 1, "state": 1, "mss": MSS, "snd_una": 1000, "snd_max": 11_000, "snd_wnd": 60_000,
    "snd_sb_cc": 10_000, "packets_out": 10, "snd_cwnd_segs": 10, "snd_ssthresh": 1 << 30,
    "srtt_us": 20_000, "rto_us": 220_000, "rcv_nxt": 1, "seg_ack": 1000, "delivered": 5,
    "is_cwnd_limited": 1, "max_packets_out": 10, "ca_name": b"reno",
}  # fmt: skip
"""An established connection with its window full."""
ACKED = {"snd_una": 3000, "seg_ack": 3000, "snd_max": 13_000, "delivered": 7, "snd_cwnd_segs": 12}
LOSS = {"location": 5, "ca_state": 0, "callvalue": 3, "snd_cwnd_segs": 20, "snd_ssthresh": 10}
TIMER = {"location": 5, "callvalue": 4, "prior_cwnd": 20, "snd_ssthresh": 10, "lost_out": 10,
         "snd_cwnd_segs": 1}  # fmt: skip
AGAIN = {"location": 2, "ca_state": 4, "seg_seq": 1000, "rto_us": 300_000}
MORE = AGAIN | {"rto_us": 600_000, "backoff": 1}
ALL_ACKED = {"seg_ack": 11_000}
IDLE = {"snd_una": 11_000, "snd_max": 16_000, "packets_out": 5, "snd_sb_cc": 5000,
        "first_tx_us": 3_000_000, "snd_cwnd_segs": 10}  # fmt: skip
OPENED = [{"location": 4, "callvalue": 1, "state": 3, "snd_cwnd_segs": 10}, {}]
IN_RECOVERY = {"ca_state": 3, "snd_cwnd_segs": 12, "snd_ssthresh": 10}

# Of each rule: records that keep it, and what to change of the last one so that it is broken.
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "window": ([{}, ACKED], {"snd_max": 64_000}),
    "order": ([{}, ACKED], {"rcv_nxt": 0}),
    "acked": ([{}, ACKED], {"snd_una": 12_000}),
    "retransmit": ([{"location": 2, "seg_seq": 1000}], {"seg_seq": 11_000}),
    "cwnd": ([{}, ACKED], {"packets_out": 14}),
    "growth": ([{}, ACKED], {"snd_cwnd_segs": 14}),
    "validation": ([{"is_cwnd_limited": 1}, ACKED], {}),
    "ssthresh": ([LOSS], {"snd_ssthresh": 11}),
    "beta": ([LOSS | {"ca_name": b"cubic", "snd_ssthresh": 14}], {"snd_ssthresh": 15}),
    "rto_ssthresh": ([{}, {"location": 14}, TIMER], {"snd_ssthresh": 11}),
    "loss_window": ([{}, {"location": 14}, TIMER], {"snd_cwnd_segs": 2}),
    "restart": ([*OPENED, ALL_ACKED, IDLE], {"snd_cwnd_segs": 20}),
    "rto": ([{}], {"rto_us": 19_000}),
    "backoff": ([AGAIN, MORE], {"rto_us": 300_000}),
    "sample": ([{}, {}], {"srtt_us": 21_000}),
    "probe": ([{"location": 2, "pending": 5, "seg_seq": 10_000}], {"tlp_high_seq": 11_000}),
    "once": ([LOSS, LOSS | {"snd_una": 11_000}], {"snd_una": 10_999}),
    "reduced": ([LOSS | {"ca_state": 2, "callvalue": 0, "snd_cwnd_segs": 10}],
                {"snd_cwnd_segs": 11}),
    "recovery": ([LOSS, IN_RECOVERY], {"snd_cwnd_segs": 21}),
}  # fmt: skip


def write(
    path: Path, records: list[dict[str, Any]], lose: bool = False, unseen: str = "",
    leave_out: tuple[str, ...] = (), flows: int = 1, when_changed: tuple[str, ...] = (),
) -> Path:  # fmt: skip
    """A capture of these records of a connection. lose: the one before the last is missing."""
    plain = Plain({name: size for name, size in FURTHER.items() if name not in leave_out})
    settings = {"locations": LOCATIONS, "when_changed": list(when_changed)}
    settings |= {"unseen": unseen} if unseen else {}
    rows = np.zeros(len(records) * flows, plain.dtype)
    for at, values in enumerate(one for one in records for _ in range(flows)):
        for name, value in (CALM | values).items():
            if name not in leave_out:
                rows[name][at] = value.ljust(16, b"\0") if isinstance(value, bytes) else value
    count = np.arange(len(rows))
    rows["conn_id"], rows["lport"], rows["rport"] = count % flows + 1, 5001 + count % flows, 80
    rows["seq"] = rows["seq_no"] = count + 2 + (lose & (count == len(rows) - 1))
    rows["serial"], rows["time_ns"] = count + 1, (count // flows + 1) * 1000
    return plain.write(path, [rows], int(lose), rows["seq"][-1], clock=CLOCK, settings=settings)


def judge(path: Path) -> Verdicts:
    with Source(path) as source:
        return conform(source)


def counts(path: Path) -> dict[str, list[int]]:
    found = judge(path)
    return {rule.name: found.total(rule).tolist() for rule in RULES}


def broken(name: str) -> list[dict[str, Any]]:
    records, change = CASES[name]
    if name == "validation":
        return [{"is_cwnd_limited": 0, "snd_ssthresh": 5}, records[1]]
    return [*records[:-1], records[-1] | change]


def test_each_rule_has_a_case() -> None:
    assert [rule.name for rule in RULES] == [*CASES]
    assert all(rule.quote and rule.deviations and rule.shows for rule in RULES)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_is_kept_and_broken(name: str, tmp_path: Path) -> None:
    found = counts(write(tmp_path / "kept.pm", CASES[name][0]))
    assert found[name][0] and not any(bad for _, bad, _ in found.values()), found
    edited = judge(write(tmp_path / "broken.pm", broken(name)))
    assert name in {one.rule.name for one in edited.breaks}
    (mine,) = (one for one in edited.breaks if one.rule.name == name)
    assert mine.conn_id == 1 and set(mine.values) == set(mine.rule.shows)


@pytest.mark.parametrize("name", [rule.name for rule in RULES if rule.across])
def test_a_missing_record_leaves_it_open(name: str, tmp_path: Path) -> None:
    found = counts(write(tmp_path / "lossy.pm", broken(name), lose=True))
    assert found[name][1] == 0 and found[name][2] == 1


SENT_AGAIN = {"location": 2, "ca_state": 4, "lost_out": 10, "retrans_out": 1, "seg_seq": 1000}
CUT = IN_RECOVERY | {"snd_ssthresh": 9}


@pytest.mark.parametrize(
    ("name", "records", "change"),
    [
        ("loss_window", [{}, {"location": 14}, TIMER, SENT_AGAIN | {"snd_cwnd_segs": 1}],
         {"snd_cwnd_segs": 100}),
        ("once", [LOSS, IN_RECOVERY, CUT | {"snd_una": 11_000}], {"snd_una": 10_999}),
        ("once", [LOSS, IN_RECOVERY, CUT | {"ca_state": 4}], {"ca_state": 3}),
        ("once", [LOSS | {"undo_marker": 1000}, {"snd_ssthresh": 10}, LOSS | {"undo_marker": 999}],
         {"snd_una": 1000}),
    ],
)  # fmt: skip
def test_what_else_breaks_a_rule(
    name: str, records: list[dict[str, Any]], change: dict[str, Any], tmp_path: Path
) -> None:
    """When the timer sends again, where only the threshold tells, after an undo."""
    assert counts(write(tmp_path / "kept.pm", records))[name][1] == 0
    if records[0].get("undo_marker"):  # it is not undone
        records[1]["undo_marker"] = 1000
    edited = [*records[:-1], records[-1] | change]
    assert counts(write(tmp_path / "broken.pm", edited))[name][1] == 1


def test_what_a_loss_probe_mended_is_another_reduction(tmp_path: Path) -> None:
    """It begins and ends with one ACK; one that lasts longer is of this window."""
    records = [LOSS | {"callvalue": 2}, LOSS | {"ca_state": 2, "callvalue": 0}, LOSS]
    assert counts(write(tmp_path / "a.pm", records))["once"][1] == 0
    records.insert(1, {"ca_state": 2, "snd_ssthresh": 10})
    assert counts(write(tmp_path / "b.pm", records))["once"][1] == 1


def test_a_reduction_that_goes_on_is_sure_though_records_may_be_missing(tmp_path: Path) -> None:
    """undo_marker and high_seq say that none was undone and none followed."""
    records = [LOSS | {"undo_marker": 1000, "high_seq": 11_000},
               IN_RECOVERY | {"undo_marker": 1000, "high_seq": 11_000, "snd_cwnd_segs": 21}]
    path = write(tmp_path / "a.pm", records, unseen="process 1")
    assert counts(path)["recovery"] == [0, 1, 0]
    records[1]["high_seq"] = 12_000
    assert counts(write(tmp_path / "b.pm", records, unseen="process 1"))["recovery"] == [0, 0, 1]


def test_another_algorithm_is_judged_as_reno(tmp_path: Path) -> None:
    other = [one | {"ca_name": b"mine"} for one in broken("ssthresh")]
    path = write(tmp_path / "a.pm", other)
    assert not judge(path).broken()
    done = CliRunner().invoke(command, [str(path), "--as", "reno"], standalone_mode=False)
    assert done.return_value == 6 and "ssthresh is broken" in done.output
    known = [one | {"ca_name": b"cubic"} for one in broken("ssthresh")]
    done = CliRunner().invoke(command, [str(write(tmp_path / "b.pm", known)), "--as", "reno"],
                              standalone_mode=False)  # fmt: skip
    assert done.return_value == 0  # cubic is still judged as cubic


def test_what_the_kernel_shows_nobody_is_no_break(tmp_path: Path) -> None:
    """An acknowledgment between the records that none saw; a number that is wrong all the same."""
    moved = [{}, ACKED | {"packets_out": 14}]
    assert counts(write(tmp_path / "a.pm", moved, unseen="process 1"))["cwnd"] == [0, 0, 1]
    known = [{"seg_ack": 3000}, ACKED | {"packets_out": 14}]
    assert counts(write(tmp_path / "b.pm", known, unseen="process 1"))["cwnd"] == [0, 1, 0]


def test_a_column_that_is_not_recorded(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pm", broken("rto"), leave_out=("rto_us", "tlp_high_seq"))
    assert set(judge(path).untellable) == {"rto", "restart", "backoff", "probe"}


def test_the_page_has_the_rules() -> None:
    assert rules_table() in PAGE.read_text(encoding="utf-8")


def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path / "broken.pm", [{}, *broken("probe")])
    done = CliRunner().invoke(command, [str(path)], standalone_mode=False)
    assert done.return_value == 6
    assert "probe is broken. RFC 8985, 7.3" in done.output and "tlp_high_seq" in done.output
    done = CliRunner().invoke(command, [str(path), "--json"], standalone_mode=False)
    (told,) = json.loads(done.output[: done.output.rindex("}") + 1])["captures"]
    assert told["breaks"][0]["rule"] == "probe" and told["connections"][0]["lport"] == 5001
    done = CliRunner().invoke(command, ["--rules"], standalone_mode=False)
    assert done.return_value == 0 and all(f"{rule.name}: " in done.output for rule in RULES)


@pytest.mark.parametrize(("names", "holds"), [((), False), (("rto_us",), True)])
def test_the_assertion_of_a_span(names: tuple[str, ...], holds: bool, tmp_path: Path) -> None:
    """It is no break where records were left out on purpose."""
    path = write(tmp_path / "a.pm", broken("order"), when_changed=names)
    assert Capture(path, Proof(True, "nothing lost", 0))._conforms() is holds
