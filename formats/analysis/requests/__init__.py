# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of connections: who waited for whom, and for how long.

streams, advances   how far both byte streams have come at each snapshot, and since when
exchanges           cut into requests and answers, piece by piece
table, columns      the table of them
summary, story, picture, waiting, meanwhile   for people
"""

from formats.analysis.requests.columns import EXCHANGES, PARTS, Column
from formats.analysis.requests.exchanges import EXCHANGE, Exchanges, exchanges
from formats.analysis.requests.meanwhile import did_meanwhile
from formats.analysis.requests.picture import draw_requests
from formats.analysis.requests.story import head, story
from formats.analysis.requests.summary import Summary, summarize
from formats.analysis.requests.summary import slowest as slowest_of
from formats.analysis.requests.table import as_arrow, requests
from formats.analysis.requests.waiting import Waited, Waiting

__all__ = [
    "EXCHANGE", "EXCHANGES", "PARTS", "Column", "Exchanges", "Summary", "Waited", "Waiting",
    "as_arrow",
    "did_meanwhile", "draw_requests", "exchanges", "head", "requests", "slowest_of", "story",
    "summarize",
]  # fmt: skip
