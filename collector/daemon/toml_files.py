# SPDX-License-Identifier: Apache-2.0
"""The daemon's TOML files as one table, and the file and line of each key."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from functools import cached_property
from pathlib import Path
from typing import Any

from tcpkmon.collector.daemon.toml_lines import Keys, lines_of, statements, tomllib
from tcpkmon.collector.linux.trusted_files import open_trusted
from tcpkmon.formats.base.errors import FileError, UsageError

CONFIG = Path("/etc/tcpkmon/tcpkmon.toml")
MOST_BYTES = 1 << 20
"""Of all files together: a capture's table goes to its process in one message."""
MOST_TOLD = 100
"""Mistakes; there may be more."""


class ConfigError(UsageError):
    """The configuration has mistakes. mistakes: all of them, a line each."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self.mistakes))

    def lines(self) -> tuple[str, ...]:
        """One line per mistake."""
        return self.mistakes


@dataclass(frozen=True)
class TomlFile:
    """A file's text, and the table in it."""

    path: Path
    text: str
    table: Mapping[str, Any]

    def line_of(self, keys: Sequence[str]) -> int:
        """The line, from 1, of the statement that makes this key, which the file has."""
        return self._lines.get(tuple(keys), 1)

    @cached_property
    def _lines(self) -> dict[Keys, int]:
        return lines_of(self.text)


def _has(table: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(table, dict) or key not in table:
            return False
        table = table[key]
    return True


@dataclass(frozen=True)
class Sources:
    """The files in their order, and the table of all: a later file's values replace those of one
    before."""

    files: tuple[TomlFile, ...]
    table: Mapping[str, Any]

    def place(self, keys: Sequence[str]) -> tuple[int, int]:
        """The index of the file and the line of a key; if no file has it, of the table that it
        would be in."""
        for length in range(len(keys), 0, -1):
            for index, file in reversed(list(enumerate(self.files))):
                if _has(file.table, keys[:length]):
                    return index, file.line_of(keys[:length])
        return 0, 1


def read(path: Path = CONFIG) -> Sources:
    """The file, and those of the folder of its name with .d, in the order of their names.

    ConfigError with each file's mistake in TOML, FileError, PrivilegeError where others than root
    (or this user) could change a file.
    """
    path = Path(os.path.abspath(path))
    folder = path.with_suffix(".d")
    more = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    files: list[TomlFile] = []
    mistakes: list[str] = []
    merged: dict[str, Any] = {}
    left = MOST_BYTES
    for each in [path, *more]:
        data = _read_bytes(each, left)
        left -= len(data)
        try:
            file = parse(each, data)
        except ConfigError as error:
            mistakes += error.mistakes
        else:
            files.append(file)
            _merge(merged, file.table)
    if mistakes:
        raise ConfigError(mistakes)
    return Sources(tuple(files), merged)


def parse(path: Path, data: bytes) -> TomlFile:
    """A file of these bytes. ConfigError where it is no TOML, or has values that no key takes."""
    try:
        text = data.decode().replace("\r\n", "\n")
        for _ in statements(text):  # before tomllib, which does not end with deep ones
            pass
        file = TomlFile(path, text, tomllib.loads(text))
    except UnicodeDecodeError as error:
        why = f"not UTF-8: {error.reason} at byte {error.start}"
    except UsageError as error:
        why = f"not a configuration: {error.message}"
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, and numbers of 5,000 digits
        why = f"not TOML: {error}"
    else:
        wrong = _strange(file.table)
        if not wrong:
            return file
        raise ConfigError(f"{path}:{file.line_of(k)}: {'.'.join(k)[:100]}: {w}" for k, w in wrong)
    raise ConfigError([f"{path}: {why}"])


def _strange(table: Mapping[str, Any]) -> list[tuple[Keys, str]]:
    """Keys with values that TOML may have and no key takes, and what they are; at most MOST_TOLD.
    """
    found: list[tuple[Keys, str]] = []
    waiting: list[tuple[Keys, Any]] = [((), table)]
    while waiting and len(found) < MOST_TOLD:
        keys, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [((*keys, key), inner) for key, inner in value.items()]
            bad = [key for key in value if "\0" in key]
            found += [((*keys, key), "a key with NUL, the character 0") for key in bad]
        elif isinstance(value, list):
            waiting += [(keys, inner) for inner in value]
        elif isinstance(value, str) and "\0" in value:
            found.append((keys, "a text with NUL, the character 0"))
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            found.append((keys, "a number of more than 64 bits"))
        elif isinstance(value, float) and not math.isfinite(value):
            found.append((keys, "no finite number"))
        elif isinstance(value, (date, time)):
            found.append((keys, "a date or a time, which no key takes"))
    return found[:MOST_TOLD]


def _read_bytes(path: Path, most: int) -> bytes:
    opened = open_trusted(
        path, "what it names runs as root", "put it where only root writes, /etc/tcpkmon say"
    )
    with open(opened, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise FileError(f"{path}: a configuration has at most {MOST_BYTES >> 20} MiB")
    return data


def _merge(into: dict[str, Any], table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        there = into.get(key)
        if isinstance(value, dict):
            into[key] = there = there if isinstance(there, dict) else {}
            _merge(there, value)
        else:
            into[key] = value
