# SPDX-License-Identifier: Apache-2.0
"""All experiments by name: a module each."""

from __future__ import annotations

from scripts.experiments.paper import listed
from scripts.magnet import cascade, layers, loss, modulation, overhead, packets, state, stream

EXPERIMENTS = listed(overhead, loss, packets, stream, modulation, cascade, state, layers)
