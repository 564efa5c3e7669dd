# SPDX-License-Identifier: Apache-2.0
"""The tables of many captures in one folder or bucket, and questions to all of them.

store     where a dataset is: a folder, or an S3-like store
adding    tables of a capture, put there once and whole
keeping   fewer files, what is missing, what is too old
engines   DuckDB here, Spark there; which files of a dataset they get
queries   questions, expressed once for all engines
asked_sql questions in SQL, to its tables as they are
"""

from tcpkmon.formats.dataset.adding import TABLES, USUAL, Added, add, check, compact, drop
from tcpkmon.formats.dataset.engines import DatasetQuery, Files, open_query, opened
from tcpkmon.formats.dataset.queries import QUERIES, ask
from tcpkmon.formats.dataset.store import Store, StoreError

__all__ = ["QUERIES", "TABLES", "USUAL", "Added", "DatasetQuery", "Files", "Store", "StoreError",
           "add", "ask", "check", "compact", "drop", "open_query", "opened"]  # fmt: skip
