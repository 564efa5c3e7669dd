# SPDX-License-Identifier: Apache-2.0
"""Checks the daemon's configuration, and makes a Request of each capture in it.

The keys of a capture are declared with its options (collector/plan/options.py); docs/daemon.md says
what they mean. All mistakes are found at once, each with its file, line and key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tcpkmon.collector.control.access import find_group
from tcpkmon.collector.daemon.toml_files import MOST_TOLD, ConfigError, Sources
from tcpkmon.collector.daemon.toml_lines import Keys
from tcpkmon.collector.plan.choice import check_names
from tcpkmon.collector.plan.filters import Filters, parse
from tcpkmon.collector.plan.options import Convert, make_part, options_of, path, tables_of, text
from tcpkmon.collector.plan.request import Request, check_request, make_request
from tcpkmon.collector.plan.schema_sources import Source, find_sources
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.base.removed import find_in_toml
from tcpkmon.formats.base.text import suggest

OUTPUT = Path("/var/lib/tcpkmon")
"""The folder of the captures' folders: systemd's StateDirectory=tcpkmon."""
MOST_CAPTURES = 256
"""Each is a process."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_MOST_ADDRESS = 108
"""Of a unix socket's path."""
_MOST_CHARACTERS = 300
"""Of a mistake as it is told: it may quote a list of a million."""


def _listen(value: Any) -> str:
    address: str = text(value)
    port = address.removeprefix("127.0.0.1:")
    if re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 1 << 16:
        return address
    if address.startswith("unix:/") and len(os.fsencode(address)) < _MOST_ADDRESS:
        return address
    raise UsageError(f"{address!r} is no address", "write unix:/PATH or 127.0.0.1:PORT")


def _keys_of(kind: type) -> dict[str, tuple[str, Convert]]:
    return {one.key: (name, one.kind.toml) for name, one in options_of(kind).items() if one.key}


OPTIONS, FILTERS = _keys_of(Request), _keys_of(Filters)
"""By key: the field, and what makes its value; of Filters that is an argument of parse()."""
PARTS = {name: _keys_of(kind) for name, kind in tables_of(Request).items()}
"""The tables inside a capture's."""
OTHERS: dict[str, dict[str, tuple[str, Convert]]] = {
    "metrics": {
        "listen": ("listen", _listen), "textfile": ("textfile", path),
    },
    "control": {"group": ("group", lambda value: find_group(text(value)))},
}
"""The tables beside the captures."""


@dataclass(frozen=True)
class Capture:
    """A capture of the configuration. filters: the arguments of parse()."""

    request: Request
    filters: Mapping[str, Any]
    changeable = frozenset(
        one.key for kind in (Request, Filters) for one in options_of(kind).values()
        if one.live
    )  # fmt: skip
    """The keys that may change while it runs."""


_PLAIN = Request(Filters(), "")
_NAMED = ("file_format", "schemata", "using", "data", "locations", "limits", "columns",
          "when_changed")  # fmt: skip


