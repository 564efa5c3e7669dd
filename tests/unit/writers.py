# SPDX-License-Identifier: Apache-2.0
"""A writer of PSC entries into a sink, without a stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tcpkmon.collector.sequencer.sequencer import Sequencer
from tcpkmon.collector.writer.codec import ALL, File
from tcpkmon.collector.writer.file_sink import FileSink
from tcpkmon.collector.writer.psc_codec import PscCodec
from tcpkmon.collector.writer.writer import Writer
from tcpkmon.collector.writer.written import Written


def psc_writer(
    sink: FileSink,
    dtype: np.dtype[Any],
    offset_ns: Callable[[], int],
    written: Written,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> Writer:
    codec = PscCodec()
    codec.unit, codec._dtype, codec._offset_ns = dtype.itemsize, dtype, offset_ns
    codec._given_bytes, codec.order = None, Sequencer(dtype, offset_ns)
    writer = Writer(codec, written, now_ns=now_ns)
    writer.files[ALL] = File(ALL, sink)
    return writer
