# SPDX-License-Identifier: Apache-2.0
"""What was changed while a capture ran: the check of its order, the same for every format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tcpkmon.formats.base.changes import ChangeKind, Off, Switches, describe
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.base.shedding import Shed
from tcpkmon.formats.verify.report import Problems, Report


class ChangeCheck:
    """Follows the changes; each begins where the one before it of its kind and number ended."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._switches = Switches()
        self._shed = Shed()
        self._values: dict[tuple[int, int], int] = {}
        self._others: list[str] = []

    def feed(self, entry: int, change: Change) -> None:
        """The next change; entry: its number in the file."""
        key = change.kind, change.which
        told = self._values.get(key, change.old)
        if change.kind > max(ChangeKind):
            self._problems.add(entry, f"CHANGE of unknown kind {change.kind}")
            return
        # A process that goes on where another was killed begins at step 0, whatever was said last.
        begins = change.kind == ChangeKind.SHED and not change.new
        if told != change.old and not begins:
            self._problems.add(entry, f"CHANGE from {change.old}, but {told} was in force")
        if change.before_ns > change.after_ns:
            self._problems.add(entry, "CHANGE ends before it begins")
        if change.why and change.kind != ChangeKind.SHED:
            self._problems.add(entry, "CHANGE with a reason that only the budget has")
        self._values[key] = change.new
        self._shed.feed(change)
        self._switches.feed(change)
        if change.by_others and change.kind != ChangeKind.SWITCH:
            what = f"{ChangeKind(change.kind).name.lower().replace('_', ' ')} {change.which}"
            who = "not tcpkmon changed it"
            self._others.append(f"{what} went from {change.old} to {change.new}; {who}")

    def conclude(
        self,
        report: Report,
        name: Callable[[int], str],
        epoch_ns: Callable[[int], int],
        steps: Sequence[str] = (),
    ) -> None:
        """Put what was found into the report. steps: of the budget, in the file's words."""
        self.off: list[Off] = self._switches.all()
        report.off += describe(self.off, name, epoch_ns)
        report.notes += self._others
        report.shed += self._shed.describe(steps, epoch_ns)
