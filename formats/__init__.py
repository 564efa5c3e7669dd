# SPDX-License-Identifier: Apache-2.0
"""The file side of tcpkmon: codecs, readers and viewers that need no root and no kernel.

``formats.open(path)`` reads a capture; everything else is imported by its own name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formats.psc import Capture


def open(path: str | os.PathLike[str]) -> Capture:
    """Open the PSC capture at `path`; raises FileError or DamagedError."""
    from formats.psc import open_capture

    return open_capture(path)
