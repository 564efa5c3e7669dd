# SPDX-License-Identifier: Apache-2.0
"""What a capture's process imports and opens before it gives up its rights.

Afterwards it may not be able to read its own code: a home may be closed to others. What is missing
here fails tests/live/test_closed_folder_live.py, which hears each import that comes later.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.metrics.watching import CALLS
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.ring import words
from tcpkmon.formats.base.installing import own_version


def _modules(request: Request, prepared: Prepared) -> Iterator[str]:
    yield "numpy.ma"  # for np.unique(), which imports it itself
    if request.has_tcp:
        yield "numpy.lib.recfunctions"
    if {*CALLS} & {*prepared.enabled}:
        yield "tcpkmon.collector.metrics.request_meter"


def preload(request: Request, prepared: Prepared) -> None:
    """Import and open what this capture needs later."""
    for name in _modules(request, prepared):
        import_module(name)
    words.find_library()
    own_version()
