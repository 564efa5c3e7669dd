# SPDX-License-Identifier: Apache-2.0
"""Proves from Klogger logs alone what is in them and what is missing; repairs a log that is cut."""

from __future__ import annotations

from formats.verifylog.check import verify_log
from formats.verifylog.repair import repair_log
from formats.verifylog.structure import is_log
from formats.verifylog.whole import verify_folder

__all__ = ["is_log", "repair_log", "verify_folder", "verify_log"]
