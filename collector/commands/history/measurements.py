# SPDX-License-Identifier: Apache-2.0
"""The measurements of msmod and iscan: the events of all schemata, also by their names of 1988."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tcpkmon.collector.commands.event_list import Listed, list_events
from tcpkmon.collector.plan.event_layout import lay_out_sources
from tcpkmon.collector.plan.schema_sources import BASE, TCP, find_sources, shipped_names
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.history.names_1988 import NAMES
from tcpkmon.formats.schema import suggest


@dataclass(frozen=True)
class Measurement:
    """An event of a schema. old: its name in the HP-UX system, or ''. fields: of its record."""

    schema: str
    event: Listed
    old: str
    fields: tuple[str, ...]

    @property
    def line(self) -> str:
        """The line that describes it: id, and what is in a record."""
        name = self.old or self.event.name
        told = "" if name == self.event.name else f" ({self.event.name})"
        return f"{name}{told}: {', '.join(('time', 'cpu', *self.fields))}"


def list_measurements() -> Iterator[Measurement]:
    """All events of the shipped schemata but tcp, which has snapshots; schema by schema."""
    for schema in shipped_names():
        if schema in (BASE, TCP):
            continue
        layout = lay_out_sources(find_sources([schema], trusted_only=False), data=False)
        for event in list_events([schema], declared=True):
            fields = tuple(place.field.name for place in layout.slot(event.name).places)
            yield Measurement(schema, event, NAMES.get(event.name, ""), fields)


def choose(ids: Sequence[str]) -> list[Measurement]:
    """The measurements of these names, old or new. UsageError for others."""
    known: dict[str, Measurement] = {}
    for one in list_measurements():
        known[one.event.name] = one
        known.setdefault(one.old or one.event.name, one)
    for word in ids:
        if word not in known:
            hint = f"tcpkmon msmod -l lists them{suggest(word, known)}"
            raise UsageError(f"there is no measurement {word!r}", hint)
    return [known[word] for word in ids]
