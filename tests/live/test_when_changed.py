# SPDX-License-Identifier: Apache-2.0
"""--when-changed withholds segments that change nothing, counts them apart, and no other event."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from capturing import capturing_each, connected, within

from collector.lab import Lab

ROUNDS = 100


@pytest.mark.parametrize("watched", [("snd_cwnd",), ("bytes_received", "ca_name")])
def test_unchanged_segments_are_withheld_and_counted(
    tmp_path: Path, lab: Lab, watched: tuple[str, ...]
) -> None:
    options = {
        "all": ("--columns", "all", *within(lab)),
        "changed": ("--columns", "all", "--when-changed", ",".join(watched), *within(lab)),
    }
    with connected(lab) as pair, capturing_each(tmp_path, options) as captures:
        for _ in range(ROUNDS):
            pair.exchange(10)
        everything, changed = (captures[name].stop() for name in options)
    everything.check_complete()
    changed.check_complete()
    whole, part = everything.records, changed.records
    # The same events passed both: what one recorded, the other recorded or withheld.
    for name in everything.ledger:
        books = changed.books(name)
        assert books["attempts"] == books["filtered"] + books["unchanged"] + books["written"]
        assert books["written"] + books["unchanged"] == everything.books(name)["written"], name
        assert books["lost"] == 0
        if name != "SEGMENT_RECEIVED":
            assert books["unchanged"] == 0, name
    others = [name for name in whole.counts() if name != "SEGMENT_RECEIVED"]
    assert {name: part.counts()[name] for name in others} == {
        name: whole.counts()[name] for name in others
    }
    assert "SEND_CALL" in others
    withheld = changed.books("SEGMENT_RECEIVED")["unchanged"]
    assert withheld == len(whole.at("SEGMENT_RECEIVED")) - len(part.at("SEGMENT_RECEIVED"))
    if watched == ("snd_cwnd",):
        assert withheld > ROUNDS
    # Computed from the whole capture, with the same rule: a segment is recorded when a watched
    # column differs from what the connection's record before, recorded or withheld, had.
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
