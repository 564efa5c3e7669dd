# SPDX-License-Identifier: Apache-2.0
"""Whether scripts/test --full runs: then tests try all of what they else try a part of."""

from __future__ import annotations

import os

IS_FULL = os.environ.get("TCPKMON_FULL") == "1"
