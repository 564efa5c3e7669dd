# SPDX-License-Identifier: Apache-2.0
"""The keys of the daemon's configuration, and what makes a value of what TOML has."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collector.control.access import find_group
from collector.plan.budget import parse_cpu
from collector.plan.quantities import (
    parse_duration,
    parse_limit,
    parse_size,
)
from collector.plan.recorder import parse_last
from collector.writer.stream import STREAMS
from formats.base.errors import UsageError
from formats.schema import suggest

_MOST_PATH, _MOST_ADDRESS = 4096, 108
"""PATH_MAX; of a unix socket's path."""
_MOST_NAMES = 64
Convert = Callable[[Any], Any]
"""Makes a value of what TOML has, or raises UsageError."""


def _is_a(kind: type, what: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise UsageError(f"{value!r} is no {what}")
        return value

    return convert


_flag = _is_a(bool, "truth value: write true or false")
_text = _is_a(str, "text: write it in quotes")


def _words(value: Any) -> tuple[str, ...]:
    """Of a list, or of a text with commas; numbers are words too."""
    listed = value.split(",") if isinstance(value, str) else value
    if type(listed) is int:
        listed = [listed]
    if not isinstance(listed, list) or any(type(each) not in {str, int} for each in listed):
        raise UsageError(f"{value!r} is no list", 'write ["A", "B"]')
    return tuple(text for each in listed if (text := str(each).strip()))


def _names(value: Any) -> tuple[str, ...]:
    """Different words; a file is read for each."""
    names = tuple(dict.fromkeys(_words(value)))
    if len(names) > _MOST_NAMES:
        raise UsageError(f"{len(names):,} names", f"name {_MOST_NAMES} at most")
    return names


def _joined(value: Any) -> str:
    return ",".join(_words(value))


def _number(least: int, most: int) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise UsageError(f"{value!r} is no number from {least} to {most}")
        return value

    return convert


def _numbers(value: Any) -> tuple[int, ...]:
    words = _words(value)
    if not all(word.isascii() and word.isdigit() and len(word) < 11 for word in words):
        raise UsageError(f"{value!r} is no list of numbers", "write [1, 2]")
    return tuple(int(word) for word in words)


def _one_of(*choices: str) -> Convert:
    def convert(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            near = suggest(str(value), choices)
            raise UsageError(f"{value!r} is none of {', '.join(choices)}{near}")
        return value

    return convert


def _quantity(parse: Callable[[str], Any]) -> Convert:
    """A text that `parse` understands, or a number without a unit."""

    def convert(value: Any) -> Any:
        if type(value) not in {str, int, float}:
            raise UsageError(f"{value!r} is no text: write it in quotes")
        return parse(str(value))

    return convert


def _ring_size(value: Any) -> int:
    size: int = _quantity(parse_size)(value)
    if not 8 << 10 <= size <= 1 << 30:
        raise UsageError(f"a ring of {value}", "choose 8K to 1G")
    return size


def _limits(value: Any) -> tuple[tuple[str, int], ...]:
    """Of a table, EVENT = N, or a list, ["EVENT=N"]."""
    rows = [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else _words(value)
    return tuple(parse_limit(row) for row in rows)


def _commands(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(w, str) for w in value):
        raise UsageError(f"{value!r} is no command", 'write ["PROGRAM", "ARGUMENT"]')
    return tuple(value)


def _window(value: Any) -> dict[str, Any]:
    """last_s and last_bytes, of a duration, a size, or both."""
    last_s, last_bytes = parse_last(_joined(value))
    return {"last_s": last_s, "last_bytes": last_bytes}


def _triggers(value: Any) -> tuple[str, ...]:
    """A trigger may have commas."""
    return (value,) if isinstance(value, str) else _words(value)


def _family(value: Any) -> int:
    if type(value) is not int or value not in {4, 6}:
        raise UsageError(f"{value!r} is no family of addresses", "write 4 or 6")
    return value


def _path(value: Any) -> str:
    if not isinstance(value, str) or not Path(value).is_absolute() or len(value) >= _MOST_PATH:
        raise UsageError(f"{value!r} is no absolute path")
    return value


def _listen(value: Any) -> str:
    text: str = _text(value)
    port = text.removeprefix("127.0.0.1:")
    if re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 1 << 16:
        return text
    if text.startswith("unix:/") and len(os.fsencode(text)) < _MOST_ADDRESS:
        return text
    raise UsageError(f"{text!r} is no address", "write unix:/PATH or 127.0.0.1:PORT")


def _group(value: Any) -> str:
    name: str = _text(value)
    find_group(name)
    return name


FILTERS: dict[str, tuple[str, Convert]] = {
    "ports": ("ports", _joined),
    "local_ports": ("local_ports", _joined),
    "remote_ports": ("remote_ports", _joined),
    "pairs": ("pairs", _words),
    "addr": ("addresses", _words),
    "family": ("family", _family),
    "netns": ("namespaces", _words),
    "cgroup": ("cgroups", _words),
    "pid": ("pids", _numbers),
    "syscalls": ("syscalls", _joined),
}
"""By key: the argument of filters.parse(), and what makes its value."""
OPTIONS: dict[str, tuple[str, Convert]] = {
    "schemata": ("schemata", _names),
    "using": ("using", _names),
    "data": ("data", _flag),
    "columns": ("columns", _joined),
    "locations": ("locations", _joined),
    "when_changed": ("when_changed", _words),
    "limits": ("limits", _limits),
    "existing": ("existing", _flag),
    "reconcile": ("reconcile", _flag),
    "rings": ("rings", _one_of("bpf", "perf")),
    "buffer_size": ("buffer_bytes", _ring_size),
    "low_water": ("low_water_percent", _number(1, 99)),
    "format": ("file_format", _one_of(*STREAMS)),
    "output": ("output", _path),
}
"""By key: the field of Request, and what makes its value."""
ROTATION: dict[str, tuple[str, Convert]] = {
    "size": ("size_bytes", _quantity(parse_size)),
    "every": ("every_s", _quantity(parse_duration)),
    "keep_files": ("keep_files", _number(1, 1 << 31)),
    "keep_size": ("keep_bytes", _quantity(parse_size)),
    "keep_free": ("keep_free_bytes", _quantity(parse_size)),
    "keep_for": ("keep_s", _quantity(parse_duration)),
    "on_rotate": ("on_rotate", _commands),
    "archive": ("archive", _one_of("parquet", "zst")),
}
RECORDER: dict[str, tuple[str, Convert]] = {
    "last": ("", _window),
    "after": ("after_s", _quantity(parse_duration)),
    "on": ("triggers", _triggers),
    "dumps_per_hour": ("dumps_per_hour", _number(1, 3600)),
}
BUDGET: dict[str, tuple[str, Convert]] = {
    "max_cpu": ("cpu", _quantity(parse_cpu)),
    "max_disk_rate": ("disk_bytes", _quantity(parse_size)),
    "max_memory": ("memory_bytes", _quantity(parse_size)),
    "back_after": ("back_after_s", _quantity(parse_duration)),
}
PARTS = {"rotation": ROTATION, "recorder": RECORDER, "budget": BUDGET}
"""The tables inside a capture's."""
CAPTURE = {**OPTIONS, **FILTERS}
METRICS: dict[str, tuple[str, Convert]] = {
    "listen": ("listen", _listen),
    "textfile": ("textfile", _path),
}
CONTROL: dict[str, tuple[str, Convert]] = {"group": ("group", _group)}
