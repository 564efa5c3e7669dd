# SPDX-License-Identifier: Apache-2.0
"""The handlers of requests refuse what the capture's file cannot hold."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from tcpkmon.collector.control.handlers import Handlers
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.recorder import Recorder
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.errors import TcpkmonError, UsageError


class Marking:
    """A stream and a kernel that note the marks."""

    def __init__(self, largest_mark: int) -> None:
        self.largest_mark = largest_mark
        self.numbers: list[int] = []
        self.on: dict[str, int] = {}
        self.told: dict[str, Any] = {}

    def marks(self, marks: Any, pid: int) -> bool:
        self.numbers += [mark.number for mark in marks]
        return True

    buffer_bytes = low_water_percent = shed_level = 0
    cpus = ()

    def nothing(self, *_: Any) -> None:
        return

    read_switches = switched = changed = pause = push = release = free = resume = resize = nothing

    def limits(self) -> dict[int, int]:
        return {}

    def filters_in_force(self) -> int:
        return 0

    def drain(self) -> list[Any]:
        return []

    def states(self) -> dict[str, tuple[int, int]]:
        return {name: (number, state) for number, (name, state) in enumerate(self.on.items())}

    def switch(self, names: list[str], on: bool) -> None:
        self.on.update(dict.fromkeys(names, int(on)))

    def describe(self, settings: dict[str, Any]) -> None:
        self.told |= settings


@pytest.mark.parametrize(("name", "bits"), [("psc", 32), ("klogger", 64)])
def test_a_mark_that_does_not_fit_is_refused(name: str, bits: int) -> None:
    noted = cast(Any, Marking(STREAMS[name]().largest_mark))
    request = Request(Filters(), "x.pm")
    handlers = Handlers(request, noted, noted, noted, lambda: {}, lambda: {})
    handlers.mark((1 << bits) - 1, 7)
    with pytest.raises(UsageError, match=f"mark {1 << bits} is too large for this file"):
        handlers.mark(1 << bits, 7)
    assert noted.numbers == [(1 << bits) - 1]


@pytest.mark.parametrize(
    ("names", "left"),
    [(None, {"A": 1, "B": 1, "C": -1}), (["B"], {"A": 0, "B": 1, "C": -1})],
)
def test_what_a_killed_process_switched_off_can_be_switched_on(
    names: list[str] | None, left: dict[str, int]
) -> None:
    """All was off when it was killed, and is now: logging, or each event."""
    kernel = cast(Any, Marking(1))
    kernel.on = {"A": 0, "B": 0, "C": -1}
    handlers = Handlers(Request(Filters(), "x.pm"), kernel, kernel, kernel, dict, dict)
    assert not handlers.enabled
    handlers.set_enabled(names, True)
    assert handlers.enabled
    kernel.on["C"] = -1  # a place that this kernel does not have
    assert kernel.on == left


def test_the_next_file_says_how_large_the_rings_are() -> None:
    kernel = cast(Any, Marking(1))
    handlers = Handlers(Request(Filters(), "x.pm"), kernel, kernel, kernel, dict, dict)
    handlers.set_enabled(None, False)
    handlers.set_buffer_bytes(1 << 20)
    handlers.set_low_water(40)
    assert kernel.told == {"buffer_bytes": 1 << 20, "low_water_percent": 40}
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    with pytest.raises(UsageError, match="are the most for a capture that runs"):
        handlers.set_buffer_bytes(memory // 16)  # of each of several CPUs
    assert kernel.told == {"buffer_bytes": 1 << 20, "low_water_percent": 40}


class Changing(Marking):
    """A stream, rings and a kernel whose filters change, and that write dumps."""

    dumps = 0

    @property
    def filters(self) -> Filters:
        return Filters()

    def set_filters(self, filters: Filters) -> None:
        return

    def ask(self, pid: int) -> int:
        self.dumps += 1
        return self.dumps


def test_the_group_makes_no_files_by_filters() -> None:
    changing = cast(Any, Changing(1))
    handlers = Handlers(Request(Filters(), "x"), changing, changing, changing, dict, dict)
    begun: list[str] = []
    handlers.next_file = begun.append
    for _ in range(5):
        handlers.set_filters({"ports": "1"}, is_owner=False)
    assert begun == []
    handlers.set_filters({"ports": "2"})
    assert begun == ["filters"]


def test_the_group_gets_as_many_dumps_as_triggers_do() -> None:
    changing = cast(Any, Changing(1))
    request = Request(Filters(), "x", recorder=Recorder(dumps_per_hour=2))
    handlers = Handlers(request, changing, changing, changing, dict, dict)
    for _ in range(2):
        handlers.dump(7, is_owner=False)
    with pytest.raises(TcpkmonError, match="asked for 2 dumps within an hour"):
        handlers.dump(7, is_owner=False)
    assert handlers.dump(7)["dump"] == 3
