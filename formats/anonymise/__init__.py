# SPDX-License-Identifier: Apache-2.0
"""Makes of a capture one that names nobody, and that verify proves as before."""

from __future__ import annotations

from tcpkmon.formats.anonymise.rows import ALWAYS_KEPT, DEFAULT, KINDS, choose
from tcpkmon.formats.anonymise.run import anonymise
from tcpkmon.formats.anonymise.who import Who, read_key

__all__ = ["ALWAYS_KEPT", "DEFAULT", "KINDS", "Who", "anonymise", "choose", "read_key"]
