# SPDX-License-Identifier: Apache-2.0
"""Puts ordered records into files and keeps the ledger of what was lost on the way."""

__all__ = ["file_sink", "ledger", "psc_writer", "stream", "target"]
