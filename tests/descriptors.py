# SPDX-License-Identifier: Apache-2.0
"""Which descriptors this process has open, for tests that nothing is left."""

from __future__ import annotations

import gc
import os


def descriptors() -> set[str]:
    """Their numbers. What earlier tests left to the garbage collector is closed first, so that it
    does not go between two looks."""
    gc.collect()
    return set(os.listdir("/proc/self/fd"))
