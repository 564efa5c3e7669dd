# SPDX-License-Identifier: Apache-2.0
"""What users' schemata with `extends tcp` add to the schema tcp: columns, and locations.

formats/schema has put them behind the shipped ones; FILL() of their C text sets the columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tcpkmon.collector.plan.columns import EVENT, LOCATIONS, SCHEMATA, SETS, load_schema
from tcpkmon.collector.plan.probes import find_probes
from tcpkmon.collector.plan.schema_sources import (
    TCP,
    Source,
    blank_comments,
    declarations,
    find_sources,
    has_tcp,
    shipped_names,
)
from tcpkmon.collector.ring.points import FIRST_EVENT, FIRST_OWN
from tcpkmon.formats.base.errors import Problem
from tcpkmon.formats.psc.columns import LENGTH_MAX, NAME_BYTES, TIME_FIELDS
from tcpkmon.formats.schema import Field, Member, Schema, field_type, load

_FILL = re.compile(r"^FILL\(\s*(\w+)\s*\)", re.MULTILINE | re.ASCII)
_SET = re.compile(r"\b(?:SET|COPY)\(\s*(\w+)\s*,", re.ASCII)


def add_tcp(asked: tuple[str, ...]) -> tuple[str, ...]:
    """These schemata, with the schema tcp where one extends it. The errors of find_sources()."""
    extends = TCP not in asked and has_tcp(find_sources(_own(asked)))
    return (TCP, *asked) if extends else asked


def extends_only(asked: Sequence[str]) -> bool:
    """Whether these schemata are tcp, and users' that extend it. The errors of find_sources()."""
    own = _own(asked)
    return {*asked} <= {*own, TCP} and all(
        source.extends for source in find_sources(own) if not source.shipped
    )


def _own(asked: Sequence[str]) -> list[str]:
    return [word for word in asked if word not in shipped_names()]


def tcp_schema(sources: Sequence[Source]) -> Schema:
    """The schema tcp, with what those of the sources that extend it add. SchemaError."""
    own = [source for source in sources if source.extends]
    tcp = Source(TCP, SCHEMATA / f"{TCP}.conf", None, True)
    return load(*declarations([tcp, *own])) if own else load_schema()


def own_columns(schema: Schema) -> tuple[Field, ...]:
    """The columns that tcp has not as it is shipped."""
    return schema.event(EVENT).fields[len(load_schema().event(EVENT).fields) :]


def own_locations(schema: Schema) -> tuple[Member, ...]:
    """The locations that tcp has not as it is shipped."""
    return schema.enum(LOCATIONS).members[len(load_schema().enum(LOCATIONS).members) :]


def find_fills(text: str) -> tuple[str, ...]:
    """The names of the FILL()s of a C text."""
    return tuple(_FILL.findall(blank_comments(text)))


def check_extensions(sources: Sequence[Source], schema: Schema, text: str) -> list[Problem]:
    """What of the extensions no capture can have. text: the C text of all sources."""
    if not any(source.extends for source in sources):
        return []
    code = blank_comments(text)
    return [*_check_columns(schema, code), *_check_locations(schema, code)]


def _check_columns(schema: Schema, code: str) -> Iterator[Problem]:
    taken = {*SETS, *TIME_FIELDS, *(m.name.lower() for m in schema.enum(LOCATIONS).members)}
    filled = {*_SET.findall(code)}
    for field in own_columns(schema):
        wrong = ""
        if field.name in taken:
            wrong = f"another name of a column: '{field.name}' means something else"
        elif len(field.name) >= NAME_BYTES:
            wrong = f"a column's name of at most {NAME_BYTES - 1} characters"
        elif "classic" in field.tags:
            wrong = "no tag @classic: the report of 2000 has all of those columns"
        elif field_type(schema, field).width > LENGTH_MAX:
            wrong = f"a column of at most {LENGTH_MAX} bytes"
        elif field.name not in filled:
            wrong = f"SET({field.name}, value) in a FILL(name) of the C file"
        if wrong:
            yield field.position.problem(f"expected {wrong}")


def _check_locations(schema: Schema, code: str) -> Iterator[Problem]:
    columns = {field.name for field in schema.event(EVENT).fields} | {"default", "all"}
    recorded = {name for probe in find_probes(code) for name in probe.locations}
    used: dict[int, str] = {}
    for member in own_locations(schema):
        wrong = ""
        if not FIRST_OWN <= member.value < FIRST_EVENT:
            wrong = (f"a number from {FIRST_OWN} to {FIRST_EVENT - 1}, those of your locations, "
                     f"found {member.value}")  # fmt: skip
        elif member.value in used:
            wrong = f"another number: {member.value} is {used[member.value]}"
        elif member.name != member.name.upper() or member.name.lower() in columns:
            wrong = "a location's name in capitals that is no column"
        elif member.name not in recorded:
            wrong = f"a PROBE() of {member.name} in the C file"
        used.setdefault(member.value, member.name)
        if wrong:
            yield member.position.problem(f"expected {wrong}")
