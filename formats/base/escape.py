# SPDX-License-Identifier: Apache-2.0
"""Escapes text from a file or the kernel before it goes to a terminal, SVG or HTML."""

from __future__ import annotations

import unicodedata

# Control, format (bidi overrides, zero width), lone surrogate, line and paragraph separators.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8 (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def for_terminal(text: str) -> str:
    """`text` on one line, with control and bidi characters escaped, as in ``\\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(character) if _is_unsafe(character) else character for character in text)


def _is_unsafe(character: str) -> bool:
    # XML does not allow U+FFFE and U+FFFF, nor their counterparts in each plane.
    return (
        unicodedata.category(character) in _UNSAFE_CATEGORIES or ord(character) & 0xFFFE == 0xFFFE
    )
