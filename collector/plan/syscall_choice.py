# SPDX-License-Identifier: Apache-2.0
"""The system calls that the schema syscall records: names become entries of a BPF map."""

from __future__ import annotations

import struct

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.text import suggest

SYSCALL = "syscall"
NUMBERS = 1024
"""SYSCALL_NUMBERS of bpf/schemata/syscall.bpf.c."""
LEFT_OUT = "syscall_left_out"


def parse_syscalls(text: str) -> tuple[int, ...]:
    """The numbers of the calls in a text such as "read,write,452". UsageError."""
    # numpy, which few command lines need
    from tcpkmon.collector.plan.schema_sources import find_sources, load_schema_of

    schema = load_schema_of(find_sources([SYSCALL]))
    (calls,) = (enum for enum in schema.enums if enum.name == SYSCALL)
    numbers = {member.name: member.value for member in calls.members}
    found = []
    for word in map(str.strip, text.split(",")):
        if word.isascii() and word.isdigit() and len(word) < 5 and int(word) < NUMBERS - 1:
            found.append(int(word))
        elif word in numbers:
            found.append(numbers[word])
        else:
            raise UsageError(
                f"--syscalls: no call is named '{word}'{suggest(word, numbers)}",
                "as read,write, or numbers; man 2 syscalls lists them",
            )
    return tuple(dict.fromkeys(found))


def left_out(numbers: tuple[int, ...]) -> list[tuple[bytes, bytes]]:
    """Keys and values of the map LEFT_OUT, for these calls; () for all."""
    one = struct.pack("=I", 1)
    others = set(range(NUMBERS)) - set(numbers) if numbers else ()
    return [(struct.pack("=I", number), one) for number in others]
