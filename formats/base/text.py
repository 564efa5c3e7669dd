# SPDX-License-Identifier: Apache-2.0
"""Bytes from a file or the kernel as text, the same in all commands (not escaped yet)."""

from __future__ import annotations

import difflib
import ipaddress
import itertools
import re
from collections.abc import Iterable, Sequence

from tcpkmon.formats.base.limits import MOST_CANDIDATES, MOST_SIMILAR_CHARACTERS

_MORE_THAN_A_WORD = re.compile(r"[\s=\"\\]")


def text_of(data: bytes) -> str:
    """The text of a string field: up to the first NUL, bytes that are not UTF-8 as \\xff."""
    return data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def address_of(data: bytes) -> str:
    """The text of an address of 4 or 16 bytes in network order; v4-mapped is IPv4."""
    if len(data) == 4:
        return str(ipaddress.IPv4Address(data))
    address = ipaddress.IPv6Address(data)
    return str(address.ipv4_mapped or address)


def endpoint(address: str, port: int) -> str:
    """10.0.0.1:80, [::1]:80."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def human_bytes(count: float) -> str:
    """Bytes with a binary prefix: 3.4 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """1 record; 2,000 records."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def were_lost(count: int) -> str:
    """1 record was lost; 2,000 records were lost."""
    return f"{counted(count, 'record')} {'was' if count == 1 else 'were'} lost"


def some_of(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are."""
    shown, more = ", ".join(names[:most]), len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown


def nearest(name: str, names: Iterable[str]) -> str:
    """The most similar of `names`, or an empty string if none is similar."""
    if len(name) > MOST_SIMILAR_CHARACTERS:
        return ""
    candidates = itertools.islice(names, MOST_CANDIDATES)
    short = [one for one in candidates if len(one) <= MOST_SIMILAR_CHARACTERS]
    near = difflib.get_close_matches(name, short, n=1)
    return near[0] if near else ""


def suggest(name: str, names: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` with the nearest of `names`, or an empty string."""
    near = nearest(name, names)
    return f" (did you mean '{near}'?)" if near else ""


def quote_word(text: str) -> str:
    """Text as a value in a line of NAME=VALUE words: in quotes where it could be taken for more."""
    if not _MORE_THAN_A_WORD.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def quote_csv(text: str) -> str:
    """Text as a value in a line of CSV; control characters are escaped already."""
    return '"' + text.replace('"', '""') + '"' if '"' in text or "," in text else text


_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?", re.ASCII)


def quote_spreadsheet(text: str) -> str:
    """As quote_csv(), but with ' before a text that spreadsheet programs take for a formula.

    Those begin with = + - @, their wide forms, or white space that may be skipped. A number stays a
    number.
    """
    is_formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return quote_csv(f"'{text}" if is_formula else text)
