# SPDX-License-Identifier: Apache-2.0
"""What every room of formats shares: errors, escapes, times, control entries, how commands run."""

__all__ = ["cli", "closing", "control", "errors", "escape", "times"]
