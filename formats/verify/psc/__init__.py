# SPDX-License-Identifier: Apache-2.0
"""PSC captures: what verify checks besides the ledger, and the repair."""
