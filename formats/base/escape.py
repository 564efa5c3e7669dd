# SPDX-License-Identifier: Apache-2.0
"""Text from a file or the kernel, made harmless before a terminal, SVG or HTML sees it."""

from __future__ import annotations

import unicodedata

# Control, format (bidi overrides, zero width), lone surrogate, line and paragraph separators.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _harmless(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8 (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def for_terminal(text: str) -> str:
    """`text` on one line, with every control and bidi character shown as ``\\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _harmless(character) if _is_unsafe(character) else character for character in text
    )


def _is_unsafe(character: str) -> bool:
    # U+FFFE and U+FFFF (and their kin in each plane) are not allowed in XML either.
    return (
        unicodedata.category(character) in _UNSAFE_CATEGORIES or ord(character) & 0xFFFE == 0xFFFE
    )
