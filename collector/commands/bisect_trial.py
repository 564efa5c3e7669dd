# SPDX-License-Identifier: Apache-2.0
"""The runs of `tcpkmon bisect`: made in turn, read, and compared at the looks that were settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tcpkmon.collector.commands.bisect_sides import Sides
from tcpkmon.formats.analysis.bisecting import (
    Plan,
    Told,
    make_plan,
    power_lines,
    powers,
    refuse_useless,
    tell,
)
from tcpkmon.formats.analysis.diff import RUN, Run, read_run, refuse_unproven, values_of_side
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.conditions import Value

Values = dict[str, NDArray[Any]]
Say = Callable[[str], None]


class Trials:
    """folder: gets the captures, a folder for each side. where: chooses connections. say: is told
    what goes on. runs: what was made last, by side; plan: for what.

    baseline: the first side, of runs that are there; the sides then are one, that is compared with
    it.
    """

    def __init__(
        self, sides: Sides, plan: Plan, folder: Path, where: Value | None, say: Say,
        baseline: Sequence[Run] = (),
    ) -> None:  # fmt: skip
        self.plan = plan
        self.runs: dict[int, list[Run]] = {}
        self._sides, self._folder, self._where, self._say = sides, folder, where, say
        self._baseline = list(baseline)
        self._stage = 0

    def compare(self, sides: Sequence[int], names: Sequence[str]) -> list[Told]:
        """Make runs of these sides, in turn, until it is known what each has more than the one
        before it. names: the metrics, if not those of the plan. Raises TcpkmonError."""
        if names:
            metrics = [one.name for one in self.plan.metrics if one.name in names]
            self.plan = make_plan(metrics, self.plan.runs, self.plan.alpha, self.plan.least)
        plan = self.plan
        self._stage += 1
        self.runs = {side: [] for side in sides}
        told: list[Told] = []
        before = 0
        for look in plan.looks:
            self._warm(sides, is_first=before == 0)
            for count in range(before + 1, look.runs + 1):
                # The other way round each time: what drifts moves both sides alike.
                for side in sides if count % 2 else reversed(sides):
                    self.runs[side].append(self._play(side, f"{count:03}"))
                if count == plan.pilot and before == 0:
                    self._tell_power(sides)
            before = look.runs
            told = [tell(plan, look, a, b) for a, b in self._pairs(sides)]
            if _is_enough(told):
                break
            if look is not plan.looks[-1]:
                self._say(f"after {look.runs} runs: not sure yet")
        return told

    def record(self) -> None:
        """Make the runs of the plan, and compare nothing: a baseline."""
        self._warm((0,), is_first=True)
        for count in range(1, self.plan.runs + 1):
            self._play(0, f"{count:03}")

    def _pairs(self, sides: Sequence[int]) -> list[tuple[Values, Values]]:
        """The values of neighbours."""
        runs = [self._baseline] if self._baseline else []
        runs += [self.runs[side] for side in sides]
        values = [values_of_side([(run.connections, run.flows) for run in some], RUN)
                  for some in runs]  # fmt: skip
        return [(values[n], values[n + 1]) for n in range(len(values) - 1)]

    def _warm(self, sides: Sequence[int], is_first: bool) -> None:
        """A run of each that does not count: it finds caches cold, and what is wrong at all."""
        self._sides.refresh(sides)
        if is_first or self._sides.cools:
            for side in sides:
                self._play(side, "warm-up")

    def _play(self, side: int, name: str) -> Run:
        folder = self._folder
        if len(self._sides.names) > 1:
            folder = folder / f"{side + 1}-{_file_name(self._sides.names[side])}"
        if self._stage > 1:
            folder = folder / f"stage-{self._stage}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.pm"
        self._sides.play(side, path)
        run = read_run(path, self._where)
        refuse_unproven([run])
        if run.connections is None or not len(run.connections["conn_id"]):
            what = "that --where chooses" if self._where is not None else "that moves data"
            raise UsageError(
                f"the command makes no connection {what}: there is nothing to compare",
                "it runs in a namespace of its own: --peer starts a server there, or let the "
                "command connect to itself",
            )
        if name == "warm-up":
            for file in (path, path.with_suffix(".log")):
                file.unlink(missing_ok=True)
        return replace(run, flows=None)

    def _tell_power(self, sides: Sequence[int]) -> None:
        for a, b in self._pairs(sides):
            refuse_useless(self.plan, a, b)
        if self._stage > 1:
            return
        for a, b in self._pairs(sides):
            for line in power_lines(self.plan, powers(self.plan, a, b), self.plan.pilot):
                self._say(line)


def _is_enough(told: Sequence[Told]) -> bool:
    """Of two sides: what they told is sure. Of three, each neighbour of the middle is told apart
    from it, or told to be no other, and not both are no other."""
    if len(told) == 1:
        return told[0].is_sure
    return all(one.is_sure for one in told) and any(one.changed for one in told)


def _file_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "._=-" else "_" for char in name)[:100]
