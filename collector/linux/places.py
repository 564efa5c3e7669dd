# SPDX-License-Identifier: Apache-2.0
"""Programs that are attached at many places, which come and go: namespaces, CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from formats.base.errors import TcpkmonError

Find = Callable[[], Collection[int]]
"""The numbers of the places that there are now."""
Open = Callable[[int, int], list[int]]
"""open(place, program): attaches it there; descriptors, which detach it when they are closed.
TcpkmonError where the kernel refuses; no descriptor where the place has just gone."""


class Places:
    """An Attachment (collector/linux/probe_kinds.py) at each place that there is.

    It begins at the place `first` alone, whose refusal is raised; refresh() adds the others.
    """

    def __init__(self, first: int, find: Find, open_: Open, programs: Sequence[int]) -> None:
        self._find = find
        self._open = open_
        self._programs = list(programs)
        self._at: dict[int, list[int]] = {}
        self.refused: dict[int, str] = {}
        """Places where the kernel refuses the programs, and why."""
        self._add(first)

    @property
    def fds(self) -> list[int]:
        """All descriptors, of whatever place and program."""
        return [fd for fds in self._at.values() for fd in fds]

    def refresh(self) -> None:
        """Attaches at places that have come, and detaches from those that are gone."""
        now = set(self._find())
        for place in self._at.keys() - now:
            _close(self._at.pop(place))
        self.refused = {place: why for place, why in self.refused.items() if place in now}
        for place in sorted(now - self._at.keys()):
            try:
                self._add(place)
                self.refused.pop(place, None)
            except TcpkmonError as error:
                self.refused[place] = error.message

    def _add(self, place: int) -> None:
        fds: list[int] = []
        try:
            for program in self._programs:
                fds += self._open(place, program)
        except TcpkmonError:
            _close(fds)
            raise
        if fds:
            self._at[place] = fds

    def read_missed(self) -> int:
        return 0

    def remove(self) -> None:
        """Detaches everywhere; refresh() attaches no more."""
        self._programs = []
        while self._at:
            _close(self._at.popitem()[1])


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop(0))
