# SPDX-License-Identifier: Apache-2.0
"""What threads did in many times at once is the sum of what they did in each."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tcpkmon.formats.analysis.doing import Doing
from tcpkmon.formats.analysis.gather import EventTable

CLASSES = {0: "OTHER", 5: "DISK", 7: "POLL"}


def table(rows: list[tuple[int, ...]], *names: str) -> EventTable:
    """rows: a time, then the fields by these names."""
    columns = {name: np.array([row[n + 1] for row in rows], np.int64)
               for n, name in enumerate(names)}  # fmt: skip
    times = np.array([row[0] for row in rows], np.int64)
    return EventTable(times, np.zeros(len(rows), np.uint16), columns, True)


TIMES = st.integers(0, 1000)
TIDS = st.sampled_from([4, 5])


@given(
    st.lists(st.tuples(TIMES, TIDS, st.sampled_from([0, 5, 7])), max_size=20),
    st.lists(st.tuples(TIMES, TIDS, st.just(4)), max_size=20),
    st.lists(st.tuples(TIMES, TIDS, st.just(4), st.sampled_from([0, 1])), max_size=20),
    st.lists(TIMES, unique=True, max_size=20),
)
def test_spans_together_are_those_one_by_one(
    sleeps: list[tuple[int, ...]], ins: list[tuple[int, ...]], outs: list[tuple[int, ...]],
    edges: list[int],
) -> None:  # fmt: skip
    doing = Doing(table(sleeps, "tid", "class"), table([], "pid", "tgid"),
                  table(ins, "pid", "tgid"), table(outs, "pid", "tgid", "state"),
                  CLASSES)  # fmt: skip
    cuts = sorted(edges)[: len(edges) // 2 * 2]
    starts, stops = np.array(cuts[::2], np.int64), np.array(cuts[1::2], np.int64)
    for tid in (4, 5, 6):
        wanted: Counter[str] = Counter()
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            wanted.update(doing.of_thread(tid, start, stop))
        assert doing.in_spans(tid, starts, stops) == dict(wanted)
