# SPDX-License-Identifier: Apache-2.0
"""What a log says of the kernel's sockets and the last records of their connections."""

from __future__ import annotations

from formats.base.reconciled import Reconciled, What
from formats.klogger.batch import LogBatch
from formats.verify.klogger.books import integers
from formats.verify.report import Problems, Report

RECONCILED = "RECONCILED"
_FIELDS = ("when", "what", "connection", "record", "kernel", "ports")


def feed_reconciled(batch: LogBatch, first: int, report: Report, problems: Problems) -> None:
    """A summary is a note, a difference that no loss explains a problem. first: the number of the
    batch's first record."""
    if batch.format.find_event(RECONCILED) is None:
        return
    places = (first + batch.where(RECONCILED)).tolist()
    for at, row in zip(places, integers(batch, RECONCILED, _FIELDS).tolist(), strict=True):
        found = Reconciled(*row)
        if found.what == What.SUMMARY:
            report.notes.append(found.describe())
        else:
            problems.add(at, found.describe())
