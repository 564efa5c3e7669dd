# SPDX-License-Identifier: Apache-2.0
"""What a capture's process may tell the supervisor: each message is checked here, once.

A process that gave up its rights may have been taken over. What it sends then is another's word:
numbers are numbers, texts have a length, and of descriptors it may add links alone.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tcpkmon.collector.daemon.channel import Channel
from tcpkmon.collector.linux.syscalls import close_aside

MOST_BYTES = 1 << 18
"""Of a message; what a capture parks takes 20 KiB."""
MOST_COUNT = (1 << 64) - 1
MOST_WHY = 1000
_BURST, _A_SECOND = 1000, 10.0
"""Messages that may come at once, and on average. A capture sends one or two a second; a
supervisor that stood still finds 300 at most, which fill the socket."""
_MOST_DEPTH = 30
_NAME = re.compile(r"[\w./-]{1,128}", re.ASCII)
LATER = re.compile(r"more/(\w{1,64})/[0-3]", re.ASCII)
"""The name of a link that is attached later: of a program that has others already."""
_LINKS = re.compile(r"anon_inode:(bpf[-_]link|\[perf_event\])")


@dataclass(frozen=True)
class Ready:
    """It is attached."""


@dataclass(frozen=True)
class Drained:
    """It has drained its rings; the counts of its file."""

    records: int
    lost: int


@dataclass(frozen=True)
class Park:
    """Hold its descriptors, by name; none where the supervisor had no room for them. state: of all,
    or empty where some come later."""

    state: Mapping[str, Any]
    names: tuple[str, ...]


@dataclass(frozen=True)
class WentOn:
    """It goes on where another was killed; records that were lost by that."""

    killed: int


@dataclass(frozen=True)
class Anew:
    """It begins anew."""

    why: str


Told = Ready | Drained | Park | WentOn | Anew


class Misbehaved(Exception):
    """A message that no capture sends; str() says what is wrong with it."""


def read(line: bytes, fds: Sequence[int], trusted: bool, cut: bool = False) -> Told:
    """A message and its descriptors, which stay the caller's. trusted: its process has its rights
    still, and parks anything. cut: descriptors are missing by no fault of its. Misbehaved.
    """
    try:
        what = json.loads(line)
    except (ValueError, RecursionError):
        raise Misbehaved("a message that is no JSON") from None
    kind = what.get("what") if isinstance(what, dict) else None
    fields, make = _KINDS.get(kind, ({}, None)) if isinstance(kind, str) else ({}, None)
    if make is None:
        raise Misbehaved("a message of an unknown kind")
    values = {name: what.get(name) for name in fields}
    if what.keys() != {"what", *fields}:
        raise Misbehaved(f"a message {kind!r} with other fields than {', '.join(fields) or 'none'}")
    for name, is_valid in fields.items():
        if not is_valid(values[name]):
            raise Misbehaved(f"a message {kind!r} with a wrong {name!r}")
    told: Told = make(**values)
    if isinstance(told, Park):
        if cut:
            return Park({}, ())
        _check_park(told, fds, trusted)
    elif fds:
        raise Misbehaved(f"descriptors with a message {kind!r}")
    return told


def _check_park(told: Park, fds: Sequence[int], trusted: bool) -> None:
    if len(told.names) != len(fds) or len(set(told.names)) != len(fds):
        raise Misbehaved(f"{len(fds)} descriptors and {len(told.names)} names")
    if trusted:
        return
    if told.state or not all(map(LATER.fullmatch, told.names)):
        raise Misbehaved("more than links, after it gave up its rights")
    if not all(_LINKS.fullmatch(os.readlink(f"/proc/self/fd/{fd}")) for fd in fds):
        raise Misbehaved("descriptors that are no links")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_COUNT


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(name, str) and _NAME.fullmatch(name) for name in value
    )


def _is_state(value: object) -> bool:
    return isinstance(value, dict) and _is_shallow(value, _MOST_DEPTH)


def _is_shallow(value: object, levels: int) -> bool:
    """What is read so deep can be written again, deeper in calls and in another object."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(one, levels - 1) for one in inner)


def _is_why(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_WHY


def _park(state: Mapping[str, Any], names: Sequence[str]) -> Park:
    return Park(state, tuple(names))


_Fields = dict[str, Callable[[object], bool]]
_KINDS: dict[str, tuple[_Fields, Callable[..., Told] | None]] = {
    "ready": ({}, Ready),
    "drained": ({"records": _is_count, "lost": _is_count}, Drained),
    "park": ({"state": _is_state, "names": _is_names}, _park),
    "went on": ({"killed": _is_count}, WentOn),
    "anew": ({"why": _is_why}, Anew),
}


class Ear:
    """Hears one process. trusted: it has all its rights, until it has parked or is attached."""

    def __init__(self, trusted: bool = False) -> None:
        self._trusted, self._is_attached = trusted, False
        self._has_begun = False
        self._left, self._since_s = float(_BURST), time.monotonic()

    def hear(self, channel: Channel) -> tuple[Told, list[int]] | None:
        """Its next message, with the descriptors, which are the caller's; None where it has sent
        none, or a part of one. EOFError when it has closed its end, Misbehaved."""
        raw = channel.next(MOST_BYTES, parts=self._trusted)
        try:
            self._count()
            if raw is None:
                return None
            if not raw.line:
                raise EOFError
            if raw.too_long:
                raise Misbehaved(f"a message of more than {MOST_BYTES >> 10} KiB")
            told = read(raw.line, raw.fds, self._trusted, raw.cut)
            if isinstance(told, Anew | WentOn) and self._has_begun:
                raise Misbehaved("twice how it begins")
            if self._is_attached and not isinstance(told, Drained | Park):
                raise Misbehaved("what it may say before it is attached alone")
        except (EOFError, Misbehaved):
            close_aside(raw.fds if raw is not None else ())
            raise
        self._is_attached = self._is_attached or isinstance(told, Ready)
        self._has_begun = self._has_begun or isinstance(told, Anew | WentOn)
        self._trusted = self._trusted and not isinstance(told, Ready | Park)
        return told, raw.fds

    def _count(self) -> None:
        now_s = time.monotonic()
        self._left = min(_BURST, self._left + (now_s - self._since_s) * _A_SECOND) - 1
        self._since_s = now_s
        if self._left < 0:
            raise Misbehaved(f"more than {_BURST:,} messages at once")
