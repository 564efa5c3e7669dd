# SPDX-License-Identifier: Apache-2.0
"""The most system memory that a capture saw in use, for -M."""

from __future__ import annotations

from typing import TYPE_CHECKING

from formats.pmgraph.options import M_CLUSED_BYTES
from formats.pmgraph.quantities import cluster_bytes, require

if TYPE_CHECKING:
    from formats.psc.reader import Capture


def find_maximum_bytes(capture: Capture) -> int:
    """Return the maximum of m_clused times the cluster size over all snapshots, in bytes (0: none).

    Raises UsageError when the file has no m_clused, FileError when it has no cluster size.
    """
    require(capture, (M_CLUSED_BYTES,))
    size = cluster_bytes(capture)
    most = 0
    for piece in capture.chunks():
        start, stop, _ = piece.indices(len(capture))
        used = capture.column("m_clused", start, stop)[~capture.control(start, stop)]
        most = max(most, int(used.max(initial=0)))
    return most * size
