# SPDX-License-Identifier: Apache-2.0
"""Reads the events of a log that tell whose control groups are."""

from __future__ import annotations

from tcpkmon.formats.base.whose import Groups, Named
from tcpkmon.formats.klogger.batch import LogBatch

_FIELDS = ("part", "parts", "id", "text")


def feed_log(groups: Groups, batch: LogBatch) -> None:
    """The next records of a log, in their order."""
    event = batch.format.find_event("CGROUP")
    if event is None or not len(at := batch.where("CGROUP")):
        return
    rows = batch.rows("CGROUP", at)
    if {*_FIELDS} <= {*(rows.dtype.names or ())} and rows.dtype["text"].kind in "SV":
        columns = (rows[name].tolist() for name in _FIELDS)
        for part, parts, number, text in zip(*columns, strict=True):
            groups.feed(Named(part, parts, number, bytes(text).rstrip(b"\0")))
