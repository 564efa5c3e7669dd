# SPDX-License-Identifier: Apache-2.0
"""Hypothesis as the tests use it: no deadlines, since the machines are slow and shared.

In CI the examples are always the same, so that a run says something about the change it tests.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.register_profile("ci", settings.get_profile("shared-machine"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "shared-machine")
