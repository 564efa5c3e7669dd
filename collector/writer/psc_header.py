# SPDX-License-Identifier: Apache-2.0
"""The start of a PSC file: header and START entry, and the writer that goes on from there."""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.loader.capture_maps import Kernel
from collector.loader.prepare import Prepared
from collector.plan.request import Request
from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.ordered_batch import stamp_control
from collector.writer.file_sink import FileSink
from collector.writer.ledger import reserve_bytes
from collector.writer.output_file import Output
from collector.writer.psc_heading import make_header, package_version
from collector.writer.psc_writer import Writer, Written
from formats.base.control import Start, encode_many


def settings_of(request: Request, prepared: Prepared, kernel: Kernel) -> dict[str, Any]:
    """The capture's settings for the header; what is missing on this kernel is among them."""
    missing = kernel.missing()
    return {
        "tcpkmon": package_version(),
        "command": list(request.arguments),
        "filters": request.filters.describe(),
        "schemata": list(request.schemata),
        "columns": request.columns if prepared.tcp else None,
        "locations": {
            name: prepared.plan.kind_of(name) for name in prepared.enabled if name not in missing
        },
        "missing_locations": missing,
        "absent_columns": list(prepared.layout.absent) if prepared.tcp else [],
        "when_changed": list(request.when_changed),
        "buffer_bytes": request.buffer_bytes,
        "low_water_percent": request.low_water_percent,
        "hz": prepared.tcp.facts.hz if prepared.tcp else None,
    }


def open_writer(
    request: Request, prepared: Prepared, kernel: Kernel, output: Output, clocks: Clocks
) -> Writer:
    """Puts header and START on the disk, under the file's name.

    The programs are attached by then: the header tells which the kernel refused.
    Raises FileError when the file does not take them: then there is none.
    """
    layout = prepared.layout
    pair = clocks.start
    settings = settings_of(request, prepared, kernel)
    header = make_header(prepared, pair, settings)
    # What sock_diag lists comes from no CPU: it gets the number after the last one.
    cpus = len(kernel.heads()) + 1
    start = Start(pair.mono_ns, pair.realtime_ns, cpus, len(settings["locations"]))
    first = encode_many([start], layout.dtype)
    stamp_control(first, np.array([1], np.int64), pair.mono_ns, clocks.to_epoch)
    output.begin(header + first.tobytes())
    reserve = reserve_bytes(cpus, len(prepared.plan.probes) + 4, layout.entry_size)
    # Whoever redirected standard output may go on writing by the same descriptor.
    direct = not output.is_stdout
    sink = FileSink(output.fd, layout.entry_size, reserve_bytes=reserve, direct=direct)
    written = Written(entries=1, last_seq=1)
    return Writer(sink, layout.dtype, clocks.to_epoch, written)
