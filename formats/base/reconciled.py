# SPDX-License-Identifier: Apache-2.0
"""The entry that says how a capture's last records and the kernel's sockets differ.

A collector asks sock_diag for the open connections at its start, after each rotation and at its
end. The first entry of each time is the summary; one follows for each difference that no counted
loss explains.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from tcpkmon.formats.base.control import U32, U64, Call, Control
from tcpkmon.formats.base.tcp import Location

WORDS = "reconciled with the kernel"
"""With these words the line of a summary begins."""
WHEN = ("at the start", "at the end", "after the rotation")


class When(enum.IntEnum):
    """When the kernel was asked."""

    START = 0
    END = 1
    ROTATION = 2


class What(enum.IntEnum):
    """What differs."""

    SUMMARY = 0
    NO_RECORD = 1
    STATE = 2
    BYTES_ACKED = 3
    BYTES_RECEIVED = 4
    RETRANSMITS = 5


@dataclass(frozen=True)
class Reconciled(Control):
    """A difference: by the last record, and by the kernel; connection: its conn_id, 0 unknown.

    Of a SUMMARY: connection has the number of differences, record and kernel that of connections
    compared and listed, ports the number of lost records that may explain differences.
    """

    location: ClassVar[int] = Location.RECONCILED
    event: ClassVar[str] = "RECONCILED"
    when: Call
    what: Call
    connection: U64
    record: U64
    kernel: U64
    ports: U32
    """Local port * 2^16 + remote port."""

    def describe(self) -> str:
        """A line for a person."""
        when = WHEN[self.when] if self.when < len(WHEN) else f"at moment {self.when}"
        if self.what == What.SUMMARY:
            text = f"{WORDS} {when}: {self.record} of {self.kernel} connections"
            text += f" compared, {self.connection} difference(s)"
            return f"{text}; {self.ports} lost records may explain them" if self.ports else text
        ports = f"{self.ports >> 16}-{self.ports & 0xFFFF}"
        who = f"{when}: connection {self.connection} (ports {ports})"
        if self.what == What.NO_RECORD:
            return f"{who} is open and has no record"
        names = {what.value: what.name.lower().replace("_", " ") for what in What}
        name = names.get(self.what, f"value {self.what}")
        return f"{who}: {name} {self.record} by its last record, {self.kernel} by the kernel"


def is_difference(problem: str) -> bool:
    """Whether a problem that verify found is a difference: nothing in the file is damaged."""
    return problem.startswith(tuple(f"{when}: connection " for when in WHEN))
