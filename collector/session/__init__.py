# SPDX-License-Identifier: Apache-2.0
"""One capture from the request to the summary: sets up, drains, ends the file."""

__all__ = ["command", "overseer", "preload", "session"]
