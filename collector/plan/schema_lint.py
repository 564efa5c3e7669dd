# SPDX-License-Identifier: Apache-2.0
"""Checks schemata without compiling: the declarations, the #includes and the PROBE()s.

Clang and this kernel report the other mistakes of the C text, see collector/loader/prepare.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.plan import counter_names
from tcpkmon.collector.plan.columns import LOCATIONS, SCHEMATA
from tcpkmon.collector.plan.extension import check_extensions
from tcpkmon.collector.plan.probes import PROBE, SERVES
from tcpkmon.collector.plan.schema_sources import (
    INCLUDES,
    LITERAL,
    Source,
    blank_comments,
    declarations,
    made_events,
    paste_texts,
)
from tcpkmon.formats.base.errors import Problem, SchemaError
from tcpkmon.formats.base.limits import MOST_SCHEMA_PROBLEMS
from tcpkmon.formats.schema import Schema, Suggestions, load_partly

_FORM = 'PROBE(name, "EVENT ...", "kind:target ...")'
# A #line, or a use of PROBE(). The other branches skip directives and literals.
_MARK = re.compile(
    r'^\#line (?P<line>[0-9]{1,9}) "(?P<file>(?:\\.|[^"\\\n])*)"$'
    rf"|^[ \t]*\#(?:\\\n|[^\n])*|{LITERAL}|(?P<probe>\bPROBE\s*\()",
    re.MULTILINE | re.ASCII,
)
# Names of kinds in other tools, and the kind that is meant.
_OTHER_NAMES = {other: kind.name for kind in KINDS.values() for other in kind.other_names}


@dataclass(frozen=True)
class Checked:
    """Schemata as one, their C text with its includes in place, and the problems."""

    schema: Schema
    text: str
    problems: tuple[Problem, ...]


def check_sources(sources: Sequence[Source]) -> Checked:
    """Reads and checks declarations and C text; FileError for what cannot be read."""
    partial = load_partly(*declarations(sources))
    schema = partial.schema
    text, pasted = paste_texts(sources)
    problems = [*partial.problems, *counter_names.check(schema.arches), *pasted]
    # A .conf of which nothing could be read would make every PROBE() a mistake.
    read = {event.position.file for event in schema.events}
    read |= {str(source.conf) for source in sources if source.extends}
    if {problem.file for problem in partial.problems} <= read:
        problems += [*check_probes(schema, text), *check_extensions(sources, schema, text)]
    return Checked(schema, text, tuple(problems[:MOST_SCHEMA_PROBLEMS]))


def read_checked(sources: Sequence[Source]) -> Checked:
    """As `check_sources`; raises SchemaError with all problems if there are any."""
    checked = check_sources(sources)
    if checked.problems:
        raise SchemaError(checked.problems)
    return checked


def check_probes(schema: Schema, text: str) -> list[Problem]:
    """The mistakes in the PROBE()s of a C text, whose #line directives have the places."""
    tcp = str(SCHEMATA / "tcp.conf")
    # The programs of the schema tcp take snapshots; their PROBE() names locations, or nothing.
    locations = {
        member.name
        for enum in schema.enums
        if enum.name == LOCATIONS and enum.position.file == tcp
        for member in enum.members
    }
    base = set(made_events(schema))
    # In the order of the declarations, for the hints.
    events = {event.name: event for event in schema.events if event.name not in base}
    code = blank_comments(text)
    suggestions = Suggestions()
    found: list[Problem] = []
    file, line, start = "", 1, 0
    for mark in _MARK.finditer(code):
        if mark["line"]:
            file = re.sub(r"\\(.)", r"\1", mark["file"])
            line, start = int(mark["line"]), mark.end() + 1
        elif mark["probe"]:
            logs = Path(file).parent != INCLUDES  # what schemata share keeps maps
            for offset, message in _check_probe(
                code, mark.start(), events, locations, suggestions, logs
            ):
                if len(found) == MOST_SCHEMA_PROBLEMS:
                    return found
                place = line + code.count("\n", start, offset), offset - code.rfind("\n", 0, offset)
                found.append(Problem(file, *place, message))
    return found


def _check_probe(
    code: str,
    start: int,
    events: Collection[str],
    locations: Collection[str],
    suggestions: Suggestions,
    logs: bool,
) -> Iterator[tuple[int, str]]:
    """The mistakes in the PROBE() at an offset: the offset of each, and what was expected."""
    probe = PROBE.match(code, start)
    if probe is None:
        yield start, f"expected {_FORM} at the beginning of a line"
        return
    for name, offset in _words(probe, 2):
        word = name.removeprefix(SERVES)
        if word not in events and word not in locations:
            near = suggestions.suggest(word, [*events, *locations])
            yield offset, f"expected the name of an event, found unknown '{_short(word)}'{near}"
    if logs and not probe[2].split() and not locations:
        yield probe.start(2) - 1, "expected the events that the probe logs, found none"
    for word, offset in _words(probe, 3):
        kind, _, target = word.partition(":")
        if kind not in KINDS:
            other = _OTHER_NAMES.get(kind)
            near = f" (did you mean '{other}'?)" if other else suggestions.suggest(kind, KINDS)
            yield offset, (f"expected a way to attach ({', '.join(KINDS)}), found"
                           f" '{_short(kind)}'{near}")  # fmt: skip
        elif not target:
            yield offset, f"expected '{kind}:TARGET', found '{word}'"
        elif expected := KINDS[kind].expects(target):
            yield offset, f"expected {expected}, found '{_short(target)}'"
    if not probe[3].split():
        message = "expected at least one way to attach, such as 'btf:sched_switch'"
        yield probe.start(3) - 1, message


def _words(probe: re.Match[str], group: int) -> Iterator[tuple[str, int]]:
    for word in re.finditer(r"\S+", probe[group]):
        yield word[0], probe.start(group) + word.start()


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
