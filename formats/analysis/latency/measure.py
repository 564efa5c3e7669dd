# SPDX-License-Identifier: Apache-2.0
"""Measures logs: both directions of a connection, and both ends, are joined at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tcpkmon.formats.analysis.blocks import blocks
from tcpkmon.formats.analysis.latency.joins import join
from tcpkmon.formats.analysis.latency.parts import Measured, find_links, measure
from tcpkmon.formats.analysis.latency.records import RECORD, Records, events_of
from tcpkmon.formats.analysis.latency.survey import make_survey
from tcpkmon.formats.analysis.latency.thinking import Thought, think
from tcpkmon.formats.analysis.log import Log


class Latency:
    """The byte ranges of a log: iterate once; then `records` has counts, and `thoughts` how long
    servers took, by the index of the connection in the survey.

    survey: what the log holds. links: the parts that can be told apart. memory: how much may be
    held of the records [bytes]; by default see blocks.blocks(). Raises UsageError for a log of
    another schema, DamagedError for one that holds nonsense.
    """

    def __init__(self, log: Log, memory: int | None = None) -> None:
        self.survey = make_survey(log.readers)
        self.links = find_links(self.survey)
        self.records = Records(log.readers, self.survey)
        self.thoughts: dict[int, Thought] = {}
        self._memory = memory

    def __iter__(self) -> Iterator[Measured]:
        """The ranges, each once, by flow and number within what is measured at once."""
        for records, at in blocks(self.records, RECORD, self._memory):
            order = np.argsort(records["time"][at], kind="stable")
            events = events_of(records, at[order])
            self.thoughts |= think(events, self.survey)
            if len(ranges := join(events, self.survey)):
                yield measure(ranges, self.links, self.survey)
