# SPDX-License-Identifier: Apache-2.0
"""A capture as a pyarrow table, for those who analyse it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from formats.base.errors import UsageError

if TYPE_CHECKING:
    from formats.psc.reader import Capture

TABLE_ROWS = 1 << 18


def build_table(capture: Capture, names: Sequence[str]) -> Any:
    """The columns as a pyarrow.Table, held in memory: the time as timestamp[ns, UTC], text as a
    dictionary of strings (bad UTF-8 escaped), other raw bytes as fixed-size binary.

    Raises UsageError for a column that is absent or where pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError("pyarrow is not installed", "pip install 'tcpkmon[export]'") from error
    batches = []
    for piece in capture.chunks(TABLE_ROWS):
        found = capture.columns(names, piece.start, piece.stop)
        batches.append([_array(pyarrow, capture, name, found[name]) for name in names])
    if not batches:
        found = capture.columns(names)
        batches.append([_array(pyarrow, capture, name, found[name]) for name in names])
    columns = [pyarrow.chunked_array(list(parts)) for parts in zip(*batches, strict=True)]
    return pyarrow.Table.from_arrays(columns, names=list(names)).unify_dictionaries()


def _array(pyarrow: Any, capture: Capture, name: str, values: npt.NDArray[Any]) -> Any:
    if capture.columns_by_name[name].is_time:
        return pyarrow.array(values, pyarrow.timestamp("ns", "UTC"))
    if values.dtype.kind in "iu":
        return pyarrow.array(values)
    if capture.is_text(name):
        texts, index = np.unique(values, return_inverse=True)
        listed = [text.decode("utf-8", "backslashreplace") for text in texts.tolist()]
        return pyarrow.DictionaryArray.from_arrays(
            pyarrow.array(index.astype(np.int32)), pyarrow.array(listed, pyarrow.string())
        )
    buffers = [None, pyarrow.py_buffer(values.tobytes())]
    kind = pyarrow.binary(values.dtype.itemsize)
    return pyarrow.FixedSizeBinaryArray.from_buffers(kind, len(values), buffers)
