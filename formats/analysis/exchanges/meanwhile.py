# SPDX-License-Identifier: Apache-2.0
"""What the server's process did while it was to answer: from sched beside tcp in one log."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from formats.analysis.doing import DOING, Doing
from formats.analysis.exchanges.summary import slowest
from formats.analysis.gather import gather
from formats.analysis.log import open_log
from formats.analysis.why import Table
from formats.analysis.why.waits import said_of


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
