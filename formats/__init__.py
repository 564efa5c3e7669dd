# SPDX-License-Identifier: Apache-2.0
"""The file side of tcpkmon: codecs, readers and viewers that need no root and no kernel."""

from __future__ import annotations

import os
from typing import Any


def open(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Any:
    """The old name of tcpkmon.open(); it goes with the next release."""
    import warnings

    import tcpkmon

    warnings.warn(
        "formats.open() goes with the next release: use tcpkmon.open()",
        DeprecationWarning,
        stacklevel=2,
    )
    return tcpkmon.open(path, *more)
