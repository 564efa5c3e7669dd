# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the comments of a schema as documentation: text, ``[unit]`` and ``@tags``.

The last bracket that begins a word is the unit (``[]``: none). A word ``@tag`` is a tag; ``@@``
at the beginning of a word means one @ in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_BRACKET = re.compile(r"(?<!\S)\[[^\[\]\n]*\]")
_TAG = re.compile(r"@([A-Za-z_][A-Za-z0-9_-]*)[.,;]?")
_AT = re.compile(r"(?<!\S)@")


def comment_lines(comment: str) -> list[str]:
    """The text lines of one comment of a schema, without the comment marks."""
    if comment.startswith("/*"):
        inner = comment[2:].removesuffix("*/")
        return [re.sub(r"^\s*\*(?=\s|$)", "", line) for line in inner.split("\n")]
    return [comment[2:] if comment.startswith("//") else comment[1:]]


def plain_doc(lines: Iterable[str]) -> str:
    """Lines as documentation: single spaces, no empty first or last line."""
    return "\n".join(" ".join(line.split()) for line in lines).strip("\n")


def split_doc(lines: Iterable[str], has_unit: bool) -> tuple[str, str, frozenset[str]]:
    """Lines of text as (documentation, unit, tags)."""
    text = plain_doc(lines)
    unit = ""
    if has_unit and (brackets := list(_BRACKET.finditer(text))):
        last = brackets[-1]
        unit = " ".join(last[0][1:-1].split())
        text = text[: last.start()].rstrip(" ") + text[last.end() :]
    tags = frozenset(tag[1] for word in text.split() if (tag := _TAG.fullmatch(word)))
    kept = []
    for line in text.split("\n"):
        words = [word for word in line.split() if not _TAG.fullmatch(word)]
        kept.append(" ".join(word[1:] if word.startswith("@@") else word for word in words))
    return plain_doc(kept), unit, tags


def join_doc(doc: str, unit: str | None, tags: frozenset[str]) -> list[str]:
    """The comment lines (without marks) that `split_doc` reads back; `unit` None: without units."""
    text = _AT.sub("@@", plain_doc(doc.split("\n")))
    extras: list[str] = []
    if unit or (unit is not None and _BRACKET.search(text)):
        extras.append(f"[{unit}]")
    extras += [f"@{tag}" for tag in sorted(tags)]
    lines: Sequence[str] = text.split("\n")
    return [*lines[:-1], " ".join(filter(None, [lines[-1], *extras]))] if text or extras else []
