# SPDX-License-Identifier: Apache-2.0
"""The statements of a TOML text with their lines, found without parsing it.

tomllib tells no lines, and takes hours for some texts. This looks at each character once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from tcpkmon.formats.base.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Keys", "lines_of", "statements", "tomllib"]

MOST_PARTS, MOST_DEPTH = 16, 16
"""Of a key with dots, for which tomllib's time grows with the square; of arrays in arrays."""
_TOKEN = re.compile(
    r"""\#[^\n]*
    | \"{3} (?: [^"\\] | \\. | "(?!"") )* (?: "{3,5} )?  # a string that is not closed ends the text
    | '{3} (?: [^'] | '(?!'') )* (?: '{3,5} )?
    | " (?: [^"\\\n] | \\. )* "?
    | ' [^'\n]* '?
    | [][{}=,.\n]""",
    re.VERBOSE | re.DOTALL,
)
Keys = tuple[str, ...]


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement after its line, from 1; of what is no TOML, something. UsageError where keys
    or values are nested too deep."""
    start, line, depth, dots = 0, 1, 0, 0
    for token in _TOKEN.finditer(text):
        what = token.group()
        if what == ".":
            dots += 1
        elif len(what) == 1:
            dots = 0
        depth += (what in ("[", "{")) - (what in ("]", "}"))
        if dots >= MOST_PARTS or depth > MOST_DEPTH:
            which = f"a key has at most {MOST_PARTS} parts"
            if depth > MOST_DEPTH:
                which = f"values are nested {MOST_DEPTH} deep at most"
            raise UsageError(f"line {line + text.count(chr(10), start, token.start())}: {which}")
        if what == "\n" and depth <= 0:
            if statement := text[start : token.start()].strip():
                yield line, statement
            line += text.count("\n", start, token.end())
            start, depth = token.end(), 0
    if rest := text[start:].strip():
        yield line, rest


def lines_of(text: str) -> dict[Keys, int]:
    """The line of the statement that makes each key first, of a text that is TOML."""
    found: dict[Keys, int] = {}
    table: Keys = ()
    for line, statement in statements(text):
        made = tomllib.loads(statement + "\n")
        if statement.startswith("["):
            table = ()
            while made:
                (key,) = made
                table += (key,)
                inner = made[key]
                made = inner[0] if isinstance(inner, list) else inner
            made = {}
        _note(found, table, made, line)
    return found


def _note(found: dict[Keys, int], keys: Keys, value: Any, line: int) -> None:
    for length in range(len(keys), 0, -1):
        if keys[:length] in found:
            break
        found[keys[:length]] = line
    if isinstance(value, dict):
        for key, inner in value.items():
            _note(found, (*keys, key), inner, line)
