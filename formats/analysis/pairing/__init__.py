# SPDX-License-Identifier: Apache-2.0
"""Both ends of connections, captured on two hosts: their clocks, delays, losses and limits."""

from tcpkmon.formats.analysis.pairing.clocks import Clocks, fit
from tcpkmon.formats.analysis.pairing.ends import End
from tcpkmon.formats.analysis.pairing.matching import match
from tcpkmon.formats.analysis.pairing.together import Pairing, pair

__all__ = ["Clocks", "End", "Pairing", "fit", "match", "pair"]
