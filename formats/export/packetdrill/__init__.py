# SPDX-License-Identifier: Apache-2.0
"""A recorded connection as a script of packetdrill: what arrived, what the kernel did."""

from tcpkmon.formats.export.packetdrill.script import Options, make_script
from tcpkmon.formats.export.packetdrill.walking import Recorded, find_event, read_connection

__all__ = ["Options", "Recorded", "find_event", "make_script", "read_connection"]
