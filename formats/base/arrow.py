# SPDX-License-Identifier: Apache-2.0
"""Numpy columns of numbers and bytes as Arrow arrays, where pyarrow is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.installing import needed


def import_pyarrow(wanted_by: str = "") -> Any:
    """The module pyarrow; UsageError if it is not installed."""
    with needed(f"{wanted_by} needs pyarrow, which" if wanted_by else "pyarrow", "pyarrow"):
        import pyarrow
        import pyarrow.compute
    return pyarrow


def encode(values: npt.NDArray[Any]) -> Any:
    """Integers, or raw bytes of one width, as a dictionary array."""
    pyarrow = import_pyarrow()
    values = np.ascontiguousarray(values)
    starts = _find_runs(values)
    if starts is None:
        return fixed(values).dictionary_encode()
    encoded = fixed(values[starts]).dictionary_encode()
    indices = np.repeat(encoded.indices.to_numpy(), np.diff(starts, append=len(values)))
    return pyarrow.DictionaryArray.from_arrays(indices, encoded.dictionary, safe=False)


def with_texts(encoded: Any, text: Callable[[Any], str | None]) -> Any:
    """A dictionary array with text(value) in place of each value, and null for None."""
    pyarrow = import_pyarrow()
    texts = [text(value) for value in encoded.dictionary.to_pylist()]
    indices = encoded.indices
    if None in texts:  # Parquet has no nulls in dictionaries
        is_void = np.array([one is None for one in texts])
        places = indices.to_numpy(zero_copy_only=False)
        kept = np.cumsum(~is_void) - 1
        indices = pyarrow.array(kept[places].astype(places.dtype), mask=is_void[places])
        texts = [one for one in texts if one is not None]
    return pyarrow.DictionaryArray.from_arrays(
        indices, pyarrow.array(texts, pyarrow.string()), safe=False
    )


def plain(encoded: Any) -> Any:
    """The values of a dictionary array as an array without a dictionary."""
    return encoded.dictionary.take(encoded.indices)


def fixed(values: npt.NDArray[Any], none: int | None = None) -> Any:
    """Contiguous integers, or raw bytes as fixed-size binary, without a dictionary.

    none: the integer that means null.
    """
    pyarrow = import_pyarrow()
    if values.dtype.kind in "iu":
        return pyarrow.array(values, mask=None if none is None else values == none)
    data = pyarrow.py_buffer(values.view(np.uint8))
    kind = pyarrow.binary(values.dtype.itemsize)
    return pyarrow.FixedSizeBinaryArray.from_buffers(kind, len(values), [None, data])


def _find_runs(values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """The indices where a value differs from the one before.

    None if more than a quarter of the values differ, or if they are slow to compare.
    """
    words = values[:, np.newaxis]
    if values.dtype.kind not in "iu":
        count, rest = divmod(values.dtype.itemsize, 8)
        if rest:
            return None
        words = values.view(np.uint64).reshape(len(values), count)
    differs = np.zeros(len(values), np.bool_)
    differs[:1] = True
    for place in range(words.shape[1]):
        differs[1:] |= words[1:, place] != words[:-1, place]
    return np.flatnonzero(differs) if 4 * np.count_nonzero(differs) < len(differs) else None
