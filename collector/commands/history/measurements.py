# SPDX-License-Identifier: Apache-2.0
"""The measurements of msmod and iscan: the events of all schemata, also by their names of 1988."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tcpkmon.collector.commands.event_list import Listed, list_events
from tcpkmon.collector.plan.event_layout import lay_out_sources
from tcpkmon.collector.plan.schema_sources import BASE, TCP, find_sources, shipped_names
from tcpkmon.formats.base.errors import KernelError, UsageError
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.history import words_of
from tcpkmon.formats.history.names_1988 import GONE, IDS, NAMES
from tcpkmon.formats.klogger.describe import describe_event
from tcpkmon.formats.klogger.table import LogFormat


@dataclass(frozen=True)
class Measurement:
    """An event of a schema. old: its name in the HP-UX system, or ''. level: the log level that
    declares it, or ''. records: the words of each record that translate prints."""

    schema: str
    event: Listed
    old: str
    level: str
    records: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """The lines that describe it: id, and the words of a record."""
        name = self.old or self.event.name
        today = "" if name == self.event.name else f" ({self.event.name})"
        return [f"{name}{today}: {words}" for words in self.records]


def list_measurements() -> Iterator[Measurement]:
    """All events of the shipped schemata but tcp, which has snapshots; schema by schema."""
    for schema in shipped_names():
        if schema in (BASE, TCP):
            continue
        layout = lay_out_sources(find_sources([schema], trusted_only=False), data=False)
        levels = {e.name: level.name for level in layout.schema.loglevels for e in level.events()}
        for event in list_events([schema], declared=True):
            slot = layout.slot(event.name)
            table = [describe_event(layout.schema, slot.event, 0)]
            [told] = LogFormat.of({"format": 1, "byteorder": "little", "events": table}).events
            records = tuple(", ".join(words) for words in words_of(told))
            old = NAMES.get(event.name, "")
            yield Measurement(schema, event, old, levels.get(event.name, ""), records)


def choose(ids: Sequence[str]) -> list[list[Measurement]]:
    """The measurements of each of these names, old or new. KernelError for those that no kernel of
    today has, UsageError for others."""
    known: dict[str, Measurement] = {}
    for one in list_measurements():
        known[one.event.name] = one
        known.setdefault(one.old or one.event.name, one)
    for word in ids:
        if word in GONE:
            raise KernelError(f"{word} is not on this kernel: {GONE[word]}")
        if word not in known and word not in IDS:
            hint = f"tcpkmon msmod -l lists them{suggest(word, [*known, *IDS])}"
            raise UsageError(f"there is no measurement {word!r}", hint)
    return [[known[name] for name in IDS.get(word, (word,))] for word in ids]
