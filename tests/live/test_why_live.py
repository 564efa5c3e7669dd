# SPDX-License-Identifier: Apache-2.0
"""tcpkmon why on connections whose limit was made: a few of scripts/test --truth why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tcpkmon.formats.analysis.why import connections, rows_of
from tests.full import first
from tests.truth.why.judging import play
from tests.truth.why.scenarios import SCENARIOS
from tests.truth.why.unseen import UNSEEN

LEAST = 0.9
BY_NAME = {scenario.name: scenario for scenario in (*SCENARIOS, *UNSEEN)}


@pytest.mark.parametrize("name", first(2, [
    "deep queue, cubic", "requests of 35 kB and answers, reno", "receiver: one segment is missing",
    "closes at once, small receive buffer", "the sender computes for long",
    "small receive buffer, cubic", "reader reads nothing", "small send buffer, reno",
    "application pauses 5 ms", "socket paced at 5 MB/s", "own device is slow, cubic",
    "own HTB at 5 Mbit/s, reno", "closes at once, deep queue",
    "its peer ended its direction, shallow queue, reno", "requests in two writes, delayed ACKs",
    "receiver: reader sleeps 20 ms",
]))  # fmt: skip
def test_the_limit_that_was_made_is_found(tmp_path: Path, name: str) -> None:
    judged = play(BY_NAME[name], tmp_path, seconds=1.0)
    assert judged.lost == 0
    assert judged.right >= LEAST, judged.shares
    assert judged.kernel.get("cpu", 1.0) >= LEAST  # the scheduler says so too


@pytest.mark.parametrize("name", first(1, [
    "receiver: policer of 8 Mbit/s", "800 kB and close at once, paced at 1 MB/s",
    "tail of each answer of 30 kB is lost once", "slots of 20 ms, cubic",
    "receiver: 1 % of segments come 20 ms late", "TCP_CORK over 40 ms of work",
    "the last 5 segments before a close are lost", "window of 20 segments, paced 30 % below it",
]))  # fmt: skip
def test_a_limit_over_the_test_link_is_found(tmp_path: Path, name: str) -> None:
    judged = play(BY_NAME[name], tmp_path)
    assert judged.right >= LEAST, judged.parts or judged.shares
    assert not judged.wrong
    assert {truth for truths, _, _ in judged.parts for truth in truths} == (
        {*judged.truth, "closing"} if "close at once" in name else
        set(judged.truth) if judged.parts else set()
    )  # fmt: skip


def test_the_command_says_it_in_words(tmp_path: Path) -> None:
    play(BY_NAME["small receive buffer, cubic"], tmp_path, seconds=0.8)
    tcpkmon = Path(sys.executable).with_name("tcpkmon")
    command = [tcpkmon, "why", tmp_path / "why.pm"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "10.77.0.1" in said
    assert "limited by the receiver's window" in said
    told = json.loads(subprocess.check_output([*command, "--json"]))["connections"]
    sender = next(one for one in told if one["laddr"] == "10.77.0.1")
    assert max(sender["limit_ns"], key=sender["limit_ns"].get) == "rwnd"
    whole = sum(sender["limit_ns"].values())
    assert 0.99 * whole <= sender["certain_ns"] <= whole  # a busy machine hides a segment or two
    limit = 'limit_share("rwnd") {} where laddr == "10.77.0.1"'
    for texts, code in ((("no_loss", "proven", limit.format("> 80%")), 0),
                        ((limit.format("< 20%"),), 6)):  # fmt: skip
        checked = subprocess.run([tcpkmon, "check", command[-1], *texts], check=False)
        assert checked.returncode == code


@pytest.mark.parametrize("name, on_purpose", first(1, [
    ("socket paced at 5 MB/s", True), ("deep queue, bbr", False),
]))  # fmt: skip
def test_purpose_is_claimed_where_the_rate_never_changed(
    tmp_path: Path, name: str, on_purpose: bool
) -> None:
    """With the default columns, which do not say that it was bbr."""
    play(BY_NAME[name], tmp_path, seconds=1.5, columns="default")
    command = [Path(sys.executable).with_name("tcpkmon"), "why", tmp_path / "why.pm"]
    said = subprocess.check_output(command, text=True)
    assert ("always at 40.0 Mbit/s, as SO_MAX_PACING_RATE" in said) == on_purpose
    assert ("on purpose" in said) == on_purpose, said


@pytest.mark.parametrize(
    "name", first(1, ["small receive buffer, cubic", "application pauses 5 ms"])
)
def test_the_kernel_counts_the_same(tmp_path: Path, name: str) -> None:
    play(BY_NAME[name], tmp_path, seconds=1.0, columns="full")
    (row,) = rows_of(connections(tmp_path / "why.pm"))
    assert row["disagreement_us"] < 0.1 * row["duration_us"], row
    limited = row["rwnd_limited_us"] > 0.8 * row["duration_us"]
    assert limited == (BY_NAME[name].truth[0] == "rwnd")
    command = [Path(sys.executable).with_name("tcpkmon"), "why", "-v", tmp_path / "why.pm"]
    assert "the kernel's own counts: receiver's window" in subprocess.check_output(
        command, text=True
    )
