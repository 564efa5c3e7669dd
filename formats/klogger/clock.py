# SPDX-License-Identifier: Apache-2.0
"""Times of a Klogger log's records in the clock of --time, and times given on a command line."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.table import LogFormat

CLOCK_EVENT = "CLOCK"
_FRACTION = re.compile(r"\.\d+", re.ASCII)
_BILLION = 1_000_000_000
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True)
class Moment:
    """A time from the command line: `ns` of real time, or of the clock of --time."""

    ns: int
    is_real: bool


class LogClock:
    """Computes the times of the records of one stream, whose batches must be given in order.

    kind: as in --time. zero_ns: CLOCK_MONOTONIC at which `rel` is 0. Raises UsageError if the log
    has no clock pair and `kind` is not "mono".
    """

    def __init__(self, log: LogFormat, kind: str, zero_ns: int = 0) -> None:
        self.kind = kind
        self._zero_ns = zero_ns
        pair = log.need_clock() if kind != "mono" else log.clock
        self._ahead = pair[1] - pair[0] if pair else 0
        event = log.find_event(CLOCK_EVENT)
        names = ("mono_ns", "realtime_ns")
        self._seen: tuple[LogBatch, NDArray[np.int64] | int] | None = None
        self._has_pairs = event is not None and all(event.find_field(name) for name in names)

    def ahead_of_mono(self, batch: LogBatch) -> NDArray[np.int64] | int:
        """Real time minus CLOCK_MONOTONIC in ns for each record, from the last CLOCK event."""
        if self._seen is None or self._seen[0] is not batch:
            self._seen = batch, self._find_ahead(batch, self._ahead)
        return self._seen[1]

    def _find_ahead(self, batch: LogBatch, ahead: int) -> NDArray[np.int64] | int:
        at = batch.where(CLOCK_EVENT) if self._has_pairs else np.empty(0, np.int64)
        if not len(at):
            return ahead
        rows = batch.rows(CLOCK_EVENT, at)
        steps = [ahead]
        for real, mono in zip(rows["realtime_ns"].tolist(), rows["mono_ns"].tolist(), strict=True):
            ahead = real - mono
            steps.append(ahead if abs(ahead) <= _LARGEST else steps[-1])
        self._ahead = steps[-1]
        return np.repeat(np.array(steps, np.int64), np.diff([0, *at.tolist(), len(batch)]))

    def times(self, batch: LogBatch, real: bool | None = None) -> NDArray[np.int64]:
        """The records' times in ns: in real time if `real`, by default in this clock."""
        mono = batch.times_ns.view(np.int64)
        if real or (real is None and self.kind in ("iso", "epoch")):
            return mono + self.ahead_of_mono(batch)
        return mono - self._zero_ns if self.kind == "rel" else mono


_HOW = "give 2026-01-31T12:00:00, ns with --time mono, seconds with --time rel or epoch"


def parse_time(text: str, kind: str, how: str = _HOW) -> Moment:
    """A time of --since or --until: ISO 8601 (UTC without a zone), or a number as --time prints.

    The number is in ns for mono, otherwise in seconds. how: what to try, where it is none. Raises
    UsageError.
    """
    try:
        if kind == "mono" and text.isascii() and text.isdigit():
            return Moment(min(int(text[:20]), _LARGEST), False)
        if kind != "mono":
            seconds = Decimal(text)
            if seconds.is_finite() and abs(seconds) < 1 << 33:
                return Moment(int(seconds * _BILLION), kind != "rel")
    except InvalidOperation:
        pass
    try:
        # Python 3.10 parses neither Z nor a fraction unless it has 3 or 6 digits.
        plain = _FRACTION.sub(lambda match: match[0][:7].ljust(7, "0"), text.replace("Z", "+00:00"))
        moment = datetime.datetime.fromisoformat(plain)
    except ValueError as error:
        raise UsageError(f"no time: '{text}'", how) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return Moment((since.days * 86400 + since.seconds) * _BILLION + since.microseconds * 1000, True)
