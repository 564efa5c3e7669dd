# SPDX-License-Identifier: Apache-2.0
"""What a rule is: a sentence of an RFC, and the test of it on records of a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.sequence import ahead_of
from tcpkmon.formats.base.tcp import CaState, Location, State

Array = NDArray[np.int64]
Mask = NDArray[np.bool_]

RENO, CUBIC = 1, 2
"""The column `ca`, made of ca_name: 0 for another algorithm."""


@dataclass(frozen=True)
class Step:
    """n records of connections, and for each the record before it, in columns of int64.

    was: the record before. entry: that of the last reduction of the window that was not undone;
    first: the first one after the handshake. All of one connection; where there is none, has_...
    is false, and the values are any. after_rto: the record directly before is that of the
    retransmission timer; was_after_rto: so it is of `was`. time_ns, before_ns: of now and was.
    """

    now: Mapping[str, Array]
    was: Mapping[str, Array]
    entry: Mapping[str, Array]
    first: Mapping[str, Array]
    after_rto: Mask
    was_after_rto: Mask
    time_ns: Array
    before_ns: Array

    @property
    def established(self) -> Mask:
        """Both records are of an established connection."""
        now, was = self.now["state"], self.was["state"]
        both: Mask = (now == State.ESTABLISHED) & (was == State.ESTABLISHED)
        return both

    @property
    def open(self) -> Mask:
        """Besides, no loss or reordering is under way."""
        calm: Mask = (self.now["ca_state"] == CaState.OPEN) & (self.was["ca_state"] == CaState.OPEN)
        same: Mask = self.established & calm & (self.now["mss"] == self.was["mss"])
        return same

    @property
    def sent(self) -> Array:
        """Bytes sent for the first time in between."""
        return ahead_of(self.now["snd_max"], self.was["snd_max"])

    @property
    def loss_based(self) -> Mask:
        """The algorithm is reno or cubic."""
        return self.now["ca"] > 0

    def into(self, *states: int) -> Mask:
        """Records of a change into one of these congestion states, where no reduction is under
        way."""
        calm: Mask = self.now["ca_state"] <= CaState.DISORDER
        into: Mask = calm & (self.now["location"] == Location.CONG_STATE)
        return into & np.isin(self.now["callvalue"], states)


@dataclass(frozen=True)
class Rule:
    """judge: of a step, where the rule applies and where it is broken. deviations: what Linux does
    otherwise, and where its source says so; the rule allows that.

    needs: the columns that it looks at, beside ALWAYS. across: it needs was, entry or first, and
    no record lost since. locations: those that must be recorded. undo: reductions that are undone
    must be seen. shows: columns that a break shows.
    """

    name: str
    rfc: str
    quote: str
    judge: Callable[[Step], tuple[Mask, Mask]]
    deviations: str = ""
    needs: tuple[str, ...] = ()
    across: str = "was"
    locations: tuple[str, ...] = ("SEGMENT_RECEIVED", "CONG_STATE", "STATE_CHANGE")
    undo: bool = False
    shows: tuple[str, ...] = ()
