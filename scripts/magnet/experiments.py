# SPDX-License-Identifier: Apache-2.0
"""All experiments by name: a module each, with measure(), figures() and tables()."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scripts.benchmark.context import Context
from scripts.benchmark.results import Results
from scripts.benchmark.tables import Table
from scripts.magnet import cascade, layers, loss, modulation, overhead, packets, state, stream
from scripts.magnet.figure import Figure


@dataclass(frozen=True)
class Experiment:
    """measure adds to the results; figures and tables read these, whatever of them there is."""

    title: str
    measure: Callable[[Context], None]
    figures: Callable[[Results], list[Figure]]
    tables: Callable[[Results], list[Table]]


EXPERIMENTS = {
    one.NAME: Experiment(one.TITLE, one.measure, one.figures, one.tables)
    for one in (overhead, loss, packets, stream, modulation, cascade, state, layers)
}
