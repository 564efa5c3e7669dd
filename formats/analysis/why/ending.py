# SPDX-License-Identifier: Apache-2.0
"""How a connection ended, and what may be missing of its beginning and its end."""

from __future__ import annotations

from formats.analysis.why.connections import Connection


def outside(one: Connection) -> list[str]:
    """Sentences: what is missing before the first record and behind the last one may be of it."""
    places = ((one.lost_before, "before its first one", "begun earlier"),
              (one.lost_after, "behind its last one", "gone on"))  # fmt: skip
    return [
        f"{lost} records of the capture are missing {where}, which may be of it: it may have {then}"
        for lost, where, then in places if lost
    ]  # fmt: skip
