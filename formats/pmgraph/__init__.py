# SPDX-License-Identifier: Apache-2.0
"""Shows a capture (tcpkmon.formats.psc) as text, xgraph files, figures, or in the terminal."""

__all__ = [
    "connections", "figure", "gaps", "options", "pages", "quantities", "terminal", "text",
    "together", "xgraph",
]  # fmt: skip
