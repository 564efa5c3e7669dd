# SPDX-License-Identifier: Apache-2.0
"""All kinds of control entries, by location and by the event that tells the same in logs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tcpkmon.formats.base import control
from tcpkmon.formats.base.control import EXISTING, Control, Unknown
from tcpkmon.formats.base.drops import DropPlace
from tcpkmon.formats.base.reconciled import Reconciled
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.base.whose import GroupPart

_ALL = (
    control.Start, control.Clock, control.Loss, control.Checkpoint, control.Mark, control.End,
    control.Ledger, control.Losses, control.Cpu, control.Program, control.Collector,
    control.Change, control.Trigger, Reconciled, GroupPart, Unseen, DropPlace,
)  # fmt: skip
KINDS: dict[int, type[Control]] = {kind.location: kind for kind in _ALL}
NAMES = {kind.location: kind.event or kind.__name__.upper() for kind in _ALL}
NAMES[EXISTING] = "EXISTING"
EVENTS: dict[str, type[Control]] = {kind.event: kind for kind in _ALL if kind.event}
"""By name, the events of logs that have the fields of a kind: see event_fields()."""
_CALLED = {"which": "number"}


def decode(callvalue: int, location: int, words: Sequence[int]) -> Control:
    """The control entry with these values; words: its ten u32. Any values are valid."""
    kind = KINDS.get(location)
    if kind is None:
        return Unknown(location, callvalue, tuple(int(word) for word in words))
    return kind.from_words(int(callvalue), [int(word) for word in words])


def event_fields(kind: type[Control]) -> list[str]:
    """The fields of a kind, in its order, as the event calls them."""
    return [_CALLED.get(field.name, field.name) for field in dataclasses.fields(kind)]