@dataclass
class _Checker:
    sources: Sources | None
    found: list[tuple[tuple[int, int], str]] = field(default_factory=list)
    """The mistakes, each with its place."""
    find: Callable[..., tuple[Source, ...]] = field(
        default_factory=lambda: lru_cache(16)(find_sources)
    )
    """Each set of schemata is read once."""

    @property
    def mistakes(self) -> list[str]:
        """A line each, in the order of the files."""
        if self.sources is None:
            return [what for _, what in self.found]
        files = self.sources.files
        return [f"{files[file].path}:{line}: {what}" for (file, line), what in sorted(self.found)]

    @contextmanager
    def at(self, keys: Keys) -> Iterator[None]:
        """An error inside a `with` is a mistake of this key."""
        try:
            yield
        except TcpkmonError as error:
            self.add(keys, "; ".join(error.lines()))

    def add(self, keys: Keys, what: str) -> None:
        """Note a mistake. ConfigError where enough were found."""
        place = self.sources.place(keys) if self.sources is not None else (0, 0)
        what = re.sub(r"^--?[A-Za-z][\w-]*: ", "", what)  # the command line's name of it
        what = f"{'.'.join(keys)[:_MOST_CHARACTERS]}: {what}"
        cut = what if len(what) <= _MOST_CHARACTERS else f"{what[:_MOST_CHARACTERS]}..."
        self.found.append((place, cut))
        if len(self.found) == MOST_TOLD:
            raise ConfigError([*self.mistakes, "there may be more mistakes"])

    def table(self, keys: Keys, value: Any, known: Sequence[str]) -> dict[str, Any]:
        """The known keys of a table; the others are mistakes."""
        if not isinstance(value, dict):
            self.add(keys, f"{value!r} is no table: write [{'.'.join(keys)}]")
            return {}
        for key in value:
            if key not in known:
                removed = find_in_toml((*keys, key), value[key])
                self.add((*keys, key), removed or f"no such key{suggest(key, known)}")
        return {key: value[key] for key in known if key in value}

    def values(
        self, keys: Keys, table: Mapping[str, Any], known: Mapping[str, tuple[str, Convert]]
    ) -> dict[str, Any]:
        """The values of `known`, by their names there."""
        found: dict[str, Any] = {}
        for key, (name, convert) in known.items():
            with self.at((*keys, key)):
                if key in table:
                    if removed := find_in_toml((*keys, key), table[key]):
                        raise UsageError(removed)
                    value = convert(table[key])
                    found.update({name: value} if name else value)
        return found

    def capture(self, name: str, value: Any, group: str | None) -> Capture | None:
        keys = ("capture", name)
        before = len(self.found)
        if not _NAME.fullmatch(name):
            self.add(keys, f"{name!r} is no name: letters, digits, '_', '-' and '.', at most 64")
        table = self.table(keys, value, (*OPTIONS, *FILTERS, *PARTS))
        options = {"output": str(OUTPUT / name), **self.values(keys, table, OPTIONS)}
        for part, kind in tables_of(Request).items():
            if part in table:
                at = (*keys, part)
                values = self.values(at, self.table(at, table[part], (*PARTS[part],)), PARTS[part])
                with self.at(at):
                    options[part] = make_part(kind, values) if len(self.found) == before else None
        given, chosen = self._filters(keys, table)
        request = make_request(
            chosen or Filters(),
            {**options, "name": name, "control_group": group, "quiet": True},
        )
        self._names(keys, replace(request, budget=None))
        if len(self.found) == before:
            with self.at((*keys, "budget")):
                check_names(request, self.find)
            with self.at(keys):
                check_request(request)
        if len(self.found) == before:
            return Capture(request, given)
        if chosen is not None:
            chosen.close()
        return None

    def _names(self, keys: Keys, request: Request) -> None:
        """Check the names in the options one after the other, without those that are wrong."""
        given = replace(request, **{name: getattr(_PLAIN, name) for name in _NAMED})
        for name in _NAMED:
            with self.at((*keys, options_of(Request)[name].key)):
                more = replace(given, **{name: getattr(request, name)})
                if more != given or name == "schemata":
                    check_names(more, self.find)
                given = more

    def _filters(
        self, keys: Keys, table: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Filters | None]:
        before = len(self.found)
        given = self.values(keys, table, FILTERS)
        for key, (name, _) in FILTERS.items():
            with self.at((*keys, key)):
                if name in given:
                    parse(**{name: given[name]}).close()
        if len(self.found) == before:
            with self.at(keys):
                return given, parse(**given)
        return given, None


def check(sources: Sources) -> dict[str, Capture]:
    """The captures by name. ConfigError with all mistakes.

    The network namespaces of their filters are open until their Filters.close().
    """
    checker = _Checker(sources)
    table = checker.table((), sources.table, ("capture", *OTHERS))
    for part, known in OTHERS.items():
        inner = checker.table((part,), table.get(part, {}), tuple(known))
        checker.values((part,), inner, known)
    captures = table.get("capture", {})
    if not isinstance(captures, dict) or not captures:
        checker.add(("capture",), "no capture is configured: write [capture.NAME]")
        captures = {}
    elif len(captures) > MOST_CAPTURES:
        checker.add(("capture",), f"{len(captures):,} captures: at most {MOST_CAPTURES} run")
        captures = {}
    made = {name: checker.capture(name, value, None) for name, value in captures.items()}
    _check_outputs(checker, made)
    if checker.found:
        raise ConfigError(checker.mistakes)
    return {name: capture for name, capture in made.items() if capture is not None}


def _check_outputs(checker: _Checker, made: Mapping[str, Capture | None]) -> None:
    seen: dict[str, str] = {}
    for name, capture in made.items():
        output = capture.request.output if capture is not None else name
        other = seen.setdefault(os.path.realpath(output), name)
        if other != name:
            checker.add(("capture", name, "output"), f"{output} is that of capture {other} too")


def make_capture(name: str, table: Mapping[str, Any], group: str | None = None) -> Capture:
    """A capture of its table, which check() passed. ConfigError where what it names is gone."""
    checker = _Checker(None)
    capture = checker.capture(name, table, group)
    if checker.found or capture is None:
        raise ConfigError(checker.mistakes)
    return capture
