# SPDX-License-Identifier: Apache-2.0
"""--when-changed withholds segments that change nothing, counts them apart, and no other event."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.lab.lab import Lab
from tests.live.capturing import (
    Outcome,
    Records,
    capturing_each,
    connected,
    tcp_info,
    wait_until,
    within,
)

ROUNDS = 100
LOCATIONS = ("--locations", "default,SEND_CALL,RECEIVE_CALL")


@pytest.mark.parametrize("rings", ["bpf", pytest.param("perf", marks=pytest.mark.full)])
def test_unchanged_segments_are_withheld_and_counted(
    tmp_path: Path, lab: Lab, rings: str
) -> None:
    watches = {"window": ("snd_cwnd",), "received": ("bytes_received", "ca_name")}
    options = {"all": ("--columns", "all", *LOCATIONS, "--rings", rings, *within(lab))}
    for name, watched in watches.items():
        options[name] = (*options["all"], "--when-changed", ",".join(watched))
    with connected(lab) as pair, capturing_each(tmp_path, options) as captures:
        for _ in range(ROUNDS):
            pair.exchange(10)
        for end in (pair.client, pair.server):  # no acknowledgement comes between the stops
            wait_until(lambda end=end: not tcp_info(end)["unacked"])
        outcomes = {name: captures[name].stop() for name in options}
    for outcome in outcomes.values():
        outcome.check_complete()
    for name, watched in watches.items():
        check_books(outcomes["all"], outcomes[name])
        check_records(outcomes["all"].records, outcomes[name].records, watched)
    assert outcomes["window"].books("SEGMENT_RECEIVED")["unchanged"] > ROUNDS


def check_books(everything: Outcome, changed: Outcome) -> None:
    """The same events passed both: what one recorded, the other recorded or withheld."""
    for name in everything.ledger:
        books = changed.books(name)
        assert books["attempts"] == books["filtered"] + books["unchanged"] + books["written"]
        assert books["written"] + books["unchanged"] == everything.books(name)["written"], name
        assert books["lost"] == 0
        if name != "SEGMENT_RECEIVED":
            assert books["unchanged"] == 0, name
    whole, part = everything.records.counts(), changed.records.counts()
    withheld = changed.books("SEGMENT_RECEIVED")["unchanged"]
    assert withheld == whole.pop("SEGMENT_RECEIVED") - part.pop("SEGMENT_RECEIVED", 0)
    assert whole == part
    assert "SEND_CALL" in whole


def check_records(whole: Records, part: Records, watched: tuple[str, ...]) -> None:
    """The rule itself, on the whole capture: a segment is recorded if a watched column differs
    from what the connection's record before, recorded or withheld, had."""
    for port in set(whole["lport"].tolist()):
        one = whole.where(lport=port)
        same = np.ones(len(one), bool)
        same[0] = False
        for name in watched:
            same[1:] &= one[name][1:] == one[name][:-1]
        segment = one["location"] == whole.at("SEGMENT_RECEIVED")["location"][0]
        expected = one.pick(~(same & segment))
        found = part.where(lport=port)
        for name in ("location", "callvalue", "snd_nxt", "rcv_nxt", *watched):
            assert found[name].tolist() == expected[name].tolist(), name
