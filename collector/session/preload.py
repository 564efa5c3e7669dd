# SPDX-License-Identifier: Apache-2.0
"""What the processes of a capture import and open before they give up their rights.

Afterwards they may not be able to read their own code: a home may be closed to others. What is
missing here fails tests/live/test_closed_folder_live.py, which hears each import that comes later,
and sees what could come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ctypes import CDLL
from importlib import import_module

from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.metrics.watching import CALLS
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.ring import library
from tcpkmon.formats.base.installing import own_version

_UNIQUE = "numpy.ma"
"""np.unique() imports it itself."""
SCREEN = ("rich.console", "rich.live", "tcpkmon.collector.control.choosing")
"""For collect --top: the process that draws."""
CONVERTER = (_UNIQUE, "tcpkmon.formats.registry", "tcpkmon.formats.export.magnet")
"""For collect --format magnet: the process that makes the file."""


def _modules(request: Request, prepared: Prepared) -> Iterator[str]:
    yield _UNIQUE
    if request.has_tcp:
        yield "numpy.lib.recfunctions"
    if {*CALLS} & {*prepared.enabled}:
        yield "tcpkmon.collector.metrics.request_meter"


def preload(request: Request, prepared: Prepared) -> None:
    """Import and open what this capture needs later."""
    import_all(_modules(request, prepared))
    library.find_library()
    library.find_library(CDLL)
    own_version()


def import_all(names: Iterable[str]) -> None:
    for name in names:
        import_module(name)
