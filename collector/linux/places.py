# SPDX-License-Identifier: Apache-2.0
"""Programs that are attached at one place, or at many that come and go: namespaces, CPUs."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tcpkmon.formats.base.errors import TcpkmonError


@dataclass
class Links:
    """An Attachment (collector/linux/probe_kinds.py) by BPF links, or perf events: closing one
    detaches its program, if no other process has the same."""

    fds: list[int]

    def refresh(self) -> None:
        """There is one place, the kernel."""

    def read_missed(self) -> int:
        return 0

    def remove(self) -> None:
        while self.fds:
            os.close(self.fds.pop(0))


class Places:
    """An Attachment (collector/linux/probe_kinds.py) at each place that there is.

    A subclass has find() and open(). It begins at the place `first` alone, whose refusal is
    raised; refresh() adds the others.
    """

    def __init__(self, first: int, programs: Sequence[int]) -> None:
        self._programs = list(programs)
        self._at: dict[int, list[int]] = {}
        self._knows_all = False
        """refresh() has been called."""
        self._missed = 0
        self.refused: dict[int, str] = {}
        """Places where the kernel refuses the programs, and why."""
        self._add(first)

    def find(self) -> Collection[int]:
        """The numbers of the places that there are now."""
        raise NotImplementedError

    def open(self, place: int, program: int) -> list[int]:
        """Attaches a program there; descriptors, which detach it when they are closed.

        TcpkmonError where the kernel refuses; no descriptor where the place has just gone.
        """
        raise NotImplementedError

    def is_dead(self, fds: Sequence[int]) -> bool:
        """Whether a place has come back, and these descriptors belong to its former life."""
        return False

    def count_before(self, place: int) -> int:
        """What the programs did not see at a place that came before they were attached there."""
        return 0

    def close(self, fds: list[int]) -> None:
        """Detaches programs from a place."""
        while fds:
            os.close(fds.pop(0))

    @property
    def fds(self) -> list[int]:
        """All descriptors, of whatever place and program."""
        return [fd for fds in self._at.values() for fd in fds]

    def refresh(self) -> None:
        """Attaches at places that have come, and detaches from those that are gone."""
        if not self._programs:
            return
        now = set(self.find())
        for place in list(self._at):
            if place not in now or self.is_dead(self._at[place]):
                self.close(self._at.pop(place))
        self.refused = {place: why for place, why in self.refused.items() if place in now}
        for place in sorted(now - self._at.keys()):
            try:
                self._add(place)
                self.refused.pop(place, None)
                if self._knows_all and place in self._at:
                    self._missed += self.count_before(place)
            except TcpkmonError as error:
                self.refused[place] = error.message
        self._knows_all = True

    def _add(self, place: int) -> None:
        fds: list[int] = []
        try:
            for program in self._programs:
                fds += self.open(place, program)
        except TcpkmonError:
            self.close(fds)
            raise
        if fds:
            self._at[place] = fds

    def read_missed(self) -> int:
        return self._missed

    def remove(self) -> None:
        """Detaches everywhere; refresh() attaches no more."""
        self._programs = []
        while self._at:
            self.close(self._at.popitem()[1])
