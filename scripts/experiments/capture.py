# SPDX-License-Identifier: Apache-2.0
"""A capture inside this process, without files: for the sections that look into the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.ring.rings import Rings, pages_of


@contextlib.contextmanager
def capturing(
    prepared: Prepared, filters: Filters, ring_bytes: int = 64 << 20
) -> Iterator[tuple[Kernel, Rings]]:
    """The programs, attached and switched on, and their rings; nobody empties these by itself."""
    with (
        Kernel(prepared, filters) as kernel,
        Rings(kernel.loaded.maps, prepared.dtype, pages_of(ring_bytes), ring_bytes // 2) as rings,
    ):
        kernel.load()
        kernel.loaded.attach()
        kernel.switch(prepared.numbers, True)
        yield kernel, rings


def discard(rings: Rings) -> None:
    """Empties the rings."""
    rings.drain()
    rings.free()
