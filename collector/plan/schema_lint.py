# SPDX-License-Identifier: Apache-2.0
"""What a schema's C text says in the schema's own words, checked before any compiler runs.

klogger(), KLOGGER_ENABLED(), PROBE() and the counters are compared with the declarations, so that
the mistakes of the .conf and of the C file are told together. Types are left to clang.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collector.linux.probe_kinds import KINDS
from collector.plan import counter_names
from collector.plan.c_scanner import CText, Use
from collector.plan.columns import LOCATIONS, SCHEMATA
from collector.plan.probes import find_probes
from collector.plan.schema_sources import ENGINE, TEXT_SUFFIX, Source, made_events, paste_texts
from formats.base.errors import Problem, SchemaError
from formats.schema import C_WORDS, Event, Schema, load_partly, suggest

_FORM = 'PROBE(name, "EVENT ...", "kind:target ...")'
_MOST_PROBLEMS = 1000
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TARGET = re.compile(r"[A-Za-z_][\w.$]*", re.ASCII)
# What people write out of habit, and the way that is meant.
_HABITS = {other: kind.name for kind in KINDS.values() for other in kind.other_names}


@dataclass(frozen=True)
class Checked:
    """Schemata as one, their C text with its includes in place, and what to tell of them."""

    schema: Schema
    text: str
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def check_sources(sources: Sequence[Source]) -> Checked:
    """Reads and checks declarations and C text together; FileError for what cannot be read."""
    partial = load_partly([source.conf for source in sources])
    schema = partial.schema
    text, pasted = paste_texts(sources)
    problems = [*partial.problems, *counter_names.check(schema.arches), *pasted]
    # A .conf of which nothing could be read would make every call a mistake.
    read = {event.position.file for event in schema.events}
    broken = {problem.file for problem in partial.problems} - read
    warnings: list[Problem] = []
    if not broken:
        path = next((source.text for source in sources if source.text), ENGINE)
        problems += check_calls(schema, path, text, partial.unsure)
        warnings += find_oddities(schema, path, text)
    return Checked(schema, text, tuple(problems[:_MOST_PROBLEMS]), tuple(warnings))


def read_checked(sources: Sequence[Source]) -> Checked:
    """As `check_sources`; raises SchemaError with all problems if there are any."""
    checked = check_sources(sources)
    if checked.problems:
        raise SchemaError(checked.problems)
    return checked


def check_calls(
    schema: Schema, path: Path, text: str, unsure: frozenset[str] = frozenset()
) -> list[Problem]:
    """The mistakes in a C text, in its order; `path` is its file as far as no #line tells another.

    The number of values is not checked for the events in `unsure`.
    """
    return _Check(schema, path, text, unsure).run()


def find_oddities(schema: Schema, path: Path, text: str) -> list[Problem]:
    """What is no mistake but looks like one: events that nothing logs, or not where PROBE says.

    Events count if their .conf stands beside a C file of the text.
    """
    check = _Check(schema, path, text, frozenset())
    found = []
    calls = list(check.uses("klogger"))
    starts = [call.start for call in calls]
    for use in check.uses("PROBE"):
        named = {word for word, _ in use.words(1)}
        inside = calls[bisect_left(starts, use.end) : bisect_left(starts, use.body)]
        for inner in inside:
            name = inner.argument(0)
            if name in check.events and name not in named:
                message = f"'{name}' is logged here, but PROBE '{use.argument(0)}' does not name it"
                found.append(check.c.problem(inner.at(0), message))
    logged = {call.argument(0) for call in calls}
    for event in schema.events:
        conf = Path(event.position.file)
        beside = f"{conf.with_suffix('')}{TEXT_SUFFIX}"
        if beside in check.c.files and event.name not in logged and not check.is_snapshot(event):
            place = event.position
            message = f"event '{event.name}' is logged by no klogger() of {Path(beside).name}"
            found.append(Problem(place.file, place.line, place.column, message))
    return found


@dataclass
class _Check:
    """One C text against one schema."""

    schema: Schema
    path: Path
    text: str
    unsure: frozenset[str]
    c: CText = field(init=False)
    found: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.c = CText(self.text, str(self.path))
        self.base = set(made_events(self.schema))
        mine = [event for event in self.schema.events if event.name not in self.base]
        self.events = {event.name: event for event in mine}
        tcp = str(SCHEMATA / "tcp.conf")
        # The programs of the schema tcp take snapshots; their PROBE() names locations.
        self.locations = {
            member.name
            for enum in self.schema.enums
            if enum.name == LOCATIONS and enum.position.file == tcp
            for member in enum.members
        }
        self.counters = {name for arch in self.schema.arches for _, name in arch.counters}
        self.numbers = {number for arch in self.schema.arches for number, _ in arch.counters}

    def run(self) -> list[Problem]:
        for use in self.uses("klogger"):
            self._call(use)
        for use in self.uses("KLOGGER_ENABLED"):
            if self._event(use) and len(use.arguments) > 1:
                self._fail(use, 1, "expected one event in KLOGGER_ENABLED()")
        self._probes()
        self._counters()
        order = {name: number for number, name in enumerate(self.c.files)}
        self.found.sort(key=lambda problem: (order.get(problem.file, -1), problem))
        return self.found

    def uses(self, name: str) -> Iterator[Use]:
        """The uses of a macro outside the engine, which defines it."""
        return (use for use in self.c.uses(name) if use.file != str(ENGINE))

    def is_snapshot(self, event: Event) -> bool:
        return bool(self.locations) and event.position.file == str(SCHEMATA / "tcp.conf")

    def _fail(self, use: Use, number: int, message: str) -> None:
        """Note a problem at an argument (of the macro itself where there is none)."""
        self._fail_at(use.at(number), message)

    def _fail_at(self, offset: int, message: str) -> None:
        if len(self.found) < _MOST_PROBLEMS:
            self.found.append(self.c.problem(offset, message))

    def _event(self, use: Use) -> Event | None:
        """The event that a call names, if it is one that can be logged; else a problem."""
        name = use.argument(0)
        event = self.events.get(name)
        # In a macro's text a name may stand for anything.
        if event is not None or use.in_macro:
            return event
        if not name:
            self._fail(use, 0, f"expected an event in {use.name}()")
        elif name in self.base:
            self._fail(use, 0, f"expected an event of the kernel, found '{name}' of the schema"
                       " base, which the collector logs")  # fmt: skip
        elif not _NAME.fullmatch(name):
            self._fail(use, 0, f"expected the name of an event, found '{_short(name)}'")
        else:
            self._fail(use, 0, f"expected the name of an event, found unknown '{_short(name)}'"
                       f"{suggest(name, self.events)}")  # fmt: skip
        return None

    def _call(self, use: Use) -> None:
        if not use.closed:
            self._fail_at(use.start, f"expected ')' at the end of {use.name}(")
            return
        event = self._event(use)
        if event is None or event.name in self.unsure:
            return
        values = use.arguments[1:]
        if use.in_macro and any("__VA_ARGS__" in value for value in values):
            return
        if len(values) != len(event.fields):
            wanted = len(event.fields)
            listed = ", ".join(f"{field.type} {field.name}" for field in event.fields)
            self._fail(use, 0, f"expected {wanted} value{'' if wanted == 1 else 's'} for"
                       f" '{event.name}'{f' ({_short(listed, 150)})' if listed else ''}, found"
                       f" {len(values)}")  # fmt: skip
            return
        for number, (value, one) in enumerate(zip(values, event.fields, strict=True), start=1):
            if not value:
                self._fail(use, number, f"expected a value for '{one.name}', found nothing")

    def _probes(self) -> None:
        first: dict[str, str] = {}
        usable = {probe.name for probe in find_probes(self.text)}
        for use in self.uses("PROBE"):
            if use.in_macro:
                continue
            strings = use.is_string(1) and use.is_string(2)
            if not strings or len(use.arguments) != 3:
                self._fail_at(use.start, f"expected {_FORM}")
                continue
            name = use.argument(0)
            if not _NAME.fullmatch(name) or name in C_WORDS:
                self._fail(use, 0, f"expected a probe's name, found '{_short(name)}'")
            elif name in first:
                self._fail(use, 0, f"expected a new probe name, found '{name}' again (first at"
                           f" {first[name]})")  # fmt: skip
            elif name not in usable:
                self._fail_at(use.start, f"expected {_FORM} at the beginning of a line")
            problem = self.c.problem(use.start, "")
            first.setdefault(name, f"{problem.file}:{problem.line}")
            self._probe_events(use)
            self._probe_ways(use)

    def _probe_events(self, use: Use) -> None:
        words = use.words(1)
        for word, offset in words:
            if word not in self.events and word not in self.locations:
                self._fail_at(offset, f"expected the name of an event, found unknown"
                              f" '{_short(word)}'{suggest(word, self.events)}")  # fmt: skip
        if not words and not self.locations:
            self._fail(use, 1, "expected the events that the probe logs, found none")

    def _probe_ways(self, use: Use) -> None:
        words = use.words(2)
        for word, offset in words:
            kind, colon, target = word.partition(":")
            if kind not in KINDS:
                near = f" (did you mean '{_HABITS[kind]}'?)" if kind in _HABITS else ""
                self._fail_at(offset, f"expected a way to attach ({', '.join(KINDS)}), found"
                              f" '{_short(kind)}'{near or suggest(kind, KINDS)}")  # fmt: skip
            elif not colon or not target:
                self._fail_at(offset, f"expected '{kind}:TARGET', found '{word}'")
            elif not _TARGET.fullmatch(target):
                self._fail_at(offset, f"expected a name of the kernel after '{kind}:', found"
                              f" '{_short(target)}'")  # fmt: skip
        if not words:
            self._fail(use, 2, "expected at least one way to attach, such as 'btf:sched_switch'")

    def _counters(self) -> None:
        for name, offset, file in self.c.names(
            r"klogger_get_(?!counter(?:_ll)?\b)\w+|KLOGGER_COUNTER[0-9]+"
        ):
            if file == str(ENGINE):
                continue
            number = name.removeprefix("KLOGGER_COUNTER")
            short = name.removeprefix("klogger_get_")
            if number != name:
                if f"counter{number}" not in self.numbers:
                    self._fail_at(offset, f"expected a counter that an arch section binds, found"
                                  f" '{name}'")  # fmt: skip
            elif not {short, short.removesuffix("_ll")} & self.counters:
                self._fail_at(offset, f"expected a counter that an arch section binds, found"
                              f" '{_short(short)}'{suggest(short, self.counters)}")  # fmt: skip


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
