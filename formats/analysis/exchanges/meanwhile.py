# SPDX-License-Identifier: Apache-2.0
"""What the server's process did while it was to answer: from sched beside tcp in one log, and whom
it asked itself, as a proxy does, from the other exchanges of the capture."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.doing import DOING, Doing
from tcpkmon.formats.analysis.exchanges.summary import slowest
from tcpkmon.formats.analysis.gather import gather
from tcpkmon.formats.analysis.log import open_log
from tcpkmon.formats.analysis.why import Table
from tcpkmon.formats.analysis.why.waits import said_of
from tcpkmon.formats.analysis.why.words import human_time
from tcpkmon.formats.base.text import endpoint

_LEAST = 0.05


def did_meanwhile(
    paths: Sequence[str | os.PathLike[str]], table: Table, most: int
) -> dict[int, str]:
    """A sentence for each of the slowest exchanges, by its row, of servers with a known process.

    Of its threads it takes the one that was least idle. UsageError where the log has no events of
    sched; DamagedError, FileError.
    """
    rows = [at for at in slowest(table, most).tolist() if table["side"][at] == "server"
            and table["pid"][at] > 0 and table["think_ns"][at] > 0]  # fmt: skip
    if not rows:
        return {}
    with open_log(*paths) as log:
        data = gather(log, DOING)
        classes = log.format.enums.get("sleep_class", {})
    doing = Doing(data["SLEEP"], data["ADD_TO_RUNQ"], data["SCHEDIN"], data["SCHEDOUT"], classes)
    found = {}
    for at in rows:
        start = int(table["start_ns"][at] + table["request_ns"][at])
        think = int(np.nan_to_num(table["think_ns"][at]))
        pid = int(table["pid"][at])
        tid, did = doing.most(pid, start, start + think)
        if did:
            name = f"{table['comm'][at] or ''} ({pid})".strip()
            thread = f", thread {tid}," if tid != pid else ""
            found[at] = f"meanwhile its process {name}{thread} {said_of(did, think)}"
    return found


def asked_meanwhile(table: Table, whole: Table, most: int) -> dict[int, str]:
    """A sentence for each of the slowest exchanges, by its row, of servers whose process (column
    pid) got an answer of another server in its thinking: the one that it waited longest for.
    whole: where that is looked for."""
    asked, waited = _times(whole)
    is_client = (whole["side"] == "client") & (whole["response_bytes"] > 0)
    found = {}
    begins, thinks = _times(table)
    for at in slowest(table, most).tolist():
        begin, think = begins[at], thinks[at]
        if table["side"][at] != "server" or not table["pid"][at] > 0 or not think:
            continue
        mine = is_client & (whole["pid"] == table["pid"][at]) & (whole["start_ns"] >= begin)
        rows = np.flatnonzero(mine & (asked + waited <= begin + think))
        if not len(rows):
            continue
        one = int(rows[np.argmax(waited[rows])])
        if waited[one] >= _LEAST * think:
            peer = endpoint(whole["raddr"][one], int(whole["rport"][one]))
            share = f"{100 * waited[one] / think:.0f} % of that time"
            time = human_time(waited[one] / 1000)
            found[at] = f"meanwhile its process waited {time} for an answer of {peer}, {share}"
    return found


def _times(table: Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When each request was complete, and how long its first byte of the answer took then [ns]."""
    think, network = (
        np.nan_to_num(table[name].astype(np.float64)).astype(np.int64)
        for name in ("think_ns", "network_ns")
    )  # fmt: skip
    return table["start_ns"] + table["request_ns"], think + network
