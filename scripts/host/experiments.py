# SPDX-License-Identifier: Apache-2.0
"""All experiments by name: a module each."""

from __future__ import annotations

from scripts.experiments.paper import listed
from scripts.host import (
    buffers,
    calls,
    disks,
    everything,
    files,
    groups,
    oracles,
    overhead,
    response,
    samples,
    scheduling,
    session,
)

EXPERIMENTS = listed(
    overhead,
    session,
    oracles,
    response,
    buffers,
    calls,
    disks,
    files,
    scheduling,
    samples,
    groups,
    everything,
)
