# SPDX-License-Identifier: Apache-2.0
"""The start of a PSC file: header and START entry, and the writer that goes on from there."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np

from collector.sequencer.clock_pairs import ClockPair, Clocks
from collector.sequencer.ordered_batch import stamp_control
from collector.writer.capture_info import CaptureInfo, Columns
from collector.writer.file_sink import FileSink
from collector.writer.ledger import reserve_bytes
from collector.writer.output_file import Output
from collector.writer.psc_writer import Writer
from collector.writer.written import Written
from formats.base.control import Start, encode_many
from formats.psc.columns import MODS_AUTO, MODS_FACK, MODS_RENO, MODS_SACK
from formats.psc.header import encode_header, writer_header

SACK = Path("/proc/sys/net/ipv4/tcp_sack")


def features() -> int:
    """psc_mods of the running system: SACK (then Linux keeps the forward-most one too) or Reno.

    Linux tunes send buffers by itself, so AUTO is always set.
    """
    try:
        sack = SACK.read_text().strip() != "0"
    except OSError:
        sack = True
    return (MODS_SACK | MODS_FACK if sack else MODS_RENO) | MODS_AUTO


def make_header(info: CaptureInfo, columns: Columns, clock: ClockPair) -> bytes:
    """The bytes of the header, for the columns of this capture."""
    return encode_header(
        writer_header(
            columns.columns,
            columns.entry_size,
            mods=features(),
            version=f"tk{info.version}"[:8],
            mclsize=info.page_bytes,
            host=platform.node(),
            kernel=info.kernel,
            clock=(clock.mono_ns, clock.realtime_ns, clock.uncertainty_ns),
            schema=info.schema_text,
            settings=info.settings,
        )
    )


def open_writer(info: CaptureInfo, columns: Columns, output: Output, clocks: Clocks) -> Writer:
    """Puts header and START on the disk, under the file's name.

    Raises FileError when the file does not take them: then there is none.
    """
    pair = clocks.start
    # What sock_diag lists comes from no CPU: it gets the number after the last one.
    cpus = info.cpus + 1
    start = Start(pair.mono_ns, pair.realtime_ns, cpus, info.recorded)
    first = encode_many([start], columns.dtype)
    stamp_control(first, np.array([1], np.int64), pair.mono_ns, clocks.to_epoch)
    output.begin(make_header(info, columns, pair) + first.tobytes())
    reserve = reserve_bytes(cpus, info.programs + 4, columns.entry_size)
    # Whoever redirected standard output may go on writing by the same descriptor.
    direct = not output.is_stdout
    sink = FileSink(output.fd, columns.entry_size, reserve_bytes=reserve, direct=direct)
    written = Written(entries=1, last_seq=1)
    return Writer(sink, columns.dtype, clocks.to_epoch, written)
