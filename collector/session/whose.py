# SPDX-License-Identifier: Apache-2.0
"""Learns whose the control groups are while they exist, and puts that into the file.

The groups that are there at the start go into the header of each file. Of new ones a program tells
(bpf/include/groups.h), so that those are known that are gone before anybody looks; where the
kernel lacks it, this looks once a second.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.plan.cgroups import walk_cgroups
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.named_groups import GROUP_MADE
from tcpkmon.collector.session.container_names import Names
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.formats.base.errors import KernelError
from tcpkmon.formats.base.group_names import MOST_GROUPS, Group, group_of
from tcpkmon.formats.base.whose import (
    MOST_CHARACTERS,
    SETTING,
    UNKNOWN,
    entries_of,
    unknown_entry,
)

_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")
_MADE = struct.Struct("=Q504s")
"""struct group_made."""
_ROOM = 256
_TRIES, _TRIES_OF_MACHINES = 10, 2
"""How often a name is looked for; any service may be that of a machine."""
_CHOSEN = "filter_cgroups"


class Whose:
    """The groups of a capture that has their ids; of another one there are none.

    Make it when the programs are attached. unknown: groups that came and went unseen.
    """

    def __init__(
        self, filters: Filters, prepared: Prepared, kernel: Kernel, stream: Stream
    ) -> None:
        self._filters, self._stream = filters, stream
        self._maps = kernel.loaded.maps
        self._wanted = filters.by_name or _has_ids(prepared)
        self._is_told = any(one.function == GROUP_MADE for one in kernel.loaded.attached())
        self._found: dict[int, Group] = {}
        self._told: dict[str, Any] = {}
        self._size = 0
        self._seen = max(0, self._count() - _ROOM)
        self._unnamed: dict[int, int] = {}
        """Groups of containers and pods whose names are not known, and how often to look again."""
        self.names: Names | None = None
        """None while this process has rights of root: it must not read what others wrote."""
        self.unknown = 0

    def get(self, number: int) -> Group | None:
        """The group of this id, if it is known now."""
        return self._found.get(number)

    def begin(self) -> dict[str, Any]:
        """Those that exist now, for the settings of the header. Call it before the switch-on."""
        if not self._wanted:
            return {}
        self._walk()
        self._look()
        return {SETTING: dict(self._told)}

    def tell(self) -> None:
        """Tell all, in a file whose header another process wrote."""
        self._tell(self._found)

    def step(self) -> None:
        """Take the new ones. Call it in each round."""
        if self._wanted and self._is_told and self._count() > self._seen:
            new = self._look()
            if self.names is not None:  # now: a container may be gone in a second, with its files
                unnamed = [n for n in new if n in self._unnamed and not self._found[n].is_named]
                list(self._name(self.names, unnamed))
            self._changed(new)

    def step_slowly(self) -> None:
        """The same once a second, where no program tells of them; and look for names."""
        if self._wanted and not self._is_told:
            self._changed(self._walk())
        if self.names is not None and self._unnamed:
            self._changed(self._name(self.names, list(self._unnamed)))

    def end(self) -> None:
        """Take those that came last. Call it before the end of the file."""
        self.step()
        self.step_slowly()

    def _name(self, names: Names, wanted: Iterable[int]) -> Iterator[int]:
        """The ids of those that are wanted whose names are known now."""
        for number in wanted:
            group = names.of(self._found[number])
            self._unnamed[number] -= 1
            if (group.is_named and group.container) or not self._unnamed[number]:
                del self._unnamed[number]
            is_over = number not in self._unnamed and not group.is_named
            if group != self._found[number] or is_over:
                self._found[number], told = group, group.told()
                self._size += sum(map(len, told.values()))
                self._size -= sum(map(len, self._told[str(number)].values()))
                self._told[str(number)] = told
                self._decide(number, group, number not in self._unnamed)
                yield number

    def _changed(self, new: Iterable[int]) -> None:
        if new := list(new):
            self._tell(new)
            self._stream.describe({SETTING: dict(self._told)})

    def _tell(self, ids: Iterable[int]) -> None:
        entries = [entry for one in ids for entry in entries_of(one, self._found[one])]
        if self.unknown:
            entries += unknown_entry(self.unknown)
        self._stream.tell(entries)

    def _count(self) -> int:
        """How many groups the program has told of."""
        if not self._wanted or not self._is_told:
            return 0
        raw = bpf.map_lookup(self._maps["groups_count"], _U32.pack(0), _U64.size)
        return int(_U64.unpack(raw)[0]) if raw else 0

    def _look(self) -> list[int]:
        """The ids of those that the program has told of since."""
        first, stop = self._seen, self._count()
        rows = {}
        for number in range(max(first, stop - _ROOM), stop):
            key = _U32.pack(number % _ROOM)
            rows[number] = bpf.map_lookup(self._maps["groups_made"], key, _MADE.size)
        self._seen = stop
        oldest = self._count() - _ROOM  # rows before it may be of two groups
        new = []
        for number, raw in rows.items():
            if raw is not None and number > oldest:
                told, path = _MADE.unpack(raw)
                new += self._add(told, path.split(b"\0", 1)[0].decode(errors="surrogateescape"))
        if missed := stop - first - sum(number > oldest for number in rows):
            found = self._walk()
            self._lost(max(0, missed - len(found)))
            new += found
        return new

    def _walk(self) -> list[int]:
        """The ids of those that exist and were not known."""
        there = walk_cgroups(MOST_GROUPS)
        return [one for number, path in there for one in self._add(number, path)]

    def _add(self, number: int, path: str) -> list[int]:
        """Its id, if it is new."""
        if number in self._found:
            return []
        group = group_of(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        told = group.told()
        size = sum(map(len, told.values()))
        if len(self._found) >= MOST_GROUPS or self._size + size > MOST_CHARACTERS:
            self._forget()
            if len(self._found) >= MOST_GROUPS or self._size + size > MOST_CHARACTERS:
                self._lost(1)
                return []
        self._found[number], self._told[str(number)] = group, told
        self._size += size
        if not group.is_named or (not group.container and group.unit.endswith(".service")):
            self._unnamed[number] = _TRIES if not group.is_named else _TRIES_OF_MACHINES
        self._decide(number, group)
        return [number]

    def _lost(self, count: int) -> None:
        self.unknown += count
        if self.unknown:
            self._told[UNKNOWN] = self.unknown

    def _forget(self) -> None:
        """Those that are gone: the files have them already."""
        there = {number for number, _ in walk_cgroups(MOST_GROUPS)}
        for number in self._found.keys() - there:
            del self._found[number]
            self._unnamed.pop(number, None)
            self._size -= sum(map(len, self._told.pop(str(number)).values()))
            if self._filters.by_name:
                bpf.map_delete(self._maps[_CHOSEN], _U64.pack(number))

    def _decide(self, number: int, group: Group, is_final: bool = False) -> None:
        """Say in the kernel whether the filters choose it; what nobody knows yet is recorded."""
        chosen = self._filters.decide(group)
        is_final = is_final or not self._filters.awaits(group)
        if self._filters.by_name and (chosen or is_final):
            try:
                bpf.map_update(self._maps[_CHOSEN], _U64.pack(number), _U32.pack(chosen))
            except KernelError:
                return  # the map is full: it is recorded


def _has_ids(prepared: Prepared) -> bool:
    """Whether its records have ids of groups."""
    columns = prepared.tcp.layout.columns if prepared.tcp else ()
    if any(column.name == "cgroup" and column.length for column in columns):
        return True
    slots = prepared.events.layout.logged if prepared.events else ()
    return any(field.name == "cgroup" for slot in slots for field in slot.event.fields)
