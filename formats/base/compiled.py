# SPDX-License-Identifier: Apache-2.0
"""Finds what setup.py compiles from C."""

from __future__ import annotations

import ctypes
import importlib.machinery
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TYPES = {"p": ctypes.c_void_p, "4": ctypes.c_uint32, "8": ctypes.c_uint64}


def find_compiled(
    place: Path,
    version: int,
    signatures: Mapping[str, tuple[Any, str]],
    kind: type[ctypes.CDLL] = ctypes.CDLL,
) -> ctypes.CDLL | None:
    """The library at `place`, without Python's suffix; None if there is none of this version.

    signatures: by function, the type of its result, and a letter for each argument: a pointer (p),
    an unsigned number of 4 or 8 bytes. The first function returns the version. kind:
    CDLL, or PyDLL for calls so short that giving Python's lock away would cost more.
    """
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = place.with_name(place.name + suffix)
        if path.exists():
            try:
                library = kind(str(path))
                for name, (result, arguments) in signatures.items():
                    function = getattr(library, name)
                    function.restype = result
                    function.argtypes = [_TYPES[letter] for letter in arguments]
                if getattr(library, next(iter(signatures)))() == version:
                    return library
            except (OSError, AttributeError):
                continue
    return None
