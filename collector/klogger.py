# SPDX-License-Identifier: Apache-2.0
"""The old name of tcpkmon.collector.capturing; it goes with the next release."""

import warnings

from tcpkmon.collector.capturing import (
    Capture,
    Control,
    Ended,
    attach,
    launch,
    run_workload,
    start,
)

__all__ = ["Capture", "Control", "Ended", "attach", "launch", "run_workload", "start"]

warnings.warn(
    "tcpkmon.collector.klogger goes with the next release: use tcpkmon.collect()",
    DeprecationWarning,
    stacklevel=2,
)
