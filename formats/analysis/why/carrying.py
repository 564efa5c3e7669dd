# SPDX-License-Identifier: Apache-2.0
"""What the snapshot before each one had, of connections whose snapshots come piece by piece."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.why.grouping import Grouped, Kept


def before(
    piece: Grouped, now: Mapping[str, Array], kept: Kept
) -> tuple[dict[str, Array], Array]:
    """The values (n,) of the snapshot before each one, and the rows without one, which have their
    own."""
    known = kept.of("known", np.bool_)
    new = piece.firsts[~known[piece.places]]
    known[piece.places] = True
    found = {}
    for name, values in now.items():
        found[name] = piece.before(values, kept.of(name, values.dtype))
        found[name][new] = values[new]
    return found, new
