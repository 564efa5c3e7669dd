# SPDX-License-Identifier: Apache-2.0
"""Captures around tests: the plugin of pytest, with its fixture, its marker and its baseline."""

__all__ = ["captures", "plugin"]
