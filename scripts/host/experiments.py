# SPDX-License-Identifier: Apache-2.0
"""All experiments by name: a module each."""

from __future__ import annotations

from scripts.experiments.paper import listed
from scripts.host import (
    everything,
    groups,
    overhead,
    session,
)

EXPERIMENTS = listed(
    overhead,
    session,
    groups,
    everything,
)
