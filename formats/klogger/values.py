# SPDX-License-Identifier: Apache-2.0
"""Values of a Klogger log's fields: as numbers of this machine, and as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.base.text import address_of, text_of
from formats.klogger.table import LogField, LogFormat


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
