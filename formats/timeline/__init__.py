# SPDX-License-Identifier: Apache-2.0
"""A capture as one timeline of tracks, and files of it for viewers of traces."""

from tcpkmon.formats.timeline.tcp import INSTANTS
from tcpkmon.formats.timeline.writing import write_chrome, write_perfetto

__all__ = ["INSTANTS", "write_chrome", "write_perfetto"]
