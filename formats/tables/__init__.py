# SPDX-License-Identifier: Apache-2.0
"""The tables of a capture as Arrow, for other people's tools: Python, notebooks, SQL.

column, shipped   what each column is: type, unit, meaning
records, proof    what is read, piece by piece
views             which tables a capture has
query, answer     SQL over them, by DuckDB, and what it says as text or a file
notebook          an open capture as HTML
"""

from tcpkmon.formats.tables.column import SHIPPED, Column, schema_of, snapshot_columns
from tcpkmon.formats.tables.notebook import as_html
from tcpkmon.formats.tables.query import Query, write_answer
from tcpkmon.formats.tables.views import Opened, View, table_of, views_of

__all__ = [
    "SHIPPED", "Column", "Opened", "Query", "View", "as_html", "schema_of", "snapshot_columns",
    "table_of", "views_of", "write_answer",
]  # fmt: skip
