# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of connections: who waited for whom, and for how long."""

from formats.analysis.requests.columns import EXCHANGES, PARTS, Column
from formats.analysis.requests.exchanges import EXCHANGE, Exchanges, exchanges
from formats.analysis.requests.table import as_arrow, requests

__all__ = ["EXCHANGE", "EXCHANGES", "PARTS", "Column", "Exchanges", "as_arrow", "exchanges",
           "requests"]  # fmt: skip
