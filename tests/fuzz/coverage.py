# SPDX-License-Identifier: Apache-2.0
"""Coverage by atheris, where there is a wheel of it for this Python."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

# A sanitizer's library has the symbols of coverage too, so that atheris would see none.
SANITIZED = bool(os.environ.get("TCPKMON_FUZZ_SANITIZED"))
try:
    import atheris
except ImportError:
    atheris = None


@contextlib.contextmanager
def instrumented() -> Iterator[None]:
    """What is imported inside reports what it covers."""
    if atheris is None or SANITIZED:
        yield
        return
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(contextlib.redirect_stderr(silent))  # it names each module
        stack.enter_context(atheris.instrument_imports(include=["tcpkmon"]))
        yield
