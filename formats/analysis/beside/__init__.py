# SPDX-License-Identifier: Apache-2.0
"""Records beside packets: what TCP's state was at each packet that another program captured."""

from tcpkmon.formats.analysis.beside.joining import Join, Joined
from tcpkmon.formats.analysis.beside.states import LOCATIONS, Rows, read, words

__all__ = ["LOCATIONS", "Join", "Joined", "Rows", "read", "words"]
