# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of connections: who waited for whom, and for how long.

streams, advances   how far both byte streams have come at each snapshot, and since when
overlap             what both ends say: several requests at once, and each exchange once
cutting             cuts them into requests and answers
table, columns      the table of them
summary, story, picture, waiting, meanwhile   for people
"""

from tcpkmon.formats.analysis.exchanges.columns import EXCHANGES, PARTS
from tcpkmon.formats.analysis.exchanges.cutting import EXCHANGE, NULL, choose, cut, servers_of
from tcpkmon.formats.analysis.exchanges.meanwhile import asked_meanwhile, did_meanwhile
from tcpkmon.formats.analysis.exchanges.overlap import each_once, served
from tcpkmon.formats.analysis.exchanges.picture import draw_requests
from tcpkmon.formats.analysis.exchanges.story import head, story
from tcpkmon.formats.analysis.exchanges.streams import NEEDED, OPTIONAL, calls_of
from tcpkmon.formats.analysis.exchanges.summary import as_known, summarize
from tcpkmon.formats.analysis.exchanges.summary import slowest as slowest_of
from tcpkmon.formats.analysis.exchanges.table import as_arrow, exchanges, missing
from tcpkmon.formats.analysis.exchanges.waiting import Waited, waited

__all__ = [
    "EXCHANGE", "EXCHANGES", "NEEDED", "NULL", "OPTIONAL", "PARTS", "Waited", "as_arrow",
    "as_known", "asked_meanwhile", "calls_of", "choose", "cut", "did_meanwhile", "draw_requests",
    "each_once", "exchanges", "head", "missing", "served", "servers_of", "slowest_of", "story",
    "summarize", "waited",
]  # fmt: skip
