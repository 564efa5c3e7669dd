# SPDX-License-Identifier: Apache-2.0
"""Values of a Klogger log's fields: as text, and as Arrow arrays for Parquet."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.base.errors import UsageError
from formats.klogger.table import LogField, LogFormat


def import_pyarrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.compute; UsageError where they are not installed."""
    try:
        import pyarrow
        from pyarrow import compute
    except ImportError as error:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed", "pip install 'tcpkmon[export]'"
        ) from error
    return pyarrow, compute


def text_of(data: bytes) -> str:
    """The text of a stringN: up to the first NUL, bytes that are no UTF-8 as \\xff."""
    return data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def address_of(data: bytes) -> str:
    """An address in network order; IPv4 may be v4-mapped."""
    if len(data) == 4:
        return str(ipaddress.IPv4Address(data))
    address = ipaddress.IPv6Address(data)
    return str(address.ipv4_mapped or address)


def native(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers in the machine's order, contiguous."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))


def describe_value(log: LogFormat, field: LogField) -> Callable[[Any], str] | None:
    """What writes a value of this field as text; None for plain numbers.

    It takes an int for enums, bytes for everything else.
    """
    if field.kind == "enum":
        names = log.enums.get(field.type, {})
        return lambda value: names.get(value, str(value))
    return {"int": None, "string": text_of, "bytes": bytes.hex, "address": address_of}[field.kind]


def dictionary(field: LogField, values: NDArray[Any]) -> Any:
    """The values as an Arrow dictionary array, of ints for an enum and of fixed bytes else."""
    pyarrow, _ = import_pyarrow()
    if field.kind == "enum":
        return pyarrow.array(native(values)).dictionary_encode()
    data = pyarrow.py_buffer(np.ascontiguousarray(values).view(np.uint8))
    kind = pyarrow.binary(field.length)
    whole = pyarrow.FixedSizeBinaryArray.from_buffers(kind, len(values), [None, data])
    return whole.dictionary_encode()


def mapped(encoded: Any, text: Callable[[Any], str], type_: Any) -> Any:
    """An array of type_ (a text type) with text(value) for each value of a dictionary array."""
    pyarrow, _ = import_pyarrow()
    texts = pyarrow.array([text(value) for value in encoded.dictionary.to_pylist()], type_)
    return texts.take(encoded.indices)
