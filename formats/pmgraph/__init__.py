# SPDX-License-Identifier: Apache-2.0
"""pmgraph's parts: from a capture (formats.psc) to text, xgraph files, figures and terminal."""

__all__ = [
    "connections",
    "figure",
    "gaps",
    "memory",
    "options",
    "pages",
    "terminal",
    "text",
    "xgraph",
]
