# SPDX-License-Identifier: Apache-2.0
"""The records of one drain of one CPU's ring, and the time up to which all rings were read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """Records of one CPU, in the order in which they were reserved.

    entries: (n,) of the capture's dtype, strided; maybe a view of the ring, which is valid until
    the rings are freed. read_before_ns: CLOCK_MONOTONIC before the ring was read; records that are
    not in `entries` are later.
    """

    cpu: int
    entries: NDArray[Any]
    read_before_ns: int


def watermark_ns(batches: Iterable[Batch], slack_ns: int) -> int:
    """The time up to which all rings were read, less the slack; 0 without a batch."""
    return max(0, min((batch.read_before_ns for batch in batches), default=0) - slack_ns)
