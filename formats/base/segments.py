# SPDX-License-Identifier: Apache-2.0
"""The names of a capture's segments, and their order in a folder.

    HOST-20261122T090000Z-000042.pm         sealed: it has its end
    .HOST-20261122T090000Z-000043.pm.part   not yet, or its capture was killed
    index.jsonl                             what was sealed, archived and deleted, when and why
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formats.base.limits import MOST_INDEX_BYTES

INDEX = "index.jsonl"
_NAME = re.compile(
    r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{0,63})-(?P<utc>\d{8}T\d{6}Z)-(?P<number>\d{6,12})"
    r"(?P<suffix>\.pm|\.klog|\.magnet)(?P<archived>\.zst|\.parquet)?"
)
_STRANGE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, order=True)
class Segment:
    """A segment by its name alone; sorted as they were written."""

    utc: str
    number: int
    host: str
    suffix: str
    name: str
    """As it is called once it is sealed."""
    sealed: bool = True
    archived: str = ""

    @property
    def original(self) -> str:
        """Its name before it was archived."""
        return self.name.removesuffix(self.archived)

    def path(self, folder: str | os.PathLike[str]) -> Path:
        """Where it is."""
        return Path(folder, self.name if self.sealed else hidden(self.name))


def name_segment(host: str, realtime_ns: int, number: int, suffix: str) -> str:
    """The name of a segment that begins at this time of day."""
    utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(realtime_ns // 1_000_000_000))
    host = _STRANGE.sub("-", host).lstrip(".-_")[:64] or "host"
    return f"{host}-{utc}-{number:06}{suffix}"


def hidden(name: str) -> str:
    """Its name before it is sealed."""
    return f".{name}.part"


def parse_name(name: str) -> Segment | None:
    """The segment of this name; None for any other file."""
    sealed = not (name.startswith(".") and name.endswith(".part"))
    shown = name if sealed else name[1:-5]
    if (found := _NAME.fullmatch(shown)) is None:
        return None
    return Segment(
        found["utc"], int(found["number"]), found["host"], found["suffix"], shown, sealed,
        found["archived"] or "",
    )  # fmt: skip


def find_segments(folder: str | os.PathLike[str] | int) -> list[Segment]:
    """The segments in a folder, sorted. Those that are not sealed yet are among them. OSError.

    An archive is left out while it is made, or while the original is there too.
    """
    names = set(os.listdir(folder))
    found = (parse_name(name) for name in names)
    return sorted(
        one
        for one in found
        if one is not None
        and not (one.archived and (not one.sealed or one.original in names))
    )


def read_index(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The lines of a folder's index; lines that are no JSON objects are left out."""
    try:
        with open(Path(folder, INDEX), "rb") as file:
            data = file.read(MOST_INDEX_BYTES)
    except OSError:
        return
    for line in data.splitlines():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found
