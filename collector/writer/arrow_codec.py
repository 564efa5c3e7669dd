# SPDX-License-Identifier: Apache-2.0
"""Arrow streams: the entries of PSC files in columns; formats/base/streamed.py has the layout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.sequencer.ordered_batch import (
    LOCATION_WORD,
    MonoToEpoch,
    Ordered,
    head_words,
)
from tcpkmon.collector.writer.codec import File, Frame
from tcpkmon.collector.writer.psc_codec import PscCodec
from tcpkmon.formats.base.control import is_control

_ALLOCATOR = "JE_ARROW_MALLOC_CONF"


class ArrowCodec(PscCodec):
    """See collector/writer/codec.py."""

    suffix = ".arrow"
    is_noted = True

    def encode(self, dtype: np.dtype[Any], to_epoch: MonoToEpoch) -> None:
        os.environ[_ALLOCATOR] = "background_thread:false"  # one more thread to confine
        from tcpkmon.formats.base import streamed

        super().encode(dtype, to_epoch)
        self.unit, self._streamed = 1, streamed
        self._schema = streamed.make_schema(b"", dtype)
        del os.environ[_ALLOCATOR]
        self.reserve_bytes = 2 * self.reserve_bytes + (64 << 10)

    def records(self, file: File, batches: Sequence[Ordered], first: int) -> Frame:
        super().records(file, batches, first)
        self._numbering = None
        return Frame([self.pack(batch.entries) for batch in batches])

    def pack(self, entries: NDArray[Any], header: bytes = b"") -> bytes:
        first = b""
        if header:
            first = bytes(self._streamed.make_schema(header, self._dtype).serialize())
        controls = is_control(head_words(entries)[:, LOCATION_WORD])
        return first + self._streamed.make_batch(self._schema, entries, controls)
