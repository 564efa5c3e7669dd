# SPDX-License-Identifier: Apache-2.0
"""Shows a capture (tcpkmon.formats.psc) as text, xgraph files, figures, or in the terminal."""

__all__ = [
    "connections", "figure", "gaps", "options", "pages", "quantities", "sequence_pages",
    "sequence_reading", "terminal", "text", "together", "xgraph", "xplot",
]  # fmt: skip
