# SPDX-License-Identifier: Apache-2.0
"""Klogger logs: what verify checks besides the ledger, and the repair."""
