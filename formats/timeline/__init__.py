# SPDX-License-Identifier: Apache-2.0
"""A capture as one timeline of tracks, and files of it for viewers of traces."""

from tcpkmon.formats.timeline.host import PAGES, RUNS
from tcpkmon.formats.timeline.model import BEGIN, END, Track
from tcpkmon.formats.timeline.tcp import INSTANTS, LOST
from tcpkmon.formats.timeline.writing import read_host, write_perfetto

__all__ = [
    "BEGIN", "END", "INSTANTS", "LOST", "PAGES", "RUNS", "Track", "read_host", "write_perfetto",
]  # fmt: skip
