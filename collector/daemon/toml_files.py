# SPDX-License-Identifier: Apache-2.0
"""The daemon's TOML files as one table, and the file and line of each key."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.linux.trusted_files import open_trusted
from formats.base.errors import FileError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG = Path("/etc/tcpkmon/tcpkmon.toml")
MOST_BYTES = 1 << 20
"""Of a file."""
Keys = tuple[str, ...]


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
        """The line, from 1, of the statement that makes this key, which the file has.

        tomllib knows no lines. But a beginning of the file that ends between two statements is
        TOML too: the key is made where it is first in such a beginning.
        """
        lines = self.text.split("\n")
        without, with_it = 0, len(lines)
        while without < with_it:
            middle = (without + with_it) // 2
            whole, table = _longest_whole(lines, middle)
            if _has(table, keys):
                with_it = whole
            else:
                without = middle + 1
        return _longest_whole(lines, with_it - 1)[0] + 1


def _longest_whole(lines: Sequence[str], most: int) -> tuple[int, Mapping[str, Any]]:
    """The longest beginning of at most so many lines that ends between two statements."""
    for count in range(most, 0, -1):
        try:
            return count, tomllib.loads("\n".join(lines[:count]) + "\n")
        except tomllib.TOMLDecodeError:
            continue
    return 0, {}


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
    files, mistakes = [], []
    merged: dict[str, Any] = {}
    for each in [path, *more]:
        try:
            text = _read_text(each)
            file = TomlFile(each, text, tomllib.loads(text))
        except UnicodeDecodeError as error:
            mistakes.append(f"{each}: not UTF-8: {error.reason} at byte {error.start}")
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            mistakes.append(f"{each}: not TOML: {error}")
        else:
            files.append(file)
            _merge(merged, file.table)
    if mistakes:
        raise ConfigError(mistakes)
    return Sources(tuple(files), merged)


def _read_text(path: Path) -> str:
    opened = open_trusted(
        path, "what it names runs as root", "put it where only root writes, /etc/tcpkmon say"
    )
    with open(opened, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise FileError(f"{path}: a configuration has at most {MOST_BYTES >> 20} MiB")
    return data.decode().replace("\r\n", "\n")


def _merge(into: dict[str, Any], table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        there = into.get(key)
        if isinstance(value, dict):
            into[key] = there = there if isinstance(there, dict) else {}
            _merge(there, value)
        else:
            into[key] = value
